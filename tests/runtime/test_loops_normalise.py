"""Batch, layer and local response normalisation against PyTorch in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from build import compile_library
from loops_cases import SLICES, assert_close, check_guard, poisoned, run_slices, scratch, tensor

from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.normalization import BatchNormAttrs, BatchNormGradAttrs

SHAPES = [(7, 3), (300, 10), (1030, 3), (260, 64), (37, 100), (530, 256), (33, 700), (10, 2048), (2000, 33)]


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("loops_normalise.cpp"))


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("fusion", [0, 1, 2, 3])
@pytest.mark.parametrize("rows,channels", SHAPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_batch_norm(lib, rows, channels, fusion, slices, in_place):
    rng = np.random.default_rng(rows + channels)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    x = draw(rows, channels) * 2 + 10 * draw(channels)
    residual, dy = draw(rows, channels), draw(rows, channels)
    affine = rows % 2 == 0
    gamma, beta = (draw(channels), draw(channels)) if affine else (None, None)
    running_mean, running_var = draw(channels), draw(channels) ** 2
    tx, tr, tm, tv = tensor(x), tensor(residual), tensor(running_mean), tensor(running_var)
    tg, tb = (tensor(gamma), tensor(beta)) if affine else (None, None)
    tm, tv = tm.detach(), tv.detach()

    def finish(y):
        y = y + tr if fusion >= 2 else y
        return torch.relu(y) if fusion % 2 else y

    # Evaluation first, with the running statistics before their update.
    y = poisoned(rows, channels)
    run_slices(
        slices,
        lambda s: lib(
            "bn_forward",
            2,
            fusion,
            rows,
            channels,
            x,
            residual,
            y,
            gamma,
            beta,
            None,
            None,
            running_mean,
            running_var,
            0,
            s,
            slices,
            None,
        ),
    )
    assert_close(y, finish(F.batch_norm(tx, tm, tv, tg, tb, False)), 1e-6)

    expected = finish(F.batch_norm(tx, tm, tv, tg, tb, True, 0.1))
    y, mean, inv_std = poisoned(rows, channels), poisoned(channels), poisoned(channels)
    source = residual.copy()
    if in_place and fusion >= 2:
        y = source
    block = scratch("batch_norm", BatchNormAttrs(), [x.shape, *[(channels,)] * 2], slices)
    stages = [
        lambda s, k=k: lib(
            "bn_forward",
            k,
            fusion,
            rows,
            channels,
            x,
            source,
            y,
            gamma,
            beta,
            mean,
            inv_std,
            running_mean,
            running_var,
            1,
            s,
            slices,
            block,
        )
        for k in (0, 1)
    ]
    run_slices(slices, *stages)
    check_guard(block)
    assert_close(y, expected, 2e-6)
    assert_close(running_mean, tm, 1e-6)
    assert_close(running_var, tv, 1e-6)

    expected.backward(tensor(dy).detach())
    gradient = dy.copy()
    dx, dresidual = poisoned(rows, channels), poisoned(rows, channels)
    if in_place and fusion >= 2:
        dresidual = gradient
    elif in_place:
        dx = gradient
    dgamma, dbeta = (poisoned(channels), poisoned(channels)) if affine else (None, None)
    block = scratch("batch_norm_backward", BatchNormGradAttrs(), [*[x.shape] * 2, *[(channels,)] * 4], slices)
    stages = [
        lambda s, k=k: lib(
            "bn_backward",
            k,
            fusion,
            rows,
            channels,
            gradient,
            x,
            y,
            dx,
            dresidual,
            gamma,
            beta,
            mean,
            inv_std,
            dgamma,
            dbeta,
            s,
            slices,
            block,
        )
        for k in (0, 1)
    ]
    run_slices(slices, *stages)
    check_guard(block)
    assert_close(dx, tx.grad, 1e-5)
    if fusion >= 2:
        assert_close(dresidual, tr.grad, 1e-6)
    if affine:
        assert_close(dgamma, tg.grad, 1e-5)
        assert_close(dbeta, tb.grad, 1e-5)


def test_batch_norm_far_from_zero(lib):
    """The pivot keeps the variance when the mean is a thousand times the deviation."""
    x = (1000 + np.random.default_rng(0).standard_normal((5000, 16))).astype(np.float32)
    y, mean, inv_std = poisoned(5000, 16), poisoned(16), poisoned(16)
    block = scratch("batch_norm", BatchNormAttrs(), [x.shape, (16,), (16,)], 2)
    run_slices(
        2,
        *[
            lambda s, k=k: lib(
                "bn_forward", k, 0, 5000, 16, x, None, y, None, None, mean, inv_std, None, None, 0, s, 2, block
            )
            for k in (0, 1)
        ],
    )
    exact = x.astype(np.float64)
    assert_close(inv_std, 1 / np.sqrt(exact.var(0) + 1e-5), 1e-6)
    assert_close(mean, exact.mean(0), 1e-7)


def test_batch_norm_same_bits_when_repeated_and_in_place(lib):
    x = np.random.default_rng(0).standard_normal((999, 48)).astype(np.float32)
    results = []
    for in_place in (False, True):
        source = x.copy()
        y = source if in_place else poisoned(999, 48)
        mean, inv_std = poisoned(48), poisoned(48)
        block = scratch("batch_norm", BatchNormAttrs(), [x.shape, (48,), (48,)], 3)
        run_slices(
            3,
            *[
                lambda s, k=k: lib(
                    "bn_forward", k, 1, 999, 48, source, None, y, None, None, mean, inv_std, None, None, 0, s, 3, block
                )
                for k in (0, 1)
            ],
        )
        results.append(y)
    assert np.array_equal(*results)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("rows,columns", [(1, 8), (9, 5), (300, 64), (17, 700), (4, 3000)])
def test_layer_norm(lib, rows, columns, slices):
    rng = np.random.default_rng(rows)
    x, dy = rng.standard_normal((2, rows, columns)).astype(np.float32)
    x += 3
    affine = rows % 2 == 1
    gamma, beta = rng.standard_normal((2, columns)).astype(np.float32) if affine else (None, None)
    tx = tensor(x)
    tg, tb = (tensor(gamma), tensor(beta)) if affine else (None, None)
    expected = F.layer_norm(tx, (columns,), tg, tb)
    y, mean, inv_std = poisoned(rows, columns), poisoned(rows), poisoned(rows)
    run_slices(slices, lambda s: lib("ln_forward", x, gamma, beta, y, mean, inv_std, rows, columns, s, slices))
    assert_close(y, expected, 1e-6)
    expected.backward(tensor(dy).detach())
    dx, dgamma, dbeta = dy.copy(), poisoned(columns), poisoned(columns)
    shapes = [*[x.shape] * 2, (rows,), (rows,), (columns,)]
    block = scratch("layer_norm_backward", LayerNormAttrs(), shapes, slices) if affine else None
    stages = [
        lambda s, k=k: lib(
            "ln_backward", k, dx, x, gamma, mean, inv_std, dx, dgamma, dbeta, rows, columns, s, slices, block
        )
        for k in ((0, 1) if affine else (0,))
    ]
    run_slices(slices, *stages)
    assert_close(dx, tx.grad, 1e-5)
    if affine:
        check_guard(block)
        assert_close(dgamma, tg.grad, 1e-5)
        assert_close(dbeta, tb.grad, 1e-5)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("channels,size", [(96, 5), (256, 5), (3, 5), (700, 4), (300, 33), (10, 1), (5, 64)])
@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_local_response_norm(lib, channels, size, beta, slices):
    x, dy = np.random.default_rng(size).standard_normal((2, 6, channels)).astype(np.float32)
    tx = tensor(x)
    expected = F.local_response_norm(tx.unsqueeze(2), size, 0.3, beta, 2.0).squeeze(2)
    y, dx = poisoned(6, channels), poisoned(6, channels)
    run_slices(slices, lambda s: lib("lrn", None, x, y, 6, channels, size, 0.3, beta, 2.0, s, slices))
    assert_close(y, expected, 1e-6)
    expected.backward(tensor(dy).detach())
    run_slices(slices, lambda s: lib("lrn", dy, x, dx, 6, channels, size, 0.3, beta, 2.0, s, slices))
    assert_close(dx, tx.grad, 1e-6)
