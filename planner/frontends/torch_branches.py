"""Branches that depend on data and do no more than write to tensors, as `if mask.any(): out[mask] = f(x[mask])`, or

    if places.numel() == 0:
        continue

in front of the rest of a loop. They are taken, and what is written within them stays as it was where the condition
does not hold: exactly what the module does, whatever is computed meanwhile. That a branch does no more is read from its
source: it assigns to parts of tensors, adds to them, calls their methods that end in `_`, and gives names to what
nothing else reads. What functions that it calls leave in lists or objects is looked for with every write.

Where the condition does not hold, functions that may be infinite or NaN then, as a division by the number of what was
found, are zero, and their operands have no gradient: what is not chosen would be NaN in what goes back otherwise. And
indices of data are zero there, as they may be out of bounds."""

import ast
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import is_of_data, is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_checked import Span, expression_of, given_names, span_of, tree_of
from planner.frontends.torch_known import writes
from planner.frontends.torch_places import here, is_own
from planner.frontends.torch_slots import Slots
from planner.frontends.torch_stand_ins import in_place_of

_MOVING = ("batch_norm", "instance_norm")
"""They write to statistics, of which their names say nothing."""
_FINITE = frozenset({
    "abs", "add", "bmm", "cat", "chunk", "clamp", "clone", "contiguous", "conv1d", "conv2d", "conv3d", "cumsum",
    "detach", "diagonal", "dropout", "embedding", "expand", "expand_as", "flatten", "flip", "gather", "gelu", "get",
    "getitem", "imag", "index_select", "layer_norm", "linear", "log_softmax", "matmul", "maximum", "minimum", "mm",
    "moveaxis", "movedim", "mul", "narrow", "neg", "permute", "radd", "ravel", "real", "relu", "repeat", "reshape",
    "reshape_as", "rmul", "roll", "rsub", "select", "sigmoid", "silu", "softmax", "split", "split_with_sizes",
    "square", "squeeze", "stack", "sub", "sum", "swapaxes", "swapdims", "t", "tanh", "tensor_split", "to", "transpose",
    "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "where",
})  # fmt: skip
"""Functions that are finite where their operands are, and have finite derivatives there."""
_DIVIDES = frozenset({"div", "divide", "itruediv", "truediv", "true_divide"})
"""They are where they divide by a number."""
_PUTS = frozenset({
    "add", "clamp", "copy", "fill", "iadd", "imul", "index_add", "index_copy", "index_fill", "index_put", "isub",
    "masked_fill", "mul", "scatter", "scatter_add", "setitem", "sub", "zero",
})  # fmt: skip
"""Functions that write, of which the same holds."""


_INDEXED = frozenset({
    "cross_entropy", "embedding", "gather", "getitem", "index_add", "index_copy", "index_fill", "index_put",
    "index_select", "nll_loss", "one_hot", "scatter", "scatter_add", "setitem", "take", "take_along_dim",
})  # fmt: skip
"""Functions that ask for indices within bounds."""


@contextmanager
def branches(torch: Any, module: Any) -> "Iterator[Branches]":
    """Within it, `module` can be exported. Yields who is asked for branches."""
    asked, assigned, parts = Branches(torch, module), torch.nn.Module.__setattr__, set(module.modules())

    def assign(self: Any, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and self in parts and asked.regions():
            raise not_only_writes(f"the attribute {name!r} is assigned within it")
        assigned(self, name, value)

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with _mode(torch, asked), in_place_of({(torch.nn.Module, "__setattr__"): assign}):
            return forward(*inputs, **named)

    with forward_through(module, watched):
        yield asked


def _mode(torch: Any, asked: "Branches") -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            regions = asked.regions() if is_recorded(torch) else []
            if not regions:
                return function(*args, **(kwargs or {}))
            return asked.within(regions, function, args, kwargs or {})

    return Mode()


class _Open(NamedTuple):
    """Lines of a function that is running, and whether what they write to is written to."""

    frame: Any
    first: int
    last: int
    condition: Any
    asked: dict[str, Any]
    """What the frame's names held that its condition reads, and that loops around it give."""
    slots: Slots
    """What Python holds when it begins."""

    def runs(self, lines: dict[FrameType, int]) -> bool:
        if not self.first <= lines.get(self.frame, -1) <= self.last:
            return False
        # In another turn of a loop the condition may be Python's alone, which asks nobody.
        held = self.frame.f_locals
        return all(held.get(name) is what for name, what in self.asked.items())


class _Side(NamedTuple):
    """What a running function does within a side of a branch that is computed to be chosen from (torch_choices.py)."""

    frame: FrameType
    condition: Any


class Branches:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch, self._module = torch, module
        self.open: dict[tuple[int, int], _Open] = {}
        """By frame and first line."""
        self._sides: list[_Side] = []

    def taken(self, condition: Any, frame: FrameType | None) -> bool | None:
        """What Python is told of a condition that depends on data; None where the branch does more than write."""
        asked = expression_of(frame)
        found = None if frame is None or asked is None or asked.by_call else _branch(frame, asked.span)
        if frame is None or found is None or not is_own(frame.f_code.co_filename):
            return None
        negated = isinstance(found.test, ast.UnaryOp) and isinstance(found.test.op, ast.Not)
        skips = isinstance(found.body[0], ast.Continue)
        block = found.behind if skips else found.body
        if not block or block[0].lineno <= (found.test.end_lineno or 0):
            return None
        tensors = {name for name, held in frame.f_locals.items() if _is_tensor(self._torch, held)}
        if not _only_writes(block, tensors, found.function):
            return None
        held = {name: frame.f_locals[name] for name in (_turn(found) - given_names(*block)) & frame.f_locals.keys()}
        if any(isinstance(loop, ast.While) for loop in found.loops) and not all(map(self._stays, held.values())):
            return None
        holds = (condition != 0).reshape(())
        first, last = block[0].lineno, block[-1].end_lineno or block[-1].lineno
        within = holds.logical_not() if negated != skips else holds
        slots = Slots(self._torch, self._module, others=frame.f_locals)
        self.open[id(frame), first] = _Open(frame, first, last, within, held, slots)
        return negated == skips

    def regions(self) -> "list[_Open | _Side]":
        """The branches that the running line is in. Others are over: whoever comes there again asks again."""
        frame = sys._getframe(1) if self.open or self._sides else None
        lines = dict[FrameType, int]()
        while frame is not None:
            lines[frame], frame = frame.f_lineno, frame.f_back
        self.open = {key: r for key, r in self.open.items() if r.runs(lines)}
        self._sides = [s for s in self._sides if s.frame in lines]
        return [*self.open.values(), *self._sides]

    def begin(self, frame: FrameType, condition: Any) -> None:
        """What a running function does from here on is within a branch, whatever its lines."""
        self._sides.append(_Side(frame, condition))

    def end(self, frame: FrameType) -> None:
        """The end of what has begun last."""
        place = max(i for i, side in enumerate(self._sides) if side.frame is frame)
        del self._sides[place]

    def within(self, regions: list[_Open | _Side], function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "")
        moves = name in _MOVING and any(isinstance(x, self._torch.Tensor) for x in args[1:3])
        if moves or kwargs.get("out") is not None or name == "__set__":
            raise not_only_writes(f"{name} within it changes more than its first operand")
        writing, plain = writes(name, kwargs), name.strip("_")
        scaled = plain in _DIVIDES and len(args) > 1 and type(args[1]) in (int, float) and args[1] != 0
        if (plain in _FINITE - _INDEXED or scaled) and not writing:
            return function(*args, **kwargs)
        condition = functools.reduce(operator.and_, (r.condition for r in regions))
        if plain in _INDEXED:
            rest, kwargs = self._torch.utils._pytree.tree_map(
                lambda x: self._torch.where(condition, x, 0) if self._is_index(x) else x, (args[writing:], kwargs)
            )
            args = (*args[:writing], *rest)
        if not writing:
            finite = plain in _FINITE
            return function(*args, **kwargs) if finite else self._where(condition, function, args, kwargs)
        if not isinstance(args[0], self._torch.Tensor) or (
            args[0].is_floating_point() and plain not in _PUTS and not scaled
        ):
            raise not_only_writes(f"{name} within it writes to picked rows, or what may be infinite")
        if any(r.slots.exchanged() for r in regions if isinstance(r, _Open)):
            raise not_only_writes("more than tensors is changed within it")
        before = args[0].clone()
        result = function(*args, **kwargs)
        args[0].copy_(self._torch.where(condition, args[0], before))
        return result

    def _where(self, condition: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a function returns where the condition holds, else zeros, for which its operands have no gradient."""
        where, tree_map = self._torch.where, self._torch.utils._pytree.tree_map

        def operand(x: Any) -> Any:
            return where(condition, x, x.detach()) if self._is_floating(x) and x.requires_grad else x

        given = tree_map(operand, (args, kwargs))
        found = function(*given[0], **given[1])
        return tree_map(lambda x: where(condition, x, 0.0) if self._is_floating(x) else x, found)

    def _stays(self, x: Any) -> bool:
        """Whether it says the same in every turn of a loop, until its name is given to something else."""
        return _is_tensor(self._torch, x) or isinstance(x, int | float | str | self._torch.nn.Module)

    def _is_index(self, x: Any) -> bool:
        """Whether it is one of data: where the condition does not hold, it may be out of bounds."""
        whole = isinstance(x, self._torch.Tensor) and x.dtype in (self._torch.int64, self._torch.int32)
        return whole and is_of_data(x)

    def _is_floating(self, x: Any) -> bool:
        return _is_tensor(self._torch, x) and x.is_floating_point()


def not_only_writes(what: str) -> UserError:
    fix = "compute both and choose with torch.where"
    return UserError("SP1014", f"a branch depends on the data, and {what}{here()}", fix)


class _Branch(NamedTuple):
    """An `if` without `else`. `behind`: what follows it in the loop that it stands in; `loops`: all around it."""

    test: ast.expr
    body: list[ast.stmt]
    behind: list[ast.stmt]
    function: ast.FunctionDef
    loops: list[ast.For | ast.While]


def _branch(frame: FrameType, span: Span) -> _Branch | None:
    """That whose condition is the expression at `span`, negated or not."""
    tree, found = tree_of(frame.f_code.co_filename), None
    for node in () if tree is None else ast.walk(tree):  # inner functions come behind outer ones
        if isinstance(node, ast.FunctionDef) and node.name == frame.f_code.co_name:
            found = _branch_of(node, span) or found
    return found


def _branch_of(function: ast.FunctionDef, span: Span) -> _Branch | None:
    behind: dict[int, list[ast.stmt]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.For):
            behind |= {id(s): node.body[place + 1 :] for place, s in enumerate(node.body)}
        if isinstance(node, ast.If) and not node.orelse:
            negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
            condition = node.test.operand if isinstance(node.test, ast.UnaryOp) and negated else node.test
            if span_of(condition) == span and _asks_once(condition):
                loops = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.While) and node in ast.walk(n)]
                return _Branch(node.test, node.body, behind.get(id(node), []), function, loops)
    return None


def _turn(branch: _Branch) -> set[str]:
    """Names that say which turn of its loops a branch is in: what its condition reads, and what the loops give."""
    given = given_names(*(loop.target for loop in branch.loops if isinstance(loop, ast.For)))
    return given | {n.id for n in _names(branch.test)}


def _asks_once(condition: ast.expr) -> bool:
    """Whether Python asks for the truth of the whole, and of that alone."""
    if not isinstance(condition, ast.Compare):
        return True
    return len(condition.ops) == 1 and not isinstance(condition.ops[0], ast.In | ast.NotIn)


def _only_writes(block: Sequence[ast.stmt], tensors: set[str], function: ast.AST) -> bool:
    """Whether statements write to tensors, which these names have, and else only name what is read behind that alone,
    and not elsewhere in the function."""
    own = dict[str, int]()
    for place, statement in enumerate(block):
        names = _written(statement, tensors | own.keys(), function)
        if names is None or names & _read(block[: place + 1]) - own.keys():
            return False
        own |= {name: place for name in names - own.keys()}
    if any(isinstance(n, ast.NamedExpr | ast.Yield | ast.Await) for s in block for n in ast.walk(s)):
        return False
    inner = {id(n) for s in block for n in ast.walk(s)}
    return not own.keys() & {n.id for n in _names(function) if id(n) not in inner}


def _names(node: ast.AST) -> list[ast.Name]:
    """Those that are read."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]


def _read(statements: Sequence[ast.stmt]) -> set[str]:
    return {n.id for s in statements for n in _names(s)}


def _is_tensor(torch: Any, held: Any) -> bool:
    return isinstance(held, torch.Tensor) or hasattr(held, "numbered")


def _written(node: ast.stmt, tensors: set[str], function: ast.AST) -> set[str] | None:
    """The names that a statement gives; None if it does more than that and write to tensors."""

    def part(x: ast.expr) -> bool:
        return isinstance(x, ast.Name) and x.id in tensors

    def inner(*blocks: list[ast.stmt]) -> set[str] | None:
        return set() if all(_only_writes(b, tensors, function) for b in blocks) else None

    match node:
        case ast.Assign():
            flat = [e for t in node.targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
            names = {t.id for t in flat if isinstance(t, ast.Name)}
            parts = [t for t in flat if not isinstance(t, ast.Name)]
            return names if all(isinstance(t, ast.Subscript) and part(t.value) for t in parts) else None
        case ast.AugAssign(target=ast.Subscript(value=target) | (ast.Name() as target)) if part(target):
            return set()
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=name))):
            return set() if name.endswith("_") and not name.endswith("__") and part(target) else None
        case ast.If():
            return inner(node.body, node.orelse)
        case ast.With():
            return inner(node.body)
        case ast.Pass() | ast.Assert() | ast.Raise() | ast.Expr(value=ast.Constant()):
            return set()
        case _:
            return None
