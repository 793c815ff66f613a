"""Joints of blocks: pieces that fit each other become one, and one becomes its parts again.

    behind      one ends as another of the same size begins: the second takes the first one's bytes
    above       the same lifetime: one lies on the other
    pinwheel    a rectangle of five pieces of which no two can be joined, or its mirror image:

                    +-------+----+        first, other     end as `middle` begins, end as it ends; begin together
                    | other |    |        second, last     begin as `middle` begins, begin as it ends; end together
                    +---+---+last|        first = second + middle
                    |   | m |    |        last = middle + other
                    |   +---+----+
                    |first| second |
                    +---+--------+

Equal sizes or sums at one moment are seldom an accident where sizes have many values; pinwheels hardly ever are. Equal
lifetimes say less.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

STEPS_PER_PIECE = 10
MOST_ABOVE = 8
MOST_CHOICES = 300
"""Pieces of one lifetime that are joined at once because their sum fits, and the ways to choose so many."""
ACCIDENTS = 0.05
"""Equal sums at a moment that may be expected by accident."""


class Piece(NamedTuple):
    lower: int
    upper: int
    size: int
    parts: tuple[tuple[int, int], ...] = ()
    """(piece, its offset in this one); none: a block."""

    @property
    def lifetime(self) -> tuple[int, int]:
        return self.lower, self.upper


class Pieces:
    """Blocks and what was made of them, by number. `live`: those that are part of no other one."""

    def __init__(self, blocks: Iterable[Piece]) -> None:
        self.all = list(blocks)
        self.work = 0
        """In steps as in exact.py."""
        self.avoided: set[tuple[int, ...]] = set()
        """Parts that must not be joined."""
        self.put_back(range(len(self.all)))
        self.changed.update(self.beginning, self.ending)

    def put_back(self, live: Iterable[int]) -> None:
        """Go on from these pieces, among which all joints that sizes tell have been made."""
        self.live: set[int] = set()
        self.ending: defaultdict[int, set[int]] = defaultdict(set)
        self.beginning: defaultdict[int, set[int]] = defaultdict(set)
        self.together: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.changed: set[int] = set()
        """Moments at which pieces came or went since joints were looked for."""
        for piece in live:
            self._add(piece)
            self.work += STEPS_PER_PIECE
        self.changed.clear()

    def _add(self, number: int) -> None:
        piece = self.all[number]
        self.live.add(number)
        self.ending[piece.upper].add(number)
        self.beginning[piece.lower].add(number)
        self.together[piece.lifetime].add(number)
        self.changed |= {piece.lower, piece.upper}

    def _remove(self, number: int) -> None:
        piece = self.all[number]
        self.live.remove(number)
        self.ending[piece.upper].remove(number)
        self.beginning[piece.lower].remove(number)
        self.together[piece.lifetime].remove(number)

    def stacked(self, number: int) -> bool:
        """Whether its parts have its lifetime: sizes may not have told that they fit."""
        parts = self.all[number].parts
        return bool(parts) and self.all[parts[0][0]].lifetime == self.all[number].lifetime

    def take_apart(self, number: int) -> list[int]:
        """Its parts, live again."""
        self._remove(number)
        parts = [part for part, _ in self.all[number].parts]
        for part in parts:
            self._add(part)
        return parts

    def _join(self, lower: int, upper: int, size: int, parts: Sequence[tuple[int, int]]) -> bool:
        """False: these parts are to be avoided."""
        if tuple(part for part, _ in parts) in self.avoided:
            return False
        for part, _ in parts:
            self._remove(part)
        self.all.append(Piece(lower, upper, size, tuple(parts)))
        self._add(len(self.all) - 1)
        return True

    def join_above(self, numbers: Sequence[int]) -> bool:
        parts, size = [], 0
        for number in numbers:
            parts.append((number, size))
            size += self.all[number].size
        return self._join(*self.all[numbers[0]].lifetime, size, parts)

    def join_sure(self) -> None:
        """All joints that sizes tell, until there are none left."""
        while self.changed:
            moments, self.changed = sorted(self.changed), set()
            for moment in moments:
                while self._join_behind(moment):
                    pass
            if self.changed:
                self.changed.update(moments)
                continue
            for number in {n: None for m in moments for n in sorted(self.beginning[m] | self.ending[m])}:
                if number in self.live:
                    self._join_pinwheel(number)
            if self.changed:
                continue
            for moment in moments:
                while self._join_sums(moment):
                    pass

    def _join_behind(self, moment: int) -> bool:
        """Of every size that just one ending and one beginning piece have."""
        ending, beginning = self._by_size(self.ending[moment]), self._by_size(self.beginning[moment])
        joined = False
        for size, first in ending.items():
            second = beginning.get(size, [])
            if len(first) == len(second) == 1:
                a, b = first[0], second[0]
                joined |= self._join(self.all[a].lower, self.all[b].upper, size, ((a, 0), (b, 0)))
        return joined

    def _by_size(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number in numbers:
            found.setdefault(self.all[number].size, []).append(number)
            self.work += 1
        return found

    def _join_pinwheel(self, middle: int) -> None:
        """Where just one pinwheel has this middle."""
        lower, upper, size, _ = self.all[middle]
        seconds = self._by_size(n for n in self.beginning[lower] if n != middle)
        firsts = [n for n in self.ending[lower] if self.all[n].size - size in seconds]
        if not firsts:
            return
        others, lasts = self.ending[upper], self._by_size(self.beginning[upper])
        found = [
            (first, second, other, last)
            for first in firsts
            for other in others
            if other != middle and self.all[other].lower == self.all[first].lower
            for last in lasts.get(self.all[other].size + size, ())
            for second in seconds[self.all[first].size - size]
            if self.all[second].upper == self.all[last].upper
        ]
        self.work += 10 + len(firsts) * len(others)
        if len(found) == 1:
            first, second, other, last = found[0]
            under = self.all[second].size
            parts = ((first, 0), (second, 0), (middle, under), (other, under + size), (last, under))
            height = under + size + self.all[other].size
            self._join(self.all[first].lower, self.all[last].upper, height, parts)

    def _join_sums(self, moment: int) -> bool:
        """Pieces of one lifetime on each other, if just they follow others by their sum."""
        most = MOST_ABOVE
        while most >= 1:
            ending, beginning = self._sums(self.ending[moment], most), self._sums(self.beginning[moment], most)
            if ending and beginning and len(ending) * len(beginning) <= ACCIDENTS * max(*ending, *beginning):
                break
            most -= 1
        else:
            return False
        for size, first in ending.items():
            second = beginning.get(size, [])
            if len(first) == len(second) == 1 and len(first[0]) + len(second[0]) > 2:
                joined = [len(c) > 1 and self.join_above(c) for c in (first[0], second[0])]
                if any(joined):
                    return True
        return False

    def _sums(self, numbers: Iterable[int], most: int) -> dict[int, list[tuple[int, ...]]]:
        """Sum -> up to `most` of the pieces, of one lifetime."""
        by_lifetime: dict[tuple[int, int], list[int]] = {}
        for number in sorted(numbers):
            by_lifetime.setdefault(self.all[number].lifetime, []).append(number)
        found: dict[int, list[tuple[int, ...]]] = {}
        for there in by_lifetime.values():
            for count in range(1, min(most, len(there), MOST_ABOVE) + 1):
                if comb(len(there), count) > MOST_CHOICES:
                    break
                for chosen in combinations(there, count):
                    found.setdefault(sum(self.all[n].size for n in chosen), []).append(chosen)
                    self.work += 5
        return found

    def by_doubt(self) -> list[tuple[float, tuple[int, int]]]:
        """Lifetimes of several pieces, and how many of the neighbours would have it by accident; the surest first."""
        lengths = Counter(self.all[n].upper - self.all[n].lower for n in self.live)
        self.work += 5 * len(self.live)
        found = []
        for lifetime, there in self.together.items():
            if len(there) > 1:
                lower, upper = lifetime
                others = len(self.beginning[lower]) + len(self.ending[upper]) - 2 * len(there)
                found.append((others * lengths[upper - lower] / len(self.live), lifetime))
        return sorted(found)

    def offsets(self, of_pieces: Mapping[int, int], blocks: int) -> list[int]:
        """Of the blocks, the first `blocks` pieces, from those of pieces that hold them all."""
        found = [0] * blocks
        waiting = list(of_pieces.items())
        while waiting:
            number, at = waiting.pop()
            if number < blocks:
                found[number] = at
            waiting += [(part, at + above) for part, above in self.all[number].parts]
        return found
