"""What a traced run tells: one event per slice, and the Chrome trace of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from planner.artefact import write_text
from planner.plan.schema import Entry, parse_slice


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


def write_chrome_trace(runs: Sequence[Sequence[TraceEvent]], path: Path) -> None:
    """All runs as complete events (chrome://tracing, Perfetto), times from the first event's start, in us."""
    first = min((e.start_ns for run in runs for e in run), default=0)
    events = [
        {
            "name": e.node,
            "cat": f"stage {e.stage}",
            "ph": "X",
            "ts": (e.start_ns - first) / 1e3,
            "dur": (e.end_ns - e.start_ns) / 1e3,
            "pid": 0,
            "tid": e.lane,
            "args": {"stage": e.stage, "slice": e.slice, "run": number},
        }
        for number, run in enumerate(runs)
        for e in run
    ]
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": lane, "args": {"name": f"lane {lane}"}}
        for lane in sorted({e.lane for run in runs for e in run})
    ]
    write_text(path, json.dumps({"traceEvents": names + events}) + "\n")
