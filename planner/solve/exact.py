"""Exact packing below a given height: a search that fills valleys and can go back.

The tops of the placed blocks form a skyline over the sections (planner/solve/sections.py). In a *valley*, a run of
sections on one floor between higher walls, only blocks inside the valley can use the floor, since a block that reaches
over a wall lies at least as high as the wall. So for any section of any valley one of these must hold: a certain block
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

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from planner.solve.sections import Instance

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


@dataclass
class _Part:
    """Sections that the waiting blocks connect."""

    blocks: list[int]
    first: int
    floor: list[int]
    """Per section: no waiting block lies lower."""
    load: list[int]
    """Per section: units of waiting blocks."""
    earliest: dict[int, int] = field(repr=False)
    """Block -> the highest floor under it."""


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
        stack = [self._place(list(range(self.problem.blocks)), 0, [0] * self.problem.count)]
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

    def _place(self, blocks: list[int], first: int, floor: list[int]) -> "Steps":
        """All `blocks` above `floor`, which starts at section `first`."""
        parts = self._parts(blocks, first, floor)
        if parts is None:
            return None
        placed = []
        for part in sorted(parts, key=lambda p: len(p.blocks)):
            key = (part.first, sum(1 << b for b in part.blocks), tuple(part.floor))
            if key not in self.known:
                self.known[key] = yield self._decide(part)
            found = self.known[key]
            if found is None:
                return None
            placed.append(found)
        return tuple(placed)

    def _decide(self, part: _Part) -> "Steps":
        """Try every choice for the section that has the fewest."""
        problem, first = self.problem, part.first
        if len(part.blocks) == 1:
            return (part.blocks[0], part.earliest[part.blocks[0]])
        valley = self._narrowest(part)
        tried = set()
        for block in sorted(valley.fitting, key=self.preference.__getitem__):
            lower, upper, size = problem.lower[block], problem.upper[block], problem.size[block]
            if (lower, upper, size) not in tried:
                tried.add((lower, upper, size))
                floor = part.floor.copy()
                floor[lower - first : upper - first] = [valley.floor + size] * (upper - lower)
                found = yield self._place([b for b in part.blocks if b != block], first, floor)
                if found is not None:
                    return (found, (block, valley.floor))
        level = self._next_level(part, valley)
        if level is None or level + part.load[valley.section] > self.height:
            return None
        floor = part.floor.copy()
        floor[valley.section] = level
        return (yield self._place(part.blocks, first, floor))

    def _parts(self, blocks: list[int], first: int, floor: list[int]) -> list[_Part] | None:
        """Split into connected parts with raised floors; None when some section's blocks can't all fit below the top.

        Run each section as a machine: its blocks in order of their earliest offsets, which is the fastest way.
        """
        lower, upper, size = self.problem.lower, self.problem.upper, self.problem.size
        self.work += sum(upper[b] - lower[b] + 4 for b in blocks)
        if self.work > self.work_limit:
            raise _TooMuchWork
        earliest = {b: max(floor[lower[b] - first : upper[b] - first]) for b in blocks}
        finish, raised, change = [0] * len(floor), [-1] * len(floor), [0] * (len(floor) + 1)
        bare = list(range(1, len(floor) + 2))
        """Section -> one behind it that may be uncovered; those before that are not."""
        for block in sorted(blocks, key=earliest.__getitem__):
            at, units = earliest[block], size[block]
            start, stop = lower[block] - first, upper[block] - first
            finish[start:stop] = [(at if done < at else done) + units for done in finish[start:stop]]
            change[start] += units
            change[stop] -= units
            section = start
            while section < stop:
                if raised[section] < 0:
                    raised[section] = at
                following = bare[section]
                if following < stop:
                    bare[section] = stop  # all up to there is covered now
                section = following
        load = list(accumulate(change[:-1]))
        if max(finish) > self.height:
            return None
        return [
            _Part(group, lower[group[0]], raised[start:stop], load[start:stop], earliest)
            for group, start, stop in self._connected(blocks, first)
        ]

    def _connected(self, blocks: list[int], first: int) -> Iterator[tuple[list[int], int, int]]:
        """Blocks (sorted by their first section) that sections connect, with the range of these from `first` on."""
        lower, upper = self.problem.lower, self.problem.upper
        group: list[int] = []
        end = 0
        for block in blocks:
            if group and lower[block] >= end:
                yield group, lower[group[0]] - first, end - first
                group = []
            group.append(block)
            end = max(end, upper[block])
        if group:
            yield group, lower[group[0]] - first, end - first

    def _narrowest(self, part: _Part) -> _Valley:
        """The section with the fewest choices; among equals the lowest floor, then the least waste to spare."""
        lower, upper, floor = self.problem.lower, self.problem.upper, part.floor
        best: tuple[tuple[int, int, int], int, list[int]] | None = None
        left = 0
        while left < len(floor):
            level, right = floor[left], left + 1
            while right < len(floor) and floor[right] == level:
                right += 1
            if (left == 0 or floor[left - 1] > level) and (right == len(floor) or floor[right] > level):
                # The valley's walls keep every block whose earliest offset is the floor inside.
                start, stop = left + part.first, right + part.first
                inside = [b for b in part.blocks if part.earliest[b] == level and start <= lower[b] < stop]
                choices = [0] * (right - left)
                for block in inside:
                    for section in range(lower[block] - start, upper[block] - start):
                        choices[section] += 1
                for section, count in enumerate(choices, left):
                    spare = self.height - level - part.load[section]
                    rank = (count + (spare > 0), level, spare)
                    if best is None or rank < best[0]:
                        best = (rank, section, inside)
            left = right
        assert best is not None, "a skyline has a lowest floor"
        rank, section, inside = best
        here = section + part.first
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
