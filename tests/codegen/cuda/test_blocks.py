"""Blocks of threads without a GPU: right kernels compute what they should; those whose threads do not wait for each
other, or wait for nobody, are found out."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.build import RUNTIME, Library, compile_library

RNG = np.random.default_rng()


@pytest.fixture(scope="module")
def kernels() -> Library:
    folder = RUNTIME / "cuda"
    flags = ("-DSTEPPLAN_NULL_DEVICE", f"-I{folder}", f"-I{RUNTIME}", "-O1")
    return compile_library(Path(__file__).parent / "blocks.cpp", flags, [folder / "block_null.cpp"])


def run(kernels: Library, name: str, *arguments: object) -> str:
    told = kernels(name, *arguments, result=ctypes.c_char_p)
    assert isinstance(told, bytes)
    return told.decode()


def test_threads_meet(kernels: Library) -> None:
    for threads in (1, 7, 32, 100, 1024):
        x = RNG.standard_normal((5, threads))
        y = np.full_like(x, np.nan)
        assert run(kernels, "reversed", 5, threads, x, y, True) == ""
        assert np.array_equal(y, x[:, ::-1])


def test_a_missing_barrier_shows(kernels: Library) -> None:
    x = RNG.standard_normal((8, 256))
    y = np.empty_like(x)
    run(kernels, "reversed", 8, 256, x, y, False)
    assert not np.array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("after", [True, False])
def test_memory_is_shared_until_all_have_read(kernels: Library, after: bool) -> None:
    threads, rounds = 64, 20
    x = RNG.integers(0, 1000, threads).astype(np.float64)
    y = np.empty((4, threads))
    assert run(kernels, "rotated", 4, threads, x, y, rounds, after) == ""
    wanted = sum(np.roll(x, -round - 1) for round in range(rounds))
    assert (y == wanted).all() == after


@pytest.mark.parametrize("after", [True, False])
def test_a_warp_may_be_far_ahead(kernels: Library, after: bool) -> None:
    """Within a warp threads wait for each other; other warps may not have read what it overwrites in the next round."""
    count = 10
    x = RNG.integers(1, 1000, 128).astype(np.float64)
    y = np.empty((16, 128))
    assert run(kernels, "added_in_rounds", 16, x, y, count, after) == ""
    assert (y == x.sum() * count * (count + 1) / 2).all() == after


@pytest.mark.parametrize("threads", [32, 128, 1024])
def test_teams_add_up_in_one_order(kernels: Library, threads: int) -> None:
    x = RNG.standard_normal((3, 2500))
    found = []
    for _ in range(4):
        sums, maxima = np.empty(3), np.empty(3)
        assert run(kernels, "added", 3, threads, x, x.shape[1], sums, maxima) == ""
        assert np.allclose(sums, x.sum(1), rtol=1e-12)
        assert np.array_equal(maxima, x.max(1))
        found.append(sums.tobytes())
    assert len(set(found)) == 1


def test_threads_that_wait_for_nobody_are_an_error(kernels: Library) -> None:
    y = np.empty(64)
    assert run(kernels, "left", 64).endswith("63 of 64 threads wait where the others never come")
    assert "31 of 64 threads wait" in run(kernels, "left_warp", 64, y)
    assert "exchange at different places" in run(kernels, "parted", 64, y)
    test_threads_meet(kernels)  # what came before is forgotten
