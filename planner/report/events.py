"""How many nodes run at once, at every event (Liu et al., figure 4), from a replay or from a real run's trace.

An event is the launch or the end of a node: the start of its first slice, the end of its last one. Of several at one
time, ends come first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from planner.plan.schema import parse_slice

Row = tuple[str, int, float, float]
"""(slice name, lane, start ns, end ns)"""


class Event(NamedTuple):
    time_ns: float
    running: int
    """Nodes that have a slice under way after the event."""


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
    return [event for event, _ in _sweep(rows)]


def co_running(rows: Sequence[Row]) -> CoRunning:
    """The summary that `show` prints."""
    beside: set[str] = set()
    found: list[Event] = []
    for event, running in _sweep(rows):
        found.append(event)
        if len(running) > 1:
            beside |= running
    return CoRunning(
        events=len(found),
        mean=sum(e.running for e in found) / len(found) if found else 0.0,
        most=max((e.running for e in found), default=0),
        nodes=len(node_spans(rows)),
        beside=len(beside),
    )


def _sweep(rows: Sequence[Row]) -> Iterator[tuple[Event, set[str]]]:
    """Every event, with the nodes that run after it: those that have a slice under way (one set, which changes).

    By spans, more nodes than lanes could run at once: in a real run a lane goes on to later nodes while another one,
    held up, has yet to begin its slice of this node.
    """
    # (time, phase, slice): of changes at one time, ends come first, then slices that take no time, then starts.
    changes = []
    for number, (name, _, start, end) in enumerate(rows):
        node = parse_slice(name)[0]
        changes += [(start, 1 if start == end else 2, number, node, 1), (end, int(start == end), number, node, -1)]
    to_end = Counter(parse_slice(name)[0] for name, *_ in rows)
    under_way: Counter[str] = Counter()
    launched: set[str] = set()
    running: set[str] = set()
    for time, _, _, node, change in sorted(changes, key=lambda c: c[:3]):
        under_way[node] += change
        (running.add if under_way[node] else running.discard)(node)
        to_end[node] -= change < 0
        if node not in launched or not to_end[node]:
            launched.add(node)
            yield Event(time, len(running)), running


def events_text(figures: Mapping[str, Sequence[Row]]) -> str:
    """CSV of every figure's events, such as `planned` and `measured`: whose, number from 1, time in ns from the first
    launch, nodes that run."""
    lines = ["of,event,time_ns,running\n"]
    for name, rows in figures.items():
        found = events(rows)
        lines += [f"{name},{i},{e.time_ns - found[0].time_ns:.0f},{e.running}\n" for i, e in enumerate(found, 1)]
    return "".join(lines)
