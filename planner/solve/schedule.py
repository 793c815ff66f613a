"""A schedule: one program's decisions about time, before bytes and waits are known."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planner.graph.model import Node
from planner.plan.schema import ParallelOp, Slowdown
from planner.solve.threads import Choice
from planner.units import format_ns


@dataclass(frozen=True)
class Schedule:
    """The order in which nodes start, how each runs, and where.

    On every lane, slices run in the order of their nodes; stage by stage within a node.
    """

    program: str
    order: tuple[Node, ...]
    choices: Mapping[str, Choice]
    """node id -> mode with its predicted times"""
    lanes: Mapping[str, tuple[int, ...]]
    """node id -> the lane of each of its slices, all different"""
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """node id -> predicted (start, end) in ns where nodes co-run; empty: one after the other"""
    slowdowns: tuple[Slowdown, ...] = ()
    """Measured pairs that were decided upon."""
    parallel: tuple[ParallelOp, ...] = ()
    """Siblings that start together."""

    @cached_property
    def reach(self) -> tuple[int, ...]:
        """For every position in the order: the first later position whose node starts when this one has ended.

        What a node uses is in use up to there, so that nodes predicted to run side by side share no bytes.
        Example, spans a 0..10, b 2..5, c 6..9, d 10..12: a reaches 3 (d), b reaches 2 (c).
        """
        if not self.spans:
            return tuple(range(1, len(self.order) + 1))
        starts = [self.spans[n.id][0] for n in self.order]
        return tuple(max(i + 1, bisect_left(starts, self.spans[n.id][1])) for i, n in enumerate(self.order))

    @property
    def end_ns(self) -> float:
        """When the last node ends, as scheduled."""
        if not self.spans:
            return float(sum(c.total_ns for c in self.choices.values()))
        return max((end for _, end in self.spans.values()), default=0.0)

    @property
    def busiest_ns(self) -> int:
        """How long the lane that has most to do is busy: no replay without measured pairs is shorter."""
        busy: dict[int, int] = {}
        for node, lanes in self.lanes.items():
            took = sum(self.choices[node].stage_ns)
            for lane in lanes:
                busy[lane] = busy.get(lane, 0) + took
        return max(busy.values(), default=0)


def one_at_a_time(program: str, order: Sequence[Node], choices: Mapping[str, Choice]) -> Schedule:
    """Slice i of every node runs on lane i: nothing co-runs, but for lanes that a node leaves idle."""
    lanes = {node.id: tuple(range(choices[node.id].mode.slices)) for node in order}
    return Schedule(program, tuple(order), choices, lanes)


def corun_summary(schedule: Schedule) -> str:
    """How many nodes run beside another, and which measured pairs were kept apart."""
    spans = sorted((start, end, node) for node, (start, end) in schedule.spans.items() if end > start)
    beside: set[str] = set()
    open_: list[tuple[float, str]] = []
    for start, end, node in spans:
        open_ = [o for o in open_ if o[0] > start]
        if open_:
            beside.update(n for _, n in open_)
            beside.add(node)
        open_.append((end, node))
    refused = [s for s in schedule.slowdowns if s.refused]
    text = f"{len(beside)} of {len(spans)} nodes run beside another"
    if refused:
        worst = max(refused, key=lambda s: (s.factor, s.node))
        text += f"; {len(refused)} pairs refused, such as {worst.node} beside {worst.beside} ({worst.factor:.2f}x)"
    return text


def parallel_summary(schedule: Schedule) -> str:
    """How many parallel operators there are, of how many nodes, and what they are predicted to gain."""
    found = schedule.parallel
    if not found:
        return f"no siblings in {schedule.program} gain by running side by side"
    nodes = sum(len(p.nodes) for p in found)
    before, after = (sum(times) for times in zip(*((p.alone_ns, p.together_ns) for p in found), strict=True))
    change = f"{format_ns(before)} one after the other, {format_ns(after)} side by side"
    return f"{nodes} nodes of {schedule.program} in {len(found)} parallel operators: {change}"
