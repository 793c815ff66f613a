"""Relax functions (as plain records) -> GraphBuilder.

Three patterns are undone: convolution + bias, x W^T (+ bias), and the wrapping of negative indices before a look-up.
Arithmetic on constants is done in NumPy. A float initializer with more than one element is a parameter, unless it is
subtracted or divided by (the normalisation of inputs); the others are constants.
"""

import difflib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.frontends.emitter import Emitter
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Role, unsupported
from planner.ops.activation import GeluAttrs, LeakyReluAttrs
from planner.ops.base import Array
from planner.ops.conv import ConvAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.loss import ClassLossAttrs, LossAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs


class Ref(NamedTuple):
    name: str


class Call(NamedTuple):
    target: str
    op: str
    args: list[Any]
    attrs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str


class Function(NamedTuple):
    inputs: dict[str, tuple[tuple[int, ...], str]]
    weights: dict[str, Array]
    calls: list[Call]
    result: Any


class Wrapped(NamedTuple):
    """Part of `where(x < 0, x + n, x)`, which is x for the indices that a look-up gets."""

    ids: str


_SIMPLE = {
    "nn.relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "log": "log", "sqrt": "sqrt", "abs": "abs",
    "negative": "neg", "nn.silu": "silu", "square": "square", "add": "add", "subtract": "sub", "multiply": "mul",
    "divide": "div", "maximum": "maximum", "minimum": "minimum", "tir.maximum": "maximum", "tir.minimum": "minimum",
}  # fmt: skip
_NUMPY: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan, "where": np.where, "less": np.less, "greater": np.greater, "equal": np.equal, "add": np.add,
    "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative, "sqrt": np.sqrt,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "exp": np.exp, "shape_to_tensor": np.asarray,
}  # fmt: skip
_RESHAPES = frozenset({"reshape", "flatten", "expand_dims", "squeeze", "nn.batch_flatten"})


def lower(function: Function, builder: GraphBuilder, loss: str) -> tuple[Emitter, str, str]:
    """Returns (emitter, prediction, loss)."""
    lowering = _Lowering(function, builder)
    prediction = lowering.run()
    return lowering.e, prediction, lowering.append_loss(prediction, loss)


class _Lowering:
    def __init__(self, function: Function, builder: GraphBuilder) -> None:
        self.function, self.e = function, Emitter(builder)
        self.values: dict[str, Any] = {}
        self.made = {c.target: c for c in function.calls}
        self.uses = Counter(r.name for c in function.calls for r in _refs(c.args))
        self.softmax: dict[str, str] = {}
        """softmax output -> its logits"""

    def run(self) -> str:
        e = self.e
        for name, (shape, dtype) in self.function.inputs.items():
            if dtype not in ("float32", "int64"):
                raise UserError("SP1017", f"input {name!r} is {dtype}", "convert it to float32 (indices: int64)")
            self.values[name] = e.input(name, shape, DType(dtype))
        constant = self._constants()
        for name, data in self.function.weights.items():
            self.values[name] = np.asarray(data) if name in constant else Ref(name)
        for call in self.function.calls:
            e.name = self._name(call)
            self.values[call.target] = self._call(call)
        result = self.function.result
        found = self.get(result[0] if isinstance(result, list) and len(result) == 1 else result)
        if not isinstance(found, str | Ref):
            raise UserError("SP1015", "the model does not return one tensor", "keep one output before exporting")
        return self.val(found)

    @staticmethod
    def _name(call: Call) -> str:
        """A layer with a weight `conv1.weight` is called conv1; other nodes after their operator."""
        named = [r.name for r in _refs(call.args) if r.name.endswith(".weight")]
        return named[0].removesuffix(".weight") if named else call.op.removeprefix("nn.").removeprefix("tir.")

    def _constants(self) -> set[str]:
        """Initializers that are not trained: integers, single numbers, and what inputs are normalised with."""
        fixed = {n for n, d in self.function.weights.items() if d.dtype.kind != "f" or d.size <= 1}
        for call in self.function.calls:
            if call.op in ("subtract", "divide"):
                fixed |= {r.name for r in _refs(call.args[1:])}
        trained = {
            r.name
            for c in self.function.calls
            if c.op in ("nn.conv2d", "nn.conv1d", "matmul", "nn.batch_norm", "nn.layer_norm", "take", "nn.prelu")
            for r in _refs(c.args)
        }
        return fixed - {n for n in trained if n in self.function.weights and self.function.weights[n].dtype.kind == "f"}

    # -- values ------------------------------------------------------------------------------------------------
    def get(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self.values[argument.name]
        return [self.get(a) for a in argument] if isinstance(argument, list) else argument

    def val(self, argument: Any, role: Role = Role.PARAMETER) -> str:
        """The value id of an argument; an initializer becomes a parameter or state on first use."""
        own = isinstance(argument, Ref) and argument.name in self.function.weights
        found = argument if own else self.get(argument)
        if isinstance(found, Ref):
            held = self.values[found.name]
            if isinstance(held, Ref):
                data = np.ascontiguousarray(self.function.weights[found.name], np.float32)
                held = self.e.stored(found.name, data, role)
                self.values[found.name] = held
            found = held
        if isinstance(found, str):
            return found
        return self.e.constant(np.asarray(found))

    def number(self, argument: Any) -> float | None:
        found = self.get(argument)
        if isinstance(found, np.ndarray) and found.size == 1:
            return float(found.reshape(-1)[0])
        return float(found) if isinstance(found, int | float) else None

    # -- calls -------------------------------------------------------------------------------------------------
    def _call(self, call: Call) -> Any:
        e, op, args, attrs = self.e, call.op, call.args, call.attrs
        held = [self.get(a) for a in args]
        if op == "getitem":
            return held[0][args[1]]
        if op == "same":
            return held[0] if not isinstance(held[0], Ref) else args[0]
        if op in _NUMPY and all(isinstance(h, np.ndarray | int | float | list) for h in held):
            return np.asarray(_NUMPY[op](*held))
        if op == "shape_of":
            return np.asarray(e.shape(self.val(args[0])), np.int64)
        if op in ("less", "add", "where") and self._index(held):
            return Wrapped(self._index(held)) if op != "where" else self._index(held)
        if op == "take" and isinstance(held[0], np.ndarray):
            return np.take(held[0], held[1], attrs.get("axis"))
        if op in _RESHAPES:
            plain = isinstance(held[0], np.ndarray)
            return held[0].reshape(call.shape) if plain else e.reshape(self.val(args[0]), call.shape)
        if op in ("add", "subtract", "multiply", "divide", "power"):
            return self._arithmetic(call)
        if op in _SIMPLE:
            bound = [self.number(a) for a in args] if len(args) == 2 else [None]
            if bound[-1] is not None:
                return e.clamp(self.val(args[0]), *((bound[1], None) if "max" in op else (None, bound[1])))
            return e.op(_SIMPLE[op], *(self.val(a) for a in args))
        handler = _HANDLERS.get(op)
        if handler is None:
            known = {**_HANDLERS, **_SIMPLE}
            raise unsupported(call.target.strip("%"), op, difflib.get_close_matches(op, known, 1, 0.0)[0])
        return handler(self, call)

    def _index(self, held: list[Any]) -> str:
        """The indices that a step of `where(x < 0, x + n, x)` works on; empty where it is something else."""
        for value in held:
            if isinstance(value, Wrapped):
                return value.ids
            if isinstance(value, str) and self.e.b.type(value).dtype is DType.INT64:
                return value
        return ""

    def _arithmetic(self, call: Call) -> str:
        e, op, (a, b) = self.e, call.op, call.args
        x, y = self.number(a), self.number(b)
        if op == "add" and x is None and y is None:
            biased = self._with_bias(a, b) or self._with_bias(b, a)
            if biased:
                return biased
        if y is not None:
            left = self.val(a)
            results = {"add": lambda: e.shift(left, y), "subtract": lambda: e.shift(left, -y),
                       "multiply": lambda: e.scale(left, y), "divide": lambda: e.scale(left, 1 / y),
                       "power": lambda: e.power(left, y)}  # fmt: skip
            return results[op]()
        if x is not None and op != "power":
            right = self.val(b)
            if op == "divide":
                return e.scale(e.op("reciprocal", right), x)
            return (
                e.scale(right, x) if op == "multiply" else e.shift(e.op("neg", right) if op == "subtract" else right, x)
            )
        if op == "power":
            raise unsupported(call.target.strip("%"), "power of two tensors", "power with a constant exponent")
        return e.op(_SIMPLE[op], self.val(a), self.val(b))

    def _with_bias(self, product: Any, bias: Any) -> str:
        """conv + bias or linear + bias as one node: the product's node gets the bias as its third input."""
        made = self.made.get(product.name) if isinstance(product, Ref) else None
        if made is None or self.uses[product.name] != 1 or not isinstance(bias, Ref):
            return ""
        source, reshaped = bias, self.made.get(bias.name)
        if reshaped is not None and reshaped.op in _RESHAPES and isinstance(reshaped.args[0], Ref):
            source = reshaped.args[0]
        weights = self.function.weights
        if source.name not in weights or weights[source.name].ndim != 1:
            return ""
        owner = next((n for n in reversed(self.e.b.nodes) if self.values[product.name] in n.outputs), None)
        if owner is None or owner.op not in ("conv2d", "linear") or len(owner.inputs) != 2:
            return ""
        shape, size = self.e.shape(owner.outputs[0]), weights[source.name].shape[0]
        aligned = (size, 1, 1) if owner.op == "conv2d" else (size,)
        given = reshaped.shape if reshaped is not None and source is not bias else (size,)
        if size != shape[1 if owner.op == "conv2d" else -1] or tuple(d for d in given[-len(aligned) :]) != aligned:
            return ""
        nodes, position = self.e.b.nodes, self.e.b.nodes.index(owner)
        nodes[position] = owner.model_copy(update={"inputs": (*owner.inputs, self.val(source))})
        result: str = self.values[product.name]
        return result

    # -- loss --------------------------------------------------------------------------------------------------
    def append_loss(self, prediction: str, loss: str) -> str:
        """cross_entropy takes the logits where the model ends in a softmax."""
        e, shape = self.e, self.e.shape(prediction)
        e.name = "loss"
        if loss == "mse":
            return e.op("mse_loss", prediction, e.input("labels", shape), attrs=LossAttrs())
        if len(shape) != 2:
            raise UserError("SP1016", f"cross_entropy needs rows of classes, not {shape}", "use the loss 'mse'")
        labels = e.input("labels", shape[:1], DType.INT64)
        return e.op("cross_entropy", self.softmax.get(prediction, prediction), labels, attrs=ClassLossAttrs())


def _refs(arguments: Any) -> list[Ref]:
    if isinstance(arguments, Ref):
        return [arguments]
    return [r for a in arguments for r in _refs(a)] if isinstance(arguments, list) else []


# -- handlers --------------------------------------------------------------------------------------------------
def _sides(padding: list[int]) -> tuple[int, int, int, int]:
    """Relax lists (top, left, bottom, right)."""
    top, left, bottom, right = padding
    return (top, bottom, left, right)


def _conv2d(s: _Lowering, call: Call) -> str:
    a = call.attrs
    attrs = ConvAttrs(stride=a["strides"], padding=_sides(a["padding"]), dilation=a["dilation"], groups=a["groups"])
    return s.e.op("conv2d", s.val(call.args[0]), s.val(call.args[1]), attrs=attrs)


def _matmul(s: _Lowering, call: Call) -> str:
    a, b = call.args
    made = s.made.get(b.name) if isinstance(b, Ref) else None
    if made is not None and made.op == "permute_dims" and len(made.shape) == 2 and len(call.shape) > 1:
        return s.e.op("linear", s.val(a), s.val(made.args[0]))
    return s.e.matmul(s.val(a), s.val(b))


def _permute(s: _Lowering, call: Call) -> Any:
    """Transposed weights are read by `linear` as they are: nothing is emitted for those."""
    if s.uses[call.target] and all(
        c.op == "matmul" and c.args[1] == Ref(call.target)
        for c in s.function.calls
        if Ref(call.target) in _refs(c.args)
    ):
        return call.args[0] if len(call.shape) == 2 else s.e.permute(s.val(call.args[0]), call.attrs["axes"])
    rank = len(call.shape)
    return s.e.permute(s.val(call.args[0]), call.attrs["axes"] or range(rank)[::-1])


def _batch_norm(s: _Lowering, call: Call) -> Any:
    x, gamma, beta, mean, var = call.args
    attrs = BatchNormAttrs(eps=call.attrs["epsilon"], momentum=round(1 - call.attrs["momentum"], 12))
    updates = [s.val(mean, Role.STATE), s.val(var, Role.STATE)]
    y = s.e.op("batch_norm", s.val(x), s.val(gamma), s.val(beta), attrs=attrs, updates=updates)
    return (y, None, None)


def _layer_norm(s: _Lowering, call: Call) -> str:
    attrs = LayerNormAttrs(dims=len(call.attrs["axes"]), eps=call.attrs["epsilon"])
    return s.e.op("layer_norm", *(s.val(a) for a in call.args), attrs=attrs)


def _max_pool(s: _Lowering, call: Call) -> str:
    a = call.attrs
    attrs = MaxPoolAttrs(
        kernel=a["pool_size"],
        stride=a["strides"],
        padding=_sides(a["padding"]),
        dilation=a["dilation"],
        ceil_mode=bool(a["ceil_mode"]),
    )
    return s.e.op("max_pool2d", s.val(call.args[0]), attrs=attrs)


def _avg_pool(s: _Lowering, call: Call) -> str:
    a = call.attrs
    attrs = AvgPoolAttrs(
        kernel=a["pool_size"],
        stride=a["strides"],
        padding=_sides(a["padding"]),
        ceil_mode=bool(a["ceil_mode"]),
        count_include_pad=bool(a["count_include_pad"]),
    )
    return s.e.op("avg_pool2d", s.val(call.args[0]), attrs=attrs)


def _reduce(s: _Lowering, call: Call) -> str:
    """The mean over an image's positions is global average pooling."""
    x, axes = s.val(call.args[0]), call.attrs["axis"]
    if call.op == "mean" and axes == [2, 3] and call.attrs["keepdims"] and s.e.rank(x) == 4:
        return s.e.op("adaptive_avg_pool2d", x, attrs=AdaptivePoolAttrs(output=(1, 1)))
    return s.e.reduce(f"reduce_{call.op}", x, axes, bool(call.attrs["keepdims"]))


def _variance(s: _Lowering, call: Call) -> str:
    return s.e.variance(s.val(call.args[0]), call.attrs["axis"], 0, bool(call.attrs["keepdims"]))[0]


def _global_max(s: _Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    if s.e.rank(x) != 4 or call.attrs["axis"] != [2, 3]:
        raise unsupported(call.target.strip("%"), "max over other axes than height and width", "max_pool2d")
    _, _, height, width = s.e.shape(x)
    kernel = (height, width)
    return s.e.reshape(s.e.op("max_pool2d", x, attrs=MaxPoolAttrs(kernel=kernel, stride=kernel)), call.shape)


def _softmax(s: _Lowering, call: Call) -> str:
    x = s.val(call.args[0])
    y = s.e.along_last(call.op.removeprefix("nn."), x, call.attrs["axis"])
    if call.op == "nn.softmax" and call.attrs["axis"] in (-1, s.e.rank(x) - 1):
        s.softmax[y] = x
    return y


def _dropout(s: _Lowering, call: Call) -> Any:
    return (s.e.op("dropout", s.val(call.args[0]), attrs=DropoutAttrs(p=call.attrs["rate"])), None)


def _take(s: _Lowering, call: Call) -> str:
    table, ids = s.val(call.args[0]), s.get(call.args[1])
    if isinstance(ids, str) and s.e.rank(table) == 2 and call.attrs["axis"] == 0:
        return s.e.op("embedding", table, ids, attrs=EmbeddingAttrs())
    if isinstance(ids, np.ndarray) and ids.size == 1:
        axis = call.attrs["axis"]
        return s.e.reshape(s.e.select(table, axis, int(ids.reshape(-1)[0])), call.shape)
    raise unsupported(call.target.strip("%"), "take", "take of rows (embedding) or of one constant index")


def _split(s: _Lowering, call: Call) -> list[str]:
    x, axis, at = s.val(call.args[0]), call.attrs["axis"], call.attrs["indices_or_sections"]
    extent = s.e.shape(x)[axis]
    cuts = [extent * i // at for i in range(at)] if isinstance(at, int) else [0, *at]
    return [s.e.slice(x, axis, lo, hi) for lo, hi in zip(cuts, [*cuts[1:], extent], strict=True)]


def _slice(s: _Lowering, call: Call) -> str:
    x, axes, begin, end, *step = s.val(call.args[0]), *(s.get(a) for a in call.args[1:])
    for i, axis in enumerate(axes):
        first, last, stride = slice(begin[i], end[i], step[0][i] if step else 1).indices(s.e.shape(x)[axis])
        x = s.e.slice(x, axis, first, last, stride)
    return x


_HANDLERS: dict[str, Callable[[_Lowering, Call], Any]] = {
    "nn.conv2d": _conv2d, "matmul": _matmul, "permute_dims": _permute, "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _layer_norm, "nn.max_pool2d": _max_pool, "nn.avg_pool2d": _avg_pool, "mean": _reduce,
    "sum": _reduce, "variance": _variance, "max": _global_max, "nn.softmax": _softmax, "nn.log_softmax": _softmax,
    "nn.dropout": _dropout, "take": _take, "split": _split, "strided_slice": _slice,
    "concat": lambda s, c: s.e.concat([s.val(a) for a in c.args[0]], c.attrs["axis"]),
    "broadcast_to": lambda s, c: s.e.expand(s.val(c.args[0]), c.shape),
    "clip": lambda s, c: s.e.clamp(s.val(c.args[0]), s.number(c.args[1]), s.number(c.args[2])),
    "rsqrt": lambda s, c: s.e.op("reciprocal", s.e.op("sqrt", s.val(c.args[0]))),
    "nn.leakyrelu": lambda s, c: s.e.op("leaky_relu", s.val(c.args[0]), attrs=LeakyReluAttrs(slope=c.attrs["alpha"])),
    "nn.gelu": lambda s, c: s.e.op("gelu", s.val(c.args[0]), attrs=GeluAttrs()),
    "nn.gelu_tanh": lambda s, c: s.e.op("gelu", s.val(c.args[0]), attrs=GeluAttrs(approximate="tanh")),
    "nn.softplus": lambda s, c: s.e.softplus(s.val(c.args[0])),
}  # fmt: skip
