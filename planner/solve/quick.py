"""Footprints for a search: what decisions cost and need, at a tenth of the work of footprints.py, and nearly exact.

Only values that may be dropped are followed; what else is in memory, and how much scratch, is known for every node
beforehand. So only nodes that read such values are walked, and the nodes between two of them count as one place, with
the most that is in memory at any of them. Forward nodes behind backward ones (several losses) are walked like these.
Where an output may overwrite one of several inputs, the first one counts.
The states that a search ends with are looked at again in footprints.py.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from planner.graph.model import Node
from planner.solve.footprints import Footprints
from planner.solve.steps import Decision, Material

MOST_AGAIN = 300_000
"""Where more would run again, decisions are not looked at further: in a chain of a thousand joins "fresh" takes
millions, and no step is worth that."""

KEEP, SHARE, OWN, FRESH, MOVE = range(5)
WAYS: Mapping[Decision, int] = {"keep": KEEP, "share": SHARE, "own": OWN, "fresh": FRESH, "move": MOVE}

Bytes64 = np.ndarray[tuple[int], np.dtype[np.int64]]


class Glance(NamedTuple):
    """What is estimated of some decisions."""

    alive: Bytes64
    """Bytes of the first pool in use, place by place."""
    peak: int
    extra_ns: float
    again_ns: float
    """The same without copies."""
    lives: tuple[list[int], list[int], list[int]]
    """Of every instance: the value's number, its first place, its last place. The graph's own values come first."""
    called: list[int]
    """Of every instance: the first place of what is made again along with it."""

    def above(self, level: float) -> float:
        """Bytes above `level`, added up over the places."""
        return float(np.maximum(self.alive - level, 0).sum())

    @property
    def hopeless(self) -> bool:
        """Not looked at to the end (MOST_AGAIN)."""
        return math.isinf(self.extra_ns)


HOPELESS = Glance(np.full(1, 2**60, np.int64), 2**60, math.inf, math.inf, ([], [], []), [])


class _Place(NamedTuple):
    """A node behind the first backward one that reads values which may be dropped. With several losses there are
    forward nodes among them: those read, and make, the originals."""

    forward: bool
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    """Of a forward node."""
    overwrites: tuple[int, ...]
    """Values whose bytes it may write its results to."""
    before: int
    """Bytes of everything else: before it, ..."""
    during: int
    after: int
    """..., and the most while the nodes behind it run, up to the next place."""


class _Again(NamedTuple):
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...]
    ns: float
    scratch: int


class Quick:
    def __init__(self, exact: Footprints, made: Material, again_ns: Mapping[str, float]) -> None:
        self._exact, self._made = exact, made
        self.values = made.values
        self._number = {v: i for i, v in enumerate(made.values)}
        self._size = [exact.size(v) for v in made.values]
        self._root = {**{v: v for v in made.values}, **{v: r for v, r in made.views.items() if r in self._number}}
        self._maker: list[int] = [-1] * len(made.values)
        self._again: list[_Again] = []
        self._add_again(again_ns)
        order = made.order
        self._forward = next((i for i, n in enumerate(order) if n.phase != "forward"), len(order))
        self._first = [0] * len(made.values)
        self._last = [0] * len(made.values)
        self._follow_forward()
        anyway = exact.anyway(frozenset(self._root))
        self._anyway_forward = anyway.during[: self._forward]
        self._places = self._find_places(anyway.before, anyway.during)
        self._sizes = np.array(self._size, np.int64)

    def _numbers(self, values: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._number[self._root[v]] for v in values if v in self._root))

    def _add_again(self, again_ns: Mapping[str, float]) -> None:
        nodes = {n.id: n for n in self._made.order}
        for name, again in self._made.again.items():
            makes = self._numbers(nodes[name].outputs[: again.results])
            if nodes[name].outputs[0] in self._made.views or not makes:
                continue  # a view comes with what it shows
            for value in makes:
                self._maker[value] = len(self._again)
            pairs = self._exact.inplace_again(name)
            over = tuple(self._number[self._root[v]] for o, i in pairs if (v := again.inputs[i]) in self._root
                         and self._exact.size(v) == self._exact.size(nodes[name].outputs[o]))  # fmt: skip
            scratch = self._exact.scratch_again(name)
            self._again.append(_Again(self._numbers(again.inputs), makes, over, again_ns[name], scratch))

    def _overwritten(self, node: Node) -> tuple[int, ...]:
        found = []
        for output, source in self._exact.inplace(node.id):
            value = node.inputs[source]
            same = self._exact.size(value) == self._exact.size(node.outputs[output])
            if value in self._root and same and node.inputs.count(value) == 1:
                found.append(self._number[self._root[value]])
        return tuple(found)

    def _follow_forward(self) -> None:
        for at, node in enumerate(self._made.order[: self._forward]):
            for value in self._numbers(node.outputs):
                if node.outputs[0] not in self._made.views:
                    self._first[value] = at
                self._last[value] = at
            over = self._overwritten(node)
            for value in self._numbers(node.inputs):
                self._last[value] = at - (value in over)

    def _reads(self, node: Node) -> tuple[int, ...]:
        """What it reads of values that may be dropped; a view of one reads it when it is read itself, unless it is
        taken in the forward pass, of the original."""
        if self._exact.is_view(node.id) and node.phase != "forward":
            return ()
        return self._numbers(node.reads)

    def _makes(self, node: Node) -> tuple[int, ...]:
        return self._numbers(node.outputs) if node.phase == "forward" and not self._exact.is_view(node.id) else ()

    def _find_places(self, before: Bytes64, during: Bytes64) -> list[_Place]:
        order, start = self._made.order, self._forward
        reading = [i for i in range(start, len(order)) if self._reads(order[i]) or self._makes(order[i])]
        found = []
        if reading[:1] != [start]:
            reading.insert(0, start)
        for at, following in zip(reading, [*reading[1:], len(during)], strict=True):
            node = order[at] if at < len(order) else None
            most = int(during[at + 1 : following].max(initial=0))
            found.append(
                _Place(
                    node is not None and node.phase == "forward",
                    self._reads(node) if node else (),
                    self._makes(node) if node else (),
                    self._overwritten(node) if node else (),
                    int(before[at]),
                    int(during[at]),
                    most,
                )
            )
        return found

    def of(self, decisions: Mapping[str, Decision]) -> Glance:
        """The same as `Footprints.of(steps(material, decisions))`, nearly."""
        way = [KEEP] * len(self._size)
        for name, decision in decisions.items():
            way[self._number[name]] = WAYS[decision]
        return self.look(way)

    def look(self, way: list[int]) -> Glance:
        maker, recipes = self._maker, self._again
        # Instances: first the originals, then everything that is made again or comes back.
        value_of = list(range(len(way)))
        since, until = list(self._first), list(self._last)
        current = list(value_of)
        """value -> the instance to read, -1: none"""
        for value, decision in enumerate(way):
            if decision:
                current[value] = -1
        overwritten: list[tuple[int, int]] = []
        anyway: list[int] = []
        called = list(self._first)
        at = self._forward
        again_ns, moved = 0.0, 0
        most = len(way) + MOST_AGAIN
        for place in self._places:
            if len(value_of) > most:
                return HOPELESS
            if place.forward:
                for value in place.makes:
                    since[value] = until[value] = at
                for value in place.reads:
                    until[value] = at
                overwritten += [(at, value) for value in place.overwrites]
                anyway += (place.during, place.after)
                at += 2
                continue
            local: list[int] = []
            call = at
            for wanted in place.reads:
                if current[wanted] >= 0:
                    continue
                stack = [wanted]
                while stack:
                    value = stack[-1]
                    if current[value] >= 0:
                        stack.pop()
                        continue
                    if way[value] == MOVE:
                        current[value] = len(value_of)
                        value_of.append(value)
                        since.append(at)
                        until.append(at)
                        called.append(call)
                        moved += self._size[value]
                        anyway.append(place.before)
                        at += 1
                        continue
                    recipe = recipes[maker[value]]
                    missing = [v for v in recipe.reads if current[v] < 0]
                    if missing:
                        stack += reversed(missing)
                        continue
                    for source in recipe.reads:
                        until[current[source]] = at
                    for source in recipe.overwrites:
                        overwritten.append((at, current[source]))
                    for result in recipe.makes:
                        stays = way[result] == SHARE or (way[result] == OWN and result in place.reads)
                        if stays or current[result] < 0:
                            current[result] = len(value_of)
                            if not stays:
                                local.append(result)
                        value_of.append(result)
                        since.append(at)
                        until.append(at)
                        called.append(call)
                    again_ns += recipe.ns
                    anyway.append(place.before + recipe.scratch)
                    at += 1
            for value in place.reads:
                until[current[value]] = at
            for value in place.overwrites:
                overwritten.append((at, current[value]))
            anyway.append(place.during)
            anyway.append(place.after)
            at += 2
            for value in local:
                current[value] = -1
        for position, instance in overwritten:
            if until[instance] == position and since[instance] < position:
                until[instance] = position - 1
        change = np.zeros(at + 1, np.int64)
        sizes = self._sizes[value_of]
        np.add.at(change, since, sizes)
        np.add.at(change, np.array(until) + 1, -sizes)
        alive = np.cumsum(change[:-1])
        alive[: self._forward] += self._anyway_forward
        alive[self._forward :] += np.array(anyway, np.int64)
        copied = 2 * moved * self._exact.copy_ns_per_byte
        return Glance(alive, int(alive.max()), again_ns + copied, again_ns, (value_of, since, until), called)

    def at_peak(self, seen: Glance) -> set[str]:
        """Values with an instance in memory where most is."""
        place = int(seen.alive.argmax())
        return {self.values[v] for v, a, b in zip(*seen.lives, strict=True) if a <= place <= b}

    def missing(self, value: str, seen: Glance) -> Bytes64:
        """What is in memory at the places where a value is not, from its last forward reader up to what first brings
        it back; nothing if it never is brought back."""
        number = self._number[value]
        values, _, until = seen.lives
        try:
            instance = values.index(number, len(self._size))
        except ValueError:
            return seen.alive[:0]
        return seen.alive[until[number] + 1 : seen.called[instance]]

    def counts(self, seen: Glance) -> dict[str, int]:
        """How often values are made again or come back; without those that never are."""
        times = np.bincount(seen.lives[0][len(self._size) :], minlength=len(self._size))
        return {self.values[i]: int(times[i]) for i in np.flatnonzero(times)}

    def repeated(self, value: str, seen: Glance) -> bool:
        """Whether a value is made again or comes back more than once."""
        return seen.lives[0].count(self._number[value]) > 2
