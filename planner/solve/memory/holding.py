"""What is made again need not be made a third time: instances that stay where memory has room for them until then.

Decisions about values (steps.py) are the same wherever a value is read: "fresh" makes it again for every reader, also
where two of them follow each other with memory to spare. Here the unfolded steps are looked at one by one. Of two
instances of a value, the earlier one may be *held* until the readers of the later one are done; the later one and all
that ran only for its sake then go:

    x  ..  x' = f(w)  g(x')  ..  w' = e(u)  x'' = f(w')  h(x'')          w', x'' and their time for size(x) from g to h
    x  ..  x' = f(w)  g(x')  ..                          h(x')

That is greedy: what saves most time for its bytes is held first, as long as the peak stays within a level.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.plan.expand import recompute_name
from planner.solve.memory.footprints import Footprint, Footprints, Found
from planner.solve.memory.needless import going_ns
from planner.solve.memory.steps import FORWARD, ON_DEMAND, Decision, Held, Material, Step, placed

Bytes64 = np.ndarray[tuple[int], np.dtype[np.int64]]

ROUNDS = 12
"""What goes makes room for more; so often it is looked at again."""

MOST_SEEN = 24
"""Lists of steps of which what is known is kept."""

GONE = -(1 << 62)
"""Bytes where a step no longer runs: fewer than anywhere else, whatever is added to them."""


class Holding:
    """Holds instances in steps of one program; what is known of steps that it starts from again and again is kept."""

    def __init__(self, exact: Footprints, made: Material) -> None:
        self._exact, self._made = exact, made
        self._seen: dict[tuple[Step, ...], Unfolded] = {}

    def hold(self, found: Found, level: int) -> Found:
        """Steps that take no longer, within `level` bytes if `found` is."""
        best, program = found, self._looked_at(found[0])
        for _ in range(ROUNDS):
            after = self._round(program, best[1], level)
            if after is None:
                break
            best = after
            program = Unfolded(best[0], self._exact, self._made)
        return best

    def _looked_at(self, found: Sequence[Step]) -> "Unfolded":
        key = tuple(found)
        if key not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = Unfolded(found, self._exact, self._made)
        return self._seen[key]

    def _round(self, program: "Unfolded", seen: Footprint, level: int) -> Found | None:
        """What is held with the bytes that are free now; None: nothing."""
        room = level
        for _ in range(4):
            if not program.hold(seen.alive, room):
                return None
            steps = program.steps()
            after = self._exact.of(steps)
            if after.peak <= level and after.extra_ns < seen.extra_ns:
                return steps, after
            # What overwrites what may have changed: leave some room for that.
            room -= max(after.peak - level, level // 500)
        return None


def decided(found: Sequence[Step], exact: Footprints, made: Material) -> tuple[dict[str, Decision], Held]:
    """Decisions that unfold to some steps, and what is held between them."""
    program = Unfolded(found, exact, made)
    return program.decided()


Wait = tuple[str, int, int]
"""(node behind which a value waits, the step there, the next step that reads it)"""


class _Gap(NamedTuple):
    """From one instance of a value to the next."""

    earlier: str
    later: str
    first: int
    """Steps from which on the earlier one would have to stay, ..."""
    until: int
    """... and up to which: the one that makes the later."""
    size: int


class Unfolded:
    """Steps as instances, where they are made and where they are read."""

    def __init__(self, found: Sequence[Step], exact: Footprints, made: Material) -> None:
        self._found, self._exact, self._made = found, exact, made
        self._values = frozenset(made.values)
        self._nodes = {n.id: n for n in made.order}
        self._maker: dict[str, int] = {}
        readers: dict[str, list[int]] = defaultdict(list)
        self._origin: dict[str, str] = {}
        """instance -> the graph's value that it is one of"""
        self._shown: dict[str, str] = {}
        """instance of a view -> what it is a view of"""
        self._last: dict[str, int] = {}
        """instance -> the step that reads it last, itself or a view of it"""
        shown, last = self._shown, self._last
        for at, (_, of, kind, inputs, outputs) in enumerate(found):
            if kind == "recompute":
                self._origin.update(zip(outputs, self._nodes[of].outputs, strict=False))
            elif kind == "prefetch":
                self._origin[outputs[0]] = of
            if exact.is_view(of) and kind in ("node", "recompute"):
                shown[outputs[0]] = self._root(inputs[0])
            for value in inputs:
                readers[value].append(at)
                last[shown.get(value, value)] = at
            for value in outputs:
                self._maker.setdefault(value, at)
                last[shown.get(value, value)] = at
        self._all_readers: dict[str, Sequence[int]] = dict(readers)
        self._on_demand = [step.kind in ON_DEMAND for step in found]
        self._ns = [exact.step_ns(step) if late else 0.0 for step, late in zip(found, self._on_demand, strict=True)]
        self._chances: tuple[dict[int, list[_Gap]], dict[int, float]] | None = None
        """Gaps and gains before anything is held."""
        self._reset()

    def _reset(self) -> None:
        """As if nothing had been held."""
        self._readers = dict(self._all_readers)
        self._now: dict[str, str] = {}
        """instance that is gone -> the one that is read in its stead"""
        self._left = [True] * len(self._found)
        """Which steps are not gone."""

    def hold(self, alive: Bytes64, level: int) -> bool:
        """Holds what fits, from the start; whether anything does. `alive`: bytes at every step, as they are."""
        self._reset()
        alive = alive.copy()
        staying = np.where(np.array([*self._on_demand, False]), GONE, alive)
        """Without the steps that may go."""
        if self._chances is None:
            gaps = self._gaps()
            self._chances = gaps, self._gains(gaps)
        left, gains = self._chances
        while True:
            closed = False
            for start in sorted(left, key=lambda start: (-gains[start], start)):
                if self._left[start] and gains[start] > 0:
                    closed |= self._close(start, left[start], alive, staying, level)
            if not closed:
                return bool(self._now)
            left = {start: gaps for start, gaps in left.items() if self._left[start]}
            gains = self._gains(left)

    def _gains(self, left: Mapping[int, Sequence[_Gap]]) -> dict[int, float]:
        """ns per byte of holding instances instead of running a step that brings them back."""
        readers = {
            at: {reader for value in step.outputs for reader in self._reading(value)}
            for at, step in enumerate(self._found)
            if self._on_demand[at] and self._left[at]
        }
        going = going_ns(self._ns, readers)
        return {start: going[start] / sum(gap.size for gap in gaps) for start, gaps in left.items()}

    def _close(self, start: int, gaps: Sequence[_Gap], alive: Bytes64, staying: Bytes64, level: int) -> bool:
        """Holds instances instead of running a step that brings them back, if they fit."""
        for gap in gaps:  # most do not fit: see that first
            there = staying[gap.first : gap.until + 1]
            if there.size and int(there.max()) + gap.size > level:
                return False
        earlier = [self._resolved(gap.earlier) for gap in gaps]
        if not all(self._left[self._maker[instance]] for instance in earlier):
            return False
        needless = self._needless(start)
        before = alive[needless]
        alive[needless] = GONE
        over = [alive[gap.first : gap.until + 1] for gap in gaps]
        for there, gap in zip(over, gaps, strict=True):
            there += gap.size
        if any(there.size and int(there.max()) > level for there in over):
            for there, gap in zip(over, gaps, strict=True):
                there -= gap.size
            alive[needless] = before
            return False
        for gap in gaps:
            staying[gap.first : gap.until + 1] += gap.size
        later = [gap.later for gap in gaps]
        for at in needless:
            self._left[at] = False
        for at in needless:
            for value in self._found[at].outputs:
                if value in self._readers and value not in later and self._root(value) == value:
                    for bytes_ in (alive, staying):
                        bytes_[at : self._last[value] + 1] -= self._exact.size(self._origin[value])
        for gap, instance in zip(gaps, earlier, strict=True):
            self._now[gap.later] = instance
            self._readers[instance] = (*self._readers.get(instance, ()), *self._readers.pop(gap.later))
        return True

    def _gaps(self) -> dict[int, list[_Gap]]:
        """Step that brings values back -> where the instances before would have to stay instead; views come with what
        they show."""
        found: dict[int, list[_Gap]] = {}
        before: dict[str, str] = {}
        for at, step in enumerate(self._found):
            read = [v for v in step.outputs if v in self._readers] if step.kind in ON_DEMAND else []
            if not read or any(self._origin[v] not in self._values for v in read):
                continue
            found[at] = []
            for later in read:
                value = self._origin[later]
                earlier = before.get(value, value)
                last = self._last[earlier]
                first = last + 1 - self._overwritten(earlier, last)
                found[at].append(_Gap(earlier, later, first, at, self._exact.size(value)))
                before[value] = later
        return found

    def _overwritten(self, instance: str, at: int) -> bool:
        """Whether a step may write its result to the instance's bytes."""
        step = self._found[at]
        if step.kind not in ("node", "recompute"):
            return False
        pairs = self._exact.inplace(step.of) if step.kind == "node" else self._exact.inplace_again(step.of)
        return any(self._root(step.inputs[source]) == instance for _, source in pairs)

    def _needless(self, start: int) -> list[int]:
        """Steps that run for nothing else than one of them: it comes first."""
        needless = {start: None}
        stack = [start]
        while stack:
            for value in self._found[stack.pop()].inputs:
                at = self._maker.get(self._resolved(value), -1)
                if at >= 0 and self._on_demand[at] and at not in needless and self._only_for(at, needless):
                    needless[at] = None
                    stack.append(at)
        return list(needless)

    def _only_for(self, at: int, needless: Mapping[int, None]) -> bool:
        """Whether nobody else reads what a step makes."""
        for value in self._found[at].outputs:
            for reader in self._readers.get(value, ()):
                if reader not in needless and self._left[reader]:
                    return False
        return True

    def _reading(self, instance: str) -> list[int]:
        return [at for at in self._readers.get(instance, ()) if self._left[at]]

    def _root(self, instance: str) -> str:
        return self._shown.get(instance, instance)

    def _resolved(self, instance: str) -> str:
        while instance in self._now:
            instance = self._now[instance]
        return instance

    def steps(self) -> list[Step]:
        """What is left, in the order in which plan/expand.py puts it, instances numbered anew."""
        left = []
        for step, stays in zip(self._found, self._left, strict=True):
            if stays and not (step.kind == "offload" and not self._reading(step.outputs[0])):
                if not self._now.keys().isdisjoint(step.inputs):
                    step = step._replace(inputs=tuple(map(self._resolved, step.inputs)))
                left.append(step)
        return self._renamed(placed(left, self._made))

    def decided(self) -> tuple[dict[str, Decision], Held]:
        decisions: dict[str, Decision] = {}
        for instance, value in self._origin.items():
            if value in self._values and instance in self._readers:
                decisions[value] = "move" if self._found[self._maker[instance]].kind == "prefetch" else "fresh"
        waits = self.waits()
        return decisions, frozenset(
            (v, behind) for v, d in decisions.items() if d == "fresh" for behind, _, _ in waits.get(v, ())
        )

    def waits(self) -> dict[str, list[Wait]]:
        """value that can be made again -> where it, or an instance of it, waits"""
        place = FORWARD
        places = [FORWARD] * len(self._found)
        """For every step the node that it is, or runs for."""
        for at in range(len(self._found) - 1, -1, -1):
            step = self._found[at]
            if step.kind == "node":
                place = FORWARD if self._nodes[step.of].phase == "forward" else step.id
            places[at] = place
        used: dict[str, list[int]] = defaultdict(list)
        """instance -> steps that make or read it, or a view of it"""
        for at, step in enumerate(self._found):
            for name in (*step.outputs, *step.inputs):
                used[self._root(name)].append(at)
        found: dict[str, list[Wait]] = defaultdict(list)
        for instance, where in used.items():
            value = self._origin.get(instance, instance)
            if value in self._values and value in self._made.producer:
                found[value] += [(places[a], a, b) for a, b in pairwise(where) if places[a] != places[b]]
        return found

    def _renamed(self, found: Sequence[Step]) -> list[Step]:
        names: dict[str, str] = {}
        times: dict[str, int] = {}
        renamed = []
        for step in found:
            if not names.keys().isdisjoint(step.inputs):
                step = step._replace(inputs=tuple([names.get(v, v) for v in step.inputs]))
            if step.kind == "recompute":
                number = times[step.of] = times.get(step.of, 0) + 1
                name = recompute_name(step.of, number)
                if name != step.id:
                    outputs = tuple([recompute_name(self._origin[v], number) for v in step.outputs])
                    names.update(zip(step.outputs, outputs, strict=True))
                    step = step._replace(id=name, outputs=outputs)
            renamed.append(step)
        return renamed
