"""Packings without waste, put together: thousands of blocks become a few, in seconds.

What sizes tell (joints.py) is joined first. When they tell nothing more, blocks of the same lifetime are, the least
likely accidents first, and sizes are asked again. What was joined wrongly shows in the end, because nothing fits it any
more: every piece that is left over is taken apart on trial, and stays so if fewer are left over without it.

The rest is packed as any blocks are, so one wrong joint costs little. Rectangles of 20,000 pieces become one again, or
some dozens.
"""

from planner.solve.packing.free_space import has_waste, with_free_space
from planner.solve.packing.joints import Piece, Pieces
from planner.solve.packing.sections import Instance

SURE = 0.01
"""Accidents that are expected where joints are made without looking at sizes again."""
AT_ONCE = 0.05
"""Share of the joints in doubt that are made before looking at sizes again."""
ROUNDS = 4
"""All that was guessed and fits nothing is taken apart so often."""
DEEPEST = 3
"""Parts of parts that are taken apart on trial."""
LEAST_TOLD = 0.2
"""Share of the blocks that joints which sizes tell must save: with fewer, there is waste."""


def join(problem: Instance, work_limit: int) -> Pieces | None:
    """The blocks, and free bytes as further ones (free_space.py), in fewer pieces, `Pieces.live`; None where too few
    fit each other."""
    if has_waste(problem):
        return None
    pieces = Pieces(Piece(*row) for row in zip(*with_free_space(problem), strict=True))
    blocks = len(pieces.live)
    pieces.join_sure()
    if blocks - len(pieces.live) < LEAST_TOLD * blocks:
        return None
    for _ in range(ROUNDS):
        _guess(pieces)
        if pieces.work > work_limit:
            return pieces
        for number in [n for n in sorted(pieces.live) if pieces.stacked(n)]:
            pieces.take_apart(number)
        pieces.join_sure()
    _guess(pieces)
    while pieces.work <= work_limit and _try_without(pieces, work_limit):
        pass
    return pieces


def _guess(pieces: Pieces) -> None:
    """Join what has the same lifetime, the surest first, until nothing has."""
    pieces.join_sure()
    while in_doubt := pieces.by_doubt():
        joined = 0
        for doubt, lifetime in in_doubt:
            if doubt > SURE and joined >= max(1, AT_ONCE * len(in_doubt)):
                break
            there = sorted(pieces.together[lifetime])
            joined += len(there) > 1 and pieces.join_above(there)
        if not joined:
            return
        pieces.join_sure()


def _try_without(pieces: Pieces, work_limit: int) -> bool:
    """Take one piece after another apart, deeper and deeper; whether that left fewer pieces."""
    before = len(pieces.live)
    for depth in range(1, DEEPEST + 1):
        for number in sorted(pieces.live, key=lambda n: (not pieces.stacked(n), n)):
            if number not in pieces.live or not pieces.all[number].parts:
                continue
            known = sorted(pieces.live)
            layer = [number]
            for _ in range(depth):
                layer = [n for n in layer if pieces.all[n].parts]
                pieces.avoided.update(tuple(part for part, _ in pieces.all[n].parts) for n in layer)
                layer = [part for n in layer for part in pieces.take_apart(n)]
            _guess(pieces)
            pieces.avoided.clear()
            _guess(pieces)
            if len(pieces.live) >= len(known):
                pieces.put_back(known)
            if pieces.work > work_limit:
                return False
        if len(pieces.live) < before:
            return True
    return False
