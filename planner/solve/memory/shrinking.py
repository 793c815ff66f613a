"""From steps that need too much memory to steps that fit: what waits where most is in memory is made again instead.

Decisions about values (steps.py) say the same wherever a value is read, and holding (holding.py) only adds what fits
to something smaller. Here one goes the other way, from a fast step to a smaller one, and instance by instance: between
two of its readers a value need not be there. Of those that wait at the place where most is in memory, the one goes that
costs least time per byte by which it lowers the peak and what is nearly as high:

    x  ..  g(x)  ..  ..  peak  ..  h(x)        x  ..  g(x)  ..  ..  peak  ..  x' = f(w)  h(x')

Down from a fast step to less and less memory and up again by holding, each ends where the other alone would not:
ResNet-50 at 31 % of its memory takes + 24 % where holding alone ends at + 46 % (docs/measurements/memory.md).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from planner.solve.memory.footprints import Footprint, Footprints, Found
from planner.solve.memory.holding import Holding, Unfolded, Wait
from planner.solve.memory.steps import Decision, Held, Material, Step, steps

TARGET = 0.97
"""A link aims at this share of the present peak: everything above counts."""

LOOKED_AT = 4
"""Candidates that are tried per link, best first by what was last known of them."""

LONGEST = 6
"""Times as many steps as the graph has nodes: what gets longer is no step worth having."""

MOST_STEPS = 200_000
"""Steps in all that is looked at, about 8 microseconds each."""


def down_and_up(given: Mapping[int, Found], holding: Holding, exact: Footprints, made: Material) -> list[list[Step]]:
    """Better steps for some levels (bytes) than those given, from above and from below in turn."""
    best = dict(given)
    levels = sorted(given)
    shrinking = Shrinking(exact, made)
    # From level to level holding fills up what shrinking has freed; over two levels more goes before that.
    for down, reach in ((True, 1), (False, 1), (True, 2), (False, 2)):
        way = levels[::-1] if down else levels
        for start, level in zip(way, way[reach:], strict=False):
            found: Found | None = best[start]
            if down:
                found = shrinking.within(best[start], level)
            if found is None:
                continue
            found = holding.hold(found, level)
            if found[1].extra_ns < best[level][1].extra_ns:
                best[level] = found
    return [found[0] for level, found in best.items() if found is not given[level]]


class _State(NamedTuple):
    decisions: Mapping[str, Decision]
    held: Held
    found: list[Step]
    seen: Footprint


class Shrinking:
    def __init__(self, exact: Footprints, made: Material) -> None:
        self._exact, self._made, self._left = exact, made, MOST_STEPS

    def within(self, found: Found, level: int) -> Found | None:
        """Steps within `level` bytes; None where going one by one does not get there."""
        program = Unfolded(found[0], self._exact, self._made)
        now = _State(*program.decided(), *found)
        known: dict[tuple[str, str], float] = {}
        while now.seen.peak > level:
            following = self._next(now, program.waits(), level, known)
            if following is None:
                return None
            now, program = following, Unfolded(following.found, self._exact, self._made)
        return now.found, now.seen

    def _next(
        self, now: _State, waits: Mapping[str, list[Wait]], level: int, known: dict[tuple[str, str], float]
    ) -> _State | None:
        """`known`: (value, node behind which it would go) -> ns per byte when it was last tried."""
        aim = max(level, TARGET * now.seen.peak)
        before, place = now.seen.above(aim), int(now.seen.alive.argmax())
        high = np.concatenate(([0], np.cumsum(now.seen.alive > aim)))
        guesses = {
            (v, behind): known.get((v, behind), self._exact.guess(v, "fresh") / float(high[until] - high[since + 1]))
            for v, gaps in waits.items()
            for behind, since, until in gaps
            if since < place < until
        }
        best: tuple[float, _State] | None = None
        for tried, (value, behind) in enumerate(sorted(guesses, key=lambda x: (guesses[x], x))):
            if self._left < 0 or (best and (tried >= LOOKED_AT or guesses[value, behind] >= best[0])):
                break
            decisions: dict[str, Decision] = {**now.decisions, value: "fresh"}
            held = {*now.held, *((value, other) for other, _, _ in waits[value])} - {(value, behind)}
            after = steps(self._made, decisions, held)
            self._left -= len(after)
            if len(after) > LONGEST * len(self._made.order):
                continue
            seen = self._exact.of(after)
            gain, cost = before - seen.above(aim), seen.extra_ns - now.seen.extra_ns
            if gain <= 0 or seen.peak > now.seen.peak:
                continue
            score = known[value, behind] = cost / gain
            if best is None or score < best[0]:
                best = (score, _State(decisions, held, after, seen))
        return best[1] if best else None
