"""ATen's layers: convolution, linear, pooling, normalisation, embedding, dropout."""

from itertools import product
from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.ops.conv import ConvAttrs
from planner.ops.conv_transpose import ConvTransposeAttrs
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.group_norm import GroupNormAttrs
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs


def _pair(size: Any) -> tuple[int, int]:
    sizes = [size] if isinstance(size, int) else list(size)
    return (int(sizes[0]), int(sizes[-1]))


def _sides(padding: Any) -> tuple[int, int, int, int]:
    high, wide = _pair(padding)
    return (high, high, wide, wide)


@lowers("conv2d")
def _conv2d(c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> str:
    x, w = c.val(x), c.val(w)
    single = c.rank(x) == 3
    x = c.unsqueeze(x, 0) if single else x
    sides = (
        _same(c.shape(w)[2:], _pair(dilation)) if padding == "same" else _sides(0 if padding == "valid" else padding)
    )
    y = convolve_images(c, x, w, bias, stride, sides, dilation, groups)
    return c.select(y, 0, 0) if single else y


def convolve_images(
    c: Context, x: str, w: str, bias: Any, stride: Any, sides: tuple[int, ...], dilation: Any, groups: int
) -> str:
    """sides: padding above, below, left and right."""
    values = {"stride": _pair(stride), "padding": sides, "dilation": _pair(dilation), "groups": groups}
    return c.op("conv2d", x, w, *([c.val(bias)] if bias is not None else []), attrs=ConvAttrs.model_validate(values))


def _same(kernel: tuple[int, ...], dilation: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding that keeps the size; the odd element is behind."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return (total[0] // 2, total[0] - total[0] // 2, total[1] // 2, total[1] - total[1] // 2)


@lowers("conv1d")
def _conv1d(c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> str:
    """A convolution over images of one row."""
    x, w = c.val(x), c.val(w)
    pads = padding if isinstance(padding, str) else _row(padding, 0)
    y = _conv2d(c, c.unsqueeze(x, -2), c.unsqueeze(w, 2), bias, _row(stride, 1), pads, _row(dilation, 1), groups)
    return c.squeeze(y, [-2])


def _row(value: Any, one: int) -> list[int]:
    """The size of a window or step over images of one row."""
    return [one, *([value] if isinstance(value, int) else value)]


@lowers("convolution")
def _convolution(c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> str:
    transposed, output_padding, groups = rest
    from planner.frontends.aten_volumes import conv3d, conv_transpose3d

    dimensions = c.rank(c.val(w)) - 2
    if transposed:
        transpose = (_conv_transpose1d, _conv_transpose2d, conv_transpose3d)[dimensions - 1]
        return transpose(c, x, w, bias, stride, padding, output_padding, groups, dilation)
    convolve = (_conv1d, _conv2d, conv3d)[dimensions - 1]
    return convolve(c, x, w, bias, stride, padding, dilation, groups)


@lowers("conv_transpose2d")
def _conv_transpose2d(
    c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    x, w = c.val(x), c.val(w)
    single = c.rank(x) == 3
    y = transpose_images(
        c, c.unsqueeze(x, 0) if single else x, w, bias, stride, padding, output_padding, groups, dilation
    )
    return c.select(y, 0, 0) if single else y


@lowers("conv_transpose1d")
def _conv_transpose1d(
    c: Context, x: Any, w: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    rows = (_row(stride, 1), _row(padding, 0), _row(output_padding, 0), groups, _row(dilation, 1))
    return c.squeeze(_conv_transpose2d(c, c.unsqueeze(c.val(x), -2), c.unsqueeze(c.val(w), 2), bias, *rows), [-2])


def transpose_images(
    c: Context, x: str, w: str, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    """A transposed convolution of (N, C, H, W)."""
    small = all(o < s for o, s in zip(_pair(output_padding), _pair(stride), strict=True))
    require(small, "an output_padding of a stride or more")
    attrs = ConvTransposeAttrs(
        stride=_pair(stride),
        padding=_sides(padding),
        dilation=_pair(dilation),
        groups=groups,
        output_padding=_pair(output_padding),
    )
    y = c.op("conv_transpose2d", x, w, attrs=attrs)
    return c.op("add", y, c.reshape(c.val(bias), (c.shape(y)[1], 1, 1))) if bias is not None else y


@lowers("linear")
def _linear(c: Context, x: Any, w: Any, bias: Any) -> str:
    return c.op("linear", c.val(x), c.val(w), *([c.val(bias)] if bias is not None else []))


@lowers("embedding")
def _embedding(c: Context, table: Any, ids: Any, padding_index: int, scale: bool, sparse: bool) -> str:
    """Constant consecutive ids (positions) are a slice of the table."""
    require(not scale, "scale_grad_by_freq")
    table = c.val(table)
    if c.is_constant(ids) and padding_index < 0:
        first = int(ids.reshape(-1)[0])
        if ids.reshape(-1).tolist() == list(range(first, first + ids.numel())):
            rows = c.slice(table, 0, first, first + ids.numel())
            return c.reshape(rows, (*ids.shape, c.shape(table)[1]))
    return c.op("embedding", table, c.val(ids), attrs=EmbeddingAttrs(padding_index=padding_index))


# -- normalisation ---------------------------------------------------------------------------------------------
def _affine(c: Context, weight: Any, bias: Any, channels: int) -> tuple[str, str]:
    scale = c.val(weight) if weight is not None else c.fill((channels,), 1.0)
    return scale, c.val(bias) if bias is not None else c.fill((channels,), 0.0)


def _batch_norm(c: Context, x: str, weight: Any, bias: Any, mean: Any, var: Any, momentum: Any, eps: float) -> str:
    """Training mode. (N, C, L) is an image of one row, (N, C, D, H, W) one of D rows."""
    shape = c.shape(x)
    inputs = c.unsqueeze(x, 2) if len(shape) == 3 else c.reshape(x, (*shape[:3], -1)) if len(shape) > 4 else x
    updates = [] if mean is None else [c.state(mean), c.state(var)]
    attrs = BatchNormAttrs(eps=eps, momentum=float(momentum))
    scale, shift = _affine(c, weight, bias, shape[1])
    return c.reshape(c.op("batch_norm", inputs, scale, shift, attrs=attrs, updates=updates), shape)


def _frozen_norm(c: Context, x: str, weight: Any, bias: Any, mean: Any, var: Any, eps: float) -> str:
    """Evaluation mode within training: a scale and a shift per channel."""
    channels = (c.shape(x)[1], *([1] * (c.rank(x) - 2)))
    scale = c.op("reciprocal", c.op("sqrt", c.shift(c.state(var), eps)))
    scale = c.op("mul", scale, c.val(weight)) if weight is not None else scale
    y = c.op("mul", c.op("sub", x, c.reshape(c.state(mean), channels)), c.reshape(scale, channels))
    return c.op("add", y, c.reshape(c.val(bias), channels)) if bias is not None else y


@lowers("batch_norm")
def _any_batch_norm(c: Context, x: str, w: Any, b: Any, mean: Any, var: Any, training: bool, *rest: Any) -> str:
    if training or c.evaluating:  # the op has its own evaluation mode
        return _batch_norm(c, x, w, b, mean, var, rest[0], rest[1])
    return _frozen_norm(c, x, w, b, mean, var, rest[1])


@lowers("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm")
def _native_batch_norm(c: Context, x: str, w: Any, b: Any, *rest: Any) -> Any:
    """With running statistics (mean, var, training, momentum, eps) or without (training, momentum, eps)."""
    mean, var = (None, None) if len(rest) == 3 else rest[:2]
    training, momentum, eps = rest[-3:]
    y = _any_batch_norm(c, x, w, b, mean, var, training, momentum, eps)
    return (y, None, None, mean, var)


@lowers("_native_batch_norm_legit_no_training")
def _native_frozen_norm(c: Context, x: str, w: Any, b: Any, mean: Any, var: Any, momentum: Any, eps: float) -> Any:
    return (_any_batch_norm(c, x, w, b, mean, var, False, momentum, eps), None, None)


@lowers("layer_norm")
def _layer_norm(c: Context, x: str, shape: list[int], w: Any, b: Any, eps: float, *_: Any) -> str:
    inputs = [c.val(v) for v in (w, b) if v is not None]
    attrs = LayerNormAttrs(dims=len(shape), eps=eps, scale=w is not None, shift=b is not None)
    return c.op("layer_norm", x, *inputs, attrs=attrs)


@lowers("native_layer_norm")
def _native_layer_norm(c: Context, *arguments: Any) -> Any:
    return (_layer_norm(c, *arguments), None, None)


@lowers("rms_norm")
def _rms_norm(c: Context, x: str, shape: list[int], w: Any, eps: Any) -> str:
    axes = list(range(-len(shape), 0))
    mean = c.reduce("reduce_mean", c.op("square", x), axes, True)
    eps = float(c.torch.finfo(c.torch.float32).eps) if eps is None else float(eps)
    y = c.op("mul", x, c.op("reciprocal", c.op("sqrt", c.shift(mean, eps))))
    return y if w is None else c.op("mul", y, c.val(w))


@lowers("native_group_norm")
def _native_group_norm(
    c: Context, x: str, w: Any, b: Any, n: int, channels: int, size: int, groups: int, eps: float
) -> Any:
    return (_group_norm(c, x, groups, w, b, eps), None, None)


@lowers("group_norm")
def _group_norm(c: Context, x: str, groups: int, w: Any, b: Any, eps: float, *_: Any) -> str:
    """(N, C, L) is an image of one row, (N, C, D, H, W) one of D rows, (N, C) one of a pixel."""
    shape = c.shape(x)
    if len(shape) < 4:
        image = c.unsqueeze(x, 2) if len(shape) == 3 else c.reshape(x, (*shape, 1, 1))
    else:
        image = c.reshape(x, (*shape[:3], -1)) if len(shape) > 4 else x
    scale, shift = _affine(c, w, b, shape[1])
    y = c.op("group_norm", image, scale, shift, attrs=GroupNormAttrs(groups=groups, eps=eps))
    return c.reshape(y, shape)


@lowers("instance_norm")
def _instance_norm(
    c: Context, x: str, w: Any, b: Any, mean: Any, var: Any, own: bool, momentum: float, *rest: Any
) -> str:
    """Every channel is a group."""
    require(own and mean is None, "running statistics")
    return _group_norm(c, x, c.shape(x)[1], w, b, rest[0])


# -- pooling ---------------------------------------------------------------------------------------------------
def _pooled(c: Context, x: str, op: str, attrs: Any) -> str:
    """(C, H, W) is a batch of one."""
    single = c.rank(x) == 3
    y = c.op(op, c.unsqueeze(x, 0) if single else x, attrs=attrs)
    return c.select(y, 0, 0) if single else y


_LOWEST = -3.0e38
"""Around images, in place of minus infinity: no window consists of padding alone."""


@lowers("max_pool2d")
def max_pool_images(c: Context, x: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> str:
    attrs = MaxPoolAttrs(
        kernel=_pair(kernel),
        stride=_pair(stride or kernel),
        padding=_sides(padding),
        dilation=_pair(dilation),
        ceil_mode=ceil_mode,
    )
    return _pooled(c, x, "max_pool2d", attrs)


@lowers("max_pool2d_with_indices")
def _max_pool_indices(c: Context, x: str, *window: Any) -> Any:
    y = max_pool_images(c, x, *window)
    return (y, _chosen_places(c, x, y, *window) if c.wanted(1) else None)


def _chosen_places(c: Context, x: str, y: str, kernel: Any, stride: Any, padding: Any, dilation: Any, _: Any) -> str:
    """Of every result, the place in its image, row by row, of the first element of its window that is as large."""
    lead, image, counts = c.rank(x) - 2, c.shape(x)[-2:], c.shape(y)[-2:]
    steps, before, apart = _pair(stride or kernel), _pair(padding), _pair(dilation)
    behind = [
        (n - 1) * step + a * (k - 1) + 1 - extent - b
        for n, step, a, k, extent, b in zip(counts, steps, apart, _pair(kernel), image, before, strict=True)
    ]
    padded = c.pad(c.op("detach", x), [(0, 0)] * lead + list(zip(before, behind, strict=True)), _LOWEST)
    place = c.fill((), 0.0)
    for tap in reversed(list(product(*(range(k) for k in _pair(kernel))))):
        part, own = padded, c.torch.zeros(())
        for axis, (t, a, n, step) in enumerate(zip(tap, apart, counts, steps, strict=True)):
            part = c.slice(part, lead + axis, t * a, t * a + (n - 1) * step + 1, step)
            own = own[..., None] * image[axis] + c.torch.arange(n) * step + t * a - before[axis]
        place = c.where(c.compare("eq", part, y), c.val(own), place)
    return c.to_whole(place)


@lowers("max_pool1d")
def _max_pool1d(c: Context, x: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> str:
    windows = (_row(kernel, 1), _row(stride or kernel, 1), _row(padding, 0), _row(dilation, 1))
    return c.squeeze(max_pool_images(c, c.unsqueeze(x, -2), *windows, ceil_mode), [-2])


@lowers("max_pool1d_with_indices")
def _max_pool1d_indices(c: Context, x: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    windows = (_row(kernel, 1), _row(stride or kernel, 1), _row(padding, 0), _row(dilation, 1))
    y, places = _max_pool_indices(c, c.unsqueeze(x, -2), *windows, ceil)
    return (c.squeeze(y, [-2]), places and c.squeeze(places, [-2]))


@lowers("avg_pool2d")
def average_pool(
    c: Context, x: str, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool, divisor: Any
) -> str:
    require(not divisor or not ceil_mode, "divisor_override with ceil_mode")
    attrs = AvgPoolAttrs(
        kernel=_pair(kernel),
        stride=_pair(stride or kernel),
        padding=_sides(padding),
        ceil_mode=ceil_mode,
        count_include_pad=include or bool(divisor),
    )
    y = _pooled(c, x, "avg_pool2d", attrs)
    return c.scale(y, prod(_pair(kernel)) / divisor) if divisor else y


@lowers("avg_pool1d")
def _avg_pool1d(c: Context, x: str, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool) -> str:
    windows = (_row(kernel, 1), _row(stride or kernel, 1), _row(padding, 0))
    return c.squeeze(average_pool(c, c.unsqueeze(x, -2), *windows, ceil_mode, include, None), [-2])


@lowers("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive(c: Context, x: str, size: Any) -> str:
    return _pooled(c, x, "adaptive_avg_pool2d", AdaptivePoolAttrs(output=_pair(size)))


@lowers("adaptive_avg_pool1d")
def _adaptive1d(c: Context, x: str, size: Any) -> str:
    return c.squeeze(_adaptive(c, c.unsqueeze(x, -2), [1, *size]), [-2])
