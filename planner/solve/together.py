"""Pass *together*: on a GPU, nodes that one launch can compute (`Op.joint_launch`) stand next to each other.

A network has hundreds of parameters, most of them tiny: launched one by one, what is done to each takes longer to begin
than to run. There are two kinds of nodes that may run somewhere else:

    updates           nobody reads what they change before the next step, so they may run later. All that this costs is
                      that their gradients stay longer
    working copies    of parameters (`round_weights`), which are there from the start, so they may be made earlier. All
                      that this costs is the copies' own bytes

Both are free where fewer bytes are alive than at the peak. So each waits for others for as long as the bytes alive at
every node, with those that wait, are no more than the order needs anyway, and nobody touches what they touch. Then all
that wait run, in one launch:

    bn.backward, bn.bias.update, bn.weight.update, conv.backward_weights, conv.weight.update
    become bn.backward, conv.backward_weights, bn.bias.update, bn.weight.update, conv.weight.update

Working copies are collected in the same way from the end of the order to its start. To wait for as long as possible and
then to run all that wait makes the fewest launches there are within those bytes, but for what one launch can take.
Where nodes or copies between pools run side by side an order is also a time, and stays as it is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from planner.graph.model import PERSISTENT, Graph, Node
from planner.ops.base import op_named
from planner.solve.liveness import Block, Liveness, liveness, scratch_id
from planner.solve.schedule import Schedule
from planner.units import align

SHARES = (1.0, 0.99, 0.97, 0.9)
"""Of the peak, up to which bytes may wait: tried in turn, since what is as full for long is harder to pack."""


def together(
    graph: Graph,
    schedules: Mapping[str, Schedule],
    keep: Collection[str] = (),
    elsewhere: Collection[str] = (),
    share: float = 1.0,
) -> dict[str, Schedule]:
    """The schedules with such nodes next to each other, their peak no higher. `keep`: values that stay until their
    program ends; `elsewhere`: blocks outside the first pool. `share`: of the peak, beyond which nothing waits."""
    parameters = {v.id for v in graph.values if v.role in PERSISTENT}

    def early(node: Node) -> bool:
        return bool(node.outputs) and parameters.issuperset(node.reads)

    def late(node: Node) -> bool:
        return not node.outputs

    found = dict(schedules)
    for may_wait, backwards in ((early, True), (late, False)):
        memory, start = _Memory(liveness(graph, found, keep), elsewhere, share), 0
        for program in graph.programs:  # positions count over all programs, as in liveness.py
            schedule = found[program.name]
            if _one_after_the_other(schedule):
                found[program.name] = replace(schedule, order=_gathered(schedule, memory, start, may_wait, backwards))
            start += len(schedule.order) + 1
    return found


def _one_after_the_other(schedule: Schedule) -> bool:
    """Whether all nodes run on one stream, so that their order says no more than what comes before what."""
    return not schedule.spans and len({schedule.lanes[n.id] for n in schedule.order}) == 1


class _Memory:
    """Bytes of the first pool: how many are alive at every position, and may be; from when to when those of each
    block."""

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

    def fits(self, waiting: Collection[str], at: int) -> bool:
        """Whether there is room at a position for those of some blocks that would not be alive there."""
        found = [self.blocks[r] for r in waiting if r in self.blocks]
        more = sum(align(b.size) for b in found if not b.lower <= at < b.upper)
        return self.alive[at] + more <= self.most


def _gathered(
    schedule: Schedule, memory: _Memory, start: int, may_wait: Callable[[Node], bool], backwards: bool
) -> tuple[Node, ...]:
    """The order in which nodes that may wait run as late as they may, or, `backwards`, as early."""
    nodes: Iterable[tuple[int, Node]] = enumerate(schedule.order, start)
    order: list[Node] = []
    waiting: list[Node] = []
    touched: set[str] = set()
    changed: set[str] = set()
    for at, node in reversed([*nodes]) if backwards else nodes:
        own_scratch = scratch_id(schedule.program, node.id) in memory.blocks
        most = 0 if own_scratch or not may_wait(node) else op_named(node.op).joint_launch
        touches, writes = memory.roots((*node.reads, *node.writes)), memory.roots(node.writes)
        collides = touches & changed or writes & touched
        full = most and sum(n.op == node.op for n in waiting) == most
        if waiting and (collides or full or not (most or memory.fits(touched, at))):
            order += _by_op(waiting)
            waiting, touched, changed = [], set(), set()
        if most:
            waiting.append(node)
            touched |= touches
            changed |= writes
        else:
            order.append(node)
    order += _by_op(waiting)
    return tuple(reversed(order) if backwards else order)


def _by_op(nodes: Sequence[Node]) -> list[Node]:
    """A launch is for one op: in the order of each op's first node."""
    first = {op: at for at, op in reversed([*enumerate(n.op for n in nodes)])}
    return sorted(nodes, key=lambda n: first[n.op])
