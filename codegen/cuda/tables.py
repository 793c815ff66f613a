"""The tables behind an executor on a GPU: what `codegen.cpu.tables` resolves, and on top of it the order in which one
thread asks all streams for their nodes, the events between them, and what every node touches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from codegen.cpu import tables
from codegen.cpu.view import NodeView
from codegen.cuda.joint import launches
from codegen.parts import Part, parts
from planner.errors import InternalError
from planner.graph.model import PERSISTENT, Graph, Role
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.plan.schema import Plan, ProgramPlan, parse_slice, parse_wait

RESULT_BYTES = 8
"""A program's first output is handed out with its end where it is no larger."""


class TouchView(NamedTuple):
    """One operand, in bytes of its pool's arena; `value`: its number (views have that of what they view)."""

    value: int
    pool: int
    offset: int
    bytes: int
    write: bool


@dataclass(frozen=True)
class TaskView:
    """One node on its lane."""

    function: str
    node: str
    lane: int
    waits: tuple[int, ...]
    """Events."""
    event: int
    touches: tuple[TouchView, ...]
    joins: bool
    """Whether one launch computes it and the next task."""


@dataclass(frozen=True)
class ProgramView:
    """What is asked of the streams at one go: a program, or a part of one (codegen/parts.py)."""

    name: str
    tasks: tuple[TaskView, ...]
    """In the order in which they are asked for."""
    events: int
    inputs: tuple[int, ...]
    index_sources: tuple[str, ...]
    result: int
    result_bytes: int


@dataclass(frozen=True)
class Model:
    """Everything that templates print."""

    base: tables.Model
    programs: tuple[ProgramView, ...]
    input_touches: tuple[TouchView, ...]
    held: tuple[tuple[int, int, int], ...]
    """(number, offset, bytes) of parameters and states."""

    @property
    def views(self) -> Mapping[str, tuple[NodeView, ...]]:
        return self.base.views


def build(plan: Plan, graph: Graph, plan_text: str) -> Model:
    """`graph`: expanded. The plan has been checked."""
    base = tables.build(plan, graph, plan_text)
    numbers = _Numbers(graph)
    touch = _Touches(plan, numbers)
    held = [v for v in graph.values if v.role in PERSISTENT and v.id in plan.placement]
    return Model(
        base=base,
        programs=tuple(v for p in plan.programs for v in _program(plan, graph, p, base, touch)),
        input_touches=tuple(touch.of(i.id, True) for i in base.inputs),
        held=tuple((t.value, t.offset, t.bytes) for t in (touch.of(v.id, True) for v in held)),
    )


class _Numbers:
    """One number per value; a view has the number of what it views, because it is the same bytes with the same
    meaning."""

    def __init__(self, graph: Graph) -> None:
        self._number = {v.id: i for i, v in enumerate(graph.values)}
        self._source = {}
        for program in graph.programs:
            for node in program.nodes:
                if view := op_named(node.op).alias(signature_of(graph, node)):
                    self._source[node.outputs[view[0]]] = node.inputs[view[1]]

    def of(self, value: str) -> int:
        while value in self._source:
            value = self._source[value]
        return self._number[value]

    @property
    def scratch(self) -> int:
        """What a node leaves in its scratch is no value: nobody reads it."""
        return len(self._number)


class _Touches:
    def __init__(self, plan: Plan, numbers: _Numbers) -> None:
        self._plan, self._numbers = plan, numbers
        self._pools = {p.name: i for i, p in enumerate(plan.pools)}

    def of(self, value: str, write: bool) -> TouchView:
        place = self._plan.placement[value]
        return TouchView(self._numbers.of(value), self._pools[place.pool], place.offset, place.bytes, write)

    def all(self, view: NodeView) -> tuple[TouchView, ...]:
        node, plan = view.node, view.plan
        found = [self.of(v, False) for v in dict.fromkeys(node.reads)]
        found += [self.of(v, True) for v in dict.fromkeys(node.writes)]
        if plan.scratch_bytes:
            found.append(TouchView(self._numbers.scratch, 0, plan.scratch_offset, plan.scratch_bytes, True))
        return tuple(found)


def _program(
    plan: Plan, graph: Graph, program: ProgramPlan, base: tables.Model, touch: _Touches
) -> Iterator[ProgramView]:
    """Its runs. Streams meet at the end of each, so there is no event between two of them."""
    view_of = {v.id: v for v in base.views[program.name]}
    touches = {v.id: touch.all(v) for v in view_of.values()}
    ops = {v.id: v.node.op for v in view_of.values()}
    inputs = [i.id for i in base.inputs]
    runs = parts(plan, graph, program)
    for part in runs:
        waits = _waits(part)
        waited = {node for found in waits.values() for node in found}
        lanes = [launches(lane, ops, touches, waited) for lane in part.lanes]
        order = issue_order([n.node for n in program.nodes], waits, lanes)
        joins = {node for lane in lanes for nodes in lane for node in nodes[:-1]}
        event = {node: i for i, node in enumerate(n for n in order if n in waited)}
        lane_of = {parse_slice(e.run)[0]: i for i, lane in enumerate(part.lanes) for e in lane}
        reports = any(view_of[node].bad_index >= 0 or view_of[node].looks for node in order)
        result, result_bytes = _result(plan, graph, program) if part is runs[-1] else (0, 0)
        yield ProgramView(
            name=part.name,
            tasks=tuple(
                TaskView(
                    function=view_of[node].name,
                    node=node,
                    lane=lane_of[node],
                    waits=tuple(event[other] for other in waits[node]),
                    event=event.get(node, -1),
                    touches=touches[node],
                    joins=node in joins,
                )
                for node in order
            ),
            events=len(event),
            inputs=tuple(inputs.index(i) for i in part.inputs),
            index_sources=next(r.index_sources for r in base.runs if r.name == part.name) if reports else (),
            result=result,
            result_bytes=result_bytes,
        )


def _waits(part: Part) -> dict[str, tuple[str, ...]]:
    """node -> nodes of the same run that it waits for."""
    entries = {parse_slice(e.run)[0]: e for lane in part.lanes for e in lane}
    found = {node: dict.fromkeys(parse_wait(w)[0] for w in entry.wait) for node, entry in entries.items()}
    return {node: tuple(w for w in waits if w in entries) for node, waits in found.items()}


def _result(plan: Plan, graph: Graph, program: ProgramPlan) -> tuple[int, int]:
    """Offset and bytes of the first output, where it is small and the program's own."""
    for value in graph.program[program.name].outputs[:1]:
        place = plan.placement[value]
        if place.bytes <= RESULT_BYTES and graph.value[value].role is not Role.INPUT:
            return place.offset, place.bytes
    return 0, 0


def issue_order(
    scheduled: Sequence[str], waits: Mapping[str, Sequence[str]], lanes: Sequence[Sequence[tuple[str, ...]]]
) -> tuple[str, ...]:
    """The nodes of all lanes in one order: each lane's own, launch by launch (`lanes`), and none before a node that it
    waits for, so that an event is always recorded before somebody is made to wait for it. Of several, the one that the
    schedule (`scheduled`) starts first."""
    place = {node: i for i, node in enumerate(scheduled)}
    heads = [0] * len(lanes)
    done: dict[str, None] = {}
    while any(head < len(lane) for head, lane in zip(heads, lanes, strict=True)):
        ready = []
        for number, (head, lane) in enumerate(zip(heads, lanes, strict=True)):
            if head < len(lane):
                first = lane[head][0]  # the others of a launch wait for nobody
                if all(w in done for w in waits[first]):
                    ready.append((place[first], number))
        if not ready:
            stuck = [lane[head][0] for head, lane in zip(heads, lanes, strict=True) if head < len(lane)]
            raise InternalError(f"{', '.join(stuck)} wait for each other")
        _, number = min(ready)
        done.update(dict.fromkeys(lanes[number][heads[number]]))
        heads[number] += 1
    return tuple(done)
