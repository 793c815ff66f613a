"""Softmax, losses, dropout, embedding and optimizers against PyTorch in float64."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from build import compile_library
from loops_cases import SLICES, assert_close, check_guard, cut, poisoned, run_slices, scratch, tensor

from planner.ops.loss import LossAttrs


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("loops_training.cpp"))


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("logarithm", [0, 1])
@pytest.mark.parametrize(
    "rows,columns",
    [
        *((1, 1000), (7, 3), (11, 2049), (261, 2), (131, 15), (70, 16), (65, 1)),
        *((70, 19), (35, 31), (50, 33), (40, 48), (33, 255), (9, 256)),
    ],
)
def test_softmax(lib, rows, columns, logarithm, slices):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, rows, columns)).astype(np.float32)
    x = x * 5 + 300
    tx = tensor(x)
    expected = (F.log_softmax if logarithm else F.softmax)(tx, -1)
    y = poisoned(rows, columns)
    run_slices(slices, lambda s: lib("softmax", logarithm, None, x, y, columns, *cut(rows, slices, s)))
    assert_close(y, expected, 1e-6)
    expected.backward(tensor(dy).detach())
    run_slices(slices, lambda s: lib("softmax", logarithm, dy, y, dy, columns, *cut(rows, slices, s)))
    assert_close(dy, tx.grad, 3e-6)


def run_loss(lib, slices, stage, reduction):
    block = scratch("mse_loss", LossAttrs(), [(4,), (4,)], slices)
    loss, scale, bad_row = poisoned(1), poisoned(1), np.zeros(1, np.int64)
    run_slices(slices, lambda s: stage(s, block))
    lib("reduce_loss", block, slices, int(reduction == "sum"), loss, scale, bad_row)
    check_guard(block)
    return loss, scale, int(bad_row[0])


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("rows,classes", [(16, 1000), (37, 10), (1, 2), (150, 19), (50, 33), (35, 250)])
def test_class_losses(lib, rows, classes, logits, smoothing, reduction, slices):
    if smoothing and not logits:
        pytest.skip("PyTorch's nll_loss has no label smoothing")
    rng = np.random.default_rng(rows)
    x = (rng.standard_normal((rows, classes)) * 3).astype(np.float32)
    labels = rng.integers(0, classes, rows)
    labels[rng.random(rows) < 0.2] = -100
    labels[0] = 1
    tx, tl = tensor(x), torch.tensor(labels)
    expected = (
        F.cross_entropy(tx, tl, reduction=reduction, label_smoothing=smoothing)
        if logits
        else F.nll_loss(tx, tl, reduction=reduction)
    )
    kept = poisoned(2, rows) if logits else None
    loss, scale, bad_row = run_loss(
        lib,
        slices,
        lambda s, block: lib("class_loss", x, labels, classes, smoothing, kept, rows, s, slices, block),
        reduction,
    )
    assert bad_row == -1
    assert_close(loss, expected.reshape(1), 1e-6)
    (expected * 3).backward()
    dloss = np.array([3], np.float32)
    given, dx = (x, x) if logits else (None, poisoned(rows, classes))  # in place on the logits
    run_slices(
        slices,
        lambda s: lib(
            "class_loss_backward",
            *(dloss, scale, given, kept, labels, classes, smoothing, dx, rows),
            *cut(rows, slices, s),
        ),
    )
    assert_close(dx, tx.grad, 2e-6)


@pytest.mark.parametrize("classes", [2, 10, 19, 40, 600])
def test_rows_that_are_nearly_right_lose_nothing(lib, classes):
    """Their losses and gradients are no larger than the rounding of 1, to which plain exponentials are added."""
    rng, rows = np.random.default_rng(classes), 12
    x = rng.standard_normal((rows, classes)).astype(np.float32)
    labels = rng.integers(0, classes, rows)
    x[np.arange(rows), labels] += 12 + np.arange(rows, dtype=np.float32) / 2
    tx, kept = tensor(x), poisoned(2, rows)
    expected = F.cross_entropy(tx, torch.tensor(labels))
    loss, scale, _ = run_loss(
        lib, 2, lambda s, b: lib("class_loss", x, labels, classes, 0.0, kept, rows, s, 2, b), "mean"
    )
    expected.backward()
    saved = poisoned(rows, classes)
    lib("class_loss_backward", np.ones(1, np.float32), scale, x, kept, labels, classes, 0.0, saved, rows, 0, rows)
    for row in range(rows):
        own = labels[row]
        assert_close(saved[row, own : own + 1], tx.grad[row, own : own + 1], 1e-5)
    assert_close(loss, expected.reshape(1), 1e-5)


@pytest.mark.parametrize("label", [10, -1, 2**40, -(2**63)])
def test_label_out_of_range_is_reported(lib, label):
    x, labels = np.zeros((12, 10), np.float32), np.zeros(12, np.int64)
    labels[[5, 9]] = label
    saved, kept = poisoned(12, 10), poisoned(2, 12)
    loss, scale, bad_row = run_loss(
        lib, 3, lambda s, block: lib("class_loss", x, labels, 10, 0.0, kept, 12, s, 3, block), "mean"
    )
    assert bad_row == 5 and np.isclose(loss[0], np.log(10))
    lib("class_loss_backward", np.ones(1, np.float32), scale, x, kept, labels, 10, 0.0, saved, 12, 0, 12)
    assert (saved[[5, 9]] == 0).all()


def test_all_labels_ignored(lib):
    x, labels = np.zeros((4, 3), np.float32), np.full(4, -100)
    saved, kept = poisoned(4, 3), poisoned(2, 4)
    loss, scale, _ = run_loss(lib, 2, lambda s, b: lib("class_loss", x, labels, 3, 0.0, kept, 4, s, 2, b), "mean")
    lib("class_loss_backward", np.ones(1, np.float32), scale, x, kept, labels, 3, 0.0, saved, 4, 0, 4)
    assert np.isnan(loss[0]) and (saved == 0).all()


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bce", [0, 1])
def test_pair_losses(lib, bce, reduction, slices):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(3001) * 8).astype(np.float32)
    target = rng.random(3001).astype(np.float32)
    tx, tt = tensor(x), tensor(target).detach()
    expected = (F.binary_cross_entropy_with_logits if bce else F.mse_loss)(tx, tt, reduction=reduction)
    loss, scale, _ = run_loss(lib, slices, lambda s, b: lib("pair_loss", bce, x, target, 3001, s, slices, b), reduction)
    assert_close(loss, expected.reshape(1), 1e-6)
    expected.backward()
    dloss = np.ones(1, np.float32)
    run_slices(slices, lambda s: lib("pair_loss_backward", bce, dloss, scale, x, target, x, *cut(3001, slices, s)))
    assert_close(x, tx.grad, 1e-6)


def test_binary_rows_that_are_nearly_right_lose_nothing(lib):
    x = np.array([15, 30, -15, -30, 60, -60], np.float32)
    target = (x > 0).astype(np.float32)
    dx, ones = poisoned(6), np.ones(1, np.float32)
    lib("pair_loss_backward", 1, ones, ones, x, target, dx, 0, 6)
    for value, gradient in zip(x.astype(np.float64), dx, strict=True):
        assert_close(gradient, -np.sign(value) / (1 + np.exp(np.abs(value))), 1e-6)


def philox_reference(counter, key):
    """Salmon et al., SC 2011, figure 4, in Python integers."""
    low = 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(p1 >> 32) ^ counter[1] ^ key[0], p1 & low, (p0 >> 32) ^ counter[3] ^ key[1], p0 & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return counter


def test_philox_known_answers(lib):
    words = np.zeros(64, np.uint32)
    lib("philox_words", 0, 0, 0, 0, words)
    assert [hex(w) for w in words[:4]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]  # Random123's kat
    lib("philox_words", 0x0123456789ABCDEF, 7, 9, 2**33 + 5, words)
    expected = [philox_reference([5 + j, 2, 7, 9], [0x89ABCDEF, 0x01234567]) for j in range(16)]
    assert np.array_equal(words, np.array(expected, np.uint32).reshape(-1))


@pytest.mark.parametrize("slices", SLICES)
def test_dropout(lib, slices):
    n, p = 100_003, 0.3
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, n)).astype(np.float32)
    y, mask = poisoned(n), np.full(n, 255, np.uint8)
    run_slices(slices, lambda s: lib("dropout", 42, 3, 1, p, x, y, mask, *cut(n, slices, s)))
    words = np.zeros(64, np.uint32)
    lib("philox_words", 42, 3, 1, 16 * 100, words)
    assert np.array_equal(mask[6400:6464], words >= int(float(np.float32(p)) * 2**32))
    assert abs(mask.mean() - (1 - p)) < 0.01 and set(np.unique(mask)) == {0, 1}
    assert_close(y, x.astype(np.float64) * mask / (1 - p), 1e-6)
    expected = dy.astype(np.float64) * mask / (1 - p)
    run_slices(slices, lambda s: lib("dropout_gradient", dy, mask, p, dy, *cut(n, slices, s)))
    assert_close(dy, expected, 1e-6)
    whole, other = np.full(n, 255, np.uint8), np.full(n, 255, np.uint8)
    lib("dropout", 42, 3, 1, p, x, y, whole, 0, n)
    lib("dropout", 42, 3, 2, p, x, y, other, 0, n)
    assert np.array_equal(mask, whole) and not np.array_equal(mask, other)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_limits(lib, p):
    x = np.ones(100, np.float32)
    y, mask = poisoned(100), np.full(100, 255, np.uint8)
    lib("dropout", 1, 1, 1, p, x, y, mask, 0, 100)
    assert (y == 1 - p).all() and (mask == 1 - p).all()


@pytest.mark.parametrize("slices", SLICES)
def test_embedding(lib, slices):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((50, 37)).astype(np.float32)
    ids, dy = rng.integers(0, 50, 200), rng.standard_normal((200, 37)).astype(np.float32)
    tt = tensor(table)
    expected = F.embedding(torch.tensor(ids), tt, padding_idx=4)
    y = poisoned(200, 37)
    found = []
    run_slices(
        slices, lambda s: found.append(lib("embed", table, ids, y, 50, 37, *cut(200, slices, s), result=ctypes.c_int64))
    )
    assert set(found) == {-1}
    assert_close(y, expected, 0)
    expected.backward(tensor(dy).detach())
    gradient = poisoned(50, 37)
    run_slices(slices, lambda s: lib("embed_backward", dy, ids, gradient, 0.0, 0, 200, 50, 37, 4, *cut(37, slices, s)))
    assert_close(gradient, tt.grad, 1e-6)
    run_slices(slices, lambda s: lib("embed_backward", dy, ids, table, 0.5, 1, 200, 50, 37, 4, *cut(37, slices, s)))
    assert_close(table, tt - 0.5 * tt.grad, 1e-6)


def test_embedding_id_out_of_range(lib):
    table, y = np.ones((5, 3), np.float32), poisoned(4, 3)
    ids = np.array([0, 5, -1, 2**60])
    assert lib("embed", table, ids, y, 5, 3, 0, 4, result=ctypes.c_int64) == 1
    assert (y[0] == 1).all() and (y[1:] == 0).all()
    lib("embed_backward", y, ids, table, 1.0, 1, 4, 5, 3, -1, 0, 3)
    assert (table[1:] == 1).all()


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    "momentum,decay,nesterov", [(0, 0, 0), (0, 1e-2, 0), (0.9, 0, 0), (0.9, 1e-2, 0), (0.9, 1e-2, 1)]
)
def test_sgd(lib, momentum, decay, nesterov, slices):
    rng = np.random.default_rng(0)
    weight, velocity = rng.standard_normal(301).astype(np.float32), np.zeros(301, np.float32)
    tw = tensor(weight)
    optimizer = torch.optim.SGD([tw], 0.1, momentum, 0, decay, bool(nesterov))
    for _ in range(4):
        gradient = rng.standard_normal(301).astype(np.float32)
        tw.grad = tensor(gradient).detach()
        optimizer.step()
        run_slices(
            slices,
            lambda s: lib(
                "sgd",
                weight,
                gradient,
                velocity if momentum else None,
                0.1,
                float(momentum),
                float(decay),
                nesterov,
                *cut(301, slices, s),
            ),
        )
    assert_close(weight, tw, 1e-6)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [0, 1])
def test_adam(lib, decay, decoupled, slices):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(301).astype(np.float32)
    mean, square = np.zeros((2, 301), np.float32)
    tw = tensor(weight)
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)([tw], 0.01, weight_decay=decay)
    for step in range(1, 6):
        gradient = rng.standard_normal(301).astype(np.float32)
        tw.grad = tensor(gradient).detach()
        optimizer.step()
        run_slices(
            slices,
            lambda s: lib("adam", weight, gradient, mean, square, 0.01, step, decay, decoupled, *cut(301, slices, s)),
        )
    assert_close(weight, tw, 1e-6)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(lib, centered, momentum, decay, slices):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(301).astype(np.float32)
    square, mean, velocity = np.zeros((3, 301), np.float32)
    tw = tensor(weight)
    options = {"alpha": 0.9, "momentum": momentum, "weight_decay": decay, "centered": centered}
    optimizer = torch.optim.RMSprop([tw], 0.01, **options)
    states = (mean if centered else None, velocity if momentum else None)
    for _ in range(5):
        gradient = rng.standard_normal(301).astype(np.float32)
        tw.grad = tensor(gradient).detach()
        optimizer.step()
        run_slices(
            slices,
            lambda s: lib("rmsprop", weight, gradient, square, *states, 0.01, decay, momentum, *cut(301, slices, s)),
        )
    assert_close(weight, tw, 2e-5 if centered else 2e-6)  # a difference of squares


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adagrad(lib, decay, slices):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(301).astype(np.float32)
    total, tw = np.full(301, 0.2, np.float32), tensor(weight)
    optimizer = torch.optim.Adagrad(
        [tw], 0.05, lr_decay=0.1, weight_decay=decay, initial_accumulator_value=float(np.float32(0.2))
    )
    for step in range(1, 6):
        gradient = rng.standard_normal(301).astype(np.float32)
        tw.grad = tensor(gradient).detach()
        optimizer.step()
        run_slices(slices, lambda s: lib("adagrad", weight, gradient, total, 0.05, step, decay, *cut(301, slices, s)))
    assert_close(weight, tw, 2e-6)
