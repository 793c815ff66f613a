"""Parameter updates that one launch computes together.

A network has hundreds of parameters, most of them tiny: launched one by one, their updates take longer to begin than to
run. So updates wait for each other, on a single stream, as long as nothing that is asked for meanwhile touches what
they touch; the executor then launches neighbours as one kernel. The plan's order of everything else stays, and so do
its places: an update goes no further than the next node that reads its weight or writes where its gradient lies.

    bn.backward, bn.bias.update, bn.weight.update, conv.backward_weights, conv.weight.update
    become bn.backward, conv.backward_weights, (bn.bias.update, bn.weight.update, conv.weight.update)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MOST = 64
"""Updates of one launch, as templates/runtime/cuda/updates.hpp: kMostUpdates."""
TOGETHER = frozenset({"sgd_update"})


class Span(NamedTuple):
    """Bytes of one operand that a node reads or writes."""

    pool: int
    start: int
    end: int
    write: bool


def order_together(order: Sequence[str], updates: frozenset[str], spans: Mapping[str, Sequence[Span]]) -> list[str]:
    """`order` with each of `updates` as late as it may be, at most MOST at a time. `spans`: of every node."""
    found: list[str] = []
    waiting: list[str] = []
    for node in order:
        if node in updates and len(waiting) < MOST:
            waiting.append(node)
            continue
        if node in updates or any(_collide(spans[node], spans[update]) for update in waiting):
            found += waiting
            waiting = []
        (waiting if node in updates else found).append(node)
    return found + waiting


def _collide(one: Sequence[Span], other: Sequence[Span]) -> bool:
    """Whether both touch some byte that either writes."""
    return any(
        (a.write or b.write) and a.start < b.end and b.start < a.end and a.pool == b.pool for a in one for b in other
    )
