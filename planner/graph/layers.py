"""Layers over the builder, for the zoo and the frontends: parameters under PyTorch's names with PyTorch's default
initialisation, nodes named after the layer. Each function takes value ids and returns a value id."""

from collections.abc import Sequence
from math import prod, sqrt

from planner.graph.builder import GraphBuilder
from planner.graph.model import Init
from planner.ops.conv import ConvAttrs
from planner.ops.loss import ClassLossAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs
from planner.ops.shape import ReshapeAttrs

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


def relu(b: GraphBuilder, x: str, *, name: str) -> str:
    return b.op("relu", [x], name=name)[0]


def add(b: GraphBuilder, x: str, y: str, *, name: str) -> str:
    return b.op("add", [x, y], name=name)[0]


def max_pool(
    b: GraphBuilder, x: str, kernel: int | Pair, stride: int | Pair, padding: int | Pair = 0, *, name: str
) -> str:
    attrs = MaxPoolAttrs(kernel=_pair(kernel), stride=_pair(stride), padding=_frame(padding))
    return b.op("max_pool2d", [x], attrs, name=name)[0]


def avg_pool(
    b: GraphBuilder, x: str, kernel: int | Pair, stride: int | Pair, padding: int | Pair = 0, *, name: str
) -> str:
    attrs = AvgPoolAttrs(kernel=_pair(kernel), stride=_pair(stride), padding=_frame(padding))
    return b.op("avg_pool2d", [x], attrs, name=name)[0]


def adaptive_avg_pool(b: GraphBuilder, x: str, output: int | Pair, *, name: str) -> str:
    """(N, C, H, W) -> (N, C, *output)."""
    if b.shape(x)[2:] == _pair(output):
        return x
    return b.op("adaptive_avg_pool2d", [x], AdaptivePoolAttrs(output=_pair(output)), name=name)[0]


def reshape(b: GraphBuilder, x: str, shape: Sequence[int], *, name: str) -> str:
    return b.op("reshape", [x], ReshapeAttrs(shape=tuple(shape)), name=name)[0]


def flatten(b: GraphBuilder, x: str, *, name: str) -> str:
    """(N, ...) -> (N, everything else)."""
    n, *rest = b.shape(x)
    return reshape(b, x, (n, prod(rest)), name=name)


def cross_entropy(b: GraphBuilder, logits: str, labels: str, *, name: str = "loss") -> str:
    """Mean over the batch; logits (N, classes), labels int64 (N)."""
    return b.op("cross_entropy", [logits, labels], ClassLossAttrs(), name=name)[0]
