"""Linear algebra of matrices, badly conditioned ones too: rounded once from double precision. And matrices that have no
inverse or no factor."""

from pathlib import Path

import numpy as np
import pytest
import torch
from build import compile_library
from loops_cases import poisoned


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("matrices.cpp"))


def drawn(n, condition):
    """Three matrices with singular values down to 1 / condition."""
    rng = np.random.default_rng()
    left, right = (np.linalg.qr(rng.standard_normal((3, n, n)))[0] for _ in range(2))
    return ((left * np.geomspace(1, 1 / condition, n)) @ right).astype(np.float32)


def room(n):
    return np.full(2 * n * n + n, np.nan)


def near(found, expected, tolerance):
    """As a share of the largest entry of each matrix."""
    error = np.abs(found - expected).max((-2, -1)) / np.abs(expected).max((-2, -1))
    assert error.max() <= tolerance


@pytest.mark.parametrize("n", [1, 2, 7, 33, 100])
@pytest.mark.parametrize("condition", [3, 1e5])
def test_inverses(lib, n, condition):
    x, y = drawn(n, condition), poisoned(3, n, n)
    lib("inverted", x, y, room(n), n, 0, 3)
    near(y, np.linalg.inv(x.astype(np.float64)), 1e-7)


@pytest.mark.parametrize("n", [1, 2, 7, 33, 100])
def test_determinants(lib, n):
    x, y, sign = drawn(n, 1e3), poisoned(3), poisoned(3)
    lib("determined", x, y, sign, room(n), n, 0, 3)
    expected_sign, expected = np.linalg.slogdet(x.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=2e-7, atol=1e-7)
    np.testing.assert_array_equal(sign, expected_sign)


@pytest.mark.parametrize("n", [1, 2, 7, 33, 100])
def test_factors_and_their_gradients(lib, n):
    x = drawn(n, 30).astype(np.float64)
    x = (x @ x.swapaxes(1, 2)).astype(np.float32)
    y, dx, dy = (
        poisoned(3, n, n),
        poisoned(3, n, n),
        np.random.default_rng().standard_normal((3, n, n)).astype(np.float32),
    )
    lib("factored", x, y, room(n), n, 0, 3)
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    factor = torch.linalg.cholesky(leaf)
    near(y, factor.detach().numpy(), 1e-7)
    assert not np.triu(y, 1).any()
    factor.backward(torch.tensor(dy, dtype=torch.float64))
    lib("factored_backward", dy, y, dx, room(n), n, 0, 3)
    near(dx, leaf.grad.numpy(), 1e-3)  # of a factor that is rounded: its condition is 30, twice


def test_matrices_without(lib):
    """Results that are not finite, and do not reach the other matrices."""
    x = np.stack([np.eye(3), np.ones((3, 3)), -np.eye(3)]).astype(np.float32)
    y, sign, logarithm = poisoned(3, 3, 3), poisoned(3), poisoned(3)
    lib("inverted", x, y, room(3), 3, 0, 3)
    np.testing.assert_array_equal(y[[0, 2]], x[[0, 2]])
    assert not np.isfinite(y[1]).any()
    lib("determined", x, logarithm, sign, room(3), 3, 0, 3)
    np.testing.assert_array_equal(sign, [1, 0, -1])
    np.testing.assert_array_equal(logarithm, [0, -np.inf, 0])
    lib("factored", x, y, room(3), 3, 0, 3)
    np.testing.assert_array_equal(y[0], x[0])
    assert np.isnan(y[2][np.tril_indices(3)]).any()
