"""Chrome / Perfetto traces: programs as processes, lanes as threads, one event per slice.

A planned timeline and a measured one have the same form, rows of (slice, lane, start ns, end ns), so both open side
by side: `compared_trace` writes them into one file, as two processes on one clock.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.graph.model import Graph, Program
from planner.plan.expand import expanded
from planner.plan.render import printable
from planner.plan.schema import Plan, ProgramPlan, parse_slice
from planner.plan.simulate import replay

Row = tuple[str, int, float, float]
"""(slice name, lane, start ns, end ns)"""


def perfetto_trace(plan: Plan, graph: Graph, *, sync_ns: float = 200.0) -> str:
    """The plan's own prediction, every program from time 0."""
    graph = expanded(graph, plan)
    events: list[dict[str, Any]] = []
    for pid, program in enumerate(plan.programs, 1):
        rows = replay(plan, program, sync_ns=sync_ns).rows()
        events += _process(pid, f"{plan.name} {program.name}", program, graph.program[program.name], rows)
    return _document(events)


def measured_trace(plan: Plan, graph: Graph, measured: Mapping[str, Sequence[Row]]) -> str:
    """Real runs, by program name. A program may hold several runs one after the other; its first slice starts at 0."""
    graph = expanded(graph, plan)
    events: list[dict[str, Any]] = []
    for pid, program in enumerate((p for p in plan.programs if p.name in measured), 1):
        rows = from_zero(measured[program.name])
        title = measured_title(plan, program.name)
        events += _process(pid, title, program, graph.program[program.name], rows)
    return _document(events)


def compared_trace(plan: Plan, graph: Graph, program: str, measured: Sequence[Row], *, sync_ns: float = 200.0) -> str:
    """One program, planned and measured: two processes that start at the same time."""
    part, known = plan.program[program], expanded(graph, plan).program[program]
    planned = replay(plan, part, sync_ns=sync_ns).rows()
    return _document(
        _process(1, f"{plan.name} {program} planned", part, known, planned)
        + _process(2, measured_title(plan, program), part, known, from_zero(measured))
    )


def measured_title(plan: Plan, program: str) -> str:
    """The name of the process that holds a program's real runs."""
    return f"{printable(plan.name)} {printable(program)} measured"


def from_zero(rows: Sequence[Row]) -> list[Row]:
    """The rows with the earliest start at 0."""
    first = min((start for _, _, start, _ in rows), default=0.0)
    return [(name, lane, start - first, end - first) for name, lane, start, end in rows]


def _process(pid: int, title: str, plan: ProgramPlan, program: Program, rows: Iterable[Row]) -> list[dict[str, Any]]:
    events = [
        _name("process_name", pid, 0, title),
        {**_name("process_sort_index", pid, 0, ""), "args": {"sort_index": pid}},
    ]
    rows = sorted(rows, key=lambda r: (r[2], r[3], r[1], r[0]))
    for lane in sorted({lane for _, lane, _, _ in rows}):
        events.append(_name("thread_name", pid, lane + 1, f"lane {lane}"))
        events.append({**_name("thread_sort_index", pid, lane + 1, ""), "args": {"sort_index": lane}})
    for name, lane, start, end in rows:
        node, stage, index = parse_slice(name)
        events.append(
            {
                "name": printable(node),
                "cat": program.node[node].phase if node in program.node else "unknown",
                "ph": "X",
                "pid": pid,
                "tid": lane + 1,
                # Trace files count in microseconds, viewers in whole nanoseconds: rounding both ends, and not the
                # duration, lets no slice reach into its successor.
                "ts": round(start) / 1000,
                "dur": (round(end) - round(start)) / 1000,
                "args": {"stage": stage, "slice": index, **_about(node, stage, plan, program)},
            }
        )
    return events


def _about(node: str, stage: int, plan: ProgramPlan, program: Program) -> dict[str, Any]:
    """What a click on a slice shows."""
    about: dict[str, Any] = {}
    if node in program.node:
        about["op"] = program.node[node].op
        about["origin"] = printable(program.node[node].origin)
    if node in plan.node:
        about["mode"] = plan.node[node].mode.text()
        if stage < plan.node[node].stages:
            about["planned_us"] = plan.node[node].stage_ns[stage] / 1e3
    return about


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": printable(name)}}


def _document(events: Sequence[Mapping[str, Any]]) -> str:
    """One event per line."""
    lines = ",\n".join(json.dumps(e, sort_keys=True) for e in events)
    return '{"displayTimeUnit": "ns", "traceEvents": [\n' + lines + "\n]}\n"
