"""What a traced run tells: one event per slice."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.plan.schema import Entry, parse_slice, slice_name


class TraceEvent(NamedTuple):
    """When one slice ran, in ns of the steady clock."""

    lane: int
    node: str
    stage: int
    slice: int
    start_ns: int
    end_ns: int


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
