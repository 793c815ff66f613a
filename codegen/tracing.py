"""What traced runs tell: one event per slice."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from planner.artefact import write_text
from planner.graph.model import Graph
from planner.plan.schema import Entry, Plan, parse_slice, slice_name
from planner.report.perfetto import measured_trace


class TraceEvent(NamedTuple):
    """When one slice ran, in ns of the steady clock."""

    lane: int
    node: str
    stage: int
    slice: int
    start_ns: int
    end_ns: int


class Trace:
    """The recorded runs of an executor, and the file that shows them."""

    def __init__(self, plan: Plan, graph: Graph, path: Path | None) -> None:
        """SP1702: the file cannot be written, which is better known before a step than after it."""
        self._plan, self._graph, self._path = plan, graph, path
        self.runs: list[tuple[str, list[TraceEvent]]] = []
        """(program, events)"""
        self._write()

    def add(self, program: str, events: list[TraceEvent]) -> None:
        self.runs.append((program, events))
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            rows = {name: rows_of([run for other, run in self.runs if other == name]) for name, _ in self.runs}
            write_text(self._path, measured_trace(self._plan, self._graph, rows))


def events_of_step(lanes: Sequence[Sequence[Entry]], spans: Sequence[Sequence[tuple[int, int]]]) -> list[TraceEvent]:
    """Pair each lane's entries with the times that the lane recorded."""
    found = []
    for lane, (entries, times) in enumerate(zip(lanes, spans, strict=True)):
        for entry, (start, end) in zip(entries, times, strict=True):
            found.append(TraceEvent(lane, *parse_slice(entry.run), start, end))
    return found


def rows_of(runs: Sequence[Sequence[TraceEvent]]) -> list[tuple[str, int, float, float]]:
    """Runs one after the other as (slice, lane, start, end), the form of planned timelines (report/perfetto.py)."""
    return [
        (slice_name(e.node, e.stage, e.slice), e.lane, float(e.start_ns), float(e.end_ns)) for run in runs for e in run
    ]
