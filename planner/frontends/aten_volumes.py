"""ATen's layers over volumes (N, C, D, H, W): see volumes.py."""

from collections.abc import Callable
from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_layers import average_pool, max_pool_images
from planner.frontends.volumes import by_dimension, convolve, transpose, volume_of
from planner.ops.pool import AdaptivePoolAttrs


def _three(value: Any) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * 3 if len(given) == 1 else given


# -- convolution -----------------------------------------------------------------------------------------------
def _batched(c: Context, x: str) -> tuple[str, bool]:
    """(C, D, H, W) as a batch of one, and whether it was one."""
    return (c.unsqueeze(x, 0), True) if c.rank(x) == 4 else (x, False)


@lowers("conv3d")
def conv3d(c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> str:
    x, single = _batched(c, c.val(x))
    w, dilation = c.val(w), _three(dilation)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilation, c.shape(w)[2:], strict=True)]
        sides = [(0, 0)] * 3 if padding == "valid" else [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in _three(padding)]
    y = convolve(c, x, w, None if bias is None else c.val(bias), _three(stride), sides, dilation, groups)
    return c.select(y, 0, 0) if single else y


def conv_transpose3d(
    c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    x, single = _batched(c, c.val(x))
    stride, more = _three(stride), _three(output_padding)
    require(all(o < s for o, s in zip(more, stride, strict=True)), "an output_padding of a stride or more")
    sides = [(p, p) for p in _three(padding)]
    images = transpose(c, x, c.val(w), stride, sides, _three(dilation), groups, more)
    if bias is not None:
        images = c.op("add", images, c.reshape(c.val(bias), (c.shape(images)[1], 1, 1)))
    y = volume_of(c, images, c.shape(x)[0])
    return c.select(y, 0, 0) if single else y


lowers("conv_transpose3d")(conv_transpose3d)


# -- pooling ---------------------------------------------------------------------------------------------------
def _by_dimension(c: Context, x: str, pool: Callable[[str, bool], str]) -> str:
    x, single = _batched(c, x)
    y = by_dimension(c, x, pool)
    return c.select(y, 0, 0) if single else y


_NOTHING = [[1, 1], [1, 1], [0, 0]]
"""Windows of one element, step by step, without padding."""


def _part(value: Any, deep: bool, one: int) -> list[int]:
    sizes = _three(value)
    return [sizes[0], one] if deep else sizes[1:]


@lowers("max_pool3d")
def max_pool3d(c: Context, x: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> str:
    def pool(images: str, deep: bool) -> str:
        window, step, pads = (_part(v, deep, one) for v, one in ((kernel, 1), (stride or kernel, 1), (padding, 0)))
        if [window, step, pads] == _NOTHING:
            return images
        return max_pool_images(c, images, window, step, pads, _part(dilation, deep, 1), ceil_mode)

    return _by_dimension(c, x, pool)


@lowers("max_pool3d_with_indices")
def _max_pool3d_indices(c: Context, *arguments: Any) -> Any:
    return (max_pool3d(c, *arguments), None)


@lowers("avg_pool3d")
def _avg_pool3d(
    c: Context, x: str, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool, divisor: Any
) -> str:
    require(not divisor or not ceil_mode, "divisor_override with ceil_mode")

    def pool(images: str, deep: bool) -> str:
        window, step, pads = (_part(v, deep, one) for v, one in ((kernel, 1), (stride or kernel, 1), (padding, 0)))
        if [window, step, pads] == _NOTHING:
            return images
        return average_pool(c, images, window, step, pads, ceil_mode, include or bool(divisor), None)

    y = _by_dimension(c, x, pool)
    return c.scale(y, prod(_three(kernel)) / divisor) if divisor else y


@lowers("adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def _adaptive_avg3d(c: Context, x: str, size: Any) -> str:
    def pool(images: str, deep: bool) -> str:
        sizes = [size[0], c.shape(images)[3]] if deep else size[1:]
        return c.op("adaptive_avg_pool2d", images, attrs=AdaptivePoolAttrs(output=(sizes[0], sizes[1])))

    return _by_dimension(c, x, pool)


@lowers("adaptive_max_pool3d")
def _adaptive_max3d(c: Context, x: str, size: Any) -> Any:
    return (adaptive_max(c, x, size), None)


@lowers("adaptive_max_pool2d")
def _adaptive_max2d(c: Context, x: str, size: Any) -> Any:
    return (adaptive_max(c, x, [size, size] if isinstance(size, int) else size), None)


@lowers("adaptive_max_pool1d")
def _adaptive_max1d(c: Context, x: str, size: Any) -> Any:
    return (adaptive_max(c, x, [size] if isinstance(size, int) else size), None)


def adaptive_max(c: Context, x: str, size: Any) -> str:
    """Maxima over windows [o in / out, (o + 1) in / out), rounded outwards, dimension by dimension. Where these are of
    one size and one distance, that is a pooling; else every window is one of its own."""
    first = c.rank(x) - len(size)
    pairs = list(zip(c.shape(x)[first:], size, strict=True))
    kernel = [extent // out for extent, out in pairs]
    if len(size) == 2 and prod(kernel) <= 255 and not any(extent % out for extent, out in pairs):
        return max_pool_images(c, x, kernel, kernel, 0, 1, False)
    for axis, out in enumerate(size, first):
        extent = c.shape(x)[axis]
        windows = [(o * extent // out, -(-(o + 1) * extent // out)) for o in range(out)]
        if extent % out == 0:
            x = _extremes(c, x, axis, extent // out)
        else:
            x = c.concat([c.maximum_over(c.slice(x, axis, lo, hi), axis) for lo, hi in windows], axis)
    return x


def _extremes(c: Context, x: str, axis: int, width: int) -> str:
    """Maxima of neighbouring windows of an axis."""
    shape = c.shape(x)
    apart = c.reshape(x, (*shape[:axis], shape[axis] // width, width, *shape[axis + 1 :]))
    return c.squeeze(c.maximum_over(apart, axis + 1), [axis + 1])
