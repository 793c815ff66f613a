"""The lowering of one exported PyTorch graph: context, constants, and the table of operators.

The modules aten_* fill the table. A handler gets the context and the operator's arguments
in schema order (defaults filled in); tensors arrive as value ids, or as torch tensors where they are constants.
"""

from collections.abc import Callable, Sequence
from math import isfinite, prod
from operator import getitem
from typing import Any, TypeVar

import numpy as np

from planner.errors import InternalError, UserError
from planner.frontends.emitter import Emitter
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Role
from planner.ops.base import Array
from planner.ops.masks import CastAttrs, CompareAttrs
from planner.ops.whole import Function

Handler = Callable[..., Any]
AnyHandler = TypeVar("AnyHandler", bound=Handler)
HANDLERS: dict[str, Handler] = {}


def lowers(*names: str) -> Callable[[AnyHandler], AnyHandler]:
    """Decorator: the handler of these operators, ATen's without the library's name (and without overload names)."""

    def add(handler: AnyHandler) -> AnyHandler:
        for name in names:
            HANDLERS[name if "." in name else f"aten.{name}"] = handler
        return handler

    return add


class Unsupported(Exception):
    """An operator is known, but not with these arguments; the message says which."""


class Context(Emitter):
    """An emitter that also knows the exported graph's constants. `torch` is the module (an optional dependency)."""

    def __init__(self, builder: GraphBuilder, torch: Any) -> None:
        super().__init__(builder)
        self.torch = torch
        self.buffers: dict[int, str] = {}
        """id of a buffer's tensor -> its name"""
        self.saved: frozenset[str] = frozenset()
        """Names of the module's state_dict."""
        self.carried: set[int] = set()
        """ids of buffers' tensors that every step changes: nothing that is computed with them is constant"""
        self.statistics: set[int] = set()
        """ids of buffers' tensors that batch norms move"""
        self.gradients_of_inputs = False
        """Whether the caller may ask for them."""
        self.node: Any = None
        """The exported program's node that is being lowered."""
        self.evaluating = False
        """Whether nothing is to be differentiated: the module is in evaluation mode."""
        self._states: dict[int, str] = {}
        self._kept: list[Any] = []

    def evaluation(self) -> "Context":
        """A context for the same module in evaluation mode, in a builder of its own: what persists is the same."""
        made = Context(self.b.beside(), self.torch)
        made.evaluating = True
        made.weights, made.aliases = self.weights, self.aliases
        made.gradients_of_inputs = self.gradients_of_inputs
        made.carried, made.statistics = self.carried, self.statistics
        made._states = {tensor: value for tensor, value in self._states.items() if value in made.b.values}
        made._constants = {contents: v for contents, v in self._constants.items() if v in made.b.values}
        made._kept = self._kept
        return made

    def is_constant(self, x: Any) -> bool:
        return isinstance(x, self.torch.Tensor)

    def number(self, x: Any) -> float | None:
        """A Python number or a one-element constant as a number; None where `x` is something else."""
        if self.is_constant(x) and x.numel() == 1 and x.dim() == 0:
            x = x.item()
        return float(x) if isinstance(x, bool | int | float) else None

    def val(self, x: Any) -> str:
        """The value id; constants become values on first use, buffers under their names."""
        if isinstance(x, str):
            return x
        if self.is_constant(x):
            if id(x) not in self._states:
                self._kept.append(x)
                name = self.buffers.get(id(x), "")
                self._states[id(x)] = self.constant(_numpy(x), name, name in self.saved)
            return self._states[id(x)]
        if isinstance(x, bool | int | float):
            return self.fill((), float(x)) if isfinite(x) else self.constant(np.asarray(x, np.float32))
        raise InternalError(f"{self.name}: no value for {x!r}")

    def state(self, x: Any) -> str:
        """A buffer as a state that a node may update."""
        if isinstance(x, str):
            raise Unsupported("running statistics that are computed")
        if id(x) not in self._states:
            name = self.buffers.get(id(x)) or self._constant_name()
            self._states[id(x)] = self.stored(name, _numpy(x), Role.STATE)
            self._kept.append(x)
        return self._states[id(x)]

    def shape_of(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape) if self.is_constant(x) else () if not isinstance(x, str) else self.shape(x)

    def dtype(self, position: int) -> Any:
        """PyTorch's type of an argument of the operator that is being lowered, by its position in the schema; None
        where it is no tensor. Booleans are values of 0 and 1 in float32, so a value's own type does not say it."""
        given = self.node.args
        name = self.node.target._schema.arguments[position].name
        source = given[position] if position < len(given) else self.node.kwargs.get(name)
        return getattr(getattr(source, "meta", {}).get("val"), "dtype", None)

    def floating(self, x: Any) -> str:
        """A value in float32, whatever it holds."""
        value = self.val(x)
        if self.b.type(value).dtype in (DType.INT64, DType.UINT8):
            return self.op("cast", value, attrs=CastAttrs(dtype="float32"))
        return value

    def truth(self, x: Any, position: int) -> str:
        """A mask of 0 and 1: a boolean as it is, of anything else whether it differs from 0."""
        if self.is_constant(x):
            return self.val(x != 0)
        if self.dtype(position) is self.torch.bool:
            return self.floating(x)
        return self.compare("ne", x, 0)

    def compare(self, relation: str, a: Any, b: Any) -> str:
        """Numbers beside whole numbers are whole, too, where that is exact."""
        whole = [self.b.type(v).dtype is DType.INT64 for v in (a, b) if isinstance(v, str)]
        operands = [self._comparable(v, all(whole)) for v in (a, b)]
        return self.op("compare", *operands, attrs=CompareAttrs.model_validate({"relation": relation}))

    # -- whole numbers -----------------------------------------------------------------------------------------
    def whole_of(self, function: Function, a: Any, b: Any) -> Any:
        """Arithmetic of int64 values and constants; of constants alone it is a constant."""
        if self.is_constant(a) and self.is_constant(b):
            return getattr(self.torch, function)(a, b).long()
        return self.whole(function, self._whole_value(a), self._whole_value(b))

    def _whole_value(self, x: Any) -> str:
        if isinstance(x, str):
            return x if self.b.type(x).dtype is DType.INT64 else self.to_whole(x)
        number = self.number(x)
        require(number is None or number == round(number), "a fraction")
        return self.val(self.torch.tensor(int(number), dtype=self.torch.int64) if number is not None else x.long())

    def chosen_whole(self, mask: str, a: Any, b: Any) -> str:
        """a where the mask is 1, else b, in whole numbers: b + mask (a - b)."""
        return str(self.whole_of("add", b, self.whole_of("mul", self.to_whole(mask), self.whole_of("sub", a, b))))

    def operand(self, x: Any) -> Any:
        """An operand of arithmetic in float32: whole numbers are converted."""
        if self.is_constant(x):
            return x.float()
        return self.floating(x) if isinstance(x, str) else x

    def whole_result(self) -> bool:
        """Whether PyTorch's result of this operator is of whole numbers."""
        return self.is_whole(self.node.meta.get("val"))

    def is_whole(self, tensor: Any) -> bool:
        """Whether a tensor of PyTorch's holds whole numbers."""
        dtype = getattr(tensor, "dtype", None)
        exact = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
        return exact and dtype is not self.torch.bool

    def to_whole(self, x: str) -> str:
        """Whole numbers that were computed in float32, as int64."""
        return x if self.b.type(x).dtype is DType.INT64 else self.op("cast", x, attrs=CastAttrs(dtype="int64"))

    def held(self, x: Any, position: int) -> str:
        """An argument, by its position in the schema, as the operator's result holds it: what is written into a tensor
        becomes of the tensor's type."""
        if self.node.meta["val"].dtype is self.torch.bool:
            return self.truth(x, position)
        return self.to_whole(self.val(x)) if self.whole_result() else self.floating(x)

    def wanted(self, result: int) -> bool:
        """Whether anybody reads that one of the operator's results."""
        return any(user.target is getitem and user.args[1] == result and user.users for user in self.node.users)

    def larger(self, a: Any, b: Any, sign: int = 1) -> str:
        """The larger (sign 1) or smaller (-1) of two elements."""
        if self.whole_result():
            return str(self.whole_of("maximum" if sign > 0 else "minimum", a, b))
        return self.op("maximum" if sign > 0 else "minimum", self.floating(a), self.floating(b))

    def _comparable(self, x: Any, whole: bool) -> str:
        if isinstance(x, str):
            return self.val(x) if whole else self.floating(x)
        if not self.is_constant(x):
            x = self.torch.tensor(x)
        if whole and x.dtype.is_floating_point:
            require(bool((x == x.round()).all()), "whole numbers beside a fraction")
        return self.val(x.long() if whole else x.float())


def _numpy(x: Any) -> Array:
    array: Array = x.detach().cpu().numpy()
    kind = np.int64 if array.dtype.kind in "iu" else np.float32
    return np.ascontiguousarray(array, kind).reshape(array.shape)


def call(context: Context, node: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Lower one call: constants are computed now, everything else through the table."""
    torch = context.torch
    bound = bind(node.target, arguments, keywords)
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    # Some arguments are words: how a quotient is rounded, how to pad.
    if not random and not any(isinstance(a, str) and a in context.b.values for a in _flat(bound)):
        with torch.no_grad():
            return node.target(*arguments, **keywords)
    handler = HANDLERS.get(packet(node.target))
    if handler is None and random:
        fix = "draw uniform, normal, exponential or whole numbers or a permutation, or pass the numbers as an input"
        raise UserError("SP1001", f"node {node.name!r} draws random numbers ({packet(node.target)})", fix)
    if handler is None:
        raise Unsupported("")
    context.node = node
    if torch.Tag.pointwise in node.target.tags:
        bound = _narrowed(context, bound, node.meta["val"])
    result = handler(context, *_as_rows(context, node.target, bound))
    return _as_wanted(context, result, node.meta["val"])


def _narrowed(context: Context, bound: list[Any], result: Any) -> list[Any]:
    """Arguments of what goes element by element, where constants that were expanded are as they were before, and those
    that are one number everywhere are that number, if another operand has the result's whole shape."""

    def narrow(x: Any) -> Any:
        if not context.is_constant(x) or id(x) in context.buffers or x.numel() < 2:
            return x
        if bool((x == x.flatten()[0]).all()):
            return x.flatten()[0]
        return x[tuple(slice(0, 1 if stride == 0 else None) for stride in x.stride())]

    whole = (isinstance(a, str) and a in context.b.values and context.shape(a) == tuple(result.shape) for a in bound)
    return [narrow(a) for a in bound] if any(whole) else bound


def _as_rows(context: Context, target: Any, bound: list[Any]) -> list[Any]:
    """Where an operator goes along an axis, a number is a row of one element: PyTorch gives it the axes 0 and -1."""
    arguments = zip(bound, target._schema.arguments, strict=True)
    axes = [a for a, argument in arguments if argument.name in ("dim", "dimension")]
    if axes in ([], [None]) or context.shape_of(bound[0]) or not isinstance(bound[0], str):
        return bound

    def row(x: Any) -> Any:
        if context.is_constant(x):
            return x.reshape(1) if x.dim() == 0 else x
        return context.reshape(x, (1,)) if isinstance(x, str) and x in context.b.values and not context.shape(x) else x

    return [row(x) for x in bound]


def _as_wanted(context: Context, result: Any, wanted: Any) -> Any:
    """The result in whole numbers where PyTorch's is, and in PyTorch's shape, which differs for what `_as_rows` made
    alone."""
    if isinstance(result, list | tuple):
        return [_as_wanted(context, *pair) for pair in zip(result, wanted, strict=False)]
    if isinstance(result, str) and context.is_whole(wanted):
        result = context.to_whole(result)
    shape = tuple(getattr(wanted, "shape", ()))
    if not isinstance(result, str) or context.shape(result) == shape:
        return result
    if prod(shape) != 1 or prod(context.shape(result)) != 1:
        raise InternalError(f"{context.name}: {context.shape(result)} is not PyTorch's shape {shape}")
    return context.reshape(result, shape)


def packet(target: Any) -> str:
    """`aten.add` for the overload aten.add.Tensor."""
    return str(target).rsplit(".", 1)[0]


def bind(target: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> list[Any]:
    """All arguments in schema order, defaults filled in."""
    bound = list(arguments)
    for argument in target._schema.arguments[len(arguments) :]:
        bound.append(keywords.get(argument.name, argument.default_value))
    return bound


def _flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]


def require(condition: bool, what: str) -> None:
    """Raise Unsupported with the arguments that a handler cannot lower."""
    if not condition:
        raise Unsupported(what)


def dtype_error(name: str, dtype: Any) -> UserError:
    fix = "convert it: module.float(), inputs.float() or inputs.long()"
    if dtype.is_floating_point and dtype.itemsize == 2:
        fix = "convert the module and its inputs with .float(); --precision bf16 then plans mixed precision"
    if dtype.is_complex:
        fix = "pass torch.view_as_real(x), and let the module begin with torch.view_as_complex"
    return UserError("SP1017", f"{name} is {dtype}, not float32 (or int64 for indices)", fix)
