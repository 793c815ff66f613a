"""Curves: one kernel's time against its slice count, and how well hill climbing predicts the counts it skips (Liu et
al., section III-D and table V)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from planner.costs.hill_climb import accuracy, counts_to_try, hill_climb, interpolate
from planner.costs.table import CostTable


class Curve(NamedTuple):
    """Cold time of one (signature, kernel, dimension, implementation, affinity), ns by slice count."""

    signature: str
    times: Mapping[int, float]


def curves(table: CostTable, signatures: Iterable[str]) -> list[Curve]:
    """The table's curves for these signatures, as far as they were timed: interpolated counts are left out."""
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for signature in signatures:
        for e in table.modes(signature):
            if e.source != "interpolated":
                key = (signature, e.kernel, e.dim, e.implementation, e.affinity)
                found.setdefault(key, {})[e.slices] = sum(e.cold_ns)
    return [Curve(key[0], times) for key, times in found.items()]


class Climbed(NamedTuple):
    """What one interval would have given on fully timed curves."""

    accuracy: float | None
    """1 - mean relative error over the counts that were skipped; None where nothing was."""
    timed: float
    """Mean number of counts timed per curve."""
    lost: float
    """Mean of (time at the count that climbing calls best / best time) - 1."""


def climb(fully_timed: Iterable[Curve], interval: int) -> Climbed:
    """Replay hill climbing at `interval` on curves whose every count is known."""
    predicted: list[float] = []
    actual: list[float] = []
    timed, lost, number = 0, 0.0, 0
    for curve in fully_timed:
        last = max(curve.times)
        known = hill_climb(counts_to_try(last, last, interval), curve.times.__getitem__)
        number, timed = number + 1, timed + len(known)
        guesses = {c: interpolate(known, c) for c in curve.times}
        skipped = [c for c in curve.times if c not in known]
        predicted += [guesses[c] for c in skipped]
        actual += [curve.times[c] for c in skipped]
        chosen = min(guesses, key=lambda c: (guesses[c], c))
        lost += curve.times[chosen] / min(curve.times.values()) - 1
    return Climbed(accuracy(predicted, actual) if actual else None, timed / max(1, number), lost / max(1, number))
