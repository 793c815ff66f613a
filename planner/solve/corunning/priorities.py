"""Which ready node comes first, and which of a node's modes are worth a look."""

from collections.abc import Mapping, Sequence
from typing import Literal

from planner.graph.model import Node
from planner.solve.threads import Choice, Options, rank

Priority = Literal["time", "path", "memory"]
"""time: the most time-consuming first, as published; path: the one with the longest remaining path; memory: the
order of the route pass."""

CANDIDATES = 3
"""Modes per node that strategy 3 considers (an empirical number of the paper)."""

TOLERANCE = 2
"""Slices by which a co-running node may differ from strategy 2's count (another one)."""


def remaining_paths(
    order: Sequence[Node], needs: Mapping[str, Sequence[str]], time_ns: Mapping[str, float]
) -> dict[str, float]:
    """node id -> ns of the longest chain that starts with it. `order` is a valid order."""
    longest: dict[str, float] = {}
    for node in reversed(order):
        own = longest.get(node.id, 0.0) + time_ns[node.id]
        longest[node.id] = own
        for needed in needs[node.id]:
            longest[needed] = max(longest.get(needed, 0.0), own)
    return longest


def ranked(
    priority: Priority,
    order: Sequence[Node],
    needs: Mapping[str, Sequence[str]],
    time_ns: Mapping[str, float],
) -> dict[str, tuple[float, int]]:
    """node id -> sort key, the most urgent first; ties in route order."""
    if priority == "path":
        longest = remaining_paths(order, needs, time_ns)
        return {n.id: (-longest[n.id], i) for i, n in enumerate(order)}
    if priority == "time":
        return {n.id: (-time_ns[n.id], i) for i, n in enumerate(order)}
    return {n.id: (0.0, i) for i, n in enumerate(order)}


def per_count(options: Sequence[Choice]) -> list[Choice]:
    """The fastest choice of every slice count, the fastest count first."""
    best: dict[int, Choice] = {}
    for choice in sorted(options, key=rank):
        best.setdefault(choice.mode.slices, choice)
    return list(best.values())


def candidates(
    options: Options, base: Mapping[str, Choice], pinned: Mapping[str, int]
) -> dict[str, tuple[Choice, ...]]:
    """node id -> its three best modes whose count is near the one of strategies 1 and 2, the fewest slices first.

    A pinned node has no alternative. Where none of the three is near, the count of strategies 1 and 2 stays.
    """
    found: dict[str, tuple[Choice, ...]] = {}
    cached: dict[tuple[int, int], tuple[Choice, ...]] = {}
    for node, choice in base.items():
        if node in pinned or not choice.stage_ns:
            found[node] = (choice,)
            continue
        key = (id(options[node]), choice.mode.slices)
        if key not in cached:
            best = per_count(options[node])[:CANDIDATES]
            near = [c for c in best if abs(c.mode.slices - choice.mode.slices) <= TOLERANCE]
            cached[key] = tuple(sorted(near or [choice], key=lambda c: c.mode.slices))
        found[node] = cached[key]
    return found


def frontier(options: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that no other beats in both time and slices, the fewest slices first."""
    kept: list[Choice] = []
    for choice in sorted(options, key=lambda c: (c.mode.slices, *rank(c))):
        if not kept or (choice.total_ns < kept[-1].total_ns and choice.mode.slices > kept[-1].mode.slices):
            kept.append(choice)
    return tuple(kept)
