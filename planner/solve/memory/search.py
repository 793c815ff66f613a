"""Which decisions are worth having, from the fastest to the smallest footprint.

Decisions get worse for time and better for memory along

    keep -> share -> own -> fresh   a value is made again once, again for other values' sake, or for every reader
    any of these -> move            where the target has a slower pool

Two greedy walks in opposite directions complete each other. *Down*: from some state, the decision is taken that costs
the least time per byte by which it lowers the peak and what is nearly as high, until nothing helps. *Up*: from a state
that is smaller than it must be, decisions are taken back, those that cost most per byte first, as long as the peak
stays below a level. Up finds the better states, down those to start from; so do corners of the space (everything
share: the speed-centric strategy, everything fresh: the memory-centric one), segments between kept values, and what a
linear relaxation keeps (budget_bound.py). In the end instances are held where there is room (levels.py).

Levels lie between the smallest and the largest footprint, closer together where memory is short, and do not depend on
the budget.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from planner.solve.memory.budget_bound import Relaxation
from planner.solve.memory.chances import Chances
from planner.solve.memory.enumeration import unbeaten
from planner.solve.memory.footprints import Footprints
from planner.solve.memory.holding import Holding, decided
from planner.solve.memory.levels import FAR, held
from planner.solve.memory.quick import MOST_AGAIN, Glance, Quick
from planner.solve.memory.starts import Starts
from planner.solve.memory.states import State, cheapest, exactly
from planner.solve.memory.steps import Decision, Material

TARGET = 0.96
"""A link of a walk down aims at this share of the present peak: everything above counts."""

LOOKED_AT = 8
"""Candidates that are tried per link, best first by what was last known of them."""

LEVELS = 22
"""Levels that walks up aim at, ..."""

APART = 0.01
"""... each by at least this share higher than the one below, unless these are fewer than four."""

STARTS = 3
"""States from which walks up to each level start."""

ENUMERATED = 20_000
"""Where there are no more combinations of decisions, none is left out that may be worth having."""

KEPT = 0.3
"""Values of which the linear program keeps this much are kept."""

SMALL = 800
"""Values up to which walks down are affordable: their links are single decisions."""

EFFORT = 40_000
"""Values times walks up that are tried at all levels together."""

MOST_LOOKED = 40_000_000
"""Instances of values in all that is looked at, a microsecond each: walks up share what is left of it and stop where
they are. Only in the largest networks does that come before their ends."""

BEATEN = 32.0
"""A walk down is over where it takes so many times as long as another state that needs no more bytes."""

SLOW = 8.0
"""What takes so many times as long as making everything again once, or moving it, is where no walk starts: where most
runs again for every reader, walks take longest and lead to no step worth having."""

NEAREST = 1.02
"""Times the smallest footprint up to which states may be those that pack into the fewest bytes."""

_BACK: Mapping[Decision, tuple[Decision, ...]] = {
    "keep": (),
    "share": ("keep",),
    "own": ("keep", "share"),
    "fresh": ("keep", "share", "own"),
    "move": ("keep", "share", "own"),
}
"""What a decision is taken back to, the best first."""

_ON: Mapping[Decision, tuple[Decision, ...]] = {
    "keep": ("share", "own", "fresh", "move"),
    "share": ("own", "fresh", "move"),
    "own": ("fresh", "move"),
    "fresh": ("move",),
    "move": (),
}


class Search:
    def __init__(self, made: Material, exact: Footprints, quick: Quick, relaxation: Relaxation, slower: bool) -> None:
        """`slower`: whether there is a pool to move values to."""
        self._made, self._exact, self._quick, self._slower = made, exact, quick, slower
        self._relaxation = relaxation
        self._starts = Starts(made, {v: exact.size(v) for v in made.values}, slower)
        self._known: dict[tuple[str, Decision], float] = {}
        """(value, decision) -> ns per byte when it was last tried"""
        self._looked = 0
        """Instances of values in all that was looked at."""

    def run(self, also: Iterable[Mapping[str, Decision]] = (), most: float = math.inf) -> list[State]:
        """The states that no other one beats in both memory and time. `also`: decisions to start from. `most`: bytes;
        where nothing can need so few, only the smallest states are looked for."""
        given = tuple(also)
        start = self._state({})
        corners = self._worth(self._starts.corners())
        theirs = self._worth(given)
        found = [start, *corners, *theirs, *self._worth(self._starts.segmented())]
        if len(self._made.values) <= SMALL:
            found += self._down({}, found)
            smallest = sorted(found, key=lambda s: (s.peak, s.extra_ns))[:1]
            products = sorted(found[1:], key=lambda s: (s.extra_ns * s.peak, s.peak))[:3]
            for state in {id(s): s for s in (*smallest, *corners[:2], *products)}.values():
                found += self._down(state.decisions, found)
        if self._combinations() > ENUMERATED:
            found += self._levels(found, most)
        else:
            found += [self._state(d, seen) for d, seen in unbeaten(self._all_ways(), self._quick)]
        # The quick estimates are not always exact: what the search started from is looked at again in any case.
        sure = {id(s): s for s in (*corners, *theirs, *cheapest(found))}.values()
        exact = cheapest(exactly(s, self._exact, self._made) for s in sure)
        return cheapest([*exact, *held(exact, self._reach(most), self._exact, self._made)])

    @property
    def least(self) -> int:
        """Bytes that a state needs at least; 0: no bound is known."""
        return self._quick.least

    def smallest(self) -> list[State]:
        """A state that needs no more than that, if one is found where searches begin."""
        found = [self._state({}), *self._worth(self._starts.corners()), *self._worth(self._starts.segmented())]
        if len(self._made.values) <= SMALL:
            found += self._down(min(found, key=lambda s: (s.peak, s.extra_ns)).decisions, found)
        best = exactly(cheapest(found)[-1], self._exact, self._made)
        if best.found and best.peak > self.least:
            less, _ = Holding(self._exact, self._made).hold(best.found, best.peak)
            best = exactly(State(*decided(less, self._exact, self._made)), self._exact, self._made)
        return [best] if best.peak <= self.least else []

    def _worth(self, decisions: Iterable[Mapping[str, Decision]]) -> list[State]:
        """Their states, without the hopeless ones."""
        return [self._state(d, seen) for d in decisions if not (seen := self._look(d)).hopeless]

    def _look(self, decisions: Mapping[str, Decision], near: Glance | None = None) -> Glance:
        """`near`: what was seen of decisions that differ little."""
        return self._counted(self._quick.of(decisions, None if near is None or near.hopeless else near))

    def _look_otherwise(self, decisions: Mapping[str, Decision], now: Glance, value: str, way: Decision) -> Glance:
        """`decisions`, of which `now` is what was seen, but for one value."""
        if now.hopeless:
            return self._look({**decisions, value: way})
        return self._counted(self._quick.with_one(now, value, way))

    def _counted(self, seen: Glance) -> Glance:
        self._looked += MOST_AGAIN if seen.hopeless else len(seen.value_of)
        return seen

    def _combinations(self) -> int:
        return math.prod(map(len, self._all_ways()))

    def all_decisions(self, most: int) -> list[dict[str, Decision]] | None:
        """Every combination of decisions; None where there are more than `most`."""
        if self._combinations() > most:
            return None
        return [dict(zip(self._made.values, way, strict=True)) for way in itertools.product(*self._all_ways())]

    def _all_ways(self) -> list[tuple[Decision, ...]]:
        return [("keep", *self._made.ways(value, self._slower)) for value in self._made.values]

    def _reach(self, most: float) -> float:
        """Times the smallest footprint up to which levels are looked at."""
        return NEAREST if most < self.least else math.inf

    def _levels(self, known: Sequence[State], most: float) -> list[State]:
        """The best that walks up from smaller states find at every level, from the lowest to the highest."""
        seeds = self._worth(self._starts.shortening())
        most_ns = SLOW * max(self._look(self._starts.corner(way)).extra_ns for way in ("share", "move"))
        low, high = min(s.peak for s in known), max(s.peak for s in known[:1])
        apart = int(math.log(high / low) / math.log(1 + APART))
        count = max(4, min(LEVELS, apart, EFFORT // (STARTS * max(1, len(self._made.values)))))
        found: list[State] = []
        highest = self._reach(most) * low
        for left, level in zip(range(count, 0, -1), map(int, np.geomspace(low, high, count + 1)[:-1]), strict=True):
            if level > highest:
                break
            below = cheapest(s for s in (*known, *found) if s.peak <= level and s.extra_ns <= most_ns)
            # The fastest that fits, and smaller ones at growing distance: the way up is longer, but another one.
            starts = [below[len(below) * i // STARTS] for i in range(min(STARTS, len(below)))]
            starts += [s for s in seeds if s.peak <= level][:STARTS]
            share = (MOST_LOOKED - self._looked) // (left * (len(starts) + 2))
            best_ns = min((s.extra_ns for s in below), default=most_ns)
            for start in starts:
                if start.extra_ns <= FAR * best_ns:
                    found.append(self._up(start.decisions, level, self._looked + share))
                    best_ns = min(best_ns, found[-1].extra_ns)
            for hint in self._hint(level):
                decisions = self._fitting(hint, level, FAR * best_ns, self._looked + share)
                if decisions is not None:
                    found.append(self._up(decisions, level, self._looked + share))
        return found

    def _hint(self, level: int) -> list[dict[str, Decision]]:
        """What the linear program keeps there; the rest is made again."""
        relaxed = self._relaxation.solve(level)
        if relaxed is None:
            return []
        dropped = [v for v in self._made.values if v in self._made.producer and relaxed.kept.get(v, 0.0) < KEPT]
        ways: tuple[Decision, ...] = ("share", "own")
        return [dict.fromkeys(dropped, way) for way in ways]

    def _fitting(
        self, start: Mapping[str, Decision], level: int, most_ns: float, until: int
    ) -> dict[str, Decision] | None:
        """Further decisions until the peak is within `level`; None where these do not get there, or take more than
        `most_ns`. `until`: what may have been looked at in the end."""
        decisions = dict(start)
        now = self._look(decisions)
        while now.peak > level:
            if now.extra_ns > most_ns:
                return None
            taken = self._next(decisions, now, 0.999 * level / now.peak) or self._next(decisions, now, 0.999)
            if taken is None or len(self._made.values) > SMALL or self._looked >= until:
                return None
            value, way, now = taken
            decisions[value] = way
        return decisions

    def _state(self, decisions: Mapping[str, Decision], seen: Glance | None = None) -> State:
        seen = seen or self._look(decisions)
        return State(dict(decisions), frozenset(), seen.peak, seen.extra_ns, seen.again_ns)

    # -- up ----------------------------------------------------------------------------------------------------
    def _up(self, start: Mapping[str, Decision], level: int, until: int) -> State:
        """Takes decisions back, those that cost most per byte first, while the peak stays within `level`. `until`: what
        may have been looked at in the end."""
        decisions: dict[str, Decision] = {v: d for v, d in start.items() if d != "keep"}
        now = self._look(decisions)
        together = max(1, len(decisions) // 200)
        while True:
            before = now.extra_ns
            times = self._quick.counts(now)
            price = {v: self._exact.guess(v, d) * max(1, times.get(v, 1)) for v, d in decisions.items()}
            order = sorted(price, key=lambda v: (-price[v], v))
            for at in range(0, len(order), together):
                if self._looked < until:
                    decisions, now = self._taken_back(order[at : at + together], decisions, now, level)
            if now.extra_ns >= before or self._looked >= until:
                return self._state(decisions, now)

    def _taken_back(
        self, values: Sequence[str], decisions: dict[str, Decision], now: Glance, level: int
    ) -> tuple[dict[str, Decision], Glance]:
        """Some values at once; if that does not fit, half of them, and then the other half."""
        values = [v for v in values if v in decisions]
        if len(values) > 1:
            kept = [v for v in values if self._room(v, now, level)]
            fewer = {v: d for v, d in decisions.items() if v not in kept}
            after = self._look(fewer, now)
            if after.peak <= level:
                return fewer, after
            half = len(kept) // 2
            for part in (kept[:half], kept[half:]):
                decisions, now = self._taken_back(part, decisions, now, level)
            return decisions, now
        for value in values:
            for way in _BACK[decisions[value]]:
                if way == "keep":
                    if not self._room(value, now, level) or self._quick.comes_anyway(value, now):
                        continue
                elif value not in self._made.producer or not self._quick.repeated(value, now):
                    continue
                after = self._look_otherwise(decisions, now, value, way)
                if after.peak <= level and after.extra_ns < now.extra_ns:
                    return {v: d for v, d in (decisions | {value: way}).items() if d != "keep"}, after
        return decisions, now

    def _room(self, value: str, now: Glance, level: int) -> bool:
        """Whether the value would fit where it is missing before anything is done to bring it back."""
        missing = self._quick.missing(value, now)
        return not missing.size or int(missing.max()) + self._exact.size(value) <= level

    # -- down --------------------------------------------------------------------------------------------------
    def _down(self, start: Mapping[str, Decision], known: Sequence[State]) -> list[State]:
        """`known`: where these are smaller and far faster, the way is over: one goes on from there."""
        best = cheapest(known)
        decisions = dict(start)
        now = self._look(decisions)
        found = [self._state(decisions, now)]
        while True:
            taken = self._next(decisions, now, TARGET) or self._next(decisions, now, 0.999)
            if taken is None:
                return found
            value, way, now = taken
            decisions[value] = way
            found.append(self._state(decisions, now))
            if now.extra_ns > BEATEN * next((s.extra_ns for s in best if s.peak <= now.peak), math.inf):
                return found

    def _next(
        self, decisions: Mapping[str, Decision], now: Glance, target: float
    ) -> tuple[str, Decision, Glance] | None:
        """The best of the candidates that are in memory at the peak."""
        level = int(now.peak * target)
        before, chances = now.above(level), Chances(self._quick, now, level)
        there = self._quick.at_peak(now)
        candidates = sorted(
            (self._known.get((v, way), self._exact.guess(v, way)), v, way)
            for v in self._made.values
            if v in there
            for way in self._further(v, decisions.get(v, "keep"))
        )
        best: tuple[float, str, Decision, Glance] | None = None
        tried = 0
        for guess, value, way in candidates:
            if best and (tried >= LOOKED_AT or guess >= best[0]):
                break
            tried += 1
            if chances.none(value, way):
                self._known.pop((value, way), None)
                continue
            after = self._look_otherwise(decisions, now, value, way)
            gain, cost = before - after.above(level), after.extra_ns - now.extra_ns
            if gain <= 0 or after.peak > now.peak:
                self._known.pop((value, way), None)
                continue
            score = cost / gain
            self._known[value, way] = score
            if best is None or score < best[0]:
                best = (score, value, way, after)
        return best[1:] if best else None

    def _further(self, value: str, now: Decision) -> tuple[Decision, ...]:
        there: Collection[Decision] = self._made.ways(value, self._slower)
        return tuple(w for w in _ON[now] if w in there)
