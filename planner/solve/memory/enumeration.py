"""Of many decisions those that may be worth having, without a walk for each: most are certainly beaten by few.

Branch and bound with one level: what decisions cost and need at least (`Quick.at_least`) takes a matrix product for
all of them. Those that may cost least are looked at first, and others only if nothing that has been seen is as good as
they are at best.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from planner.solve.memory.quick import WAYS, Glance, Quick
from planner.solve.memory.steps import Decision


def unbeaten(ways: Sequence[Sequence[Decision]], quick: Quick) -> list[tuple[dict[str, Decision], Glance]]:
    """Of all combinations of the `ways` of each value, in order, those that no other is as small and as fast as, and
    smaller or faster, with what was seen of them; and some others."""
    numbers = [[WAYS[way] for way in each] for each in ways]
    every = np.array(list(itertools.product(*numbers)), np.uint8)
    names = {number: way for way, number in WAYS.items()}
    peaks, times = quick.at_least(every)
    found: dict[int, tuple[dict[str, Decision], Glance]] = {}
    costs: list[float] = []
    """What the best cost that were seen, rising, ..."""
    needs: list[int] = []
    """... and need, falling."""
    for number in np.lexsort((peaks, times)).tolist():
        least, soonest = int(peaks[number]), float(times[number])
        at = bisect_right(costs, soonest) - 1
        if at >= 0 and (needs[at], costs[at]) < (least, soonest):
            continue
        decisions = {v: names[way] for v, way in zip(quick.values, every[number].tolist(), strict=True)}
        seen = quick.of(decisions)
        if seen.hopeless:
            continue
        found[number] = decisions, seen
        at = bisect_right(costs, seen.extra_ns) - 1
        if at < 0 or needs[at] > seen.peak:
            first = bisect_left(costs, seen.extra_ns)
            last = next((i for i in range(first, len(costs)) if needs[i] < seen.peak), len(costs))
            costs[first:last], needs[first:last] = [seen.extra_ns], [seen.peak]
    return [found[number] for number in sorted(found)]
