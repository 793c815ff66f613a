"""What runs again and what comes back, place by place, noted so that the next walk need not do it all again.

A *place* is a node behind the first backward one. A walk goes from place to place, brings back what each needs and is
not there, as decided, and notes what that makes and reads. A search walks thousands of times, under decisions that
differ for a few values, and such walks differ at a few places:

    place     1  2  3  4  5  6  7  8         before: x is made again in front of 3, and read there and at 5
    now       =  =  x  x  x  =  =  =         x is kept: walked from 3 on, and behind 5 nobody asks for x any more

In front of the first place where one of these values matters, and from the one on where everything that matters later
is there or not as it was, the notes are those of the walk before, with steps and instances numbered anew.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KEEP, SHARE, OWN, FRESH, MOVE = range(5)

Bytes64 = np.ndarray[tuple[int], np.dtype[np.int64]]


class Place(NamedTuple):
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


class Recipe(NamedTuple):
    """How values are made again."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...]
    ns: int
    scratch: int


Settled = tuple[int, int, int]
"""(place, value, instance): what a place brings back for all later ones."""


class Walk(NamedTuple):
    """What was noted. Values are numbers; so are instances: the originals have those of their values."""

    way: bytearray
    """What was decided, one of KEEP to MOVE for every value."""
    settled: list[Settled]
    value_of: Bytes64
    """Of every instance the value, ..."""
    since: Bytes64
    """... and the step that makes it; 0 for the originals."""
    reading: Bytes64
    """Of everything that is read, in order, the step, ..."""
    read: Bytes64
    """... and the instance."""
    writing: Bytes64
    """Of every instance whose bytes may be written to the step, ..."""
    written: Bytes64
    """... and the instance."""
    anyway: Bytes64
    """Of every step the bytes of everything else."""
    marks: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """A row for every place, and one for the end: how many steps, instances, readings and writings there are so far,
    ns of what is made again, bytes moved."""


class Walks:
    """Walks past the same places."""

    def __init__(
        self, forward: Bytes64, places: Sequence[Place], recipes: Sequence[Recipe], sizes: Sequence[int]
    ) -> None:
        """`forward`: bytes of everything else at the steps in front of the first place. `recipes`, `sizes`: of every
        value."""
        self._places, self._recipes, self._sizes = places, recipes, sizes
        values, none = np.arange(len(sizes)), np.zeros(0, np.int64)
        marks = np.array([[len(forward), len(sizes), 0, 0, 0, 0]])
        self._nothing = Walk(bytearray(), [], values, 0 * values, none, none, none, none, forward, marks)
        self._alike_from = max((i for i, place in enumerate(places) if place.forward), default=-1) + 1
        """The first place from which on no original is read as such."""

    def walk(self, way: bytearray, near: Walk | None, most: int) -> Walk | None:
        """Under some decisions; None: given up, there are more than `most` instances. `near`: a walk under others that
        differ for a few values."""
        other = _Other(near, way) if near else None
        first = other.first if other else 0
        notes = _Notes(way, near or self._nothing, first)
        for number, place in enumerate(self._places[first:], first):
            if notes.count > most:
                return None
            if other and other.alike(number, notes) and number >= self._alike_from:
                walk = notes.followed_by(other, number)
                return None if walk.marks[-2, 1] > most else walk
            notes.pass_by(number, place, self._recipes, self._sizes)
        return notes.walk()


class _Notes:
    """Of a walk from place `first` on; in front of that it is as one before."""

    def __init__(self, way: bytearray, before: Walk, first: int) -> None:
        self._way, self._before, self._first = way, before, first
        self._here, self.count, self._readings, self._writings, self._ns, self._moved = before.marks[first].tolist()
        self.settled = before.settled[: bisect_left(before.settled, (first,))]
        self.current = [-1 if decision else value for value, decision in enumerate(way)]
        """Of every value the instance to read, -1: none."""
        for _, value, instance in self.settled:
            self.current[value] = instance
        self._value_of: list[int] = []
        self._since: list[int] = []
        self._reading: list[int] = []
        self._read: list[int] = []
        self._writing: list[int] = []
        self._written: list[int] = []
        self._anyway: list[int] = []
        self._marks: list[int] = []

    def _mark(self) -> None:
        readings, writings = self._readings + len(self._read), self._writings + len(self._written)
        self._marks += (self._here, self.count, readings, writings, self._ns, self._moved)

    def pass_by(self, number: int, place: Place, recipes: Sequence[Recipe], sizes: Sequence[int]) -> None:
        self._mark()
        forward, reads, makes, overwrites, before, during, after = place
        way, current, here, count = self._way, self.current, self._here, self.count
        value_of, since, reading, read = self._value_of, self._since, self._reading, self._read
        local: list[int] = []
        stack = [] if forward else list(reversed(reads))
        while stack:
            value = stack.pop()
            if current[value] >= 0:
                continue
            if way[value] == MOVE:
                current[value] = count
                self.settled.append((number, value, count))
                count += 1
                value_of.append(value)
                since.append(here)
                self._moved += sizes[value]
                self._anyway.append(before)
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
                    reading.append(here)
                    read.append(current[source])
                for source in writes_to:
                    self._writing.append(here)
                    self._written.append(current[source])
                for result in products:
                    if way[result] == SHARE or (way[result] == OWN and result in reads):
                        current[result] = count
                        self.settled.append((number, result, count))
                    elif current[result] < 0:
                        current[result] = count
                        local.append(result)
                    count += 1
                    value_of.append(result)
                    since.append(here)
                self._ns += ns
                self._anyway.append(before + scratch)
                here += 1
        for value in (*makes, *reads):
            reading.append(here)
            read.append(value if forward else current[value])
        for value in overwrites:
            self._writing.append(here)
            self._written.append(value if forward else current[value])
        self._anyway += (during, after)
        self._here, self.count = here + 2, count
        for value in local:
            current[value] = -1

    def walk(self) -> Walk:
        """Noted up to the end."""
        return self._joined(len(self._before.marks) - 1, np.zeros(0, np.int64), [])

    def followed_by(self, other: "_Other", number: int) -> Walk:
        """From place `number` on as the other."""
        return self._joined(number, other.renumbered(number, self), other.left())

    def _joined(self, number: int, renumbered: Bytes64, settled: Sequence[Settled]) -> Walk:
        """These notes between those of the walk before, with its instances `renumbered` and what it has `settled` from
        place `number` on."""
        self._mark()
        before, marks = self._before, np.array(self._marks).reshape(-1, 6)
        first, last = before.marks[self._first], before.marks[number]
        shift = marks[-1] - last
        (s, i, r, w, *_), (steps, instances, readings, writings, *_) = first.tolist(), last.tolist()
        return Walk(
            self._way,
            self.settled + [(place, value, instance + int(shift[1])) for place, value, instance in settled],
            _with(before.value_of[:i], self._value_of, before.value_of[instances:]),
            _with(before.since[:i], self._since, before.since[instances:] + shift[0]),
            _with(before.reading[:r], self._reading, before.reading[readings:] + shift[0]),
            _with(before.read[:r], self._read, renumbered[before.read[readings:]]),
            _with(before.writing[:w], self._writing, before.writing[writings:] + shift[0]),
            _with(before.written[:w], self._written, renumbered[before.written[writings:]]),
            _with(before.anyway[:s], self._anyway, before.anyway[steps:]),
            np.concatenate((before.marks[: self._first], marks, before.marks[number + 1 :] + shift)),
        )


class _Other:
    """A walk under other decisions, as far as this one has come."""

    def __init__(self, walk: Walk, way: bytearray) -> None:
        self._walk = walk
        self._values_read = walk.value_of[walk.read]
        self._made, self._made_at = walk.value_of[len(way) :], walk.since[len(way) :]
        changed = (np.frombuffer(way, np.uint8) != np.frombuffer(walk.way, np.uint8)).nonzero()[0].tolist()
        matters = [self._place(steps.min()) for v in changed if (steps := self._matters(v)).size]
        self.first = min(matters, default=len(walk.marks) - 1)
        """The first place where another decision matters."""
        made = [self._place(steps.max()) for v in changed if (steps := self._made_at[self._made == v]).size]
        self._decided = max(made, default=self.first)
        """The last place where one may."""
        self._matters_until: dict[int, int] = {}
        """value -> the last place where it matters"""
        self._known = self._known_here = bisect_left(walk.settled, (self.first,))
        """How much is known of what the other walk, and this one, settles."""
        self._other = {v: -1 if walk.way[v] else v for v in changed}
        """Values that may be other instances there than here, or none -> which there"""

    def _place(self, step: int) -> int:
        return int(self._walk.marks[:, 0].searchsorted(step, side="right")) - 1

    def _matters(self, value: int) -> Bytes64:
        """Steps that read or make it."""
        return np.concatenate((self._walk.reading[self._values_read == value], self._made_at[self._made == value]))

    def _over_by(self, number: int, value: int) -> bool:
        """Whether it does not matter from a place on."""
        if value not in self._matters_until:
            self._matters_until[value] = self._place(self._matters(value).max(initial=-1))
        return self._matters_until[value] < number

    def alike(self, number: int, notes: _Notes) -> bool:
        """Whether from place `number` on both walks are the same: no decision that differs matters there, and what
        does matter is there in both or in neither."""
        if number <= self._decided:
            return False
        settled = self._walk.settled
        for _, value, _ in notes.settled[self._known_here :]:
            self._other.setdefault(value, -1)
        self._known_here = len(notes.settled)
        while self._known < len(settled) and settled[self._known][0] < number:
            self._other[settled[self._known][1]] = settled[self._known][2]
            self._known += 1
        return all(
            (there < 0) == (notes.current[value] < 0) or self._over_by(number, value)
            for value, there in self._other.items()
        )

    def renumbered(self, number: int, notes: _Notes) -> Bytes64:
        """Of the other walk's instances those that are read in their stead from place `number` on."""
        made = int(self._walk.marks[number, 1])
        numbers = np.arange(len(self._walk.value_of))
        numbers[made:] += notes.count - made
        for value, there in self._other.items():
            if there >= 0:
                numbers[there] = notes.current[value]
        return numbers

    def left(self) -> list[Settled]:
        """What it settles from there on."""
        return self._walk.settled[self._known :]


def _with(front: Bytes64, middle: Sequence[int], back: Bytes64) -> Bytes64:
    return np.concatenate((front, np.array(middle, np.int64), back))
