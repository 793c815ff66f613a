"""Footprints for a search: what decisions cost and need, at a tenth of the work of footprints.py, and nearly exact.

Only values that may be dropped are followed; what else is in memory, and how much scratch, is known for every node
beforehand. So only nodes that read such values are walked, and the nodes between two of them count as one place, with
the most that is in memory at any of them. Forward nodes behind backward ones (several losses) are walked like these.
Where an output may overwrite one of several inputs, the first one counts.
The states that a search ends with are looked at again in footprints.py.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.graph.model import Node
from planner.solve.memory.footprints import Footprints
from planner.solve.memory.steps import Decision, Material
from planner.solve.memory.walks import FRESH, KEEP, MOVE, OWN, SHARE, Bytes64, Noted, Place, Recipe, Walk, Walks

MOST_AGAIN = 300_000
"""Where more would run again, decisions are not looked at further: in a chain of a thousand joins "fresh" takes
millions, and no step is worth that."""

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Ways8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Marks = np.ndarray[tuple[int, int], np.dtype[np.bool_]]

WAYS: Mapping[Decision, int] = {"keep": KEEP, "share": SHARE, "own": OWN, "fresh": FRESH, "move": MOVE}


class Glance(NamedTuple):
    """What is estimated of some decisions."""

    alive: Bytes64
    """Bytes of the first pool in use, step by step."""
    peak: int
    extra_ns: float
    again_ns: float
    """The same without copies."""
    value_of: Bytes64
    """Of every instance the value: the graph's own values come first."""
    since: Bytes64
    """Of every instance the step that makes it, ..."""
    until: Bytes64
    """... and the last one at which it is in memory."""
    calls: Bytes64
    """First steps of what is made again together."""
    walk: Walk | None
    """What has been found; another may go on from there."""

    def above(self, level: int) -> int:
        """Bytes above `level`, added up over the steps."""
        return int(np.maximum(self.alive - level, 0).sum())

    @property
    def hopeless(self) -> bool:
        """Not looked at to the end (MOST_AGAIN)."""
        return math.isinf(self.extra_ns)


NONE: Bytes64 = np.zeros(0, np.int64)
HOPELESS = Glance(np.full(1, 2**60, np.int64), 2**60, math.inf, math.inf, NONE, NONE, NONE, NONE, None)

MOST_SEEN = 100_000
"""Instances of what was looked at last and is still known."""

NO_RECIPE = Recipe((), (), (), 0, 0)


class Quick:
    def __init__(self, exact: Footprints, made: Material, again_ns: Mapping[str, float]) -> None:
        self._exact, self._made = exact, made
        self.values = made.values
        self._number = {v: i for i, v in enumerate(made.values)}
        self._size = [exact.size(v) for v in made.values]
        self._root = {**{v: v for v in made.values}, **{v: r for v, r in made.views.items() if r in self._number}}
        self._recipe_of: list[Recipe] = [NO_RECIPE] * len(made.values)
        self._add_again(again_ns)
        order = made.order
        self._forward = next((i for i, n in enumerate(order) if n.phase != "forward"), len(order))
        self._first: Bytes64 = np.zeros(len(made.values), np.int64)
        self._last: Bytes64 = np.zeros(len(made.values), np.int64)
        self._follow_forward()
        anyway = exact.anyway(frozenset(self._root))
        places = self._find_places(anyway.before, anyway.during)
        self._places, self._anyway = places, anyway.during[: self._forward]
        self._walks = Walks(self._anyway, places, self._recipe_of, self._size)
        made_late = [(value, number) for number, place in enumerate(places) for value in place.makes]
        self._made_late = np.array(made_late, np.int64).reshape(-1, 2)
        """(value, place) of what forward nodes behind backward ones make."""
        self._sizes = np.array(self._size, np.int64)
        self._seen: dict[bytes, Glance] = {}
        """The last that was looked at: walks come past the same decisions again."""
        self._room = MOST_SEEN

    @property
    def count(self) -> int:
        """Of values; instances that are made again or come back are numbered from there on."""
        return len(self._size)

    @property
    def several_losses(self) -> bool:
        return bool(len(self._made_late))

    def number(self, value: str) -> int:
        return self._number[value]

    def size(self, number: int) -> int:
        return self._size[number]

    def last(self, number: int) -> int:
        """The last step of the forward pass at which a value is in memory because of that."""
        return int(self._last[number])

    def recipe(self, number: int) -> Recipe:
        return self._recipe_of[number]

    def _numbers(self, values: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._number[self._root[v]] for v in values if v in self._root))

    def _add_again(self, again_ns: Mapping[str, float]) -> None:
        nodes = {n.id: n for n in self._made.order}
        for name, again in self._made.again.items():
            makes = self._numbers(nodes[name].outputs[: again.results])
            if nodes[name].outputs[0] in self._made.views or not makes:
                continue  # a view comes with what it shows
            pairs = self._exact.inplace_again(name)
            over = tuple(self._number[self._root[v]] for o, i in pairs if (v := again.inputs[i]) in self._root
                         and self._exact.size(v) == self._exact.size(nodes[name].outputs[o]))  # fmt: skip
            scratch = self._exact.scratch_again(name)
            recipe = Recipe(self._numbers(again.inputs), makes, over, round(again_ns[name]), scratch)
            for value in makes:
                self._recipe_of[value] = recipe

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

    def _find_places(self, before: Bytes64, during: Bytes64) -> list[Place]:
        order, start = self._made.order, self._forward
        if start == len(order):  # nothing comes after the forward pass
            return []
        reading = [i for i in range(start, len(order)) if self._reads(order[i]) or self._makes(order[i])]
        found = []
        if reading[:1] != [start]:
            reading.insert(0, start)
        for at, following in zip(reading, [*reading[1:], len(during)], strict=True):
            node = order[at] if at < len(order) else None
            most = int(during[at + 1 : following].max(initial=0))
            found.append(
                Place(
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

    def of(self, decisions: Mapping[str, Decision], near: Glance | None = None) -> Glance:
        """The same as `Footprints.of(steps(material, decisions))`, nearly. `near`: some that differ little."""
        way = bytearray(len(self._size))
        for name, decision in decisions.items():
            way[self._number[name]] = WAYS[decision]
        return self._of(way, near)

    def with_one(self, seen: Glance, value: str, decision: Decision) -> Glance:
        """The same where one value is decided upon otherwise than what was seen."""
        assert seen.walk is not None
        way = bytearray(seen.walk.way)
        way[self._number[value]] = WAYS[decision]
        return self._of(way, seen)

    def _of(self, way: bytearray, near: Glance | None) -> Glance:
        key = bytes(way)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = self.look(way, near)
            self._room -= len(seen.value_of)
            while self._room < 0 and len(self._seen) > 1:
                self._room += len(self._seen.pop(next(iter(self._seen))).value_of)
        return seen

    def look(self, way: bytearray, near: Glance | None = None) -> Glance:
        """`near`: what was seen of decisions that differ little; as far as they do not, it is not looked at again."""
        walk = self._walks.walk(way, near and near.walk, len(way) + MOST_AGAIN)
        if walk is None:
            return HOPELESS
        noted = walk.noted
        calls, (*_, again_ns, moved) = noted.marks[:-1, 0], noted.marks[-1].tolist()
        since, until = noted.since.copy(), noted.since.copy()
        since[: len(way)], until[: len(way)] = self._first, self._last
        values, places = self._made_late.T
        since[values] = calls[places]
        until[noted.read] = noted.reading  # in order: the last one counts
        over = (until[noted.written] == noted.writing) & (since[noted.written] < noted.writing)
        until[noted.written[over]] -= 1
        change = np.zeros(len(noted.anyway) + 1, np.int64)
        bytes_of = self._sizes[noted.value_of]
        np.add.at(change, since, bytes_of)
        np.subtract.at(change, until + 1, bytes_of)
        alive = np.cumsum(change[:-1]) + noted.anyway
        extra_ns = again_ns + 2 * moved * self._exact.copy_ns_per_byte
        return Glance(alive, int(alive.max()), extra_ns, float(again_ns), noted.value_of, since, until, calls, walk)

    @cached_property
    def least(self) -> int:
        """The peak that all decisions have at least."""
        peaks, _ = self.at_least(np.full((1, len(self._size)), SHARE, np.uint8))
        return int(peaks[0])

    def at_least(self, way: Ways8) -> tuple[Bytes64, Floats]:
        """The peaks and the extra ns that decisions have at least, without walking. `way`: for each value a column of
        WAYS. What is kept is there up to its last reader, as is what is read, and what is read again is made again, or
        comes back, once."""
        if not self.values or any(place.forward for place in self._places):
            return np.zeros(len(way), np.int64), np.zeros(len(way))
        read_at = self._marked([place.reads for place in self._places])
        kept = way == KEEP
        wanted = read_at.any(axis=0)
        later = read_at[::-1].cumsum(axis=0)[::-1] > read_at  # than a place
        at = np.arange(self._forward)[:, None]
        lives = (self._first <= at) & (at <= self._last)
        there = read_at & ~self._marked([place.overwrites for place in self._places])
        during = np.array([place.during for place in self._places], np.int64) + there @ self._sizes
        after = np.array([place.after for place in self._places], np.int64)
        anyway = np.concatenate((self._anyway + lives @ self._sizes, during, after))
        more = np.concatenate((wanted & (at > self._last), later & ~read_at, later))
        kinds, kind = np.unique(more, axis=0, return_inverse=True)
        most = np.zeros(len(kinds), np.int64)
        np.maximum.at(most, kind.reshape(-1), anyway)
        peaks = (most + (kept * self._sizes) @ kinds.T.astype(np.int64)).max(axis=1)
        moved, again = (way == MOVE) & wanted, ~kept & (way != MOVE) & wanted
        again_ns = np.zeros(len(way), np.int64)
        for makes, ns in {recipe.makes: recipe.ns for recipe in self._recipe_of}.items():
            made = again[:, list(makes)].any(axis=1)
            again_ns += ns * made
            moved[:, list(makes)] &= ~made[:, None]  # what is made beside another value need not come back
        return peaks, again_ns + 2 * (moved @ self._sizes) * self._exact.copy_ns_per_byte

    def _marked(self, rows: Sequence[tuple[int, ...]]) -> Marks:
        """A row for each, in which the columns of its values are set."""
        found = np.zeros((len(rows), len(self.values)), bool)
        for row, values in zip(found, rows, strict=True):
            row[list(values)] = True
        return found

    def at_peak(self, seen: Glance) -> set[str]:
        """Values with an instance in memory where most is."""
        place = int(seen.alive.argmax())
        there = (seen.since <= place) & (seen.until >= place)
        return {self.values[v] for v in set(seen.value_of[there].tolist())}

    def missing(self, value: str, seen: Glance) -> Bytes64:
        """What is in memory at the places where a value is not, from its last forward reader up to what first brings
        it back; nothing if it never is brought back."""
        instance = self._made_first(self._number[value], seen)
        if instance is None:
            return seen.alive[:0]
        called = seen.calls[seen.calls.searchsorted(seen.since[instance], side="right") - 1]
        return seen.alive[seen.until[self._number[value]] + 1 : called]

    def _made_first(self, number: int, seen: Glance) -> int | None:
        """The first instance of a value besides the original."""
        found = (seen.value_of[len(self._size) :] == number).nonzero()[0]
        return len(self._size) + int(found[0]) if found.size else None

    def counts(self, seen: Glance) -> dict[str, int]:
        """How often values are made again or come back; without those that never are."""
        times = np.bincount(seen.value_of[len(self._size) :], minlength=len(self._size))
        return {self.values[i]: int(times[i]) for i in np.flatnonzero(times)}

    def repeated(self, value: str, seen: Glance) -> bool:
        """Whether a value is made again or comes back more than once."""
        return int(np.count_nonzero(seen.value_of == self._number[value])) > 2

    def comes_anyway(self, value: str, seen: Glance) -> bool:
        """Whether each time that a value is made again its node runs for another result, too, which is missing and read
        at the same place: then keeping the value spares nothing."""
        if seen.walk is None:
            return False
        number, count, noted, way = self._number[value], len(self._size), seen.walk.noted, seen.walk.way
        if MOVE in way:  # what moves comes back or is made beside others, whichever is first
            return False
        made = count + (seen.value_of[count:] == number).nonzero()[0]
        ends = np.append(seen.calls, len(seen.alive))
        for instance in made.tolist():
            step = seen.since[instance]
            end = ends[ends.searchsorted(step, side="right")]
            beside = count + (seen.since[count:] == step).nonzero()[0]
            if not any(
                self._missed(other, int(seen.value_of[other]), way, noted, end)
                for other in beside.tolist()
                if other != instance
            ):
                return False
        return bool(made.size)

    def _missed(self, instance: int, number: int, way: bytearray, noted: Noted, end: int) -> bool:
        """Whether the place that ends at step `end` found no instance of a value before this one, and reads it."""
        count = len(self._size)
        first = count + int((noted.value_of[count:] == number).argmax())
        missing = way[number] == FRESH or (way[number] in (SHARE, OWN) and first == instance)
        return missing and bool((noted.reading[noted.read == instance] < end).any())
