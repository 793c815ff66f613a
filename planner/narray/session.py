"""When what was recorded is run: a session records operations and runs them when a value is asked for.

`Engine` is what builds and runs; the planner has none (codegen.dataflow has), and without one a session can only be
eager. The memory limit holds for the sum of what arrays hold and what executors allocate: a step whose plan does not
fit is refused before it is run, and data that would not fit makes what was recorded run first.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from planner.errors import UserError
from planner.narray.record import Number, Recipe, Record, Trace, compute, dtype_name, piece, recipe, trace
from planner.ops.base import Array
from planner.units import format_bytes


class Ready(Protocol):
    """A built step."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The program's outputs, as arrays of their own."""


class Engine(Protocol):
    def ready(self, key: Hashable, made: Callable[[], Recipe], room: int | None) -> tuple[Ready, int]:
        """The step of that key, planned and built where it is not yet, and the bytes that all steps allocate.
        `room`: bytes that they may allocate; None: as many as there are."""

    def close(self) -> None: ...


class Session:
    """Records and runs. `engine` None: every operation is computed at once, in order, by NumPy."""

    lazy = ""

    def __init__(self, engine: Engine | None, memory_limit: int | None = None, name: str = "narray") -> None:
        self.engine, self.limit, self.name = engine, memory_limit, name
        self.rng = np.random.default_rng(0)
        self.held = 0
        """Bytes of all arrays' data."""
        self.allocated = 0
        """Bytes of the steps' executors."""
        self._pending: list[Record] = []
        self._count = 0
        self._known: dict[Hashable, tuple[float, ...] | None] = {}
        """Key -> the numbers that are part of the plan; None: they are inputs."""
        self._recipes: dict[Hashable, Recipe] = {}

    # -- recording ---------------------------------------------------------------------------------------------
    def given(self, data: Array, label: str = "") -> Record:
        """An array's data; what was recorded runs first where there would not be room."""
        self._require_room(data.nbytes)
        record = Record(self, "", (), data.shape, dtype_name(data.dtype), label)
        self.keep(record, data)
        return record

    def record(self, name: str, operands: tuple[Any, ...], label: str = "") -> Record:
        found = piece(name, operands)
        record = Record(self, name, operands, found.shape, found.dtype, label)
        self._count += 1
        record.order = self._count
        if self.engine is None:
            arrays = [_data(o) for o in operands if isinstance(o, Record | Number)]
            self.keep(record, compute(found, arrays))
            record.operands = ()
        else:
            self._pending.append(record)
        return record

    def keep(self, record: Record, data: Array) -> None:
        record.data = data
        self.held += data.nbytes

    def release(self, bytes_: int) -> None:
        """A result that nobody needs any more is gone."""
        self.held -= bytes_

    # -- running -----------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Everything recorded whose results somebody still holds."""
        pending, self._pending = self._pending, []
        wanted = [r for r in pending if r.handles > 0 and r.data is None]
        if not wanted:
            return
        try:
            results = self.results(trace(wanted))
        except BaseException:
            self._pending = pending + self._pending
            raise
        for record, data in zip(wanted, results, strict=True):
            self.keep(record, data)
            record.operands = ()

    def results(self, traced: Trace, leaves: Sequence[Record] | None = None) -> list[Array]:
        """Values of a trace's wanted records. `leaves`: other ones than the trace's own."""
        assert self.engine is not None
        key = traced.key
        if key not in self._known:
            self._known[key] = traced.numbers if np.isfinite(traced.numbers).all() else None
        elif self._known[key] not in (None, traced.numbers):
            self._known[key] = None
        vary = self._known[key] is None
        full = (key, vary)
        made = self._recipes.get(full)
        if made is None:
            made = self._recipes[full] = recipe(traced, self._next_name(), vary)
        given = [_data(r) for r in leaves or traced.leaves]
        if vary:
            given += [np.asarray(n, np.float32) for n in traced.numbers]
        outputs: list[Array] = []
        if made.graph is not None:
            outputs = self._outputs(full, made, given)
        return [outputs[at] if kind == "output" else given[at] for kind, at in made.results]

    def _outputs(self, key: Hashable, made: Recipe, given: list[Array]) -> list[Array]:
        assert self.engine is not None and made.graph is not None
        program = made.graph.programs[0]
        wanted = sum(made.graph.value[v].type.bytes for v in program.outputs)
        room = None if self.limit is None else self.limit - self.held - wanted
        ready, self.allocated = self.engine.ready(key, lambda: made, room)
        self._require_room(wanted)
        return ready.run([given[i] for i in made.inputs])

    def _next_name(self) -> str:
        return self.name if not self._recipes else f"{self.name}_{len(self._recipes) + 1}"

    def _require_room(self, bytes_: int) -> None:
        if self.limit is None or self.held + self.allocated + bytes_ <= self.limit:
            return
        if self._pending:
            self.run()
        if self.held + self.allocated + bytes_ > self.limit:
            raise UserError(
                "SP1041",
                f"{format_bytes(bytes_)} more do not fit the memory limit of {format_bytes(self.limit)}: arrays hold "
                f"{format_bytes(self.held)}, planned steps {format_bytes(self.allocated)}",
                "let go of arrays that are not needed any more, or raise memory_limit",
            )

    def close(self) -> None:
        self._pending.clear()
        if self.engine is not None:
            self.engine.close()


def _data(value: Any) -> Array:
    if isinstance(value, Number):
        return np.asarray(value, np.float32)
    found: Array = value.data
    return found
