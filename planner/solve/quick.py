"""Footprints for a search: what decisions cost and need, at a tenth of the work of footprints.py, and nearly exact.

Only values that may be dropped are followed; what else is in memory, and how much scratch, is known for every node
beforehand. So only nodes that read such values are walked, and the nodes between two of them count as one place, with
the most that is in memory at any of them. Forward nodes behind backward ones (several losses) are walked like these.
Where an output may overwrite one of several inputs, the first one counts.
The states that a search ends with are looked at again in footprints.py.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

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

Numbers: TypeAlias = "array[int]"
"""Whole numbers that NumPy can look at without a copy."""
NONE: Numbers = array("q")


class Stop(NamedTuple):
    """Where a walk is in front of a place."""

    place: int
    here: int
    """Steps so far, what is made again included."""
    instances: int
    over: int
    again_ns: float
    moved: int
    """Bytes."""
    until: Numbers
    current: list[int]
    """value -> the instance to read, -1: none"""


class Glance(NamedTuple):
    """What is estimated of some decisions."""

    alive: Bytes64
    """Bytes of the first pool in use, step by step."""
    peak: int
    extra_ns: float
    again_ns: float
    """The same without copies."""
    value_of: Numbers
    """Of every instance the value: the graph's own values come first."""
    since: Numbers
    """Of every instance the step that makes it, ..."""
    until: Numbers
    """... and the last one at which it is in memory."""
    way: bytearray
    """What was decided."""
    here: int
    """Steps."""
    anyway: Numbers
    """Of every step the bytes of everything else."""
    over: list[tuple[int, int]]
    """(step, instance whose bytes it may write to)"""
    stops: list[Stop]
    """From which another walk may go on."""
    calls: Numbers
    """First steps of what is made again together."""

    def above(self, level: float) -> float:
        """Bytes above `level`, added up over the steps."""
        return float(np.maximum(self.alive - level, 0).sum())

    @property
    def hopeless(self) -> bool:
        """Not looked at to the end (MOST_AGAIN)."""
        return math.isinf(self.extra_ns)


HOPELESS = Glance(
    np.full(1, 2**60, np.int64), 2**60, math.inf, math.inf, NONE, NONE, NONE, bytearray(), 0, NONE, [], [], NONE
)


MOST_SEEN = 100_000
"""Instances of what was looked at last and is still known."""

STOPS = 16
"""Places from which a walk may be gone on with."""


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


NO_RECIPE = _Again((), (), (), 0.0, 0)


def _seen(numbers: Numbers) -> Bytes64:
    return np.frombuffer(numbers, np.int64)


class Quick:
    def __init__(self, exact: Footprints, made: Material, again_ns: Mapping[str, float]) -> None:
        self._exact, self._made = exact, made
        self.values = made.values
        self._number = {v: i for i, v in enumerate(made.values)}
        self._size = [exact.size(v) for v in made.values]
        self._root = {**{v: v for v in made.values}, **{v: r for v, r in made.views.items() if r in self._number}}
        self._recipe_of: list[_Again] = [NO_RECIPE] * len(made.values)
        self._add_again(again_ns)
        order = made.order
        self._forward = next((i for i, n in enumerate(order) if n.phase != "forward"), len(order))
        self._originals = array("q", range(len(made.values)))
        self._first = array("q", [0] * len(made.values))
        self._last = array("q", [0] * len(made.values))
        self._follow_forward()
        anyway = exact.anyway(frozenset(self._root))
        self._anyway_forward = array("q", anyway.during[: self._forward].tolist())
        self._places = self._find_places(anyway.before, anyway.during)
        self._sizes = np.array(self._size, np.int64)
        self._seen: dict[bytes, Glance] = {}
        """The last that was looked at: walks come past the same decisions again."""
        self._room = MOST_SEEN

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
            recipe = _Again(self._numbers(again.inputs), makes, over, again_ns[name], scratch)
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

    def _find_places(self, before: Bytes64, during: Bytes64) -> list[_Place]:
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

    def of(self, decisions: Mapping[str, Decision], near: Glance | None = None) -> Glance:
        """The same as `Footprints.of(steps(material, decisions))`, nearly. `near`: some that differ little."""
        way = bytearray(len(self._size))
        for name, decision in decisions.items():
            way[self._number[name]] = WAYS[decision]
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
        sizes, recipes = self._size, self._recipe_of
        stops = self._begun(way, near)
        place, here, count, overs, again_ns, moved, until, current = stops.pop()
        until, current = until[:], current[:]
        if near is None:
            # Instances: first the originals, then everything that is made again or comes back.
            value_of, since, anyway = self._originals[:], self._first[:], self._anyway_forward[:]
            over: list[tuple[int, int]] = []
            calls = array("q")
        else:
            value_of, since, anyway = near.value_of[:count], near.since[:count], near.anyway[:here]
            over, calls = near.over[:overs], near.calls[:place]
        most, every = len(way) + MOST_AGAIN, max(1, len(self._places) // STOPS)
        for number, (forward, reads, makes, overwrites, before, during, after) in enumerate(
            self._places[place:], place
        ):
            if count > most:
                return HOPELESS
            if number % every == 0:
                stops.append(Stop(number, here, count, len(over), again_ns, moved, until[:], current[:]))
            calls.append(here)
            if forward:
                for value in makes:
                    since[value] = until[value] = here
                for value in reads:
                    until[value] = here
                over += [(here, value) for value in overwrites]
                anyway.append(during)
                anyway.append(after)
                here += 2
                continue
            local: list[int] = []
            for wanted in reads:
                if current[wanted] >= 0:
                    continue
                stack = [wanted]
                while stack:
                    value = stack.pop()
                    if current[value] >= 0:
                        continue
                    if way[value] == MOVE:
                        current[value] = count
                        count += 1
                        value_of.append(value)
                        since.append(here)
                        until.append(here)
                        moved += sizes[value]
                        anyway.append(before)
                        here += 1
                        continue
                    sources, products, writes_to, ns, scratch = recipes[value]
                    for source in sources:
                        if current[source] < 0:
                            stack.append(value)
                            stack += [source for source in reversed(sources) if current[source] < 0]
                            break
                    else:
                        for source in sources:
                            until[current[source]] = here
                        for source in writes_to:
                            over.append((here, current[source]))
                        for result in products:
                            if way[result] == SHARE or (way[result] == OWN and result in reads):
                                current[result] = count
                            elif current[result] < 0:
                                current[result] = count
                                local.append(result)
                            count += 1
                            value_of.append(result)
                            since.append(here)
                            until.append(here)
                        again_ns += ns
                        anyway.append(before + scratch)
                        here += 1
            for value in reads:
                until[current[value]] = here
            for value in overwrites:
                over.append((here, current[value]))
            anyway.append(during)
            anyway.append(after)
            here += 2
            for value in local:
                current[value] = -1
        for position, instance in over:
            if until[instance] == position and since[instance] < position:
                until[instance] = position - 1
        change = np.zeros(here + 1, np.int64)
        bytes_of = self._sizes[_seen(value_of)]
        np.add.at(change, _seen(since), bytes_of)
        np.subtract.at(change, _seen(until) + 1, bytes_of)
        alive = np.cumsum(change[:-1])
        alive += _seen(anyway)
        extra_ns = again_ns + 2 * moved * self._exact.copy_ns_per_byte
        return Glance(
            alive, int(alive.max()), extra_ns, again_ns, value_of, since, until, way, here, anyway, over, stops, calls
        )

    def _begun(self, way: bytearray, near: Glance | None) -> list[Stop]:
        """The stops up to the one from which a walk is to go on: it comes last."""
        if near is None:
            there = [-1 if decision else value for value, decision in enumerate(way)]
            return [Stop(0, self._forward, len(way), 0, 0.0, 0, self._last, there)]
        changed = [v for v, (a, b) in enumerate(zip(way, near.way, strict=True)) if a != b]
        made = min((near.since[i] for v in changed if (i := self._made_first(v, near)) is not None), default=near.here)
        found: list[Stop] = []
        for stop in near.stops:
            # Neither made again before, nor read.
            if found and (made < stop.here or any(stop.until[v] != self._last[v] for v in changed)):
                break
            there = stop.current[:]
            for value in changed:
                there[value] = -1 if way[value] else value
            found.append(stop._replace(current=there))
        return found

    def at_peak(self, seen: Glance) -> set[str]:
        """Values with an instance in memory where most is."""
        place = int(seen.alive.argmax())
        there = (_seen(seen.since) <= place) & (_seen(seen.until) >= place)
        return {self.values[v] for v in set(_seen(seen.value_of)[there].tolist())}

    def missing(self, value: str, seen: Glance) -> Bytes64:
        """What is in memory at the places where a value is not, from its last forward reader up to what first brings
        it back; nothing if it never is brought back."""
        instance = self._made_first(self._number[value], seen)
        if instance is None:
            return seen.alive[:0]
        called = seen.calls[bisect_right(seen.calls, seen.since[instance]) - 1]
        return seen.alive[seen.until[self._number[value]] + 1 : called]

    def _made_first(self, number: int, seen: Glance) -> int | None:
        """The first instance of a value besides the original."""
        try:
            return seen.value_of.index(number, len(self._size))
        except ValueError:
            return None

    def counts(self, seen: Glance) -> dict[str, int]:
        """How often values are made again or come back; without those that never are."""
        times = np.bincount(_seen(seen.value_of)[len(self._size) :], minlength=len(self._size))
        return {self.values[i]: int(times[i]) for i in np.flatnonzero(times)}

    def repeated(self, value: str, seen: Glance) -> bool:
        """Whether a value is made again or comes back more than once."""
        return seen.value_of.count(self._number[value]) > 2
