"""Who takes whose bytes, moment by moment from left to right, for packings without waste of twenty thousand blocks.

tight.py needs to know at each moment which blocks that begin take the bytes of which blocks that end. What was decided
before helps: it says which of the ending blocks can lie side by side at all (pq_tree.py). Blocks that lie side by side
in every order go together, which leaves a few sums instead of many. Where sums say too little, the blocks that begin
are read the same way, from the right: by a sweep over the next moments in reverse.

What is still in doubt then is guessed, the likeliest first. A wrong guess shows when blocks that must be replaced as
one cannot lie side by side; then the sweep goes back to the last guess that these blocks, or those whose bytes they
took, come from.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from planner.solve.pq_tree import NotSideBySideError, Tree, any_order, can_gather, clusters, gathered, leaves
from planner.solve.sections import Ints, by_moment
from planner.solve.turns import Group

Way = tuple[Group, ...]

WINDOW = 300
"""Moments that are read from the right."""
SURE = 0.01
"""Sums are trusted when fewer equal ones than that are expected by accident."""
LIKELY = 0.1
"""Up to here a way of several groups is tried before one group of all."""
MOST_ALIVE = 400
"""Blocks alive at once, on average: with more, passing over a tree takes too long."""
MOST_BACK = 200
"""Guesses that are taken back."""
MOST_ITEMS, MOST_SIDE = 28, 22
"""Clusters on both sides, or on one, whose sums are looked at."""
MOST_EQUAL = 2_000
MOST_WAYS, MOST_GUESSES = 12, 24
GENERATIONS = 3
STEPS_PER_LEAF = 2
"""Work of passing over a tree once, per leaf."""
STEPS_PER_SUM = 0.02


class _TooMuchWorkError(Exception):
    pass


class Sweep:
    """Blocks that fill a rectangle; `sections` moments from 0, and one at the end."""

    def __init__(
        self, lower: Sequence[int], upper: Sequence[int], size: Sequence[int], sections: int, work_limit: int
    ) -> None:
        self.lower, self.upper, self.size, self.sections = lower, upper, size, sections
        self.work, self.work_limit = 0, work_limit
        self.beginning, self.ending = by_moment(lower, sections), by_moment(upper, sections)
        self.alive = sum(b - a for a, b in zip(lower, upper, strict=True)) // max(1, sections)
        self.chosen: list[Way] = [() for _ in range(sections + 1)]
        self.from_right: dict[int, Tree] = {}

    def run(self) -> list[Way] | None:
        """The way that is taken at every moment, or None when that was not found."""
        if self.alive > MOST_ALIVE:
            return None
        try:
            return self.chosen if self._run() else None
        except _TooMuchWorkError:
            return None

    def _run(self) -> bool:
        tree, moment, back = any_order(self.beginning[0]), 1, 0
        guesses: list[tuple[int, list[tuple[Tree, Way]]]] = []
        while moment < self.sections:
            if self.ending[moment] or self.beginning[moment]:
                possible = self._possible(tree, moment)
                if len(possible) > 1:
                    guesses.append((moment, possible[1:]))
                if possible:
                    tree, self.chosen[moment] = possible[0]
                elif guesses and back < MOST_BACK:
                    back += 1
                    at = self._culprit(moment, [guess for guess, _ in guesses])
                    moment, others = guesses[at]
                    del guesses[at:]
                    tree, self.chosen[moment] = others[0]
                    if others[1:]:
                        guesses.append((moment, others[1:]))
                else:
                    return False
            moment += 1
        return True

    def _culprit(self, moment: int, guesses: list[int]) -> int:
        """The guess to take back: the last one among those from which the ending blocks come, else the last of all."""
        place = {guess: i for i, guess in enumerate(guesses)}
        blocks = set(self.ending[moment])
        for _ in range(GENERATIONS):
            here = [place[self.lower[b]] for b in blocks if self.lower[b] in place]
            if here:
                return max(here)
            blocks = {before for b in blocks for old, new in self.chosen[self.lower[b]] if b in new for before in old}
        return len(guesses) - 1

    def _possible(self, tree: Tree, moment: int) -> list[tuple[Tree, Way]]:
        """Ways that the tree allows, with what it becomes, the likeliest first; only that one where it is sure."""
        found: list[tuple[Tree, Way]] = []
        seen = set()
        ways, sure = self._ways(tree, moment)
        for way in ways:
            key = frozenset(frozenset(old) for old, _ in way)
            if key not in seen:
                seen.add(key)
                try:
                    found.append((self._taken(tree, way), way))
                except NotSideBySideError:
                    continue
                if sure:
                    break
        return found

    def _taken(self, tree: Tree, way: Way) -> Tree:
        for old, new in way:
            self._spend(tree)
            tree = gathered(tree, frozenset(old), any_order(new))
        return tree

    def _ways(self, tree: Tree, moment: int) -> tuple[list[Way], bool]:
        """What may happen at a moment, the likeliest first, and whether that is sure."""
        old, new = self.ending[moment], self.beginning[moment]
        whole: Way = ((tuple(old), tuple(new)),)
        parts = self._clusters(tree, old)
        if len(parts) == 1 or len(new) == 1:
            return [whole], True
        single = [[b] for b in new]
        total = sum(self.size[b] for b in old)
        if 2.0 ** (len(parts) + len(new) - 1) < SURE * total:
            return [*self._partitions(tree, parts, None, single)[:1], whole], True
        right = self._tree_from_right(moment)
        others = self._clusters(right, new)
        ways = self._partitions(tree, parts, right, others)
        by_block: list[Way] = []
        if len(others) < len(new) and len(parts) + len(new) <= MOST_ITEMS - 4:
            by_block = self._partitions(tree, parts, None, single)
            by_block = by_block if len(by_block) <= 3 else []
        if not ways:
            few = [] if len(parts) + len(others) <= MOST_ITEMS - 8 else self._few_and_the_rest(parts, new)
            return [*few, whole, *by_block], False
        coarser = [
            (*(g for g in way if g not in pair), (pair[0][0] + pair[1][0], pair[0][1] + pair[1][1]))
            for way in ways
            if len(way) > 2
            for pair in combinations(way, 2)
        ]
        two = [way for way in (*ways, *coarser) if len(way) == 2]
        several = [way for way in (*ways, *coarser) if len(way) > 2]
        if len(ways) == 1 or 2.0 ** (len(parts) + len(others) - 1) < LIKELY * total:
            return [*several[:1], *two, whole, *by_block, *several[1:8]], False
        return [whole, *two, *by_block, *several[:4]][:MOST_GUESSES], False

    def _clusters(self, tree: Tree, blocks: Sequence[int]) -> list[list[int]]:
        self._spend(tree)
        return clusters(tree, frozenset(blocks))

    def _tree_from_right(self, moment: int) -> Tree:
        """Orders just behind a moment, as far as the moments behind it tell; without guesses."""
        if moment not in self.from_right:
            stop = min(self.sections, moment + WINDOW)
            tree = any_order(b for b in range(len(self.size)) if self.lower[b] < stop <= self.upper[b])
            for at in range(stop - 1, moment, -1):
                tree = self._one_back(tree, self.beginning[at], self.ending[at])
            self.from_right[moment] = tree
        return self.from_right[moment]

    def _one_back(self, tree: Tree, leaving: Sequence[int], coming: Sequence[int]) -> Tree:
        """The likeliest way at a moment in reverse; what cannot be is forgotten with all orders."""
        if not leaving and not coming:
            return tree
        parts = self._clusters(tree, leaving)
        way: Way = ((tuple(leaving), tuple(coming)),)
        crowd = 2.0 ** (len(parts) + len(coming) - 1) / sum(self.size[b] for b in leaving)
        if len(parts) > 1 and len(coming) > 1 and crowd < 2 * SURE:
            way = next(iter(self._partitions(tree, parts, None, [[b] for b in coming])), way)
        try:
            return self._taken(tree, way)
        except NotSideBySideError:
            gone = set(leaving)
            return any_order((*(b for b in leaves(tree) if b not in gone), *coming))

    def _partitions(self, tree: Tree, parts: list[list[int]], right: Tree | None, others: list[list[int]]) -> list[Way]:
        """Ways of several groups with equal sums, made of clusters, whose old blocks can lie side by side, and the new
        ones too; those with most groups first."""
        if len(parts) > MOST_SIDE or len(others) > MOST_SIDE or len(parts) + len(others) > MOST_ITEMS:
            return []
        equal: list[tuple[int, int]] = []
        for old, new in self._equal(parts, others):
            if len(equal) > MOST_EQUAL // 10:
                return []
            self._spend(tree)
            if can_gather(tree, frozenset(_chosen(parts, old))) and (
                right is None or can_gather(right, frozenset(_chosen(others, new)))
            ):
                equal.append((old, new))
        least = [a for a in equal if not any(b != a and b[0] & a[0] == b[0] and b[1] & a[1] == b[1] for b in equal)]
        all_old, all_new = (1 << len(parts)) - 1, (1 << len(others)) - 1
        known = set(equal)
        found: list[list[tuple[int, int]]] = []

        def extend(old: int, new: int, way: list[tuple[int, int]]) -> None:
            if len(found) >= MOST_WAYS:
                return
            if old == all_old and new == all_new:
                found.append(way)
            elif old != all_old and new != all_new:
                lowest = ~old & (old + 1)
                for group in least:
                    if group[0] & lowest and not group[0] & old and not group[1] & new:
                        extend(old | group[0], new | group[1], [*way, group])
                rest = (all_old & ~old, all_new & ~new)
                if way and rest in known and rest not in least:
                    found.append([*way, rest])

        extend(0, 0, [])
        return [
            tuple((_chosen(parts, old), _chosen(others, new)) for old, new in way)
            for way in sorted(found, key=len, reverse=True)
            if len(way) > 1
        ]

    def _equal(self, parts: list[list[int]], others: list[list[int]]) -> Iterator[tuple[int, int]]:
        """Clusters on both sides with equal sums, as bits; not the empty ones. Ends early where there are too many."""
        left, right = (_sums([sum(self.size[b] for b in part) for part in side]) for side in (parts, others))
        self.work += round(STEPS_PER_SUM * (len(left) + len(right)))
        order = np.argsort(right, kind="stable")
        begin, end = (np.searchsorted(right[order], left, side) for side in ("left", "right"))
        pairs = 0
        for old in np.flatnonzero(end > begin).tolist():
            for new in order[begin[old] : end[old]].tolist():
                pairs += 1
                if pairs > MOST_EQUAL:
                    return
                if old and new:
                    yield old, new

    def _few_and_the_rest(self, parts: list[list[int]], new: Sequence[int]) -> list[Way]:
        """Where clusters are too many: one or two of them with one or two new blocks, and all others."""
        sums: dict[int, list[tuple[int, ...]]] = {}
        for count in (1, 2):
            for chosen in combinations(new, count):
                sums.setdefault(sum(self.size[b] for b in chosen), []).append(chosen)
        found: list[tuple[int, Way]] = []
        for count in (1, 2):
            for indices in combinations(range(len(parts)), count):
                old = tuple(b for i in indices for b in parts[i])
                others = tuple(b for i, part in enumerate(parts) if i not in indices for b in part)
                for chosen in sums.get(sum(self.size[b] for b in old), ()):
                    rest = tuple(b for b in new if b not in chosen)
                    if others and rest:
                        found.append((count + len(chosen), ((old, chosen), (others, rest))))
        return [way for _, way in sorted(found, key=lambda f: f[0])[:8]]

    def _spend(self, tree: Tree) -> None:
        self.work += STEPS_PER_LEAF * self.alive
        if self.work > self.work_limit:
            raise _TooMuchWorkError


def _chosen(parts: list[list[int]], bits: int) -> tuple[int, ...]:
    return tuple(b for i, part in enumerate(parts) if bits >> i & 1 for b in part)


def _sums(sizes: Sequence[int]) -> Ints:
    """Of all subsets, in the order of their bits."""
    found = np.zeros(1, np.int64)
    for size in sizes:
        found = np.concatenate((found, found + size))
    return found
