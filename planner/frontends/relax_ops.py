"""Relax functions (as plain records) -> GraphBuilder.

Three patterns are undone: convolution + bias, x W^T (+ bias), and the wrapping of negative indices before a look-up.
Arithmetic on constants is done in NumPy. A float initializer with more than one element is a parameter, unless it is
subtracted or divided by (the normalisation of inputs); the others are constants. What cannot be lowered is recorded,
and what depends on it is left out, so that one error can name every such node. `relax_layers` has the operators that
take more than a line.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.frontends.emitter import Emitter
from planner.frontends.onnx_file import first_line
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Role
from planner.ops.base import Array
from planner.ops.loss import ClassLossAttrs, LossAttrs


class Ref(NamedTuple):
    name: str


class Call(NamedTuple):
    target: str
    op: str
    args: list[Any]
    attrs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    node: str = ""
    """The model's node that it comes from, and that node's operator."""
    node_op: str = ""


class Failure(NamedTuple):
    """A node of the model that cannot be lowered."""

    node: str
    op: str
    problem: str


class Function(NamedTuple):
    inputs: dict[str, tuple[tuple[int, ...], str]]
    weights: dict[str, Array]
    calls: list[Call]
    result: Any
    failures: tuple[Failure, ...] = ()


class Unsupported(Exception):
    """A form of an operator that has no counterpart."""


class _Missing:
    """The result of what cannot be lowered, and of all that depends on it."""


class Wrapped(NamedTuple):
    """Part of `where(x < 0, x + n, x)`, which is x for the indices that a look-up gets."""

    ids: str


SIMPLE = {
    "nn.relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "log": "log", "sqrt": "sqrt", "abs": "abs",
    "negative": "neg", "nn.silu": "silu", "square": "square", "add": "add", "subtract": "sub", "multiply": "mul",
    "divide": "div", "maximum": "maximum", "minimum": "minimum", "tir.maximum": "maximum", "tir.minimum": "minimum",
    "erf": "erf", "sin": "sin", "cos": "cos", "atan": "atan", "sign": "sign", "power": "pow",
}  # fmt: skip
_NUMPY: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan, "where": np.where, "less": np.less, "greater": np.greater, "equal": np.equal, "add": np.add,
    "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative, "sqrt": np.sqrt,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "exp": np.exp, "shape_to_tensor": np.asarray,
}  # fmt: skip
STAND_IN = "onnx.StandIn"
"""A node that was not imported, and is reported already."""
_RESHAPES = frozenset({"reshape", "flatten", "expand_dims", "squeeze", "nn.batch_flatten"})
_PLAIN = frozenset({"getitem", "same", "shape_of", "power"})
TRAINED = frozenset(
    {"nn.conv2d", "nn.conv1d", "nn.conv2d_transpose", "matmul", "nn.batch_norm", "nn.layer_norm", "take", "onnx.PRelu"}
)
"""Whose float initializers are parameters in any case."""
HANDLERS: dict[str, Callable[["Lowering", Call], Any]] = {}
"""Operator -> what lowers it; filled by `relax_layers`."""


class Lowering:
    """Appends a function's nodes to a builder; `failures` says what could not be."""

    def __init__(self, function: Function, builder: GraphBuilder) -> None:
        self.function, self.e = function, Emitter(builder)
        self.values: dict[str, Any] = {}
        self.made = {c.target: c for c in function.calls}
        self.uses = Counter(r.name for c in function.calls for r in references(c.args))
        self.failures: list[Failure] = []

    def run(self) -> str:
        """Returns the prediction; of no meaning where something failed."""
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
            try:
                self.values[call.target] = self._call(call)
            except (Unsupported, UserError) as error:
                problem = error.problem if isinstance(error, UserError) else str(error)
                self._fail(call, problem)
            except Exception as error:  # what lowers a call trusts that the file's attributes and inputs fit each other
                self._fail(call, f"its attributes or inputs do not fit: {type(error).__name__}: {first_line(error)}")
        if self.failures or self.function.failures:
            return ""
        result = self.function.result
        found = self.get(result[0] if isinstance(result, list) and len(result) == 1 else result)
        if not isinstance(found, str | Ref):
            raise UserError("SP1015", "the model does not return one tensor", "keep one output before exporting")
        return self.val(found)

    def _fail(self, call: Call, problem: str) -> None:
        self.failures.append(Failure(call.node, call.node_op, problem))
        self.values[call.target] = _Missing()

    @staticmethod
    def _name(call: Call) -> str:
        """A layer with a weight `conv1.weight` is called conv1; others after their node."""
        named = [r.name for r in references(call.args) if r.name.endswith(".weight")]
        return named[0].removesuffix(".weight") if named else call.node

    def _constants(self) -> set[str]:
        """Initializers that are not trained: integers, single numbers, and what inputs are normalised with."""
        fixed = {n for n, d in self.function.weights.items() if d.dtype.kind != "f" or d.size <= 1}
        for call in self.function.calls:
            if call.op in ("subtract", "divide"):
                fixed |= {r.name for r in references(call.args[1:])}
        trained = {r.name for c in self.function.calls if c.op in TRAINED for r in references(c.args)}
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
                data = self.function.weights[found.name]
                data = data if data.dtype == np.float32 else data.astype(np.float32)
                held = self.e.stored(found.name, data, role)
                self.values[found.name] = held
            found = held
        if isinstance(found, str):
            return found
        if isinstance(found, Wrapped) or not isinstance(found, np.ndarray | int | float | list):
            raise Unsupported("arithmetic with indices")
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
        if op == STAND_IN:
            return _Missing()
        if any(isinstance(h, _Missing) for h in (*held, *(i for h in held if isinstance(h, list) for i in h))):
            if op in SIMPLE or op in HANDLERS or op in _NUMPY or op in _RESHAPES or op in _PLAIN:
                return _Missing()
            raise Unsupported(f"arrives as {op!r}")
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
        if op == "take" and all(isinstance(h, np.ndarray) for h in held):
            return np.asarray(np.take(held[0], held[1], attrs.get("axis")))
        if op == "astype" and isinstance(held[0], np.ndarray):
            return held[0].astype(call.dtype)
        if op in _RESHAPES:
            plain = isinstance(held[0], np.ndarray)
            return held[0].reshape(call.shape) if plain else e.reshape(self.val(args[0]), call.shape)
        if op in ("add", "subtract", "multiply", "divide", "power"):
            return e.reshape(self._arithmetic(call), call.shape)  # a number of more dimensions adds its own
        if op in SIMPLE:
            bound = [self.number(a) for a in args] if len(args) == 2 else [None]
            if bound[-1] is not None:
                y = e.clamp(self.val(args[0]), *((bound[1], None) if "max" in op else (None, bound[1])))
                return e.reshape(y, call.shape)
            if op == "sqrt" and call.node_op == "ReduceL2":
                return e.root(self.val(args[0]))
            return e.op(SIMPLE[op], *(self.val(a) for a in args))
        handler = HANDLERS.get(op)
        if handler is None:
            raise Unsupported(f"arrives as {op!r}")
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
        return e.op(SIMPLE[op], self.val(a), self.val(b))

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
        owner = self.e.maker(self.values[product.name])
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
        if len(shape) < 2 or set(shape[2:]) - {1}:
            raise UserError("SP1016", f"cross_entropy needs rows of classes, not {shape}", "use the loss 'mse'")
        logits = e.reshape(self._logits(prediction), shape[:2])
        labels = e.input("labels", shape[:1], DType.INT64)
        return e.op("cross_entropy", logits, labels, attrs=ClassLossAttrs())

    def _logits(self, prediction: str) -> str:
        """What goes into the softmax at the end; between it and the end may be changes of shape alone."""
        made = {v: n for n in self.e.b.nodes for v in n.outputs}
        node = made.get(prediction)
        while node is not None and node.op in ("reshape", "permute"):
            node = made.get(node.inputs[0])
        rows, classes = self.e.shape(prediction)[:2]
        if node is None or node.op != "softmax":
            return prediction
        shape = self.e.shape(node.outputs[0])
        return node.inputs[0] if shape[-1] == classes and shape[0] == rows else prediction


def references(arguments: Any) -> list[Ref]:
    if isinstance(arguments, Ref):
        return [arguments]
    return [r for a in arguments for r in references(a)] if isinstance(arguments, list) else []


def lowers(*ops: str) -> Callable[[Callable[[Lowering, Call], Any]], Callable[[Lowering, Call], Any]]:
    """Decorator: the function lowers these operators."""

    def enter(function: Callable[[Lowering, Call], Any]) -> Callable[[Lowering, Call], Any]:
        HANDLERS.update(dict.fromkeys(ops, function))
        return function

    return enter
