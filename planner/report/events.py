"""How many nodes run at once, at every event (Liu et al., figure 4), from a replay or from a real run's trace.

An event is the launch or the end of a node: the start of its first slice, the end of its last one. Of several at one
time, ends come first.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.plan.schema import parse_slice

Row = tuple[str, int, float, float]
"""(slice name, lane, start ns, end ns)"""


class Event(NamedTuple):
    time_ns: float
    running: int
    """Nodes that run after the event."""


class CoRunning(NamedTuple):
    """What a program's events add up to."""

    events: int
    mean: float
    """Over the events, as published; not over time."""
    most: int
    nodes: int
    beside: int
    """Nodes that ran, at some time, beside another."""

    def text(self) -> str:
        return (
            f"{self.mean:.2f} nodes run at once on average over {self.events} events, {self.most} at most; "
            f"{self.beside} of {self.nodes} run beside another"
        )


def node_spans(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """node -> (start of its first slice, end of its last one)."""
    spans: dict[str, tuple[float, float]] = {}
    for name, _, start, end in rows:
        node = parse_slice(name)[0]
        known = spans.get(node)
        spans[node] = (start, end) if known is None else (min(start, known[0]), max(end, known[1]))
    return spans


def events(rows: Sequence[Row]) -> list[Event]:
    """Every launch and end, in order of time."""
    changes = [(time, change) for start, end in node_spans(rows).values() for time, change in ((start, 1), (end, -1))]
    running, found = 0, []
    for time, change in sorted(changes):
        running += change
        found.append(Event(time, running))
    return found


def co_running(rows: Sequence[Row]) -> CoRunning:
    """The summary that `show` prints."""
    found, spans = events(rows), node_spans(rows)
    open_: list[tuple[float, str]] = []
    beside: set[str] = set()
    for start, end, node in sorted((s, e, n) for n, (s, e) in spans.items()):
        open_ = [o for o in open_ if o[0] > start]
        if open_:
            beside.update(n for _, n in open_)
            beside.add(node)
        open_.append((end, node))
    return CoRunning(
        events=len(found),
        mean=sum(e.running for e in found) / len(found) if found else 0.0,
        most=max((e.running for e in found), default=0),
        nodes=len(spans),
        beside=len(beside),
    )


def events_text(figures: Mapping[str, Sequence[Row]]) -> str:
    """CSV of every figure's events, such as `planned` and `measured`: whose, number from 1, time in ns from the first
    launch, nodes that run."""
    lines = ["of,event,time_ns,running\n"]
    for name, rows in figures.items():
        found = events(rows)
        lines += [f"{name},{i},{e.time_ns - found[0].time_ns:.0f},{e.running}\n" for i, e in enumerate(found, 1)]
    return "".join(lines)
