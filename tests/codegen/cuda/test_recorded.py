"""Fills in recorded steps become kernels (recorded.cu), which write what the fills would have."""

import ctypes

import numpy as np
import pytest

from tests.codegen.cuda.mocks import Array, compile_mock
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.runtime.build import Library

pytestmark = needs_toolkit

RNG = np.random.default_rng()
ROOM = 4096
KERNEL = [0] * 6
Fill = list[int]
"""Offset, value, element's size, width, height, pitch: as cudaMemsetParams has them. No width: some kernel."""


@pytest.fixture(scope="module")
def library() -> Library:
    return compile_mock("recorded.cpp", "recorded.cu")


def filled(memory: Array, fills: list[Fill]) -> Array:
    memory = memory.copy()
    for offset, value, size, width, height, pitch in fills:
        row = np.full(width, value, f"<u{size}").view(np.uint8)
        for start in (offset + i * pitch for i in range(height)):
            memory[start : start + len(row)] = row
    return memory


def random_fill() -> Fill:
    size, grain = int(RNG.choice((1, 2, 4))), int(RNG.choice((1, 4, 16)))
    grain = max(size, grain)
    width, height = int(RNG.integers(1, 20)) * grain // size, int(RNG.choice((1, 1, 3)))
    pitch = width * size + int(RNG.integers(0, 4)) * grain if height > 1 else int(RNG.integers(0, 9))
    offset = int(RNG.integers(0, (ROOM - max(pitch * height, width * size)) // grain)) * grain
    return [offset, int(RNG.integers(1, 2 ** (8 * size))), size, width, height, pitch]


def replayed(library: Library, nodes: list[Fill], edges: list[tuple[int, int]], memory: Array) -> int:
    """Edges that the graph has afterwards; -1: something is wrong with it."""
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    library("record", np.array(nodes, np.int64), len(nodes), pairs, len(pairs), memory)
    left = library("replay", result=ctypes.c_int64)
    assert isinstance(left, int)
    return left


def aligned(size: int) -> Array:
    room = np.zeros(size + 64, np.uint8)
    return room[-room.ctypes.data % 64 :][:size]


@pytest.mark.parametrize("lanes", [1, 3])
def test_random_steps(library: Library, lanes: int) -> None:
    """In one line; and with nodes that wait for others beside that."""
    for _ in range(200):
        count = int(RNG.integers(1, 9))
        nodes = [random_fill() if RNG.integers(2) else KERNEL for _ in range(count)]
        line = [(i - 1, i) for i in range(1, count)]
        more = [(i, j) for j in range(count) for i in range(j - 1) if lanes > 1 and RNG.integers(3) == 0]
        memory = aligned(ROOM)
        memory[:] = RNG.integers(0, 256, ROOM)
        want = filled(memory, [n for n in nodes if n != KERNEL])
        assert replayed(library, nodes, line + more, memory) == len(line + more), nodes
        assert np.array_equal(memory, want), nodes


def test_more_than_all_blocks_take_at_once(library: Library) -> None:
    size = 16 * 256 * 1056 + 4096
    memory = aligned(size)
    assert replayed(library, [KERNEL, [0, 7, 1, size, 1, 0]], [(0, 1)], memory) == 1
    assert (memory == 7).all()
