"""What runs again and what comes back, place by place, noted so that the next walk need not do it all again.

A *place* is a node behind the first backward one. A walk goes from place to place, brings back what each needs and is
not there, as decided, and notes what that makes and reads. A search walks thousands of times, under decisions that
differ for a few values, and such walks differ at a few places:

    place     1  2  3  4  5  6  7  8         before: x is made again in front of 3, and read there and at 6
    now       =  =  x  =  =  x  =  =         x is kept: 3 and 6 are passed by anew, and behind 6 nobody asks for x

Where no value matters that is decided upon otherwise, or is there now and was not, or was and is not, the notes are
those of the walk before, with steps and instances numbered anew.
"""

from bisect import bisect_left, insort
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


class Noted(NamedTuple):
    """At some places, or at all. Values are numbers; so are instances: the originals have those of their values."""

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


class Walk(NamedTuple):
    way: bytearray
    """What was decided, one of KEEP to MOVE for every value."""
    settled: list[Settled]
    noted: Noted


SHORT = 16
"""Steps between two places that are passed by anew; up to so many are passed by as well, which is faster than to copy
them."""


class Walks:
    """Walks past the same places."""

    def __init__(
        self, forward: Bytes64, places: Sequence[Place], recipes: Sequence[Recipe], sizes: Sequence[int]
    ) -> None:
        """`forward`: bytes of everything else at the steps in front of the first place. `recipes`, `sizes`: of every
        value."""
        self._places, self._recipes, self._sizes = places, recipes, sizes
        values, none = np.arange(len(sizes)), np.zeros(0, np.int64)
        self._originals = Noted(values, 0 * values, none, none, none, none, forward, none.reshape(0, 6))
        self._forward = [i for i, place in enumerate(places) if place.forward]

    def walk(self, way: bytearray, near: Walk | None, most: int) -> Walk | None:
        """Under some decisions; None: given up, there are more than `most` instances. `near`: a walk under others that
        differ for a few values."""
        notes = _Notes(way, self._originals)
        if near is None:
            for number, place in enumerate(self._places):
                if notes.count > most:
                    return None
                notes.pass_by(number, place, self._recipes, self._sizes)
            return notes.walk()
        other, number, end = _Other(near, way, self._places, self._recipes, self._forward), 0, len(self._places)
        while number < end:
            if notes.count > most:
                return None
            following = other.following(number, notes)
            if following == end or number == 0 < following or other.steps(number, following) > SHORT:
                notes.copy(other, number, following)
                number = following
            else:
                notes.pass_by(number, self._places[number], self._recipes, self._sizes)
                number += 1
        walk = notes.walk()
        return None if end and walk.noted.marks[-2, 1] > most else walk


class _Notes:
    """Of a walk, as far as it has come."""

    def __init__(self, way: bytearray, originals: Noted) -> None:
        self._way = way
        self._pieces = [originals]
        self._here, self.count = len(originals.anyway), len(originals.value_of)
        self._readings = self._writings = self._ns = self._moved = 0
        self.settled: list[Settled] = []
        kept = np.frombuffer(way, np.uint8) == KEEP
        self.current: list[int] = np.where(kept, np.arange(len(way)), -1).tolist()
        """Of every value the instance to read, -1: none."""
        self._begin()

    def _begin(self) -> None:
        """Another piece, noted place by place."""
        self._value_of: list[int] = []
        self._since: list[int] = []
        self._reading: list[int] = []
        self._read: list[int] = []
        self._writing: list[int] = []
        self._written: list[int] = []
        self._anyway: list[int] = []
        self._marks: list[int] = []

    def _end(self) -> None:
        piece = Noted(
            np.array(self._value_of, np.int64),
            np.array(self._since, np.int64),
            np.array(self._reading, np.int64),
            np.array(self._read, np.int64),
            np.array(self._writing, np.int64),
            np.array(self._written, np.int64),
            np.array(self._anyway, np.int64),
            np.array(self._marks, np.int64).reshape(-1, 6),
        )
        self._pieces.append(piece)
        self._readings += len(self._read)
        self._writings += len(self._written)
        self._begin()

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """What a row of marks says."""
        readings, writings = self._readings + len(self._read), self._writings + len(self._written)
        return self._here, self.count, readings, writings, self._ns, self._moved

    def pass_by(self, number: int, place: Place, recipes: Sequence[Recipe], sizes: Sequence[int]) -> None:
        self._marks += self.counts()
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

    def copy(self, other: "_Other", first: int, end: int) -> None:
        """As the other walk passed by the places from `first` up to `end`."""
        if first == end:
            return
        if self._marks:
            self._end()
        piece, settled, counts = other.copied(first, end, self)
        self._pieces.append(piece)
        self.settled += settled
        for _, value, instance in settled:
            self.current[value] = instance
        self._here, self.count, self._readings, self._writings, self._ns, self._moved = counts

    def walk(self) -> Walk:
        """Noted up to the end."""
        self._marks += self.counts()
        self._end()
        return Walk(self._way, self.settled, Noted(*map(np.concatenate, zip(*self._pieces, strict=True))))


class _Other:
    """A walk under other decisions, as far as this one has come."""

    def __init__(
        self, walk: Walk, way: bytearray, places: Sequence[Place], recipes: Sequence[Recipe], always: Sequence[int]
    ) -> None:
        """`always`: places that are never as they were."""
        self._walk, self._way, self._places, self._recipes, self._always = walk, way, places, recipes, always
        noted = walk.noted
        self._starts = np.ascontiguousarray(noted.marks[:, 0])
        self._values_read = noted.value_of[noted.read]
        self._made, self._made_at = noted.value_of[len(way) :], noted.since[len(way) :]
        changed = np.frombuffer(way, np.uint8) != np.frombuffer(walk.way, np.uint8)
        self._changed: list[int] = changed.nonzero()[0].tolist()
        self._there = {v: -1 if walk.way[v] else v for v in self._changed}
        """Values that may be other instances there than here, or none -> which there"""
        self._unlike: set[int] = set()
        """Those of them that are in only one of the two walks, ..."""
        self._known = self._known_here = 0
        """... and how much is known of what the other walk, and this one, settles."""
        self._reading: dict[int, list[int]] = {}
        """value -> places where it is read, ..."""
        self._making: dict[int, list[int]] = {}
        """... or made"""
        self._settling: dict[int, list[int]] = {}
        """Decided otherwise: value -> places where it is made, as it was, and stays in only one of the two walks"""
        self._numbers = np.arange(len(noted.value_of))
        """Of its instances those that are read here in their stead."""
        for value in self._changed:
            self._add(value)

    def _add(self, value: int) -> None:
        self._reading[value] = self._at(self._walk.noted.reading[self._values_read == value])
        self._making[value] = self._at(self._made_at[self._made == value])
        before, now = self._walk.way[value], self._way[value]
        if before != now and {before, now} <= {SHARE, OWN, FRESH} and len(self._recipes[value].makes) == 1:
            self._settling[value] = [
                number
                for number in self._making[value]
                if _stays(value, before, self._places[number]) != _stays(value, now, self._places[number])
            ]

    def _at(self, steps: Bytes64) -> list[int]:
        """The places."""
        places: list[int] = (self._starts.searchsorted(steps, side="right") - 1).tolist()
        return places

    def steps(self, first: int, end: int) -> int:
        """How many there are from one place up to another."""
        return int(self._starts[end] - self._starts[first])

    def following(self, number: int, notes: _Notes) -> int:
        """The place up to which, from `number` on, everything is as it was: one where a value matters that is there in
        one of the walks alone, or behind one where that begins."""
        self._compare(number, notes)
        end = len(self._places)
        for value in {*self._unlike, *self._changed}:
            if (self._there[value] < 0) != (notes.current[value] < 0):
                end = min(end, _next(self._reading[value], number, end), _next(self._making[value], number, end))
            elif value in self._settling:
                end = min(end, 1 + _next(self._settling[value], number, end))
            else:
                end = min(end, _next(self._making[value], number, end))
        return _next(self._always, number, end)

    def _compare(self, number: int, notes: _Notes) -> None:
        """What both have settled in front of place `number` and not copied."""
        changed = [value for _, value, _ in notes.settled[self._known_here :]]
        self._known_here = len(notes.settled)
        for value in changed:
            self._there.setdefault(value, -1)
        settled = self._walk.settled
        while self._known < len(settled) and settled[self._known][0] < number:
            _, value, self._there[value] = settled[self._known]
            changed.append(value)
            self._known += 1
        for value in changed:
            if (self._there[value] < 0) != (notes.current[value] < 0):
                self._unlike.add(value)
                if value not in self._making:
                    self._add(value)
            else:
                self._unlike.discard(value)

    def copied(self, first: int, end: int, notes: _Notes) -> tuple[Noted, list[Settled], list[int]]:
        """What it has noted at the places from `first` up to `end`, and settled, in the numbers of these notes, and
        what is counted behind them."""
        noted, numbers = self._walk.noted, self._numbers
        for value, instance in self._there.items():
            if instance >= 0:
                numbers[instance] = notes.current[value]
        (s, i, r, w, *_), (steps, made, readings, writings, *_) = noted.marks[[first, end]].tolist()
        shift = notes.counts() - noted.marks[first]
        later, more = shift[:2].tolist()
        numbers[i:made] += more
        settled = self._settled(end)
        piece = Noted(
            noted.value_of[i:made],
            noted.since[i:made] + later,
            noted.reading[r:readings] + later,
            numbers[noted.read[r:readings]],
            noted.writing[w:writings] + later,
            numbers[noted.written[w:writings]],
            noted.anyway[s:steps],
            noted.marks[first:end] + shift,
        )
        counts: list[int] = (noted.marks[end] + shift).tolist()
        return piece, [(place, value, instance + more) for place, value, instance in settled], counts

    def _settled(self, end: int) -> list[Settled]:
        """What is settled here where the places are as they were, with that walk's instances."""
        walk, last = self._walk, end - 1
        known, self._known = self._known, bisect_left(walk.settled, (end,))
        found = walk.settled[known : self._known]
        for _, value, instance in found:
            if value in self._there:
                self._there[value] = instance
        for value, places in self._settling.items():
            if _next(places, last, end) == last:
                if self._there[value] >= 0:
                    found = [settled for settled in found if settled[1] != value]
                else:
                    made = int(walk.noted.marks[last, 1])
                    instance = made + int((walk.noted.value_of[made:] == value).argmax())
                    insort(found, (last, value, instance), key=lambda settled: (settled[0], settled[2]))
        self._known_here += len(found)
        return found


def _stays(value: int, way: int, place: Place) -> bool:
    """Whether a value that is made for a place stays."""
    return way == SHARE or (way == OWN and value in place.reads)


def _next(rising: Sequence[int], number: int, end: int) -> int:
    """The first of some numbers from `number` on, or `end` if that comes first."""
    at = bisect_left(rising, number)
    return min(rising[at], end) if at < len(rising) else end
