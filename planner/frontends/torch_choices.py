"""Branches on data of which both sides are computed, and the one that the condition tells is chosen, name by name
(torch_sides.py: the code for that). Forward is begun anew with that code where such a branch asks.

What is not chosen leaves nothing: its writes to tensors are undone, and functions that may be infinite or NaN are zero
in it and have no gradient there, as in all branches that torch_branches.py knows."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_branches import Branches, not_only_writes
from planner.frontends.torch_checked import Span, expression_of
from planner.frontends.torch_dropped import dropped
from planner.frontends.torch_figures import BranchAsked, Figure
from planner.frontends.torch_places import here, is_own
from planner.frontends.torch_sides import SIDES, Refused, with_both_sides
from planner.frontends.torch_slots import WITHIN, Slots
from planner.frontends.torch_writes import is_torn

_ANEW: Any = int | float | str | tuple | None | Figure
"""Of which `+=` makes another one."""


class Choice(NamedTuple):
    """Where a branch asked that could be chosen from: the functions of that code, its condition's place, and names of
    tensors there, and of what `+=` makes anew."""

    functions: tuple[FunctionType, ...]
    span: Span
    changeable: frozenset[str]


class Choices:
    """The branches of which both sides are to be computed. `told`: what is to be told of what was chosen."""

    def __init__(self) -> None:
        self.told = list[UserError]()
        self._found: dict[int, tuple[FunctionType, frozenset[Span], frozenset[str]]] = {}

    def add(self, error: BranchAsked) -> bool:
        """Whether the branch that asked may be one of them, and is a new one."""
        choice = _choice_of(error.frame, [function for function, *_ in self._found.values()])
        if choice is None:
            return False
        found = dict(self._found)
        for function in choice.functions:
            _, spans, changeable = found.get(id(function), (function, frozenset[Span](), frozenset[str]()))
            if choice.span in spans:
                return False
            found[id(function)] = function, spans | {choice.span}, changeable | choice.changeable
        try:
            for function, spans, changeable in found.values():
                with_both_sides(function, spans, changeable)
        except Refused:
            return False
        self._found = found
        return True

    @contextmanager
    def computed(self, torch: Any, module: Any, branches: Branches) -> Iterator[None]:
        """Within it, `module` can be exported."""
        chosen = list[tuple[str, Any]]()

        def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            chosen.clear()
            result = forward(*inputs, **named)
            for name, node in chosen:
                if node is not None and is_torn(node):
                    problem = f"a branch depends on the data, and {name!r}, which it chooses, is written to"
                    raise UserError("SP1014", problem, "make a copy, by clone(), of what it is to be before the branch")
            return result

        self.told.clear()
        originals = [(function, function.__code__) for function, *_ in self._found.values()]
        try:
            for function, spans, changeable in self._found.values():
                function.__globals__[SIDES] = _Asking(torch, module, branches, chosen, self.told)
                function.__code__ = with_both_sides(function, spans, changeable)
            with forward_through(module, watched):
                yield
        finally:
            for function, code in originals:
                function.__code__ = code
                function.__globals__.pop(SIDES, None)


def _choice_of(frame: FrameType | None, known: Sequence[FunctionType]) -> Choice | None:
    """`known`: functions whose code has been another one while they ran."""
    asked = expression_of(frame)
    if frame is None or asked is None or asked.by_call or not is_own(frame.f_code.co_filename):
        return None
    code = frame.f_code
    named, there = _named(frame.f_globals, code.co_qualname), gc.get_referrers(code)
    functions = [
        f for f in (*named, *there, *known) if isinstance(f, FunctionType) and _place(f.__code__) == _place(code)
    ]
    if not functions or "<locals>" in code.co_qualname:  # made anew whenever what it lies in runs
        return None
    alike = {n for n, held in frame.f_locals.items() if hasattr(type(held), "dim") or isinstance(held, _ANEW)}
    return Choice(tuple(dict.fromkeys(functions)), asked.span, frozenset(alike))


def _named(names: dict[str, Any], path: str) -> list[Any]:
    """What has a qualified name, and what is within it: the garbage collector does not know of all functions."""
    held: Any = None
    for name in path.split("."):
        held, names = names.get(name), getattr(names.get(name), "__dict__", {})
    found: list[Any] = []
    while held is not None and len(found) < 9:
        found.append(held)
        held = next((getattr(held, inner, None) for inner in WITHIN if hasattr(held, inner)), None)
    return found


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class _Asking:
    """What code with both sides calls, with the condition and the names there. `chosen`: to which is added what is
    chosen: its name and its node; `told`: what is to be told."""

    def __init__(
        self, torch: Any, module: Any, branches: Branches, chosen: list[tuple[str, Any]], told: list[UserError]
    ) -> None:
        self.torch, self.module, self.branches, self.chosen, self.told = torch, module, branches, chosen, told

    def __call__(self, asked: Any, held: dict[str, Any]) -> "_Sides":
        return _Sides(self, sys._getframe(1), asked, held)

    def truth(self, asked: Any) -> Any:
        """Python's, or of data, as a tensor."""
        try:
            return bool(asked)
        except BranchAsked:
            return ((asked.tensor if isinstance(asked, Figure) else asked) != 0).reshape(())

    def nor(self, part: Callable[[], Any]) -> Any:
        told = self.truth(part())
        return not told if isinstance(told, bool) else Figure(self.torch, told.logical_not())

    def any(self, *parts: Callable[[], Any]) -> Any:
        return self._joined(sys._getframe(1), parts, True)

    def all(self, *parts: Callable[[], Any]) -> Any:
        return self._joined(sys._getframe(1), parts, False)

    def _joined(self, frame: FrameType, parts: Sequence[Callable[[], Any]], ending: bool) -> Any:
        """`ending`: the truth of a part behind which Python asks no further."""
        found: Any = None
        for part in parts:
            if found is not None:
                self.branches.begin(frame, found.logical_not() if ending else found)
            told = self.truth(part())
            if found is not None:
                self.branches.end(frame)
            if told is ending:
                return ending
            if not isinstance(told, bool):
                found = told if found is None else found | told if ending else found & told
        return not ending if found is None else Figure(self.torch, found)


class _Sides:
    """What a branch asks: which of its sides are run, and what its names are behind them."""

    def __init__(self, asking: _Asking, frame: FrameType, asked: Any, held: dict[str, Any]) -> None:
        self._torch, self._asking, self._frame = asking.torch, asking, frame
        self._left, self._before = list[dict[str, Any]](), dict(held)
        told = asking.truth(asked)
        self._plain: bool | None = told if isinstance(told, bool) else None
        self._condition: Any = told if self._plain is None else None

    def runs(self, number: int) -> bool:
        """Whether the first (0) or the other one (1) does."""
        if self._condition is None:
            return self._plain is (number == 0)
        self._slots = Slots(self._torch, self._asking.module, others=self._before)
        self._asking.branches.begin(self._frame, self._condition.logical_not() if number else self._condition)
        return True

    def leave(self, held: dict[str, Any]) -> None:
        """Behind each of them, with the names there."""
        if self._condition is None:
            return
        self._asking.branches.end(self._frame)
        if self._slots.changed():
            raise not_only_writes("more than tensors is changed within it")
        self._left.append(dict(held))

    def __contains__(self, name: str) -> bool:
        """Whether it has another value now: behind the first side that of before, else what is chosen."""
        if len(self._left) < 2:
            return self._condition is not None and name in self._before
        first, second = self._left
        return name in first and name in second and first[name] is not second[name]

    def given(self, name: str, whole: bool) -> Any:
        """That value. `whole`: whether it is used for more than its parts."""
        if len(self._left) < 2:
            return self._before[name]
        try:
            return self._chosen(name, *(left[name] for left in self._left))
        except UserError as error:
            if whole:
                raise
            return _Unchosen(error)

    def _chosen(self, name: str, first: Any, second: Any) -> Any:
        kinds, alike = [_kind(self._torch, x) for x in (first, second)], type(first) is type(second)
        if first is second or (isinstance(first, str) and first == second):
            return first
        if None not in kinds:
            return self._number(name, first, second, kinds)
        mask = dropped(self._torch, self._condition, first, second)
        if mask is not None:
            self._asking.told.append(_kept(name))
            return mask
        fixed = alike and isinstance(first, tuple)  # whoever else holds one cannot tell
        old = (id(x) in self._slots.held or any(x is b for b in self._before.values()) for x in (first, second))
        if not fixed and any(old):
            raise self._differs(name)  # others may hold it as well
        if alike and isinstance(first, list | tuple) and len(first) == len(second):
            parts = [self._chosen(name, *pair) for pair in zip(first, second, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        if alike and type(first) is dict and list(first) == list(second):
            return {key: self._chosen(name, x, second[key]) for key, x in first.items()}
        raise self._differs(name)

    def _number(self, name: str, first: Any, second: Any, kinds: list[Any]) -> Any:
        """Of tensors and numbers. A tensor without axes counts as a number in arithmetic."""
        torch, tensors = self._torch, [x for x in (first, second) if isinstance(x, self._torch.Tensor)]
        if len(tensors) == 2:
            like = (first.shape, first.dtype) == (second.shape, second.dtype)
        elif tensors:
            kind = _kind(torch, tensors[0])
            like = (
                not tensors[0].dim() and kind is not bool and all(k is kind or (k, kind) == (int, float) for k in kinds)
            )
        else:
            like = kinds[0] is kinds[1]
        if not like:
            raise self._differs(name)
        made = [_tensor(torch, x) for x in (first, second)]
        chosen = torch.where(self._condition, *(x.to(tensors[0].dtype) if tensors else x for x in made))
        if not tensors:
            return Figure(torch, chosen)
        self._asking.chosen.append((name, node_of(chosen)))
        return chosen

    def _differs(self, name: str) -> UserError:
        what = "what it returns" if name.startswith("_stepplan") else repr(name)
        return not_only_writes(f"{what} is not of one shape and type behind both of its sides")


def _kept(name: str) -> UserError:
    what = f"the module drops {name!r} where that masks nothing{here()}: a plan always has it"
    return UserError(
        "SP1014", what, "if a mask of nothing does what None does, all is well; else choose by torch.where"
    )


class _Unchosen:
    """What cannot be chosen, for who asks for no part of it."""

    def __init__(self, error: UserError) -> None:
        self._error = error

    def __getitem__(self, place: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _kind(torch: Any, x: Any) -> type | None:
    """Of numbers."""
    if isinstance(x, Figure | torch.Tensor):
        dtype = x.tensor.dtype if isinstance(x, Figure) else x.dtype
        return bool if dtype is torch.bool else float if dtype.is_floating_point else int
    return type(x) if type(x) in (bool, int, float) else None


def _tensor(torch: Any, x: Any) -> Any:
    return x.tensor if isinstance(x, Figure) else x if isinstance(x, torch.Tensor) else torch.tensor(x)
