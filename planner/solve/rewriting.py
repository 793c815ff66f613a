"""From a rewrite to a schedule: the added nodes take their places in the order, their modes and their lanes.

Recomputations run as late as possible, right before their first reader, in the mode of the original (same bits).
Transfers run on copy lanes, one per link, beside the nodes. Their place in the order says from when to when memory is
held, because lifetimes are counted in places:

    offload    its *latest end*: the value's bytes are free for others from there on
    prefetch   its *earliest start*: the bytes it fills are taken from there on

Each moves away from its neighbour by as many nodes as the copy takes, behind or in front of the other copies on its
link. With `overlap` off they stay where they are: least memory, but the lanes wait for the copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.costs.table import CostTable
from planner.graph.dependencies import view_roots
from planner.graph.model import Attrs, Graph, Node, TensorType
from planner.ops.base import Again, Mode, Signature, op_named
from planner.ops.device import device_mode, dims_of
from planner.plan.expand import RECOMPUTE, TRANSFER, woven
from planner.plan.schema import Rewrite, Transfer
from planner.solve.route import route
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice, rank
from planner.target.model import Target

_BY_THREAD = Mode("loops", "elements", 1)

Link = tuple[str, str]
"""(from pool, to pool)"""


@dataclass(frozen=True)
class Copies:
    """How fast values move between pools, and on which lane."""

    lanes: Mapping[Link, int]
    speed: Mapping[Link, float]
    """Bytes per ns that cross while one thread copies."""
    mode: Mode = _BY_THREAD

    def choice(self, link: Link, size: int) -> Choice:
        took = max(1, round(size / self.speed[link]))
        return Choice(self.mode, {}, (took,), round(2e6 * size / took))


def links_of(rewrites: Mapping[str, Rewrite]) -> tuple[Link, ...]:
    return tuple(sorted({(t.from_pool, t.to_pool) for r in rewrites.values() for t in r.transfers}))


def copies_of(links: Sequence[Link], target: Target, costs: CostTable, first_lane: int) -> Copies:
    """One lane per link, from `first_lane` on. A GPU's copy engines move what the link carries; elsewhere a copy is one
    thread's: it moves at most half of what that thread can read plus write."""
    lanes = {link: first_lane + i for i, link in enumerate(links)}
    if target.gpus:
        return Copies(lanes, {x: target.link_bandwidth(*x) / 1e9 for x in links}, device_mode(op_named("offload")))
    thread = (costs.thread_bandwidth or target.cpu.thread_bandwidth) / 2
    speed = {link: min(target.link_bandwidth(*link), thread) / 1e9 for link in links}
    return Copies(lanes, speed)


def calm(graph: Graph, schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """Without co-running: it starts nodes early that hold their results, and late those that free their operands.
    Slices on different lanes may still run side by side, but lifetimes do not count on it."""
    program = graph.program
    return {
        name: Schedule(name, route(graph, program[name]), s.choices, s.lanes) if s.spans else s
        for name, s in schedules.items()
    }


def rescheduled(
    graph: Graph,
    larger: Graph,
    base: Schedule,
    rewrite: Rewrite,
    costs: CostTable,
    copies: Copies,
    *,
    overlap: bool = True,
) -> Schedule:
    """`base` is the schedule of the graph's own program; `larger` the expanded graph. Nodes no longer co-run: their
    predicted times side by side are void once others run between them (beside.py predicts them anew)."""
    known = larger.program[base.program].node
    added = [n for n in larger.program[base.program].nodes if n.phase in (RECOMPUTE, TRANSFER)]
    recomputed = {r.node: r.of for r in rewrite.recomputes}
    roots = view_roots(graph, graph.program[base.program])
    order = woven([known[n.id] for n in base.order], added, recomputed, roots)
    moved = {t.node: t for t in rewrite.transfers}
    choices, lanes = dict(base.choices), dict(base.lanes)
    for node in added:
        if node.id in moved:
            transfer = moved[node.id]
            link = (transfer.from_pool, transfer.to_pool)
            choices[node.id] = copies.choice(link, larger.value[transfer.makes].type.bytes)
            lanes[node.id] = (copies.lanes[link],)
        else:
            of = recomputed[node.id]
            choices[node.id] = _again(larger, node, graph.program[base.program].node[of], base.choices[of], costs)
            lanes[node.id] = base.lanes[of][: choices[node.id].mode.slices]
    if overlap and moved:
        order = _apart(order, moved, choices)
    return Schedule(base.program, order, choices, lanes)


def _again(larger: Graph, node: Node, original: Node, choice: Choice, costs: CostTable) -> Choice:
    """The original's mode and time; another op than the original's is timed on its own where it was measured."""
    if node.op == original.op:
        return choice
    return again_choice(node.op, node.attrs, larger.types(node.inputs), larger.types(node.outputs), choice, costs)


def again_ns(graph: Graph, node: Node, again: Again, choice: Choice, costs: CostTable) -> float:
    """Time of running a node of the graph again whose own run is `choice`."""
    if again.op != node.op:
        types = graph.types(again.inputs)
        choice = again_choice(again.op, again.attrs, types, types[:1], choice, costs)
    return float(choice.total_ns)


def again_choice(
    op: str,
    attrs: Attrs,
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    original: Choice,
    costs: CostTable,
) -> Choice:
    """How an op runs that stands in for the one of `original`: in as many slices."""
    signature = Signature(op, attrs, inputs, outputs)
    measured = [
        Choice(e.mode, e.facts, tuple(map(round, e.cold_ns)), original.traffic)
        for e in costs.modes(signature.text)
        if e.slices == original.mode.slices
    ]
    if measured:
        return min(measured, key=rank)
    # The last stage of the original walks the same rows: a batch norm's, once its sums are there.
    ((kernel, dim),) = dims_of(op_named(op), signature, original.mode.kernel)
    return Choice(Mode(kernel, dim, original.mode.slices), {}, original.stage_ns[-1:], original.traffic)


def _apart(order: Sequence[Node], moved: Mapping[str, Transfer], choices: Mapping[str, Choice]) -> tuple[Node, ...]:
    """Offloads end, and prefetches start, as far from what they follow or precede as their copy takes."""
    work = [n for n in order if n.id not in moved]
    starts, now = [], 0
    for node in work:
        starts.append(now)
        now += choices[node.id].total_ns
    starts.append(now)
    place: dict[str, int] = {}
    """transfer -> number of the work node in front of which it stands in `order`"""
    passed = 0
    for node in order:
        if node.id in moved:
            place[node.id] = passed
        else:
            passed += 1
    done: dict[str, int] = {}
    """instance in a slower pool -> number of the work node by whose start it is there"""
    free: dict[Link, int] = {}
    for node in (n for n in order if n.op == "offload" and n.id in moved):
        transfer = moved[node.id]
        link = (transfer.from_pool, transfer.to_pool)
        end = max(starts[place[node.id]], free.get(link, 0)) + choices[node.id].total_ns
        free[link] = end
        last = len(work)
        place[node.id] = next((i for i in range(place[node.id], last) if starts[i] >= end), last)
        done[transfer.makes] = place[node.id]
    free.clear()
    for node in reversed([n for n in order if n.op == "prefetch" and n.id in moved]):
        transfer = moved[node.id]
        link = (transfer.from_pool, transfer.to_pool)
        deadline = place[node.id]
        start = min(starts[deadline], free.get(link, now)) - choices[node.id].total_ns
        free[link] = start
        first = next((i for i in range(deadline, 0, -1) if starts[i] <= start), 0)
        earliest = done.get(transfer.value, 0)
        if deadline < earliest:  # it is wanted before its offload is over: no overlap is to be had
            place[_offload_of(transfer, moved)] = deadline
            earliest = deadline
        place[node.id] = max(first, earliest)
    groups: dict[int, list[Node]] = {}
    for kind in ("offload", "prefetch"):
        for node in order:
            if node.op == kind and node.id in moved:
                groups.setdefault(place[node.id], []).append(node)
    result: list[Node] = []
    for number, node in enumerate(work):
        result += groups.get(number, ())
        result.append(node)
    return (*result, *groups.get(len(work), ()))


def _offload_of(prefetch: Transfer, moved: Mapping[str, Transfer]) -> str:
    return next(t.node for t in moved.values() if t.makes == prefetch.value)
