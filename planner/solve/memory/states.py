"""Decisions about a program's values, with what they need and what they cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from planner.solve.memory.footprints import Footprints, Found
from planner.solve.memory.steps import Decision, Held, Material, Step, steps


@dataclass(frozen=True)
class State:
    """Decisions, and what is estimated of them."""

    decisions: Mapping[str, Decision]
    held: Held = frozenset()
    peak: int = 0
    """Bytes of the first pool."""
    extra_ns: float = 0.0
    least_ns: float = 0.0
    """The same, if all copies cost nothing because they run beside the nodes."""
    found: Found | None = field(default=None, compare=False, repr=False)
    """What runs, where that has been looked at."""


def cheapest(states: Iterable[State]) -> list[State]:
    """From the fastest to the smallest, without those that another one beats in both."""
    best: list[State] = []
    for state in sorted(states, key=lambda s: (s.extra_ns, s.peak)):
        if not best or state.peak < best[-1].peak:
            best.append(state)
    return best


def unfolded(state: State, made: Material) -> list[Step]:
    """What runs."""
    return state.found[0] if state.found else steps(made, state.decisions, state.held)


def exactly(state: State, exact: Footprints, made: Material) -> State:
    """The state with what it needs and costs in the modes of `exact`."""
    listed = unfolded(state, made)
    seen = exact.of(listed)
    return replace(state, peak=seen.peak, extra_ns=seen.extra_ns, least_ns=seen.again_ns, found=(listed, seen))
