"""Workspaces (SuperNeurons, section 3.5): at each step the fastest way to run whose scratch fits the bytes free there.

Functional tensors come first: the free bytes are what they leave of the pool. The same node may run another way where
it is recomputed, because every step is decided by itself.

    free 100 MiB, algorithms implicit (9 ms, 0), gemm (6 ms, 80 MiB), fft (4 ms, 300 MiB): gemm

Nodes that run side by side have to share: `share_out` decides them together.

    free 100 MiB for two such nodes: one gets gemm, the other implicit
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.costs.algorithms import Algorithm
from planner.errors import UserError
from planner.units import Bytes, format_bytes

MOST_STATES = 20_000
"""Combinations of ways of nodes side by side that are followed up: beyond, the fastest half and the smallest half."""


class Way(NamedTuple):
    """One way to run a node."""

    ns: float
    scratch: int
    """Bytes that it needs while it runs."""


class Run(NamedTuple):
    """A node that holds its scratch at the steps from `first` up to, not including, `end`."""

    node: str
    first: int
    end: int
    ways: tuple[Way, ...]


def share_out(free: Sequence[int], runs: Sequence[Run]) -> dict[str, int]:
    """node -> index of its way: the least time in total such that at every step the scratch fits the free bytes.

    `free`: at each step, the bytes that all but scratch leaves. Exact up to MOST_STATES combinations side by side.
    SP1301: at some step not even the smallest ways fit (or, beyond MOST_STATES, none was found).
    """
    found: dict[str, int] = {}
    for group in _side_by_side(runs):
        found.update(_shared(free, group))
    return found


def _side_by_side(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Groups of runs that meet, in the order of their steps; a group leaves the others all their room."""
    group: list[Run] = []
    end = 0
    for run in sorted(runs, key=lambda r: (r.first, r.end, r.node)):
        if group and run.first >= end:
            yield group
            group = []
        group.append(run)
        end = max(end, run.end)
    if group:
        yield group


Held = tuple[tuple[int, int], ...]
"""(end, bytes) of every run that still holds scratch, sorted: all that later runs need to know."""


class _State(NamedTuple):
    ns: float
    ways: "tuple[_Link, ...]"
    """Empty, or the last run's way and how it came to that."""


class _Link(NamedTuple):
    way: int
    before: _State


def _shared(free: Sequence[int], runs: Sequence[Run]) -> dict[str, int]:
    """Run after run; of all ways to the same held bytes the fastest goes on."""
    states: dict[Held, _State] = {(): _State(0.0, ())}
    for index, run in enumerate(runs):
        after: dict[Held, _State] = {}
        for held, state in states.items():
            still = tuple(h for h in held if h[0] > run.first)
            for way in _worth_having(run.ways):
                ns = state.ns + run.ways[way].ns
                now = tuple(sorted((*still, (run.end, run.ways[way].scratch))))
                if (now not in after or ns < after[now].ns) and _fits(now, run.first, free):
                    after[now] = _State(ns, (_Link(way, state),))
        if not after:
            raise _full(free, runs[: index + 1])
        states = _fewer(after)
    state = min(states.values(), key=lambda s: s.ns)
    found: dict[str, int] = {}
    for run in reversed(runs):
        (link,) = state.ways
        found[run.node], state = link.way, link.before
    return found


def _worth_having(ways: Sequence[Way]) -> list[int]:
    """The fastest way first, then only smaller and smaller ones."""
    best: list[int] = []
    for way in sorted(range(len(ways)), key=lambda w: (ways[w], w)):
        if not best or ways[way].scratch < ways[best[-1]].scratch:
            best.append(way)
    return best


def _fits(held: Held, first: int, free: Sequence[int]) -> bool:
    """At every step from `first` on. What is held only shrinks between the ends, which are sorted."""
    taken, start = sum(size for _, size in held), first
    for end, size in held:
        if start < end and taken > min(free[start:end]):
            return False
        taken, start = taken - size, max(start, end)
    return True


def _fewer(states: dict[Held, _State]) -> dict[Held, _State]:
    if len(states) <= MOST_STATES:
        return states
    fast = sorted(states, key=lambda h: (states[h].ns, h))[: MOST_STATES // 2]
    small = sorted(states, key=lambda h: (sum(size for _, size in h), h))[: MOST_STATES // 2]
    return {held: states[held] for held in dict.fromkeys((*fast, *small))}


def _full(free: Sequence[int], runs: Sequence[Run]) -> UserError:
    """At the step where the smallest ways overflow most."""
    last = runs[-1]

    def least(step: int) -> int:
        return sum(min(w.scratch for w in r.ways) for r in runs if r.first <= step < r.end)

    step = max(range(last.first, last.end), key=lambda s: (least(s) - free[s], -s))
    return UserError(
        "SP1301",
        f"no scratch fits node {last.node!r} at step {step}: {free[step]} bytes are free",
        f"what runs at this step needs {least(step)} bytes ({format_bytes(least(step))}) of scratch at least",
    )


@dataclass(frozen=True)
class Assignment:
    step: int
    """Position in the steps."""
    algorithm: Algorithm
    free: Bytes
    """What the functional tensors leave at this step."""


def fastest(algorithms: Sequence[Algorithm], free: int) -> Algorithm | None:
    """None where no workspace fits; of equally fast ones the smaller workspace."""
    fitting = (a for a in algorithms if a.workspace <= free)
    return min(fitting, key=lambda a: (a.ns, a.workspace, a.name), default=None)


def assign(
    resident: Sequence[int], capacity: int, algorithms: Mapping[int, Sequence[Algorithm]]
) -> tuple[Assignment, ...]:
    """The algorithm of every step that has a choice.

    resident: bytes of functional tensors at each step; algorithms: by step.
    SP1301: a step has no algorithm that fits.
    """
    found = []
    for step, choices in sorted(algorithms.items()):
        free = capacity - resident[step]
        best = fastest(choices, free)
        if best is None:
            need = resident[step] + min((a.workspace for a in choices), default=0)
            raise UserError(
                "SP1301",
                f"no workspace fits step {step}: {free} of {capacity} bytes are free",
                f"this step needs {need} bytes ({format_bytes(need)})",
            )
        found.append(Assignment(step, best, Bytes(free)))
    return tuple(found)
