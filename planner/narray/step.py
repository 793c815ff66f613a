"""`step`: a function of arrays that is recorded once per types of its arguments, planned, built, and then only run."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.narray.array import NArray, is_number
from planner.narray.record import Record, Trace, piece, trace
from planner.narray.session import Session
from planner.ops.base import Array


class Tracing:
    """Owns the arrays of a function that is being recorded."""

    lazy = "a step is recorded once and then runs with other data: it cannot depend on values"

    def __init__(self) -> None:
        self._count = 0

    def argument(self, record: Record, label: str) -> NArray:
        return NArray(Record(self, "", (), record.shape, record.dtype, label))

    def given(self, data: Array, label: str = "") -> Record:
        """A constant of the function."""
        record = Record(self, "", (), data.shape, data.dtype.name, label)
        record.data = data
        return record

    def record(self, name: str, operands: tuple[Any, ...], label: str = "") -> Record:
        found = piece(name, operands)
        record = Record(self, name, operands, found.shape, found.dtype, label)
        self._count += 1
        record.order = self._count
        return record

    def run(self) -> None:
        raise UserError("SP1021", "a step that is being recorded has no values", self.lazy)


def stepping(current: Callable[[], Session], entered: Callable[[Tracing | None], Any]) -> Callable[..., Any]:
    """`step` for the session that `current` gives; `entered` says which function is being recorded."""

    def step(function: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[Hashable, tuple[Trace, list[int], Any]] = {}

        @wraps(function)
        def run(*arguments: Any) -> Any:
            session = current()
            given = [_argument(session, a) for a in arguments]
            if session.engine is None:
                return function(*given)
            session.run()
            records = [a._record for a in given]
            kinds = (id(session), tuple((r.shape, r.dtype) for r in records))
            if kinds not in known:
                known[kinds] = _recorded(function, records, entered)
            traced, places, form = known[kinds]
            leaves = list(traced.leaves)
            for position, place in enumerate(places):
                if place >= 0:
                    leaves[place] = records[position]
            results = session.results(traced._replace(leaves=tuple(leaves)))
            return _filled(form, [NArray(session.given(r)) for r in results])

        run.traces = known  # type: ignore[attr-defined]
        return run

    return step


def _recorded(
    function: Callable[..., Any], records: list[Record], entered: Callable[[Tracing | None], Any]
) -> tuple[Trace, list[int], Any]:
    """(trace, place of each argument among its leaves or -1, form of the result)."""
    import inspect

    tracing = Tracing()
    names = list(inspect.signature(function).parameters)
    names += [f"x{i}" for i in range(len(names), len(records))]
    arguments = [tracing.argument(r, r.label or n) for r, n in zip(records, names, strict=False)]
    before = entered(tracing)
    try:
        returned = function(*arguments)
    finally:
        entered(before)
    found: list[NArray] = []
    form = _form(returned, found)
    strangers = [a for a in found if a._record.owner is not tracing]
    if not found or strangers:
        raise UserError(
            "SP1021", f"{function.__name__} returns {strangers[0]!r}" if strangers else
            f"{function.__name__} returns no arrays", "return arrays made of the arguments",
        )  # fmt: skip
    traced = trace([a._record for a in found])
    places = {id(leaf): i for i, leaf in enumerate(traced.leaves)}
    return traced, [places.get(id(a._record), -1) for a in arguments], form


def _argument(session: Session, value: Any) -> NArray:
    if isinstance(value, NArray):
        if value._record.owner is not session:
            raise UserError("SP1021", "arrays of two recorders meet", "make the step's arguments with this session")
        return value
    data = np.asarray(value, np.float32) if is_number(value) else np.asarray(value)
    kind = np.int64 if data.dtype.kind in "iu" else np.float32
    return NArray(session.given(np.ascontiguousarray(data, kind)))


def _form(returned: Any, found: list[NArray]) -> Any:
    """The structure of the result, with positions for arrays."""
    if isinstance(returned, NArray):
        found.append(returned)
        return len(found) - 1
    if isinstance(returned, dict):
        return {k: _form(v, found) for k, v in returned.items()}
    if isinstance(returned, tuple | list):
        return type(returned)([_form(v, found) for v in returned])
    raise UserError(
        "SP1021", f"a step returns {type(returned).__name__}", "return arrays, or tuples, lists, dicts of them"
    )


def _filled(form: Any, arrays: list[NArray]) -> Any:
    if isinstance(form, int):
        return arrays[form]
    if isinstance(form, dict):
        return {k: _filled(v, arrays) for k, v in form.items()}
    return type(form)([_filled(v, arrays) for v in form])
