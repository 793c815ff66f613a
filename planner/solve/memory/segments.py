"""Decisions to start a search from: what is kept cuts the forward pass into segments, each of which is made again.

Segments of about equal bytes need the least where nothing else is kept. With memory to spare for more, segments that
get shorter towards the end of the forward pass are better: its end is the first that is made again, when all that is
kept is still there; every step of the backward pass after that leaves more room for the next, longer one.

    12 blocks, 3 segments:  . . . .|. . . .|. . . .        and shorter and shorter:  . . . . . .|. . . .|. .
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate

EQUAL = (*range(2, 9), 10, 12, 16, 20, 24, 32)
"""Numbers of segments of equal bytes."""

SHORTENING = (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Numbers of segments that get shorter."""


class Segments:
    """Of one program's forward pass."""

    def __init__(self, sizes: Mapping[str, int], cuts: Collection[str]) -> None:
        """`sizes`: bytes of the values that can be made again, in the order in which they are computed; `cuts`: those
        of these that alone are needed of all before them."""
        self._cuts = [v for v in sizes if v in cuts]
        before = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._before = [before[v] for v in self._cuts]
        self._bytes = sum(sizes.values())

    def equal(self) -> Iterator[frozenset[str]]:
        """Cuts to keep for segments of equal bytes, from few segments to as many as there are cuts."""
        for count in sorted({*EQUAL, len(self._cuts)}):
            if count <= len(self._cuts):
                yield self._kept([1] * count)

    def shortening(self) -> Iterator[frozenset[str]]:
        """Cuts to keep for segments whose bytes are as 3 : 2 : 1, from few segments to many."""
        for count in SHORTENING:
            if count <= len(self._cuts):
                yield self._kept(range(count, 0, -1))

    def _kept(self, parts: Sequence[int]) -> frozenset[str]:
        total, ends = sum(parts), list(accumulate(parts))[:-1]
        return frozenset(self._cuts[_nearest(self._before, self._bytes * end / total)] for end in ends)


def _nearest(rising: Sequence[int], at: float) -> int:
    """The place of the number nearest to `at`; of several, the first."""
    above = bisect_left(rising, at)
    near = [rising[i] for i in (above - 1, above) if 0 <= i < len(rising)]
    return bisect_left(rising, min(near, key=lambda x: abs(x - at)))
