"""Pass *together*: on a GPU, nodes that one launch can compute (`Op.joint_launch`) stand next to each other.

A network has hundreds of parameters, most of them tiny: launched one by one, their updates take longer to begin than to
run. Nobody reads what an update changes before the next step, so it may wait for others. All that this costs is that
its gradient stays, which is free where other bytes have died since the peak: so updates wait for as long as the bytes
alive at every node, with the gradients that wait, are no more than the order needs anyway, and nobody touches what they
touch. Then all that wait run, in one launch:

    bn.backward, bn.bias.update, bn.weight.update, conv.backward_weights, conv.weight.update
    become bn.backward, conv.backward_weights, bn.bias.update, bn.weight.update, conv.weight.update

To run all that wait, as late as possible, makes the fewest launches there are within those bytes, but for what one
launch can take. Where nodes or copies between pools run side by side an order is also a time, and stays as it is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from planner.graph.model import Graph, Node
from planner.ops.base import op_named
from planner.solve.liveness import Block, Liveness, scratch_id
from planner.solve.schedule import Schedule
from planner.units import align

SHARES = (1.0, 0.99, 0.97, 0.9)
"""Of the peak, up to which bytes may wait: tried in turn, since what is as full for long is harder to pack."""


def together(
    graph: Graph,
    schedules: Mapping[str, Schedule],
    live: Liveness,
    elsewhere: Collection[str] = (),
    share: float = 1.0,
) -> dict[str, Schedule]:
    """The schedules with such nodes next to each other, their peak no higher. `live`: what is alive when, as scheduled.
    `elsewhere`: blocks outside the first pool. `share`: of the peak, beyond which nothing waits."""
    memory = _Memory(live, elsewhere, share)
    found, start = {}, 0
    for program in graph.programs:  # positions count over all programs, as in liveness.py
        schedule = schedules[program.name]
        found[program.name] = schedule
        if _one_after_the_other(schedule):
            found[program.name] = replace(schedule, order=_with_late_updates(schedule, memory, start))
        start += len(schedule.order) + 1
    return found


def _one_after_the_other(schedule: Schedule) -> bool:
    """Whether all nodes run on one stream, so that their order says no more than what comes before what."""
    return not schedule.spans and len({schedule.lanes[n.id] for n in schedule.order}) == 1


class _Memory:
    """Bytes of the first pool: how many are alive at every position, and may be; until when those of each block."""

    def __init__(self, live: Liveness, elsewhere: Collection[str], share: float) -> None:
        self.root = live.root
        self.blocks: dict[str, Block] = {b.id: b for b in live.blocks if b.id not in elsewhere}
        change = [0] * (1 + max((b.upper for b in live.blocks), default=0))
        for block in self.blocks.values():
            change[block.lower] += align(block.size)
            change[block.upper] -= align(block.size)
        self.alive = list(accumulate(change))
        self.most = int(share * max(self.alive))

    def roots(self, values: Sequence[str]) -> set[str]:
        return {self.root[v] for v in values}

    def longer(self, roots: Collection[str], at: int) -> int:
        """Bytes of blocks that nobody needs any more at a position."""
        dead = (self.blocks[r] for r in roots if r in self.blocks and self.blocks[r].upper <= at)
        return sum(align(b.size) for b in dead)


def _with_late_updates(schedule: Schedule, memory: _Memory, start: int) -> tuple[Node, ...]:
    order: list[Node] = []
    waiting: list[Node] = []
    read: set[str] = set()
    changed: set[str] = set()
    for at, node in enumerate(schedule.order, start):
        most = _waits(schedule, node, memory)
        touches, writes = memory.roots((*node.reads, *node.writes)), memory.roots(node.writes)
        collides = touches & changed or writes & read
        full = most and sum(n.op == node.op for n in waiting) == most
        if waiting and (collides or full or (not most and memory.alive[at] + memory.longer(read, at) > memory.most)):
            order += _by_op(waiting)
            waiting, read, changed = [], set(), set()
        if most:
            waiting.append(node)
            read |= touches
            changed |= writes
        else:
            order.append(node)
    return (*order, *_by_op(waiting))


def _waits(schedule: Schedule, node: Node, memory: _Memory) -> int:
    """How many such nodes one launch takes, of a node that may wait: it makes nothing that others wait for."""
    own = scratch_id(schedule.program, node.id) in memory.blocks
    return 0 if node.outputs or own else op_named(node.op).joint_launch


def _by_op(nodes: Sequence[Node]) -> list[Node]:
    """A launch is for one op: in the order of each op's first node."""
    first = {op: at for at, op in reversed([*enumerate(n.op for n in nodes)])}
    return sorted(nodes, key=lambda n: first[n.op])
