"""Convolutions sliced over rows: which rows a slice reads, against windows that are looked at one by one."""

import random
from itertools import pairwise, product

import pytest

from planner.graph.model import Layout, TensorType
from planner.ops.base import Mode, Signature
from planner.ops.conv import Conv2d, Conv2dBackwardWeights, ConvAttrs, ConvGradAttrs
from planner.ops.conv_rows import RowSteps, Windows, elements_of, windows_of


def test_slices_end_within_images():
    """Two images of three rows on four lanes: 6 i // 4 = 0, 1, 3, 4, 6."""
    assert [RowSteps(3).part(2, 4, i) for i in range(4)] == [(0, 1), (1, 3), (3, 4), (4, 6)]


def test_slices_of_the_source_begin_where_windows_do():
    """Stride 2, padded by 1: windows begin at rows -1, 1, 3, so the five rows of an image are steps 0 | 1 2 | 3 4."""
    steps = Windows(source=5, results=3, stride=2, pad=1, reach=2).steps(by_source=True)
    assert (steps.per_image, [steps.part(2, 6, i) for i in range(6)]) == (
        3,
        [(0, 1), (1, 3), (3, 5), (5, 6), (6, 8), (8, 10)],
    )


@pytest.mark.parametrize("seed", range(60))
def test_every_row_that_a_window_needs_is_read(seed):
    choose = random.Random(seed)
    while True:
        kernel, dilation = choose.randint(1, 5), choose.randint(1, 2)
        source, stride, pad = choose.randint(1, 12), choose.randint(1, 3), choose.randint(0, 4)
        reach = (kernel - 1) * dilation
        results = (source + 2 * pad - reach - 1) // stride + 1
        windows = Windows(source, results, stride, pad, reach)
        if results > 0 and windows.inside:
            break
    images = choose.randint(1, 4)
    # Every (result, source) pair of rows that a tap joins, rows counted through all images.
    taps = {
        (image * results + row, image * source + at)
        for image in range(images)
        for row in range(results)
        for at in (row * stride - pad + tap * dilation for tap in range(kernel))
        if 0 <= at < source
    }
    touched = {
        (image * results + row, image * source + at)
        for image in range(images)
        for row in range(results)
        for at in range(row * stride - pad, row * stride - pad + reach + 1)
        if 0 <= at < source
    }
    for by_source in (False, True):
        steps = windows.steps(by_source)
        for slices in {1, images * steps.per_image, choose.randint(1, images * steps.per_image)}:
            parts = [steps.part(images, slices, i) for i in range(slices)]
            assert parts[0][0] == 0
            assert parts[-1][1] == images * (source if by_source else results)
            assert all(a[1] == b[0] for a, b in pairwise(parts))
            for own in parts:
                read = windows.touching(own) if by_source else windows.read(own)
                needed = {t[not by_source] for t in taps if own[0] <= t[by_source] < own[1]}
                assert own[0] < own[1]
                assert all(read[0] <= row < read[1] for row in needed)
                # No more than from the first to the last, with the rows between the taps of a window.
                within = [t[not by_source] for t in touched if own[0] <= t[by_source] < own[1]]
                assert read == (min(within), max(within) + 1) if within else read[0] == read[1]


def test_windows_are_inside_where_each_has_a_row():
    for source, results, stride, pad, reach in product(range(1, 5), range(1, 5), range(1, 4), range(4), range(4)):
        begins = [row * stride - pad for row in range(results)]
        inside = all(any(0 <= at < source for at in range(b, b + reach + 1)) for b in begins)
        # A window that ends before the first row is the first one; rows behind the last are told by where it begins.
        assert Windows(source, results, stride, pad, reach).inside == inside


@pytest.mark.parametrize(("height", "width", "along"), [(9, 8, 0), (1, 12, 1)])
def test_windows_go_along_the_axis_that_is_sliced(height: int, width: int, along: int):
    attrs = ConvAttrs(padding=(2, 2, 3, 1), stride=(2, 3), dilation=(1, 2))
    source = TensorType(shape=(2, 16, height, width), layout=Layout.CHANNELS_LAST)
    kernel = (5, 3)
    (result,) = Conv2d().infer(attrs, (source, TensorType(shape=(16, 16, *kernel))))
    found = windows_of(source, (16, 16, *kernel), result, attrs)
    sizes = (height, width)[along], result.shape[2 + along]
    assert found == Windows(*sizes, *((2, 2, 4), (3, 3, 4))[along])


def test_rows_of_all_images_are_their_elements():
    images = TensorType(shape=(2, 4, 6, 5), layout=Layout.CHANNELS_LAST)
    assert elements_of(images, 12, (3, 7)) == (3 * 20, 7 * 20)


def conv(images: int, height: int, width: int = 8, pad: int = 1) -> Signature:
    attrs = ConvAttrs(padding=(pad, pad, 1, 1))
    inputs = (
        TensorType(shape=(images, 16, height, width), layout=Layout.CHANNELS_LAST),
        TensorType(shape=(16, 16, 3, 3)),
    )
    return Signature("conv2d", attrs, inputs, Conv2d().infer(attrs, inputs))


def test_rows_are_offered_where_every_window_reads_some():
    assert Conv2d().dims(conv(2, 5)) == {("onednn", "batch"): 2, ("onednn", "rows"): 10}
    assert Conv2d().dims(conv(2, 1)) == {("onednn", "batch"): 2, ("onednn", "rows"): 16}, "pixels of the only row"
    assert Conv2d().dims(conv(2, 1, 1)) == {("onednn", "batch"): 2}, "images of one pixel"
    assert Conv2d().dims(conv(2, 5, pad=3)) == {("onednn", "batch"): 2}, "windows that lie in the padding"


def test_rows_cut_as_images_do_where_these_come_out_even():
    for slices, same in ((1, True), (2, True), (3, False), (4, True), (8, False)):
        assert Conv2d().redundant(conv(4, 5), Mode("onednn", "rows", slices)) is same
    assert not Conv2d().redundant(conv(4, 5), Mode("onednn", "batch", 4))


def test_partial_gradients_are_not_much_larger_than_what_is_read():
    """Large weights of small images are not summed by rows; their slices are images or output channels."""
    op = Conv2dBackwardWeights()

    def offered(pixels: int, channels: int) -> int | None:
        images = TensorType(shape=(2, channels, pixels, pixels), layout=Layout.CHANNELS_LAST)
        dw = TensorType(shape=(channels, channels, 3, 3))
        attrs = ConvGradAttrs(padding=(1, 1, 1, 1), shape=dw.shape)
        return op.dims(Signature(op.name, attrs, (images, images), (dw,))).get(("onednn", "rows"))

    # 4 x 2 x 2 x 16 x 56 x 56 numbers are read, of 16 x 16 x 9; and 4 x 2 x 2 x 256 x 7 x 7, of 256 x 256 x 9.
    assert (offered(56, 16), offered(7, 256)) == (112, None)
