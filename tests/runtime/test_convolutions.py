"""Convolutions by oneDNN against PyTorch in float64, sliced over threads, with poisoned outputs and scratch."""

import random
from dataclasses import replace

import pytest
import torch

from tests.runtime.onednn import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    BATCH,
    CHANNELS,
    FORWARD,
    MODES,
    NAMED,
    KernelError,
    check_conv,
    conv,
    implementations,
    nan,
    needs_bfloat16,
    possible,
    run_conv,
    volume,
)


@pytest.mark.parametrize("kind,dim", MODES)
@pytest.mark.parametrize("name", NAMED)
def test_convolutions_match_float64(library, name, kind, dim):
    for slices in (*range(1, 6), 13):
        if possible(NAMED[name], kind, dim, slices):
            check_conv(library, NAMED[name], kind, dim, slices)


def random_shape(choose):
    while True:
        groups = choose.choice([1, 1, 1, 2, 3])
        shape = conv(
            choose.randint(1, 5),
            groups * choose.randint(1, 24),
            (choose.randint(3, 20), choose.randint(3, 20)),
            groups * choose.randint(1, 40),
            (choose.randint(1, 5), choose.randint(1, 5)),
            choose.randint(1, 3),
            choose.randint(0, 2),
            choose.randint(1, 2),
            groups,
            choose.randint(0, 1),
        )
        if shape.oh > 0 and shape.ow > 0 and shape.pad_h < shape.kh and shape.pad_w < shape.kw:
            return shape


def check_every_way(library, shape, choose, seed):
    """All kernels, each way of slicing by a number of slices that is drawn."""
    for kind, dim in MODES:
        slices = choose.choice([k for k in range(1, 8) if possible(shape, kind, dim, k)] or [0])
        if slices:
            for implementation in implementations(library, kind, shape, dim, slices):
                check_conv(library, shape, kind, dim, slices, implementation, seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_random_convolutions_match_float64(library, seed):
    choose = random.Random(seed)
    check_every_way(library, random_shape(choose), choose, seed)


def random_volume(choose):
    """Half of them for kernels of our own: channels in sixteens, or each by itself."""
    while True:
        ours, groups = choose.random() < 0.5, choose.choice([1, 1, 2])
        channels = [16 * choose.randint(1, 3) if ours else groups * choose.randint(1, 12) for _ in range(2)]
        if choose.random() < 0.25:
            groups = channels[0] = channels[1] = choose.randint(16, 40)
        kernel = choose.choice([(3, 3), (3, 3), (1, 1), (choose.randint(1, 3), choose.choice([1, 3, 5]))])
        size, stride, dilation = (
            (choose.randint(3, 9), choose.randint(3, 9)),
            choose.choice([1, 1, 2]),
            choose.choice([1, 1, 2]),
        )
        shape = conv(
            choose.randint(1, 3),
            channels[0],
            size,
            channels[1],
            kernel,
            stride,
            choose.randint(0, min(kernel) - 1),
            dilation,
            groups,
            choose.randint(0, 1),
        )
        deep, dilated = choose.randint(1, 4), choose.choice([1, 1, 1, 2])
        pad = choose.randint(
            0, (deep - 1) // 2 * dilated
        )  # with more, PyTorch's own float32 gradients corrupt its heap
        shape = volume(shape, choose.randint(1, 7), deep, choose.choice([1, 1, 2]), pad, dilated)
        whole = all(c % shape.groups == 0 for c in channels)
        if whole and min(shape.oh, shape.ow, shape.depth_out) > 0 and shape.of_volumes:
            return shape


@pytest.mark.parametrize("element", [0, pytest.param(1, marks=needs_bfloat16)])
@pytest.mark.parametrize("depth,kernel,pad", [(6, 4, 2), (2, 3, 1), (3, 5, 2)])
def test_gradients_that_the_library_gets_wrong_are_refused(library, depth, kernel, pad, element):
    """Windows that lie on padding with half of their depths, or on that of both sides."""
    shape = replace(volume(conv(2, 8, (6, 5), 24, (3, 3), 1, 1), depth, kernel, pad=pad), element=element)
    one = torch.zeros(1)
    assert not [n for n in implementations(library, BACKWARD_WEIGHTS, shape, BATCH, 1) if n.startswith("jit")]
    for wrong in ("jit:avx512_core", "jit_bf16:avx512_core_bf16"):
        with pytest.raises(KernelError, match="no implementation named"):
            run_conv(library, BACKWARD_WEIGHTS, shape, BATCH, 1, wrong, one, one, None, one)


@pytest.mark.parametrize("seed", range(40))
def test_random_volumes_match_float64(library, seed):
    choose = random.Random(seed)
    check_every_way(library, random_volume(choose), choose, seed)


@pytest.mark.parametrize("kind,dim", MODES)
@pytest.mark.parametrize(
    "name",
    [
        *("pointwise", "plain3x3", "strided3x3", "odd_wide", "depthwise", "strided1x1", "dilated", "leftover"),
        *("tiles", "unpadded_tiles", "overpadded_tiles", "strided_tiles", "depthwise_strided", "depthwise_wide"),
        *("pointwise_portions", "first", "last", "odd", "volume", "deep_taps", "strided_depths"),
        *("deep_columns", "long_columns", "depthwise_column", "dilated_column"),
        *("depthwise_volume", "depthwise_strided_volume", "depthwise_dilated_volume"),
    ],
)
def test_every_implementation_matches_float64(library, name, kind, dim):
    shape = NAMED[name]
    if not possible(shape, kind, dim, 2):
        pytest.skip("not sliced this way")
    for slices in (1, 3):
        if possible(shape, kind, dim, slices):
            for implementation in implementations(library, kind, shape, dim, slices):
                check_conv(library, shape, kind, dim, slices, implementation)


@needs_bfloat16
@pytest.mark.parametrize("kind,dim", MODES)
@pytest.mark.parametrize("name", NAMED)
def test_every_bfloat16_implementation_rounds_once(library, name, kind, dim):
    shape = replace(NAMED[name], element=1)
    for slices in (1, 3):
        if possible(shape, kind, dim, slices):
            for implementation in implementations(library, kind, shape, dim, slices):
                check_conv(library, shape, kind, dim, slices, implementation)


@needs_bfloat16
@pytest.mark.parametrize("seed", range(40))
def test_random_bfloat16_convolutions_round_once(library, seed):
    choose = random.Random(seed)
    shape = replace(random_shape(choose), element=1)
    for kind, dim in MODES:
        slices = choose.choice([k for k in range(1, 6) if possible(shape, kind, dim, k)] or [0])
        if slices:
            check_conv(library, shape, kind, dim, slices, seed=seed)


@needs_bfloat16
@pytest.mark.parametrize("kind", [FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS])
def test_winograd_and_stored_weights_are_float32(library, kind):
    shape = replace(NAMED["unpadded_tiles"], element=1)
    one = torch.zeros(1)
    assert "winograd" not in implementations(library, kind, shape, BATCH, 2)
    with pytest.raises(KernelError, match="float32"):
        run_conv(library, kind, shape, BATCH, 2, "winograd", one, one, None, one)
    with pytest.raises(KernelError, match="bfloat16 weights are stored plain"):
        run_conv(library, kind, shape, BATCH, 2, "", one, one, None, one, blocks=(16, 0))


def stored(plain, blocks):
    """Plain weights (O, I, H, W) as a plan may store them: in blocks of output or of input channels."""
    (o, i, h, w), (o_block, i_block) = plain.shape, blocks
    if o_block:
        return plain.view(o // o_block, o_block, i, h, w).permute(0, 3, 4, 2, 1).contiguous()
    return plain.view(o, i // i_block, i_block, h, w).permute(1, 3, 4, 0, 2).contiguous() if i_block else plain


@pytest.mark.parametrize("blocks", [(64, 0), (16, 0), (8, 0), (0, 64), (0, 32), (0, 16), (0, 8), (24, 0), (0, 48)])
@pytest.mark.parametrize(
    "pixels,k,stride,slices", [(9, 3, 1, 2), (7, 1, 1, 3), (9, 3, 2, 2), (10, 4, 2, 2), (17, 1, 2, 2)]
)
def test_stored_weights_give_the_bits_of_plain_ones(library, blocks, pixels, k, stride, slices):
    ic, oc = (48, 96) if max(blocks) % 3 == 0 else (64, 128)
    shape = conv(4, ic, (pixels, pixels), oc, (k, k), stride, (k - 1) // 2, bias=1)
    numbers = torch.Generator().manual_seed(pixels)
    x, dy = (torch.randn(4, p, p, c, generator=numbers) for p, c in ((pixels, ic), (shape.oh, oc)))
    weight, bias = torch.randn(oc, ic, k, k, generator=numbers), torch.randn(oc, generator=numbers)
    for kind, given, result in ((FORWARD, x, dy), (BACKWARD_DATA, dy, x)):
        for implementation in implementations(library, kind, shape, BATCH, slices):
            if "ref" in implementation or implementation.startswith("matmul"):
                continue
            outs = [torch.full_like(result, torch.nan) for _ in range(2)]
            for out, how in zip(outs, ((0, 0), blocks), strict=True):
                operands = (given, stored(weight, how), bias if kind == FORWARD else None, out)
                run_conv(library, kind, shape, BATCH, slices, implementation, *operands, blocks=how)
            assert torch.equal(*outs), implementation
    for dim, ways in ((BATCH, slices), (CHANNELS, 2)):
        for implementation in implementations(library, BACKWARD_WEIGHTS, shape, dim, ways):
            if "ref" in implementation or (dim == CHANNELS and k == 1):  # written straight away
                continue
            dw, db = ([nan(*size) for _ in range(2)] for size in ((oc, ic, k, k), (oc,)))
            for number, how in enumerate(((0, 0), blocks)):
                out = (None, dw[number], db[number])
                run_conv(library, BACKWARD_WEIGHTS, shape, dim, ways, implementation, x, dy, *out, blocks=how)
            assert torch.equal(stored(dw[0], blocks).reshape(-1), dw[1].reshape(-1)), implementation
            assert torch.equal(*db)


def test_a_weight_gradient_that_is_written_straight_away_is_stored_plain(library):
    shape, x = conv(4, 64, (7, 7), 128, (1, 1)), torch.zeros(4, 7, 7, 128)
    named = next(i for i in implementations(library, BACKWARD_WEIGHTS, shape, CHANNELS, 2) if i.startswith("matmul"))
    with pytest.raises(KernelError, match="straight away"):
        run_conv(library, BACKWARD_WEIGHTS, shape, CHANNELS, 2, named, x, x, None, x, blocks=(64, 0))
