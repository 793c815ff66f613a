"""Exact packing below a given height: a search that fills valleys and can go back.

The tops of the placed blocks form a skyline over the sections (sections.py). In a *valley*, a run of sections on one
floor between higher walls, only blocks inside the valley can use the floor, since a block that reaches over a wall lies
at least as high as the wall. So for any section of any valley one of these must hold: a certain block
inside the valley covers it and lies on the floor, or the floor of this section stays unused up to the next height that
a block could rest on. That is complete for packings in which every block rests on another one or on the ground, and
every packing can be brought into that form by letting blocks fall.

What makes it fast:
- the section with the fewest such choices is decided first, anywhere on the skyline; a section without waste to spare
  and with one fitting block is no choice at all;
- every section is a machine on which its blocks run one after the other, each not before the highest floor under it:
  when that takes longer than the height, go back (with all blocks at once in order of their floors: this sees waste
  long before it happens);
- sections that no waiting block connects are solved apart, each only once: what a skyline with its waiting blocks
  came to is remembered, whatever the order in which it was reached.

Related: Moffitt, "MiniMalloc" (ASPLOS 2023), which places blocks in order of offset; here the order is free.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from planner.solve.packing.sections import Instance

Placed = tuple[Any, ...]
"""A tree whose leaves are (block, offset) pairs: parts are shared between solutions, never copied."""


class Verdict(StrEnum):
    FOUND = "found"
    IMPOSSIBLE = "impossible"
    GAVE_UP = "gave up"


class Result(NamedTuple):
    verdict: Verdict
    offsets: list[int]
    work: int
    """Steps of the innermost loops: the same on every machine, about 10 million a second."""


def pack_below(problem: Instance, height: int, preference: Sequence[int], work_limit: int) -> Result:
    """Offsets for which no block ends above `height`, or that there are none, or nothing after `work_limit` steps.

    `preference` is the rank of every block: where several could be next, the lowest rank is tried first.
    """
    search = _Search(problem, height, preference, work_limit)
    try:
        placed = search.run()
    except _TooMuchWork:
        return Result(Verdict.GAVE_UP, [], search.work)
    if placed is None:
        return Result(Verdict.IMPOSSIBLE, [], search.work)
    offsets = [0] * problem.blocks
    for block, offset in _leaves(placed):
        offsets[block] = offset
    return Result(Verdict.FOUND, offsets, search.work)


class _TooMuchWork(Exception):
    pass


class _Valley(NamedTuple):
    section: int
    """The section to decide, counted from the part's first one."""
    floor: int
    fitting: list[int]
    """Blocks that may lie on this section's floor."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Sections that the waiting blocks connect."""

    blocks: list[int]
    """Sorted by their first section."""
    bits: int
    """The same."""
    work: int
    """Steps of looking at all of them."""
    first: int
    floor: list[int]
    """Per section: no waiting block lies lower."""
    load: list[int]
    """Per section: units of waiting blocks."""
    earliest: list[int] = field(repr=False)
    """Of every block the highest floor under it."""


@dataclass
class _Search:
    problem: Instance
    height: int
    preference: Sequence[int]
    work_limit: int
    work: int = 0
    known: dict[tuple[int, int, tuple[int, ...]], Placed | None] = field(default_factory=dict)
    """(first section, waiting blocks as bits, floors) -> how they can be placed, or None: not at all."""

    def run(self) -> Placed | None:
        """Drive the search with a stack of its own: it goes as deep as there are blocks."""
        count, blocks = self.problem.count, list(range(self.problem.blocks))
        ground = [0] * count
        work = sum(map(self._steps, blocks))
        nothing = _Part(blocks, (1 << len(blocks)) - 1, work, 0, ground, ground, [0] * len(blocks))
        stack = [self._filled(nothing, (0, count), 0)]
        answer: Placed | None = None
        fresh = True
        while stack:
            try:
                child = next(stack[-1]) if fresh else stack[-1].send(answer)
                stack.append(child)
                fresh = True
            except StopIteration as done:
                stack.pop()
                answer, fresh = done.value, False
        return answer

    def _steps(self, block: int) -> int:
        """Work of looking at a block."""
        return self.problem.upper[block] - self.problem.lower[block] + 4

    def _filled(self, part: _Part, sections: tuple[int, int], level: int, block: int | None = None) -> "Steps":
        """The other blocks of a part, where its `sections` are filled up to a level, by `block` or unused."""
        parts = self._parts(part, sections, level, block)
        if parts is None:
            return None
        placed = []
        for smaller in sorted(parts, key=lambda p: len(p.blocks)):
            key = (smaller.first, smaller.bits, tuple(smaller.floor))
            if key not in self.known:
                self.known[key] = yield self._decide(smaller)
            found = self.known[key]
            if found is None:
                return None
            placed.append(found)
        return tuple(placed)

    def _decide(self, part: _Part) -> "Steps":
        """Try every choice for the section that has the fewest."""
        problem = self.problem
        if len(part.blocks) == 1:
            return (part.blocks[0], part.earliest[part.blocks[0]])
        valley = self._narrowest(part)
        tried = set()
        for block in sorted(valley.fitting, key=self.preference.__getitem__):
            lower, upper, size = problem.lower[block], problem.upper[block], problem.size[block]
            if (lower, upper, size) not in tried:
                tried.add((lower, upper, size))
                found = yield self._filled(part, (lower, upper), valley.floor + size, block)
                if found is not None:
                    return (found, (block, valley.floor))
        level = self._next_level(part, valley)
        if level is None or level + part.load[valley.section] > self.height:
            return None
        here = valley.section + part.first
        return (yield self._filled(part, (here, here + 1), level))

    def _parts(self, part: _Part, sections: tuple[int, int], level: int, block: int | None) -> list[_Part] | None:
        """What `_filled` leaves, split into connected parts with raised floors; None when some section's blocks can't
        all fit below the top.

        Run each section as a machine: its blocks in order of their earliest offsets, which is the fastest way. Only
        those sections are looked at where something has changed.
        """
        lower, upper, size = self.problem.lower, self.problem.upper, self.problem.size
        start, stop = sections
        blocks, bits, work = part.blocks, part.bits, part.work
        if block is not None:
            blocks, bits, work = blocks.copy(), bits ^ (1 << block), work - self._steps(block)
            blocks.remove(block)
        self.work += work
        if self.work > self.work_limit:
            raise _TooMuchWork
        earliest = part.earliest.copy()
        left, right = start, stop
        for other in blocks:
            if earliest[other] < level and lower[other] < stop and start < upper[other]:
                earliest[other] = level
                left, right = min(left, lower[other]), max(right, upper[other])
        near = [b for b in blocks if lower[b] < right and left < upper[b]]
        load, floor = [0] * (right - left), [-1] * (right - left)
        for other in sorted(near, key=earliest.__getitem__, reverse=True):
            at, units = earliest[other], size[other]
            here = slice(max(lower[other], left) - left, min(upper[other], right) - left)
            above = [units + later for later in load[here]]
            if at + max(above) > self.height:
                return None
            load[here] = above
            floor[here] = [at] * len(above)
        changed = slice(left - part.first, right - part.first)
        floors, loads = part.floor.copy(), part.load.copy()
        floors[changed], loads[changed] = floor, load
        whole = _Part(blocks, bits, work, part.first, floors, loads, earliest)
        return list(self._connected(whole)) if 0 in load else [whole]

    def _connected(self, part: _Part) -> Iterator[_Part]:
        """The parts of one that sections connect."""
        lower, upper = self.problem.lower, self.problem.upper
        group: list[int] = []
        end = 0
        for block in part.blocks:
            if group and lower[block] >= end:
                yield self._between(part, group, end)
                group = []
            group.append(block)
            end = max(end, upper[block])
        if group:
            yield self._between(part, group, end)

    def _between(self, part: _Part, blocks: list[int], end: int) -> _Part:
        """Some neighbours of a part, up to section `end`."""
        first = self.problem.lower[blocks[0]]
        here = slice(first - part.first, end - part.first)
        bits, work = sum(1 << b for b in blocks), sum(map(self._steps, blocks))
        return _Part(blocks, bits, work, first, part.floor[here], part.load[here], part.earliest)

    def _narrowest(self, part: _Part) -> _Valley:
        """The section with the fewest choices; among equals the lowest floor, then the least waste to spare."""
        lower, upper, floor, first = self.problem.lower, self.problem.upper, part.floor, part.first
        resting = [b for b in part.blocks if part.earliest[b] == floor[lower[b] - first]]
        begins = [lower[b] - first for b in resting]
        best: tuple[tuple[int, int, int], int, list[int]] | None = None
        left = 0
        while left < len(floor):
            level, right = floor[left], left + 1
            while right < len(floor) and floor[right] == level:
                right += 1
            if (left == 0 or floor[left - 1] > level) and (right == len(floor) or floor[right] > level):
                # The valley's walls keep every block whose earliest offset is the floor inside.
                inside = resting[bisect_left(begins, left) : bisect_left(begins, right)]
                change = [0] * (right - left + 1)
                for block in inside:
                    change[lower[block] - first - left] += 1
                    change[upper[block] - first - left] -= 1
                for section, count in enumerate(accumulate(change[:-1]), left):
                    spare = self.height - level - part.load[section]
                    rank = (count + (spare > 0), level, spare)
                    if best is None or rank < best[0]:
                        best = (rank, section, inside)
            left = right
        assert best is not None, "a skyline has a lowest floor"
        rank, section, inside = best
        here = section + first
        return _Valley(section, rank[1], [b for b in inside if lower[b] <= here < upper[b]])

    def _next_level(self, part: _Part, valley: _Valley) -> int | None:
        """Where the lowest block on the section can lie if not on the floor: the next floor, or the next block's top.

        A block that it rests on does not cover the section, being below the lowest block there.
        """
        here = valley.section + part.first
        levels = []
        for block in part.blocks:
            at = part.earliest[block]
            if not self.problem.lower[block] <= here < self.problem.upper[block]:
                at += self.problem.size[block]
            if at > valley.floor:
                levels.append(at)
        return min(levels, default=None)


Steps = Generator["Steps", Placed | None, Placed | None]


def _leaves(placed: Placed) -> Iterator[tuple[int, int]]:
    waiting = [placed]
    while waiting:
        node = waiting.pop()
        if len(node) == 2 and isinstance(node[0], int):
            yield node
        else:
            waiting.extend(node)
