"""Pass *offsets*: byte offsets for blocks with lifetimes, so that blocks alive together never overlap.

Blocks that live all the time go to the bottom. The rest is packed several ways, cheapest first, until one reaches the
lower bound, the most bytes alive at once: best fit (best_fit.py), valley filling block by block and chain by chain
(valleys.py, chains.py; core_first.py leaves small blocks for the gaps), a packing without waste read off a planar graph
(tight.py), pieces joined that fit only each other (joining.py), then by turns the best so far repaired below
lower heights (ejection.py), a packing from the densest sections outwards (dense_first.py), and exact search below a
given height (exact.py), which may also prove that no packing is lower. What search may do is counted in steps, never in
seconds: the same blocks get the same offsets on every machine.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.solve.liveness import Block
from planner.solve.packing.best_fit import ORDERS, best_fit
from planner.solve.packing.chains import TASTES, fill_chains
from planner.solve.packing.core_first import core_first
from planner.solve.packing.dense_first import dense_first
from planner.solve.packing.ejection import lower_by_ejection
from planner.solve.packing.exact import Verdict, pack_below
from planner.solve.packing.joining import join
from planner.solve.packing.joints import Pieces
from planner.solve.packing.sections import Instance, height, instance
from planner.solve.packing.tight import pack_tight
from planner.solve.packing.valleys import PRIORITIES, fill_valleys, ranks
from planner.units import ALIGNMENT, Bytes, align

MANY = 2_000
"""Blocks from which small ones are left for later, and what fits is joined first: fewer can be searched."""


class Packing(NamedTuple):
    offsets: dict[str, Bytes]
    height: Bytes
    lower_bound: Bytes
    """Most aligned bytes alive at any time: no packing can be lower."""
    proven: Bytes
    """No packing is lower than this: the lower bound, or more where search found every lower height impossible."""

    @property
    def optimal(self) -> bool:
        return self.height == self.proven


class Effort(NamedTuple):
    """How much to try, in steps of the searches' innermost loops (about ten million a second)."""

    search: int = 200_000_000
    """Exact search, all heights and orders together; none at 0."""
    first_round: int = 1_000_000
    """What each search may do in the first round, at least; every round does four times as much."""
    fit: int = 60_000_000
    """Best fit: blocks times the most blocks alive at once, over all orders; the next order is left out beyond."""


QUICK = Effort(search=20_000_000)
"""For a plan: at most some seconds, and mostly none, since networks are seldom hard to pack."""
THOROUGH = Effort()
"""For a packing on its own: at most half a minute."""


def pack(
    blocks: Sequence[Block],
    alignment: int = ALIGNMENT,
    *,
    capacity: int | None = None,
    effort: Effort = QUICK,
) -> Packing:
    """Offsets for every block, each a multiple of `alignment`: as low as `effort` gets, or just below `capacity` bytes.

    Deterministic, whatever the order of `blocks`. The caller compares the height with the capacity: it may be higher,
    and if `proven` is too, then no packing fits.
    """
    offsets, rest, base = _at_the_bottom(blocks, alignment)
    if not rest:
        return Packing(offsets, Bytes(base), Bytes(base), Bytes(base))
    problem = instance(rest, alignment)
    enough = problem.load
    if capacity is not None:
        enough = max(enough, (capacity - base) // problem.unit)
    found, proven = _solve(problem, enough, effort)
    offsets.update((i, Bytes(base + at * problem.unit)) for i, at in zip(problem.ids, found, strict=True))
    return Packing(
        offsets,
        Bytes(base + height(problem, found) * problem.unit),
        Bytes(base + problem.load * problem.unit),
        Bytes(base + proven * problem.unit),
    )


def _at_the_bottom(blocks: Sequence[Block], alignment: int) -> tuple[dict[str, Bytes], list[Block], int]:
    """Offsets of empty blocks and of those that live all the time, the other blocks, and where these begin."""
    sized = [b for b in blocks if b.size]
    start, end = min((b.lower for b in sized), default=0), max((b.upper for b in sized), default=0)
    offsets = {b.id: Bytes(0) for b in blocks if not b.size}
    base = 0
    for block in sorted(sized, key=lambda b: b.id):
        if (block.lower, block.upper) == (start, end):
            offsets[block.id] = Bytes(base)
            base += align(block.size, alignment)
    return offsets, [b for b in sized if b.id not in offsets], base


@lru_cache(maxsize=4)
def _solve(problem: Instance, enough: int, effort: Effort) -> tuple[list[int], int]:
    """Offsets, and the lowest height that is not proven impossible; stops at height `enough`.

    Remembers the last ones: under a budget, the same blocks are packed for schedules that differ in times only.
    """
    best: list[int] = []
    lowest = sum(problem.size) + 1
    for offsets in _built(problem, effort):
        if height(problem, offsets) < lowest:
            best, lowest = offsets, height(problem, offsets)
        if lowest <= enough:
            return best, problem.load
    return _searched(problem, enough, best, effort)


def _built(problem: Instance, effort: Effort) -> Iterator[list[int]]:
    """Packings from heuristics, cheapest first."""
    cost = problem.blocks * _most_blocks(problem)
    affordable = list(ORDERS)[: effort.fit // cost]
    if affordable:
        yield best_fit(problem, affordable[0])
    for priority in PRIORITIES:
        yield fill_valleys(problem, priority)
    for order in affordable[1:]:
        yield best_fit(problem, order)
    work = 0
    for offsets, steps in _without_waste(problem, effort):
        work += steps
        yield offsets
    for taste in TASTES:
        if work > effort.search // 4:
            break
        offsets, steps = fill_chains(problem, taste)
        work += steps
        yield offsets
    if work <= effort.search // 2 and problem.blocks >= MANY:
        for offsets, steps in core_first(problem):
            yield offsets
            work += steps
            if work > effort.search * 3 // 4:
                break


def _without_waste(problem: Instance, effort: Effort) -> Iterator[tuple[list[int], int]]:
    """A packing where blocks take turns one for one, or of the few pieces to which such blocks can be joined; and the
    work."""
    if problem.blocks < MANY:
        tight, work = pack_tight(problem, effort.search // 4)
        if tight is not None:
            yield tight, work
            return
    pieces = join(problem, effort.search // 4)
    if pieces is None:
        return
    whole = _instance_of(pieces, problem.blocks)
    for number in filter(pieces.stacked, sorted(pieces.live)):
        pieces.take_apart(number)
    chosen = _instance_of(pieces, problem.blocks)
    packed, work = pack_tight(chosen, effort.search // 4)
    if packed is None:
        chosen = whole
        packed, _ = _solve(chosen, chosen.load, effort._replace(search=effort.search // 8))
        work += effort.search // 8
    at = {int(i): chosen.unit * offset for i, offset in zip(chosen.ids, packed, strict=True)}
    yield pieces.offsets(at, problem.blocks), pieces.work + work


def _instance_of(pieces: Pieces, blocks: int) -> Instance:
    """Of the pieces that are live, without free bytes, which are the blocks from number `blocks` on."""
    live = [(str(n), pieces.all[n]) for n in pieces.live if n < blocks or pieces.all[n].parts]
    return instance([Block(i, *piece.lifetime, Bytes(piece.size)) for i, piece in live], 1)


def _searched(problem: Instance, enough: int, best: list[int], effort: Effort) -> tuple[list[int], int]:
    """Search below lower and lower heights.

    Rounds do more and more. Each repairs what is known and tries the densest sections first; then it asks exact search
    for the goal itself, and for the middle between what is impossible (or was not found in this round) and what is
    known, until these meet.
    """
    preferences = [ranks(problem, priority) for priority in PRIORITIES]
    proven, left = problem.load, effort.search
    # A search that never goes back looks at every waiting block for each block that it places: grant that and more.
    straight = problem.blocks * sum(b - a + 4 for a, b in zip(problem.lower, problem.upper, strict=True)) // 2
    limit = max(effort.first_round, 2 * straight)
    if left < straight:
        best, _ = lower_by_ejection(problem, best, enough, left // 2)
    while left >= straight and left > 0:
        lowest = max(enough, proven)
        best, work = lower_by_ejection(problem, best, lowest, min(4 * limit, left // 2))
        left -= work
        if height(problem, best) > lowest:
            dense, work = dense_first(problem, lowest, preferences, min(16 * limit, left // 3))
            left -= work
            best = dense or best
        missed = max(enough, proven) - 1
        goal = missed + 1
        while goal < height(problem, best) and height(problem, best) > enough:
            for preference in preferences:
                result = pack_below(problem, goal, preference, min(limit, left))
                left -= result.work
                if result.verdict is not Verdict.GAVE_UP or left <= 0:
                    break
            if result.verdict is Verdict.FOUND:
                best = result.offsets
            else:
                missed = goal
                if result.verdict is Verdict.IMPOSSIBLE:
                    proven = goal + 1
            if left <= 0:
                break
            goal = (missed + height(problem, best)) // 2
            if goal <= missed:
                break
        if height(problem, best) <= max(enough, proven):
            break
        limit *= 4
    return best, proven


def _most_blocks(problem: Instance) -> int:
    """Most blocks alive at once."""
    return most_alive([Block("", a, b, Bytes(1)) for a, b in zip(problem.lower, problem.upper, strict=True)], 1)


def most_alive(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> int:
    """The largest sum of aligned sizes alive at one time."""
    events: dict[int, int] = {}
    for block in blocks:
        size = align(block.size, alignment)
        events[block.lower] = events.get(block.lower, 0) + size
        events[block.upper] = events.get(block.upper, 0) - size
    alive = most = 0
    for time in sorted(events):
        alive += events[time]
        most = max(most, alive)
    return most
