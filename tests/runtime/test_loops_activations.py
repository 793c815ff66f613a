"""Functions of one element against PyTorch in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from build import compile_library
from loops_cases import SLICES, assert_close, cut, poisoned, run_slices, tensor


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("loops_elementwise.cpp"))


ACTIVATIONS = [
    torch.relu,
    F.leaky_relu,
    torch.sigmoid,
    torch.tanh,
    F.silu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    torch.exp,
    torch.log,
    torch.sqrt,
    torch.neg,
    torch.abs,
    torch.square,
    torch.reciprocal,
    F.softplus,
    F.elu,
    torch.expm1,
    torch.log1p,
    torch.lgamma,
    torch.digamma,
    lambda x: torch.polygamma(1, x),
    torch.sin,
    torch.cos,
]
POSITIVE_ONLY = {8, 9}


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("kind", range(len(ACTIVATIONS)))
def test_activation(lib, kind, slices):
    rng = np.random.default_rng(kind)
    x = (rng.standard_normal(1003) * 3).astype(np.float32)
    x = np.abs(x) + np.float32(0.01) if kind in POSITIVE_ONLY else np.maximum(x, np.float32(-0.9)) if kind == 17 else x
    dy = rng.standard_normal(1003).astype(np.float32)
    tx = tensor(x)
    expected = ACTIVATIONS[kind](tx)
    y = poisoned(1003)
    run_slices(slices, lambda s: lib("activation", kind, None, x, None, y, *cut(1003, slices, s)))
    assert_close(y, expected, 3e-7)
    expected.backward(tensor(dy).detach())
    run_slices(slices, lambda s: lib("activation", kind, dy, x, y, dy, *cut(1003, slices, s)))  # in place
    assert_close(dy, tx.grad, 1e-6)


@pytest.mark.parametrize("kind", [21, 22])
def test_angles_of_any_size(lib, kind):
    """A sine is none beyond 1, however little is left of the angle; of angles that are not finite there is none."""
    x = (10 ** np.random.default_rng(kind).uniform(-30, 38, 2000)).astype(np.float32)
    y = poisoned(2000)
    lib("activation", kind, None, x, None, y, 0, 2000)
    expected = ACTIVATIONS[kind](tensor(x)).detach().numpy()
    assert (np.abs(y) <= 1).all()
    assert np.abs(y - expected)[x < 1e6].max() < 3e-7
    x[:] = [np.inf, np.nan, -np.inf, np.nan] * 500
    lib("activation", kind, None, x, None, y, 0, 2000)
    assert np.isnan(y).all()


def test_gelu_near_zero_and_far_away(lib):
    """As near as float32 has what lies below x of the normal distribution, and nothing of it far below."""
    x = np.random.default_rng().uniform(-20, 20, 20000).astype(np.float32)
    y, dx = poisoned(x.size), np.ones_like(x)
    lib("activation", 5, None, x, None, y, 0, x.size)
    lib("activation", 5, dx, x, None, dx, 0, x.size)
    tx = tensor(x)
    expected = F.gelu(tx)
    expected.sum().backward()
    assert (np.abs(y - expected.detach().numpy()) <= 1e-7 * (1 + np.abs(x))).all()
    assert np.abs(dx - tx.grad.numpy()).max() < 2e-7
    assert not y[x < -13].any()


def test_softplus_of_any_size(lib):
    x = np.random.default_rng().uniform(-80, 80, 20000).astype(np.float32)
    y = poisoned(x.size)
    lib("activation", 14, None, x, None, y, 0, x.size)
    np.testing.assert_allclose(y, F.softplus(tensor(x)).detach().numpy(), rtol=3e-7)


GAMMA = {18: torch.lgamma, 19: torch.digamma, 20: lambda x: torch.polygamma(1, x)}


@pytest.mark.parametrize("kind", GAMMA)
def test_functions_of_gamma(lib, kind):
    """Each result as near as float32 has it: where the function vanishes, near its poles, and far away."""
    rng = np.random.default_rng()
    normal, uniform = rng.standard_normal((3, 500)), rng.uniform(0, 40, (2, 500))
    parts = [1 + normal[0] * 1e-3, 2 + normal[1] * 1e-5, 1.4616321 + normal[2] * 1e-6, *uniform[:1], -uniform[1]]
    x = np.concatenate([*parts, np.exp(normal[0] * 20), [1, 2, 1e-38, 3e30, np.inf, np.nan]]).astype(np.float32)
    expected = GAMMA[kind](torch.tensor(x, dtype=torch.float64)).numpy()
    y = poisoned(len(x))
    lib("activation", kind, None, x, None, y, 0, len(x))
    np.testing.assert_allclose(y, expected.astype(np.float32), rtol=3e-7)


def test_poles_of_gamma(lib):
    x = np.array([0, -0.0, -1, -5, -1e10], np.float32)
    for kind, expected in ((18, np.full(5, np.inf)), (19, [-np.inf, np.inf, *[np.nan] * 3]), (20, np.full(5, np.inf))):
        y = poisoned(len(x))
        lib("activation", kind, None, x, None, y, 0, len(x))
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kind", range(len(ACTIVATIONS)))
def test_activation_at_the_edges(lib, kind):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, 1e-40, -1e-40, 88.5, -88.5, 200, -200, 1e30, -1e30] * 4, np.float32)
    y = poisoned(x.size)
    lib("activation", kind, None, x, None, y, 0, x.size)
    with np.errstate(all="ignore"):
        expected = ACTIVATIONS[kind](torch.tensor(x)).numpy()
    if kind in (4, 5, 6):  # infinity * 0: PyTorch's vector and scalar code differ here
        finite = ~np.isinf(x)
        x, y, expected = x[finite], y[finite], expected[finite]
    if kind in (21, 22):  # see test_angles_of_any_size
        near = np.abs(x) != np.float32(1e30)
        x, y, expected = x[near], y[near], expected[near]
    if kind == 20:  # poles, where PyTorch has the sine of a rounded angle
        expected[(x < 0) & (x == np.round(x)) & np.isfinite(x)] = np.inf
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("kind", [15, 16, 17])
def test_functions_that_are_nearly_x_at_zero(lib, kind):
    """To the last bits of every result, whatever its size: exp(x) - 1 as it stands would have none left."""
    rng = np.random.default_rng()
    x = (rng.choice([-1, 1], 4096) * 10.0 ** rng.uniform(-30, -0.01, 4096)).astype(np.float32)
    y = poisoned(x.size)
    lib("activation", kind, None, x, None, y, 0, x.size)
    np.testing.assert_allclose(y, ACTIVATIONS[kind](tensor(x)).detach().numpy(), rtol=5e-7)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 1.7, -2.2])
def test_power(lib, p):
    x, dy = (np.random.default_rng(0).random((2, 77)) + 0.1).astype(np.float32)
    tx = tensor(x)
    expected = tx**p
    y, dx = poisoned(77), poisoned(77)
    run_slices(3, lambda s: lib("power", None, x, float(p), y, *cut(77, 3, s)))
    assert_close(y, expected, 1e-6)
    expected.backward(tensor(dy).detach())
    run_slices(3, lambda s: lib("power", dy, x, float(p), dx, *cut(77, 3, s)))
    assert_close(dx, tx.grad, 1e-6)
