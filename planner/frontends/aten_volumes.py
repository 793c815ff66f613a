"""ATen's layers over volumes (N, C, D, H, W), as layers over images.

Between layers a volume is a view of a channels-last image (N, C, D, H W), whose bytes are those of all depths' images:
nothing is turned. Pooling goes dimension by dimension: first every depth's image, then depths against pixels. A
convolution whose kernel has one depth is one over images; others are ops of their own (ops/conv3d.py).
"""

from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_layers import average_pool, max_pool_images
from planner.ops.conv import ConvAttrs
from planner.ops.conv3d import Conv3dAttrs, Conv3dTransposeAttrs
from planner.ops.pool import AdaptivePoolAttrs


def _three(value: Any) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * 3 if len(given) == 1 else given


# -- pixels ----------------------------------------------------------------------------------------------------
def pixels_of(c: Context, x: str) -> str:
    """(N, C, D, H, W) -> (N, D, H, W, C)."""
    n, channels, depth, height, width = c.shape(x)
    image = c.reshape(x, (n, channels, depth, height * width))
    return c.reshape(c.permute(image, (0, 2, 3, 1)), (n, depth, height, width, channels))


def images_of(c: Context, pixels: str) -> str:
    """(N, D, H, W, C) -> (N D, C, H, W), channels-last."""
    n, depth, *image = c.shape(pixels)
    return c.permute(c.reshape(pixels, (n * depth, *image)), (0, 3, 1, 2))


def volume_of(c: Context, images: str, n: int) -> str:
    """(N D, C, H, W) -> (N, C, D, H, W)."""
    total, channels, height, width = c.shape(images)
    depth = total // n
    y = c.reshape(c.permute(images, (0, 2, 3, 1)), (n, depth, height * width, channels))
    return c.reshape(c.permute(y, (0, 3, 1, 2)), (n, channels, depth, height, width))


# -- convolution -----------------------------------------------------------------------------------------------
def _batched(c: Context, x: str) -> tuple[str, bool]:
    """(C, D, H, W) as a batch of one, and whether it was one."""
    return (c.unsqueeze(x, 0), True) if c.rank(x) == 4 else (x, False)


def _flat(c: Context, w: str) -> str:
    """Weights (O, I, KD, KH, KW) with a kernel's depths below each other, (O, I, KD KH, KW)."""
    outputs, inputs, *_, width = c.shape(w)
    return c.reshape(w, (outputs, inputs, -1, width))


@lowers("conv3d")
def conv3d(c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> str:
    x, single = _batched(c, c.val(x))
    w = c.val(w)
    stride, dilation = _three(stride), _three(dilation)
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilation, c.shape(w)[2:], strict=True)]
        sides = [(0, 0)] * 3 if padding == "valid" else [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in _three(padding)]
    n, _, depth = c.shape(x)[:3]
    pixels, kernel = pixels_of(c, x), c.shape(w)[2]
    common = {"padding": (*sides[1], *sides[2]), "groups": groups}
    images = {"stride": tuple(stride[1:]), "dilation": tuple(dilation[1:]), **common}
    if kernel == 1 and sides[0] == (0, 0):
        taken = pixels if stride[0] == 1 else c.slice(pixels, 1, 0, depth, stride[0])
        y = c.op("conv2d", images_of(c, taken), _flat(c, w), *_given(c, bias), attrs=ConvAttrs.model_validate(images))
    else:
        deep = _deep(depth, kernel, stride[0], sides[0], dilation[0])
        attrs = Conv3dAttrs.model_validate(images | deep)
        require(attrs.results > 0, "a kernel deeper than the data")
        y = c.op("conv3d", images_of(c, pixels), _flat(c, w), *_given(c, bias), attrs=attrs)
    y = volume_of(c, y, n)
    return c.select(y, 0, 0) if single else y


def _given(c: Context, bias: Any) -> list[str]:
    return [] if bias is None else [c.val(bias)]


def _deep(depth: int, kernel: int, stride: int, sides: tuple[int, int], dilation: int) -> dict[str, Any]:
    """How a kernel goes through the depths of volumes that are convolved."""
    steps = {"depth_stride": stride, "depth_padding": sides, "depth_dilation": dilation}
    return {"depth": depth, "kernel_depth": kernel, **steps}


def conv_transpose3d(
    c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    """The result's depths are those that a convolution by the same kernel would make the data's of."""
    x, single = _batched(c, c.val(x))
    w = c.val(w)
    stride, padding, dilation = _three(stride), _three(padding), _three(dilation)
    more = _three(output_padding)
    require(all(o < s for o, s in zip(more, stride, strict=True)), "an output_padding of a stride or more")
    n, _, before = c.shape(x)[:3]
    kernel = c.shape(w)[2]
    depth = (before - 1) * stride[0] + dilation[0] * (kernel - 1) + 1 + more[0] - 2 * padding[0]
    require(depth > 0, "padding beyond the data")
    attrs = Conv3dTransposeAttrs(
        stride=(stride[1], stride[2]),
        padding=(padding[1], padding[1], padding[2], padding[2]),
        dilation=(dilation[1], dilation[2]),
        groups=groups,
        output_padding=(more[1], more[2]),
        **_deep(depth, kernel, stride[0], (padding[0], padding[0]), dilation[0]),
    )
    y = c.op("conv_transpose3d", images_of(c, pixels_of(c, x)), _flat(c, w), attrs=attrs)
    y = c.op("add", y, c.reshape(c.val(bias), (c.shape(y)[1], 1, 1))) if bias is not None else y
    y = volume_of(c, y, n)
    return c.select(y, 0, 0) if single else y


lowers("conv_transpose3d")(conv_transpose3d)


# -- pooling ---------------------------------------------------------------------------------------------------
def _by_dimension(c: Context, x: str, pool: Any) -> str:
    """`pool(images, depth)` on the images of all depths, then on (depth, pixels) with windows of one pixel."""
    x, single = _batched(c, x)
    n = c.shape(x)[0]
    y = volume_of(c, pool(images_of(c, pixels_of(c, x)), False), n)
    *lead, depth, height, width = c.shape(y)
    y = pool(c.reshape(y, (*lead, depth, height * width)), True)
    y = c.reshape(y, (*lead, c.shape(y)[2], height, width))
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
