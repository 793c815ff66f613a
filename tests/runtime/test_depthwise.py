"""Depthwise convolutions against PyTorch in float64, as compiled for processors with and without AVX-512, and what they
touch."""

import ctypes
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from codegen.build import SANITIZED
from tests.runtime.build import RUNTIME, Library, compile_library

SOURCE = Path(__file__).parent / "depthwise.cpp"


@pytest.fixture(scope="module", params=["native", "x86-64-v3"])
def library(request: pytest.FixtureRequest) -> Library:
    return compile_library(SOURCE, (f"-march={request.param}",))


def draw(seed: int) -> tuple[np.random.Generator, np.ndarray]:
    """A generator, and a shape: n, channels, ih, iw, oh, ow, kernel, strides, padding, dilation; every other seed's is
    dilated, and not strided."""
    numbers = np.random.default_rng(seed)
    while True:
        kernel = np.array([numbers.integers(1, 8), numbers.choice([3, 5, 7])])
        dilation = numbers.integers(1, 6 if seed % 2 else 2, size=2)
        reach = (kernel - 1) * dilation + 1
        padding = numbers.integers(0, reach)
        size, strides = numbers.integers(1, 30, size=2), numbers.integers(1, 2 if (dilation > 1).any() else 3, size=2)
        out = (size + 2 * padding - reach) // strides + 1
        if (size + 2 * padding >= reach).all():
            n, channels = numbers.integers(1, 5), numbers.integers(16, 90)
            return numbers, np.array([n, channels, *size, *out, *kernel, *strides, *padding, *dilation], np.int64)


def draw_few(seed: int) -> tuple[np.random.Generator, np.ndarray]:
    """Fewer channels than a vector has lanes, kernels of all sizes, no strides."""
    numbers = np.random.default_rng(seed)
    while True:
        kernel, dilation = numbers.integers(1, 12, size=2), numbers.integers(1, 4, size=2)
        reach = (kernel - 1) * dilation + 1
        padding, size = numbers.integers(0, reach), numbers.integers(1, 40, size=2)
        out = size + 2 * padding - reach + 1
        if (out >= 1).all() and kernel.prod() > 1:
            n, channels = numbers.integers(1, 5), 1 + seed % 15
            return numbers, np.array([n, channels, *size, *out, *kernel, 1, 1, *padding, *dilation], np.int64)


def error(found: np.ndarray, truth: torch.Tensor) -> float:
    wanted = truth.detach().numpy()
    return float(np.linalg.norm(found - wanted) / max(1e-3, np.linalg.norm(wanted)))


class Drawn(NamedTuple):
    """Operands in the runtime's order, images channel by channel, and what PyTorch makes of them in float64."""

    x: np.ndarray
    dy: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    y: torch.Tensor
    dx: torch.Tensor
    dw: torch.Tensor


def drawn(numbers: np.random.Generator, shape: np.ndarray) -> Drawn:
    n, c, ih, iw, oh, ow, kh, kw, *rest = (int(e) for e in shape)
    x, dy = (numbers.standard_normal(s).astype(np.float32) for s in ((n, ih, iw, c), (n, oh, ow, c)))
    weights, bias = (numbers.standard_normal(s).astype(np.float32) for s in ((c, 1, kh, kw), (c,)))
    xs, ws, bs = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, weights, bias))
    options = {"stride": rest[:2], "padding": rest[2:4], "dilation": rest[4:], "groups": c}
    y = torch.nn.functional.conv2d(xs.permute(0, 3, 1, 2), ws, bs, **options).permute(0, 2, 3, 1)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    assert xs.grad is not None and ws.grad is not None
    return Drawn(x, dy, weights, bias, y, xs.grad, ws.grad)


@pytest.mark.parametrize("seed", range(45))
def test_few_channels_match_float64_in_any_slices(library: Library, seed: int) -> None:
    numbers, shape = draw_few(seed)
    given = drawn(numbers, shape)
    assert library("fits_few", shape, result=ctypes.c_int64) == 1
    bits = set()
    for slices in range(1, int(shape[0]) + 1):
        y, dx = np.full_like(given.dy, np.nan), np.full_like(given.x, np.nan)
        library("depthwise_few", shape, slices, False, given.x, given.weights, given.bias, y)
        library("depthwise_few", shape, slices, True, given.dy, given.weights, None, dx)
        assert max(error(y, given.y), error(dx, given.dx)) < 1e-6
        bits.add((y.tobytes(), dx.tobytes()))
    assert len(bits) == 1  # how images are divided changes nothing


@pytest.mark.parametrize("seed", range(40))
def test_all_three_directions_match_float64_in_any_slices(library: Library, seed: int) -> None:
    numbers, shape = draw(seed)
    given = drawn(numbers, shape)
    bits = set()
    for slices in range(1, int(shape[0]) + 1):
        y, dx, dw = (np.full_like(a, np.nan) for a in (given.dy, given.x, given.weights))
        library("depthwise_map", shape, slices, False, given.x, given.weights, given.bias, y)
        library("depthwise_map", shape, slices, True, given.dy, given.weights, None, dx)
        library("depthwise_gradient", shape, slices, given.x, given.dy, dw)
        assert max(error(y, given.y), error(dx, given.dx), error(dw, given.dw)) < 1e-6
        bits.add((y.tobytes(), dx.tobytes()))
    assert len(bits) == 1


def test_nothing_beyond_the_operands_is_touched(tmp_path: Path) -> None:
    """By the sanitizers of addresses and undefined behaviour, in a process of its own."""
    program = tmp_path / "program"
    flags = ["-std=c++20", *SANITIZED, "-march=x86-64-v3", "-fopenmp", "-DSTEPPLAN_SANITIZED"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover", f"-I{RUNTIME}"]
    subprocess.run(["g++", *flags, str(SOURCE), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "clean\n", done.stderr[-3000:]
