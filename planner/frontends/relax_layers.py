"""Relax operators whose lowering takes more than a line, and those of ONNX that arrive whole (`onnx.*`)."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from planner.frontends import volumes
from planner.frontends.emitter import LARGEST_WINDOW
from planner.frontends.relax_ops import Call, Lowering, Ref, Unsupported, lowers, references
from planner.graph.model import DType, Role
from planner.ops.activation import GeluAttrs, LeakyReluAttrs
from planner.ops.conv import ConvAttrs
from planner.ops.conv_transpose import ConvTransposeAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.lrn import LrnAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs
from planner.ops.rectifier import EluAttrs, SoftplusAttrs

SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults of alpha and gamma."""


# -- convolutions and products ---------------------------------------------------------------------------------
def _sides(padding: list[int]) -> tuple[int, int, int, int]:
    """Relax lists (top, left, bottom, right)."""
    top, left, bottom, right = padding
    return (top, bottom, left, right)


@lowers("nn.conv2d")
def _conv2d(s: Lowering, call: Call) -> str:
    a = call.attrs
    attrs = ConvAttrs(stride=a["strides"], padding=_sides(a["padding"]), dilation=a["dilation"], groups=a["groups"])
    return s.e.op("conv2d", s.val(call.args[0]), s.val(call.args[1]), attrs=attrs)


@lowers("nn.conv1d")
def _conv1d(s: Lowering, call: Call) -> str:
    """As a convolution of images of one row."""
    a, e = call.attrs, s.e
    before, after = a["padding"]
    attrs = ConvAttrs(
        stride=(1, *a["strides"]),
        padding=(0, 0, before, after),
        dilation=(1, *a["dilation"]),
        groups=a["groups"],
    )
    x, w = (e.unsqueeze(s.val(v), -2) for v in call.args)
    return e.squeeze(e.op("conv2d", x, w, attrs=attrs), [-2])


@lowers("nn.conv3d")
def _conv3d(s: Lowering, call: Call) -> str:
    a = call.attrs
    steps = (a["strides"], _ends(a["padding"]), a["dilation"], a["groups"])
    return volumes.convolve(s.e, s.val(call.args[0]), s.val(call.args[1]), None, *steps)


def _ends(padding: list[int]) -> list[tuple[int, int]]:
    """Relax lists those before all dimensions first."""
    return list(zip(padding[: len(padding) // 2], padding[len(padding) // 2 :], strict=True))


@lowers("nn.conv2d_transpose")
def _conv2d_transpose(s: Lowering, call: Call) -> str:
    a = call.attrs
    attrs = ConvTransposeAttrs(
        stride=a["strides"],
        padding=_sides(a["padding"]),
        dilation=a["dilation"],
        groups=a["groups"],
        output_padding=a["output_padding"],
    )
    return s.e.op("conv_transpose2d", s.val(call.args[0]), s.val(call.args[1]), attrs=attrs)


@lowers("nn.conv3d_transpose")
def _conv3d_transpose(s: Lowering, call: Call) -> str:
    a, x = call.attrs, s.val(call.args[0])
    steps = (a["strides"], _ends(a["padding"]), a["dilation"], a["groups"], a["output_padding"])
    return volumes.volume_of(s.e, volumes.transpose(s.e, x, s.val(call.args[1]), *steps), s.e.shape(x)[0])


@lowers("matmul")
def _matmul(s: Lowering, call: Call) -> str:
    a, b = call.args
    made = s.made.get(b.name) if isinstance(b, Ref) else None
    if made is not None and made.op == "permute_dims" and s.values[made.target] == made.args[0]:
        return s.e.op("linear", s.val(a), s.val(made.args[0]))
    return s.e.matmul(s.val(a), s.val(b))


@lowers("permute_dims")
def _permute(s: Lowering, call: Call) -> Any:
    """Transposed weights are read by `linear` as they are: nothing is emitted for those."""
    own, axes = Ref(call.target), list(call.attrs["axes"] or range(len(call.shape))[::-1])
    readers = [c for c in s.function.calls if own in references(c.args)]
    plain = all(c.op == "matmul" and c.args[1] == own != c.args[0] and len(c.shape) > 1 for c in readers)
    if readers and plain and axes == [1, 0]:
        return call.args[0]
    return s.e.permute(s.val(call.args[0]), axes)


# -- normalisation ---------------------------------------------------------------------------------------------
@lowers("nn.batch_norm")
def _batch_norm(s: Lowering, call: Call) -> Any:
    x, gamma, beta, mean, var = call.args
    if not all(isinstance(v, Ref) and v.name in s.function.weights for v in (mean, var)):
        raise Unsupported("running statistics that are no initializers")
    attrs = BatchNormAttrs(eps=call.attrs["epsilon"], momentum=round(1 - call.attrs["momentum"], 12))
    updates = [s.val(mean, Role.STATE), s.val(var, Role.STATE)]
    shape = s.e.shape(s.val(x))
    image = shape if len(shape) in (2, 4) else (*shape[:2], prod(shape[2:-1]), shape[-1])
    flat = s.e.reshape(s.val(x), image)
    y = s.e.op("batch_norm", flat, s.val(gamma), s.val(beta), attrs=attrs, updates=updates)
    return (s.e.reshape(y, shape), None, None)


@lowers("nn.layer_norm")
def _layer_norm(s: Lowering, call: Call) -> str:
    attrs = LayerNormAttrs(dims=len(call.attrs["axes"]), eps=call.attrs["epsilon"])
    return s.e.op("layer_norm", *(s.val(a) for a in call.args), attrs=attrs)


@lowers("onnx.LRN")
def _lrn(s: Lowering, call: Call) -> str:
    a = call.attrs
    if a["size"] % 2 == 0:  # of which ONNX has one channel more behind than before
        raise Unsupported("windows of an even number of channels")
    attrs = LrnAttrs(size=a["size"], alpha=a.get("alpha", 1e-4), beta=a.get("beta", 0.75), k=a.get("bias", 1.0))
    return s.e.op("lrn", s.val(call.args[0]), attrs=attrs)


@lowers("nn.dropout")
def _dropout(s: Lowering, call: Call) -> Any:
    if call.attrs["rate"] == 0:
        return (s.val(call.args[0]), None)
    return (s.e.op("dropout", s.val(call.args[0]), attrs=DropoutAttrs(p=call.attrs["rate"])), None)


# -- pooling ---------------------------------------------------------------------------------------------------
@lowers("nn.max_pool3d", "nn.max_pool2d", "nn.max_pool1d")
def _max_pool(s: Lowering, call: Call) -> str:
    def pool(images: str, a: Mapping[str, Any]) -> str:
        attrs = MaxPoolAttrs(
            kernel=a["pool_size"],
            stride=a["strides"],
            padding=_sides(a["padding"]),
            dilation=a["dilation"],
            ceil_mode=bool(a["ceil_mode"]),
        )
        return s.e.op("max_pool2d", images, attrs=attrs)

    return _pooled(s, call, pool)


@lowers("nn.avg_pool3d", "nn.avg_pool2d", "nn.avg_pool1d")
def _avg_pool(s: Lowering, call: Call) -> str:
    if any(d != 1 for d in call.attrs["dilation"]):
        raise Unsupported("an average over a dilated window")

    def pool(images: str, a: Mapping[str, Any]) -> str:
        attrs = AvgPoolAttrs(
            kernel=a["pool_size"],
            stride=a["strides"],
            padding=_sides(a["padding"]),
            ceil_mode=bool(a["ceil_mode"]),
            count_include_pad=bool(a["count_include_pad"]),
        )
        return s.e.op("avg_pool2d", images, attrs=attrs)

    return _pooled(s, call, pool)


def _pooled(s: Lowering, call: Call, pool: Callable[[str, Mapping[str, Any]], str]) -> str:
    """`pool(images, attributes)`: of sequences, as images of one row; of volumes, dimension by dimension."""
    x, a = s.val(call.args[0]), call.attrs
    if call.op.endswith("2d"):
        return pool(x, a)
    ends = _ends(a["padding"])
    if call.op.endswith("1d"):
        flat = {k: [1, *a[k]] for k in _WINDOW} | {"padding": [0, ends[0][0], 0, ends[0][1]]}
        return s.e.squeeze(pool(s.e.unsqueeze(x, -2), a | flat), [-2])

    def part(images: str, deep: bool) -> str:
        (before, behind), *others = ends
        sizes = {k: [a[k][0], 1] if deep else a[k][1:] for k in _WINDOW}
        sides = [before, 0, behind, 0] if deep else [others[0][0], others[1][0], others[0][1], others[1][1]]
        return pool(images, a | sizes | {"padding": sides})

    return volumes.by_dimension(s.e, x, part)


_WINDOW = ("pool_size", "strides", "dilation")
"""Attributes with a number per dimension."""


# -- reductions ------------------------------------------------------------------------------------------------
@lowers("sum", "mean")
def _reduce(s: Lowering, call: Call) -> str:
    """The mean over an image's positions is global average pooling."""
    x, axes = s.val(call.args[0]), call.attrs["axis"]
    if call.op == "mean" and axes == [2, 3] and call.attrs["keepdims"] and s.e.rank(x) == 4:
        return s.e.op("adaptive_avg_pool2d", x, attrs=AdaptivePoolAttrs(output=(1, 1)))
    return s.e.reduce(f"reduce_{call.op}", x, axes, bool(call.attrs["keepdims"]))


@lowers("variance")
def _variance(s: Lowering, call: Call) -> str:
    return s.e.variance(s.val(call.args[0]), call.attrs["axis"], 0, bool(call.attrs["keepdims"]))[0]


@lowers("max", "min")
def _extreme(s: Lowering, call: Call) -> str:
    """The maximum over an image's positions is global max pooling, where a window may have so many elements."""
    x, axes = s.val(call.args[0]), call.attrs["axis"]
    if s.e.b.type(x).dtype is not DType.FLOAT32:
        raise Unsupported("whole numbers")
    shape = s.e.shape(x)
    if call.op == "max" and len(shape) == 4 and axes == [2, 3] and shape[2] * shape[3] <= LARGEST_WINDOW:
        attrs = MaxPoolAttrs(kernel=shape[2:], stride=shape[2:])
        return s.e.reshape(s.e.op("max_pool2d", x, attrs=attrs), call.shape)
    y = x if call.op == "max" else s.e.op("neg", x)
    for axis in range(len(shape)) if axes is None else axes:
        y = s.e.maximum_over(y, axis)
    return s.e.reshape(y if call.op == "max" else s.e.op("neg", y), call.shape)


@lowers("nn.softmax", "nn.log_softmax")
def _softmax(s: Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    return s.e.along_last(call.op.removeprefix("nn."), x, call.attrs["axis"])


# -- activations -----------------------------------------------------------------------------------------------
@lowers("nn.leakyrelu")
def _leaky_relu(s: Lowering, call: Call) -> str:
    return s.e.op("leaky_relu", s.val(call.args[0]), attrs=LeakyReluAttrs(slope=call.attrs["alpha"]))


@lowers("onnx.PRelu")
def _prelu(s: Lowering, call: Call) -> str:
    e, x, slope = s.e, s.val(call.args[0]), s.val(call.args[1])
    if call.attrs["by_channel"] and e.rank(slope) == 1:  # before opset 7
        slope = e.reshape(slope, (-1, *[1] * (e.rank(x) - 2)))
    return e.prelu(x, slope)


@lowers("nn.gelu", "nn.gelu_tanh")
def _gelu(s: Lowering, call: Call) -> str:
    attrs = GeluAttrs(approximate="tanh") if call.op.endswith("tanh") else GeluAttrs()
    return s.e.op("gelu", s.val(call.args[0]), attrs=attrs)


@lowers("nn.softplus", "onnx.Softplus")
def _softplus(s: Lowering, call: Call) -> str:
    return s.e.op("softplus", s.val(call.args[0]), attrs=SoftplusAttrs())


@lowers("onnx.Softsign")
def _softsign(s: Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    return s.e.op("div", x, s.e.shift(s.e.op("abs", x), 1))


@lowers("onnx.Elu", "onnx.Selu")
def _elu(s: Lowering, call: Call) -> str:
    alpha, gamma = SELU if call.op == "onnx.Selu" else (1.0, 1.0)
    a = call.attrs
    attrs = EluAttrs(alpha=float(a.get("alpha", alpha)), scale=float(a.get("gamma", gamma)))
    return s.e.op("elu", s.val(call.args[0]), attrs=attrs)


@lowers("onnx.HardSigmoid", "onnx.HardSwish")
def _hard(s: Lowering, call: Call) -> str:
    e, x = s.e, s.val(call.args[0])
    if call.op == "onnx.HardSwish":
        return e.op("mul", x, e.hard_sigmoid(x))
    slope, offset = call.attrs.get("alpha", 0.2), call.attrs.get("beta", 0.5)
    return e.clamp(e.shift(e.scale(x, slope), offset), 0, 1)


@lowers("tan")
def _tan(s: Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    return s.e.op("div", s.e.op("sin", x), s.e.op("cos", x))


@lowers("rsqrt")
def _rsqrt(s: Lowering, call: Call) -> str:
    return s.e.op("reciprocal", s.e.op("sqrt", s.val(call.args[0])))


@lowers("clip")
def _clip(s: Lowering, call: Call) -> str:
    return s.e.clamp(s.val(call.args[0]), s.number(call.args[1]), s.number(call.args[2]))


@lowers("onnx.Clip")
def _clip_whole(s: Lowering, call: Call) -> str:
    return s.e.clamp(s.val(call.args[0]), call.attrs["min"], call.attrs["max"])


# -- shapes ----------------------------------------------------------------------------------------------------
@lowers("take")
def _take(s: Lowering, call: Call) -> str:
    table, ids, axis = s.val(call.args[0]), s.get(call.args[1]), call.attrs["axis"]
    if isinstance(ids, str) and s.e.rank(table) == 2 and axis == 0:
        return s.e.op("embedding", table, ids, attrs=EmbeddingAttrs())
    if not isinstance(ids, np.ndarray) or ids.size > 64:
        raise Unsupported("a look-up of other things than rows of a table, with more than 64 indices or no constants")
    extent = s.e.shape(table)[axis]
    if any(not -extent <= i < extent for i in ids.reshape(-1)):
        raise Unsupported(f"an index beyond the {extent} there are")
    picked = [s.e.select(table, axis, int(i)) for i in ids.reshape(-1)]
    joined = s.e.concat([s.e.unsqueeze(p, axis) for p in picked], axis)
    return s.e.reshape(joined, call.shape)


@lowers("split")
def _split(s: Lowering, call: Call) -> list[str]:
    x, axis, at = s.val(call.args[0]), call.attrs["axis"], call.attrs["indices_or_sections"]
    extent = s.e.shape(x)[axis]
    cuts = [min(extent, -(-extent // at) * i) for i in range(at)] if isinstance(at, int) else [0, *at]
    return s.e.split(x, axis, [hi - lo for lo, hi in zip(cuts, [*cuts[1:], extent], strict=True)])


@lowers("strided_slice")
def _slice(s: Lowering, call: Call) -> str:
    x, axes, begin, end, *step = s.val(call.args[0]), *(s.get(a) for a in call.args[1:])
    for i, axis in enumerate(axes):
        first, last, stride = slice(begin[i], end[i], step[0][i] if step else 1).indices(s.e.shape(x)[axis])
        if stride < 1:
            raise Unsupported("a slice that runs backwards")
        x = s.e.slice(x, axis, first, last, stride)
    return x


@lowers("concat")
def _concat(s: Lowering, call: Call) -> str:
    return s.e.concat([s.val(a) for a in call.args[0]], call.attrs["axis"])


@lowers("broadcast_to")
def _expand(s: Lowering, call: Call) -> str:
    return s.e.expand(s.val(call.args[0]), call.shape)


@lowers("onnx.Pad")
def _pad(s: Lowering, call: Call) -> str:
    if call.attrs["mode"] != "constant":
        raise Unsupported(f"padding by {call.attrs['mode']!r}")
    return s.e.pad(s.val(call.args[0]), _pairs(call.attrs["pads"], len(call.shape)), call.attrs["value"])


def _pairs(pads: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """ONNX lists all dimensions' begins and then all ends."""
    return list(zip(pads[:rank], pads[rank:], strict=True))


@lowers("onnx.Tile")
def _tile(s: Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    for axis, times in enumerate(call.attrs["repeats"]):
        x = s.e.concat([x] * int(times), axis)
    return x


@lowers("astype")
def _cast(s: Lowering, call: Call) -> Any:
    x = s.val(call.args[0])
    if (own := s.e.b.type(x).dtype.value) != call.dtype:
        raise Unsupported(f"a conversion from {own} to {call.dtype}")
    return x
