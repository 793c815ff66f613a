"""Part of `check`: is the plan complete? Every program, node and slice is there once, and every mode exists.

Nothing here is proportional to a number that the plan merely claims (a node of 10^18 slices): slices are enumerated
only after their number is known to be in keeping with the number of lane entries.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from planner.graph.model import Graph, Node, Program
from planner.malformed import shown
from planner.ops.base import Op, ScratchPart, Signature, op_named, scratch_bytes
from planner.ops.device import dims_of, running
from planner.ops.signature import signature_of
from planner.plan.findings import Report, shown_number
from planner.plan.schema import NodePlan, Plan, ProgramPlan, slice_name, stage_name

LARGEST = 2**60
"""Sizes and offsets below this keep every sum in 64 bits."""

MOST_LANES = 4096

ENUMERATED = 1_000_000
"""At most so many slices that no lane runs are looked for by name."""

T = TypeVar("T")


@dataclass(frozen=True)
class PlannedNode:
    """A node of the graph with its plan; `first` is the number of its slice 0 in stage 0."""

    index: int
    """Position in the graph's program, which defines the meaning of in-place updates."""
    node: Node
    plan: NodePlan
    op: Op
    signature: Signature
    stages: int
    scratch: tuple[ScratchPart, ...]
    first: int

    def slices_of(self, stage: int) -> range:
        """The numbers of a stage's slices."""
        return range(self.first + stage * self.plan.slices, self.first + (stage + 1) * self.plan.slices)


@dataclass(frozen=True)
class Slices:
    """A complete program. Slices are numbered in the order of the plan's nodes, then stages, then indices."""

    program: Program
    plan: ProgramPlan
    nodes: tuple[PlannedNode, ...]
    names: tuple[str, ...]
    lane: tuple[int, ...]
    position: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    """Per slice; a number from `len(names)` on is a gate: a wait for all slices of a stage."""
    gates: tuple[range, ...] = ()
    """The slices of every stage that is waited for as a whole."""


def check_lanes(plan: Plan, report: Report) -> None:
    """Lane ids count from 0; no two lanes are pinned to one processor; every program has all lanes."""
    if len(plan.lanes) > MOST_LANES:
        report.add("SP1433", "", f"{len(plan.lanes)} lanes are too many to check; {MOST_LANES} are allowed")
        return
    for index, lane in enumerate(plan.lanes):
        if lane.id != index:
            report.add("SP1426", "", f"lane {index} calls itself {shown_number(lane.id)}")
    kinds = [lane.kind for lane in plan.lanes]
    if kinds != sorted(kinds, key=lambda k: k == "copy") or (kinds and kinds[0] == "copy"):
        report.add("SP1426", "", "copy lanes come after the others, of which there is at least one")
    for cpu, count in Counter(lane.cpu for lane in plan.lanes if lane.kind == "core").items():
        if count > 1:
            users = ", ".join(str(i) for i, lane in enumerate(plan.lanes) if lane.cpu == cpu and lane.kind == "core")
            report.add("SP1427", "", f"lanes {users} are all pinned to processor {shown_number(cpu)}")
    for program in plan.programs:
        if len(program.lanes) != len(plan.lanes):
            report.add(
                "SP1426", program.name, f"{len(program.lanes)} lane programs for the plan's {len(plan.lanes)} lanes"
            )


def check_programs(graph: Graph, plan: Plan, report: Report) -> list[tuple[Program, ProgramPlan]]:
    """The programs that are both in the graph and, once, in the plan."""
    times = Counter(p.name for p in plan.programs)
    for name, count in times.items():
        if name not in graph.program:
            report.add("SP1405", name, f"the graph has no program {shown(name)}")
        elif count > 1:
            report.add("SP1405", name, f"program {shown(name)} is planned {count} times")
    for name in graph.program:
        if name not in times:
            report.add("SP1405", name, f"program {shown(name)} is missing from the plan")
    return [(p, plan.program[p.name]) for p in graph.programs if times[p.name] == 1]


def check_slices(graph: Graph, program: Program, plan: ProgramPlan, report: Report) -> Slices | None:
    """The program's slices where it is complete and every mode exists; None after findings that leave it open
    what runs where."""
    before = len(report)
    if len(plan.lanes) > MOST_LANES:
        report.add("SP1433", plan.name, f"{len(plan.lanes)} lanes are too many to check; {MOST_LANES} are allowed")
        return None
    nodes = _planned_nodes(graph, program, plan, report)
    if len(report) > before:
        return None
    entries = sum(map(len, plan.lanes))
    total = sum(p.plan.slices * p.stages for p in nodes)
    if total > entries + ENUMERATED:
        report.add("SP1410", plan.name, f"the nodes have {shown_number(total)} slices but the lanes run {entries}")
        return None
    placed = _placed_slices(program, plan, nodes, report)
    return placed if len(report) == before else None


def _planned_nodes(graph: Graph, program: Program, plan: ProgramPlan, report: Report) -> tuple[PlannedNode, ...]:
    """The nodes that are known and whose modes are valid, in the plan's order."""
    position = {n.id: i for i, n in enumerate(program.nodes)}
    times = Counter(n.node for n in plan.nodes)
    for name, count in times.items():
        if name not in position:
            report.add("SP1406", plan.name, f"the graph's program has no node {shown(name)}")
        elif count > 1:
            report.add("SP1406", plan.name, f"node {name} is planned {count} times")
    for name in position:
        if name not in times:
            report.add("SP1406", plan.name, f"node {name} is missing from the plan")
    found: list[PlannedNode] = []
    first = 0
    for planned in plan.nodes:
        if planned.node in position and times[planned.node] == 1:
            node = program.nodes[position[planned.node]]
            op, signature = running(op_named(node.op), planned.mode), signature_of(graph, node)
            fitting = _check_mode(node, op, signature, planned, plan.name, report)
            if fitting is not None:
                stages, scratch = fitting
                found.append(PlannedNode(position[node.id], node, planned, op, signature, stages, scratch, first))
                first += stages * planned.slices
    return tuple(found)


def _check_mode(
    node: Node, op: Op, signature: Signature, planned: NodePlan, program: str, report: Report
) -> tuple[int, tuple[ScratchPart, ...]] | None:
    """The node's number of stages and its scratch, or None when its plan does not fit its op."""
    if any(not 0 <= fact < LARGEST for fact in planned.facts.values()):
        report.add("SP1431", program, f"node {node.id} has a fact that is negative or beyond 2^60")
        return None
    dims = ask(lambda: dims_of(op, signature, planned.kernel), node.id, program, report)
    if dims is None:
        return None
    if not 1 <= planned.slices <= dims.get((planned.kernel, planned.dim), 0):
        what = f"{shown(planned.kernel)}/{shown(planned.dim)} in {shown_number(planned.slices)} slices"
        offered = ", ".join(f"{kernel}/{dim} in up to {most}" for (kernel, dim), most in sorted(dims.items()))
        report.add("SP1407", program, f"node {node.id} ({node.op}) runs as {what}; it offers {offered}")
        return None
    if planned.kernel == "loops" and planned.implementation:
        schedules = ask(lambda: tuple(op.schedules(signature)), node.id, program, report)
        if schedules is None:
            return None
        if planned.implementation not in schedules:
            what, offered = shown(planned.implementation), ", ".join(schedules) or "none but the plain one"
            report.add(
                "SP1407", program, f"node {node.id} ({node.op}) runs by the schedule {what}; it offers {offered}"
            )
            return None
    stages: int | None = 0
    scratch: tuple[ScratchPart, ...] | None = ()
    if op.alias(signature) is None:
        mode, facts = planned.mode, planned.facts
        stages = ask(lambda: op.stage_count(signature, mode, facts), node.id, program, report)
        scratch = ask(lambda: tuple(op.scratch(signature, mode, facts)), node.id, program, report)
    if stages is None or scratch is None:
        return None
    if planned.stages != stages:
        kind = f"has {stages} stages" if stages else "is only a view"
        report.add("SP1408", program, f"node {node.id} ({node.op}) {kind} but has {planned.stages} stage times")
        return None
    if any(time < 0 for time in planned.stage_ns):
        report.add("SP1430", program, f"node {node.id} has a negative stage time")
    if planned.crossed and len(planned.crossed) != stages:
        report.add("SP1408", program, f"node {node.id} has {stages} stages but `crossed` for {len(planned.crossed)}")
    size, stated = scratch_bytes(scratch), planned.scratch_bytes
    if stated != size:
        report.add(
            "SP1409", program, f"node {node.id} needs {size} bytes of scratch but the plan has {shown_number(stated)}"
        )
        return None
    return stages, scratch


def _placed_slices(program: Program, plan: ProgramPlan, nodes: tuple[PlannedNode, ...], report: Report) -> Slices:
    """Where every slice runs; findings for missing, doubled and unknown ones."""
    names = tuple(
        slice_name(p.node.id, stage, index)
        for p in nodes
        for stage in range(p.stages)
        for index in range(p.plan.slices)
    )
    number = {name: i for i, name in enumerate(names)}
    gates = _Gates(nodes, len(names))
    lane, position = [-1] * len(names), [-1] * len(names)
    waits: list[tuple[int, ...]] = [()] * len(names)
    known_waits: dict[tuple[str, ...], tuple[int, ...]] = {(): ()}  # slices of a stage mostly wait for the same
    for where, entries in enumerate(plan.lanes):
        for at, entry in enumerate(entries):
            known = number.get(entry.run)
            if known is None:
                report.add(
                    "SP1412", plan.name, f"lane {where} runs {shown(entry.run)}, but {_slices_of(entry.run, nodes)}"
                )
                continue
            if lane[known] >= 0:
                report.add("SP1411", plan.name, f"{entry.run} runs in lane {lane[known]} and again in lane {where}")
                continue
            lane[known], position[known] = where, at
            try:
                if entry.wait not in known_waits:
                    found = tuple(gates.number(w) if w.endswith("#*") else number[w] for w in entry.wait)
                    known_waits[entry.wait] = found
                waits[known] = known_waits[entry.wait]
            except KeyError as unknown:
                wait = str(unknown.args[0])
                report.add("SP1412", plan.name, f"{entry.run} waits for {shown(wait)}, but {_slices_of(wait, nodes)}")
    for name, where in zip(names, lane, strict=True):
        if where < 0:
            report.add("SP1410", plan.name, f"{name} runs in no lane, but {_slices_of(name, nodes)}")
    return Slices(program, plan, nodes, names, tuple(lane), tuple(position), tuple(waits), tuple(gates.found))


def _slices_of(name: str, nodes: tuple[PlannedNode, ...]) -> str:
    """Which slices the node has that a slice's or stage's name means."""
    node = name.rpartition("/")[0]
    planned = next((p for p in nodes if p.node.id == node), None)
    if planned is None:
        return f"the program has no node {shown(node)}" if node else "a slice is named node/stage#index"
    if not planned.stages:
        return f"node {node} is only a view: nothing runs"
    first = slice_name(node, 0, 0)
    last = slice_name(node, planned.stages - 1, planned.plan.slices - 1)
    return f"the only slice of node {node} is {first}" if first == last else f"node {node} has {first} to {last}"


class _Gates:
    """Numbers the stages that are waited for as a whole, from `total` on."""

    def __init__(self, nodes: tuple[PlannedNode, ...], total: int) -> None:
        self._stages = {stage_name(p.node.id, stage): p.slices_of(stage) for p in nodes for stage in range(p.stages)}
        self._total = total
        self._number: dict[str, int] = {}
        self.found: list[range] = []

    def number(self, wait: str) -> int:
        """KeyError: no node has such a stage."""
        if wait not in self._number:
            self.found.append(self._stages[wait])
            self._number[wait] = self._total + len(self.found) - 1
        return self._number[wait]


def ask(question: Callable[[], T], node: str, program: str, report: Report) -> T | None:
    """An op's answer; None and a finding when the op cannot answer for this node. Ops trust their signatures, and
    a stranger's plan may pair any mode and facts with any node, so whatever an op raises is the plan's fault."""
    try:
        return question()
    except Exception as error:
        report.add("SP1432", program, f"node {node}: its op cannot run like this ({type(error).__name__})")
        return None
