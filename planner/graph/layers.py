"""Layers over the builder, for the zoo and the frontends: parameters under PyTorch's names with PyTorch's default
initialisation, nodes named after the layer. Each function takes value ids and returns a value id."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Literal

from planner.graph.builder import GraphBuilder
from planner.graph.model import Attrs, Init
from planner.ops.activation import ClampAttrs, GeluAttrs, LeakyReluAttrs
from planner.ops.base import misfit
from planner.ops.concat import ConcatAttrs
from planner.ops.conv import ConvAttrs
from planner.ops.conv_transpose import ConvTransposeAttrs
from planner.ops.copy import PermuteAttrs, SliceAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.group_norm import GroupNormAttrs
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.loss import ClassLossAttrs, LossAttrs
from planner.ops.lrn import LrnAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs
from planner.ops.reduce import ReduceAttrs
from planner.ops.shape import ReshapeAttrs

Reduction = Literal["mean", "sum"]

Pair = tuple[int, int]


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


def _frame(padding: int | Pair) -> tuple[int, int, int, int]:
    """Symmetric padding as (top, bottom, left, right)."""
    rows, columns = _pair(padding)
    return (rows, rows, columns, columns)


def _uniform(fan_in: int) -> Init:
    """PyTorch's default for convolutions and linear layers: kaiming_uniform with a = sqrt(5), i.e. 1 / sqrt(fan in)."""
    return Init(kind="uniform", value=1 / sqrt(fan_in))


def conv2d(
    b: GraphBuilder,
    x: str,
    channels: int,
    kernel: int | Pair,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    *,
    dilation: int | Pair = 1,
    groups: int = 1,
    bias: bool = True,
    name: str,
) -> str:
    """x (N, C, H, W) -> (N, channels, H', W'); parameters `name.weight` (O, C / groups, KH, KW) and `name.bias`."""
    shape = (channels, b.shape(x)[1] // groups, *_pair(kernel))
    inputs = [x, b.parameter(f"{name}.weight", shape, _uniform(prod(shape[1:])))]
    if bias:
        inputs.append(b.parameter(f"{name}.bias", (channels,), _uniform(prod(shape[1:]))))
    attrs = ConvAttrs(stride=_pair(stride), padding=_frame(padding), dilation=_pair(dilation), groups=groups)
    return b.op("conv2d", inputs, attrs, name=name)[0]


def conv_transpose2d(
    b: GraphBuilder,
    x: str,
    channels: int,
    kernel: int | Pair,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    *,
    output_padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    bias: bool = True,
    name: str,
) -> str:
    """x (N, C, H, W) -> (N, channels, H', W'); parameters `name.weight` (C, channels / groups, KH, KW), `name.bias`."""
    shape = (b.shape(x)[1], channels // groups, *_pair(kernel))
    weight = b.parameter(f"{name}.weight", shape, _uniform(prod(shape[1:])))
    attrs = ConvTransposeAttrs(
        stride=_pair(stride),
        padding=_frame(padding),
        dilation=_pair(dilation),
        groups=groups,
        output_padding=_pair(output_padding),
    )
    (y,) = b.op("conv_transpose2d", [x, weight], attrs, name=name)
    if not bias:
        return y
    offset = b.parameter(f"{name}.bias", (channels,), _uniform(prod(shape[1:])))
    return add(b, y, reshape(b, offset, (channels, 1, 1), name=f"{name}.per_channel"), name=f"{name}.add_bias")


def linear(b: GraphBuilder, x: str, features: int, *, bias: bool = True, name: str) -> str:
    """x (..., in) -> (..., features); parameters `name.weight` (features, in) and `name.bias`."""
    fan_in = b.shape(x)[-1]
    inputs = [x, b.parameter(f"{name}.weight", (features, fan_in), _uniform(fan_in))]
    if bias:
        inputs.append(b.parameter(f"{name}.bias", (features,), _uniform(fan_in)))
    return b.op("linear", inputs, name=name)[0]


def batch_norm(b: GraphBuilder, x: str, *, eps: float = 1e-5, momentum: float = 0.1, name: str) -> str:
    """Normalises each channel over N, H, W; running statistics are states of the graph."""
    shape = b.shape(x)[1:2]
    scale = b.parameter(f"{name}.weight", shape, Init(kind="ones"))
    shift = b.parameter(f"{name}.bias", shape, Init(kind="zeros"))
    running = [
        b.state(f"{name}.running_mean", shape, Init(kind="zeros")),
        b.state(f"{name}.running_var", shape, Init(kind="ones")),
    ]
    return b.op(
        "batch_norm", [x, scale, shift], BatchNormAttrs(eps=eps, momentum=momentum), name=name, updates=running
    )[0]


def group_norm(b: GraphBuilder, x: str, groups: int, *, eps: float = 1e-5, name: str) -> str:
    """Normalises each group of channels of every image; parameters `name.weight` and `name.bias`, one per channel."""
    scale = b.parameter(f"{name}.weight", b.shape(x)[1:2], Init(kind="ones"))
    shift = b.parameter(f"{name}.bias", b.shape(x)[1:2], Init(kind="zeros"))
    return b.op("group_norm", [x, scale, shift], GroupNormAttrs(groups=groups, eps=eps), name=name)[0]


def relu(b: GraphBuilder, x: str, *, name: str) -> str:
    return b.op("relu", [x], name=name)[0]


def add(b: GraphBuilder, x: str, y: str, *, name: str) -> str:
    return b.op("add", [x, y], name=name)[0]


def layer_norm(
    b: GraphBuilder, x: str, *, dims: int = 1, eps: float = 1e-5, scale: bool = True, shift: bool = True, name: str
) -> str:
    """Normalises the last `dims` dimensions; parameters `name.weight` and `name.bias` of their shape."""
    row = b.shape(x)[len(b.shape(x)) - dims :]
    inputs = [x]
    if scale:
        inputs.append(b.parameter(f"{name}.weight", row, Init(kind="ones")))
    if shift:
        inputs.append(b.parameter(f"{name}.bias", row, Init(kind="zeros")))
    return b.op("layer_norm", inputs, LayerNormAttrs(dims=dims, eps=eps, scale=scale, shift=shift), name=name)[0]


def embedding(b: GraphBuilder, ids: str, entries: int, columns: int, *, padding_index: int = -1, name: str) -> str:
    """ids (...) int64 -> (..., columns); parameter `name.weight` (entries, columns)."""
    table = b.parameter(f"{name}.weight", (entries, columns), Init(kind="normal", value=1.0))
    return b.op("embedding", [table, ids], EmbeddingAttrs(padding_index=padding_index), name=name)[0]


def unary(b: GraphBuilder, op: str, x: str, *, name: str) -> str:
    """An op of one tensor without attributes: sigmoid, tanh, silu, exp, log, sqrt, neg, abs, square, reciprocal."""
    return b.op(op, [x], name=name)[0]


def clamp(b: GraphBuilder, x: str, low: float | None = None, high: float | None = None, *, name: str) -> str:
    """Between the bounds; relu6 is clamp(0, 6)."""
    return b.op("clamp", [x], ClampAttrs(low=low, high=high), name=name)[0]


def leaky_relu(b: GraphBuilder, x: str, slope: float = 0.01, *, name: str) -> str:
    return b.op("leaky_relu", [x], LeakyReluAttrs(slope=slope), name=name)[0]


def gelu(b: GraphBuilder, x: str, approximate: Literal["none", "tanh"] = "none", *, name: str) -> str:
    return b.op("gelu", [x], GeluAttrs(approximate=approximate), name=name)[0]


def mul(b: GraphBuilder, x: str, y: str, *, name: str) -> str:
    return b.op("mul", [x, y], name=name)[0]


def dropout(b: GraphBuilder, x: str, p: float = 0.5, *, name: str) -> str:
    return b.op("dropout", [x], DropoutAttrs(p=p), name=name)[0]


def lrn(
    b: GraphBuilder, x: str, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, name: str
) -> str:
    """Local response normalisation over `size` channels."""
    return b.op("lrn", [x], LrnAttrs(size=size, alpha=alpha, beta=beta, k=k), name=name)[0]


def max_pool(
    b: GraphBuilder,
    x: str,
    kernel: int | Pair,
    stride: int | Pair,
    padding: int | Pair = 0,
    *,
    dilation: int | Pair = 1,
    ceil_mode: bool = False,
    name: str,
) -> str:
    attrs = MaxPoolAttrs(
        kernel=_pair(kernel),
        stride=_pair(stride),
        padding=_frame(padding),
        dilation=_pair(dilation),
        ceil_mode=ceil_mode,
    )
    return b.op("max_pool2d", [x], attrs, name=name)[0]


def avg_pool(
    b: GraphBuilder,
    x: str,
    kernel: int | Pair,
    stride: int | Pair,
    padding: int | Pair = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    name: str,
) -> str:
    attrs = AvgPoolAttrs(
        kernel=_pair(kernel),
        stride=_pair(stride),
        padding=_frame(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )
    return b.op("avg_pool2d", [x], attrs, name=name)[0]


def adaptive_avg_pool(b: GraphBuilder, x: str, output: int | Pair, *, name: str) -> str:
    """(N, C, H, W) -> (N, C, *output)."""
    if b.shape(x)[2:] == _pair(output):
        return x
    return b.op("adaptive_avg_pool2d", [x], AdaptivePoolAttrs(output=_pair(output)), name=name)[0]


def global_avg_pool(b: GraphBuilder, x: str, *, name: str) -> str:
    """(N, C, H, W) -> (N, C, 1, 1)."""
    return adaptive_avg_pool(b, x, 1, name=name)


def reshape(b: GraphBuilder, x: str, shape: Sequence[int], *, name: str) -> str:
    """One dimension may be -1: whatever is left."""
    known = prod(d for d in shape if d != -1)
    full = tuple(prod(b.shape(x)) // max(1, known) if d == -1 else d for d in shape)
    return b.op("reshape", [x], ReshapeAttrs(shape=full), name=name)[0]


def flatten(b: GraphBuilder, x: str, start: int = 1, *, name: str) -> str:
    """(N, ...) -> (N, everything from dimension `start` on)."""
    shape = b.shape(x)
    return reshape(b, x, (*shape[:start], prod(shape[start:])), name=name)


def permute(b: GraphBuilder, x: str, axes: Sequence[int], *, name: str) -> str:
    """Dimension i of the result is dimension axes[i] of x."""
    if tuple(axes) == tuple(range(len(b.shape(x)))):
        return x
    return b.op("permute", [x], PermuteAttrs(axes=tuple(axes)), name=name)[0]


def transpose(b: GraphBuilder, x: str, first: int, second: int, *, name: str) -> str:
    """x with two dimensions swapped."""
    axes = list(range(len(b.shape(x))))
    axes[first], axes[second] = axes[second], axes[first]
    return permute(b, x, axes, name=name)


def concat(b: GraphBuilder, values: Sequence[str], axis: int = 1, *, name: str) -> str:
    return b.op("concat", values, ConcatAttrs(axis=axis % len(b.shape(values[0]))), name=name)[0]


def split(b: GraphBuilder, x: str, sizes: Sequence[int], axis: int = 1, *, name: str) -> tuple[str, ...]:
    """Parts of the given sizes along an axis, which they fill."""
    shape = b.shape(x)
    axis %= len(shape)
    if sum(sizes) != shape[axis]:
        raise misfit(f"{name}: sizes {tuple(sizes)} do not add up to {shape[axis]}", "split the whole axis")
    parts, start = [], 0
    for size in sizes:
        part = SliceAttrs(axis=axis, start=start, stop=start + size)
        parts.append(b.op("slice", [x], part, name=name)[0])
        start += size
    return tuple(parts)


def mean(b: GraphBuilder, x: str, axes: Sequence[int], *, keepdims: bool = False, name: str) -> str:
    attrs = ReduceAttrs(axes=tuple(a % len(b.shape(x)) for a in axes), keepdims=keepdims)
    return b.op("reduce_mean", [x], attrs, name=name)[0]


def sum_over(b: GraphBuilder, x: str, axes: Sequence[int], *, keepdims: bool = False, name: str) -> str:
    attrs = ReduceAttrs(axes=tuple(a % len(b.shape(x)) for a in axes), keepdims=keepdims)
    return b.op("reduce_sum", [x], attrs, name=name)[0]


def _over_last(b: GraphBuilder, op: str, x: str, axis: int, name: str) -> str:
    """A row-wise op along any axis, by way of permutations."""
    rank = len(b.shape(x))
    axes = (*(a for a in range(rank) if a != axis % rank), axis % rank)
    moved = permute(b, x, axes, name=f"{name}.in")
    (y,) = b.op(op, [moved], Attrs(), name=name)
    return permute(b, y, tuple(axes.index(a) for a in range(rank)), name=f"{name}.out")


def softmax(b: GraphBuilder, x: str, axis: int = -1, *, name: str) -> str:
    return _over_last(b, "softmax", x, axis, name)


def log_softmax(b: GraphBuilder, x: str, axis: int = -1, *, name: str) -> str:
    return _over_last(b, "log_softmax", x, axis, name)


def _class_loss(b: GraphBuilder, op: str, x: str, labels: str, attrs: ClassLossAttrs, name: str) -> str:
    """Classes are dimension 1, as in PyTorch; further dimensions are more rows."""
    rank = len(b.shape(x))
    if rank > 2:
        x = permute(b, x, (0, *range(2, rank), 1), name=f"{name}.classes_last")
        x = reshape(b, x, (-1, b.shape(x)[-1]), name=f"{name}.rows")
        labels = reshape(b, labels, (-1,), name=f"{name}.labels")
    return b.op(op, [x, labels], attrs, name=name)[0]


def cross_entropy(
    b: GraphBuilder,
    logits: str,
    labels: str,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    name: str = "loss",
) -> str:
    """logits (N, classes, ...), labels int64 (N, ...) -> ()."""
    attrs = ClassLossAttrs(reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
    return _class_loss(b, "cross_entropy", logits, labels, attrs, name)


def nll_loss(
    b: GraphBuilder,
    log_probs: str,
    labels: str,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    name: str = "loss",
) -> str:
    """log_probs (N, classes, ...), labels int64 (N, ...) -> ()."""
    attrs = ClassLossAttrs(reduction=reduction, ignore_index=ignore_index)
    return _class_loss(b, "nll_loss", log_probs, labels, attrs, name)


def mse(b: GraphBuilder, x: str, target: str, *, reduction: Reduction = "mean", name: str = "loss") -> str:
    return b.op("mse_loss", [x, target], LossAttrs(reduction=reduction), name=name)[0]


def bce_with_logits(b: GraphBuilder, x: str, target: str, *, reduction: Reduction = "mean", name: str = "loss") -> str:
    return b.op("bce_with_logits", [x, target], LossAttrs(reduction=reduction), name=name)[0]
