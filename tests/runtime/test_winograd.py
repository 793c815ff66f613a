"""Winograd's convolutions against PyTorch in float64, as compiled for processors with and without AVX-512."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.build import Library, compile_library

SOURCE = Path(__file__).parent / "winograd.cpp"


@pytest.fixture(scope="module", params=["native", "x86-64-v3"])
def library(request: pytest.FixtureRequest) -> Library:
    return compile_library(SOURCE, (f"-march={request.param}",))


def draw(seed: int, taps: int, stride: int) -> tuple[np.random.Generator, np.ndarray]:
    """A generator, and a shape: n, ic, ih, iw, oc, oh, ow, filter, stride, padding, dilation; of stride 1, every other
    seed's is dilated."""
    numbers = np.random.default_rng(seed)
    dilation = numbers.integers(1, 6 if stride == 1 and seed % 2 else 2, size=2)
    padding = np.array([1, 1]) if stride == 2 else numbers.integers(0, 2 * dilation + 1)
    size = numbers.integers(3, 31, size=2)
    size = np.maximum(size, (taps - 1) * dilation + 1 - 2 * padding)
    ic, oc = (16 * int(e) for e in numbers.integers(1, 9, size=2))
    out = (size + 2 * padding - (taps - 1) * dilation - 1) // stride + 1
    shape = [numbers.integers(1, 5), ic, *size, oc, *out, taps, stride, *padding, *dilation]
    return numbers, np.array(shape, np.int64)


def error(found: np.ndarray, truth: torch.Tensor) -> float:
    wanted = truth.detach().numpy()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("taps,stride", [(3, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("seed", range(16))
def test_all_three_directions_match_float64_in_any_slices(library: Library, seed: int, taps: int, stride: int) -> None:
    numbers, shape = draw(seed, taps, stride)
    n, ic, ih, iw, oc, oh, ow, _, _, *rest = (int(e) for e in shape)
    x, dy = (numbers.standard_normal(s).astype(np.float32) for s in ((n, ih, iw, ic), (n, oh, ow, oc)))
    weights, bias = (numbers.standard_normal(s).astype(np.float32) for s in ((oc, ic, taps, taps), (oc,)))
    xs, ws, bs = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, weights, bias))
    truth = torch.nn.functional.conv2d(xs.permute(0, 3, 1, 2), ws, bs, stride, rest[:2], rest[2:]).permute(0, 2, 3, 1)
    truth.backward(torch.tensor(dy, dtype=torch.float64))
    bits = set()
    for slices in range(1, n + 1):
        y, dx, space = (
            np.full(s, np.nan, np.float32) for s in (dy.shape, x.shape, weights.size + 16 * weights[0].size)
        )
        dw, behind = space[: weights.size].reshape(weights.shape), space[weights.size :]
        library("winograd_map", shape, slices, False, x, weights, bias, y)
        library("winograd_map", shape, slices, True, dy, weights, None, dx)
        library("winograd_gradient", shape, slices, x, dy, space)
        assert xs.grad is not None and ws.grad is not None
        assert max(error(y, truth), error(dx, xs.grad), error(dw, ws.grad)) < 1e-6
        assert np.isnan(behind).all()
        bits.add((y.tobytes(), dx.tobytes()))
    assert len(bits) == 1  # how images are divided changes nothing
