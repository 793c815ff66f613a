"""Who takes whose bytes: blocks that end and blocks that begin at one moment, in groups of equal sums.

    10 and 7 end, 4, 6 and 7 begin: 10 -> 4, 6 and 7 -> 7, or all in one group

In a packing without waste each group hands over one stretch of bytes. Sums tell the groups, unless there are so many
that some are equal by accident; then all ways are listed, the one with the most groups first.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb, log
from typing import NamedTuple

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""(blocks that end, blocks that begin)"""

MOST_SUMS = 20_000
"""Sums of one moment that are looked at for groups of one size."""
SURE = 1e-4
"""A way is taken for granted when fewer groups than that are expected by accident."""
MOST_ACCIDENTS = 3.0
"""Larger groups are not looked for where so many would be accidents."""
OFTEN = 0.3
"""How often a moment has several groups, roughly."""
MOST_GROUPS = 10
MOST_WAYS = 24


class Ways(NamedTuple):
    ways: tuple[tuple[Group, ...], ...]
    """The likeliest first; one of them has one group of all."""
    doubt: float
    """Groups among them that are expected by accident."""


def ways_to_take_turns(leaving: Sequence[int], coming: Sequence[int], size: Sequence[int]) -> Ways:
    """All sums of `leaving` and `coming` together must be equal."""
    if not leaving and not coming:
        return Ways(((),), 0.0)
    whole = (tuple(sorted(leaving)), tuple(sorted(coming)))
    groups, doubt = _groups(leaving, coming, size)
    likely = dict(groups)
    found = sorted(_partitions([g for g, _ in groups], whole), key=lambda w: -sum(likely.get(g, 0.0) for g in w))
    ways = found[:MOST_WAYS]
    return Ways((*ways, *(((whole,),) if (whole,) not in ways else ())), doubt)


def _groups(
    leaving: Sequence[int], coming: Sequence[int], size: Sequence[int]
) -> tuple[list[tuple[Group, float]], float]:
    """Groups of equal sums that have no smaller ones inside, with the logarithm of how likely they are no accidents;
    and how many accidents there may be.

    Of `count` blocks there are so many sums: by accident two are equal about as often as sums are crowded.
    """
    found: list[tuple[Group, float]] = []
    accidents = 0.0
    total = sum(size[b] for b in leaving)
    blocks = len(leaving) + len(coming)
    for count in range(2, blocks // 2 + 1):
        pairs = [(several, count - several) for several in range(1, count)]
        sums = sum(comb(len(leaving), a) + comb(len(coming), b) for a, b in pairs)
        expected = sum(comb(len(leaving), a) * comb(len(coming), b) for a, b in pairs) * blocks / count / total
        if sums > MOST_SUMS or accidents + expected > MOST_ACCIDENTS or len(found) >= MOST_GROUPS:
            return found, accidents + expected
        accidents += expected
        for several, others in pairs:
            for group in _equal(leaving, coming, size, several, others):
                if not any(_inside(known, group) for known, _ in found):
                    found.append((group, log(OFTEN / max(expected, 1e-12))))
    return found[:MOST_GROUPS], accidents if found else 0.0


def _equal(
    leaving: Sequence[int], coming: Sequence[int], size: Sequence[int], several: int, others: int
) -> Iterator[Group]:
    by_sum: dict[int, list[tuple[int, ...]]] = {}
    for chosen in combinations(leaving, several):
        by_sum.setdefault(sum(size[b] for b in chosen), []).append(chosen)
    for chosen in combinations(coming, others):
        for first in by_sum.get(sum(size[b] for b in chosen), ()):
            yield first, chosen


def _inside(small: Group, large: Group) -> bool:
    return set(small[0]) <= set(large[0]) and set(small[1]) <= set(large[1])


def _partitions(groups: Sequence[Group], rest: Group) -> Iterator[tuple[Group, ...]]:
    """Some of the groups, none with a block of another one, and what is left over as one more."""
    if not groups:
        yield (rest,) if rest[0] else ()
        return
    first, others = groups[0], groups[1:]
    if _inside(first, rest):
        left = tuple(b for b in rest[0] if b not in first[0]), tuple(b for b in rest[1] if b not in first[1])
        yield from ((first, *more) for more in _partitions(others, left))
    yield from _partitions(others, rest)
