"""Pass *parallel_op* (MXNet's parallel operators): small sibling nodes run side by side, each whole on one lane.

Siblings are nodes of one op that come from one node, go to one node, or both. Views in between do not count; where a
node reads several values, it comes from the one made last, and it goes to its first reader. What comes from siblings
counts as coming from one node: the updates of 26 embeddings come from 26 slices of one gradient. Siblings that pass the
filters (enough of them, an op whose kernels may run beside each other, a predicted gain) start together as one parallel
operator. Every member has one slice; lanes are balanced by longest processing time first.

Example, 2 lanes, sync and contention aside; 3 embeddings from one split to one concat, each 10 ns in its best mode (two
slices) and 12, 12 and 10 ns in one slice: one after the other 30 ns, side by side 12 | 12 + 10 = 22 ns.

Unlike strategy 3 (corun.py), which decides whenever lanes fall idle, this leaves the order of everything else alone.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.graph.dependencies import dependencies
from planner.graph.model import Graph, Node
from planner.plan.contention import bandwidth_factor, load_of
from planner.plan.schema import ParallelOp, Sharing
from planner.solve.options import ParallelOps
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice, Options, rank

THREAD_SAFE = frozenset(
    {
        *("embedding", "embedding_backward", "embedding_sgd_update"),
        *("slice", "slice_backward", "split", "concat", "add_slice", "permute", "expand", "pad"),
        *("relu", "relu_backward", "leaky_relu", "leaky_relu_backward", "add", "mul", "sub", "scale"),
        *("chain", "chain_backward"),
        *("sigmoid", "sigmoid_backward", "tanh", "tanh_backward", "lstm_cell", "lstm_cell_backward"),
        *("reduce_sum", "reduce_mean", "gradient_sum", "state_update"),
        *("sgd_update", "adam_update", "rmsprop_update", "adagrad_update"),
        *("linear", "linear_backward_data", "linear_backward_weights", "matmul"),
        *("conv2d", "conv2d_backward_data", "conv2d_backward_weights", "conv_transpose2d"),
        *("conv3d", "conv3d_backward_data", "conv3d_backward_weights", "conv_transpose3d"),
        *("max_pool2d", "max_pool2d_backward", "avg_pool2d", "avg_pool2d_backward"),
    }
)
"""Ops whose kernels may run beside each other: no state but their operands, scratch of their own. Users add others
(`ParallelOps.also`)."""


@dataclass(frozen=True)
class _Work:
    """What the filters need to know."""

    modes: Options
    lanes: int
    sharing: Sharing
    rules: ParallelOps
    pinned: Mapping[str, int]


@dataclass(frozen=True)
class _Group:
    """An accepted parallel operator: how its members run, and when, from the group's start."""

    told: ParallelOp
    choices: Mapping[str, Choice]
    lane: Mapping[str, int]
    spans: Mapping[str, tuple[float, float]]


def parallel_ops(
    schedule: Schedule,
    graph: Graph,
    modes: Options,
    lanes: int,
    sharing: Sharing,
    rules: ParallelOps,
    pinned: Mapping[str, int],
) -> Schedule:
    """The schedule with every parallel operator that gains; the schedule itself where none does.

    `schedule` runs one node at a time. `modes`: every way to run a node. `pinned` nodes keep their counts.
    """
    work = _Work(modes, lanes, sharing, rules, pinned)
    units = _Units(graph, schedule)
    groups: dict[str, _Group] = {}
    while (family := next(units.siblings(rules.threshold), None)) is not None:
        source, target, members = family
        group = _group(schedule, work, units.independent(members), source, target)
        if group is not None:
            groups[units.join(group.told.nodes)] = group
        units.call_kin(members)
    return _rearranged(schedule, units, groups) if groups else schedule


class _Units:
    """The program's nodes, of which some have become one: who comes from whom, in units."""

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.position = {n.id: i for i, n in enumerate(schedule.order)}
        program = graph.program[schedule.program]
        self.node = program.node
        self.unit = {n: n for n in self.position}
        """node -> what it belongs to: itself, or the first member of its parallel operator"""
        self.members: dict[str, tuple[str, ...]] = {n: (n,) for n in self.position}
        self._kin: dict[str, str] = {}
        """node -> the first of its siblings, for those that were looked at"""
        self._tried: set[tuple[str, ...]] = set()
        self._needs = dependencies(graph, program)
        views = {n for n in self.position if not schedule.choices[n].stage_ns}
        made = _made_by(schedule.order, views)
        self._before = {n.id: {made[v] for v in n.inputs if v in made} for n in schedule.order if n.id not in views}
        self._behind: dict[str, set[str]] = {n: set() for n in self._before}
        for node, makers in self._before.items():
            for maker in makers:
                self._behind[maker].add(node)
        self._order()

    def siblings(self, threshold: int) -> Iterator[tuple[str, str, list[str]]]:
        """(node that they come from, node that they go to, siblings) of all sets that are large enough and that nobody
        looked at yet, in the order of their first nodes; those that come from one node first. Of siblings, the first
        stands for all."""
        families: dict[tuple[str, str, str], list[str]] = {}
        for node in sorted(self._before, key=lambda n: self.position[n]):
            if self.members[self.unit[node]] == (node,):
                op = self.node[node].op
                families.setdefault((op, self._source(node), ""), []).append(node)
                families.setdefault((op, "", self._target(node)), []).append(node)
        for (_, source, target), members in sorted(families.items(), key=lambda f: (not f[0][1], f[1][0])):
            if len(members) >= threshold and (source or target) and tuple(members) not in self._tried:
                yield (
                    source or _only({self._source(m) for m in members}),
                    target or _only({self._target(m) for m in members}),
                    members,
                )

    def call_kin(self, siblings: Sequence[str]) -> None:
        """These were looked at: what comes from them, or goes to them, has that in common."""
        self._tried.add(tuple(siblings))
        for node in siblings:
            self._kin.setdefault(node, siblings[0])

    def _source(self, node: str) -> str:
        """Who made the last of the values that it reads."""
        last = max(self._before[node], key=lambda n: self._at[self.unit[n]], default="")
        return self._kin.get(last, last)

    def _target(self, node: str) -> str:
        """Who first reads what it makes."""
        first = min(self._behind[node], key=lambda n: self._at[self.unit[n]], default="")
        return self._kin.get(first, first)

    def independent(self, nodes: Sequence[str]) -> list[str]:
        """Those of which none must come before another: with them joined there is still an order."""
        kept: list[str] = []
        for node in nodes:
            if not any(self._comes_before(k, node) or self._comes_before(node, k) for k in kept):
                kept.append(node)
        return kept

    def join(self, nodes: Sequence[str]) -> str:
        """Make them one unit; returns its name."""
        name = min(nodes, key=lambda n: self.position[n])
        self.members[name] = tuple(nodes)
        for node in nodes:
            self.unit[node] = name
            if node != name:
                del self.members[node]
        self._order()
        return name

    def _order(self) -> None:
        """The units in an order that their needs allow, the earliest first, and what comes before each."""
        needs = {u: {self.unit[d] for n in nodes for d in self._needs[n]} for u, nodes in self.members.items()}
        waiting = {u: len(d) for u, d in needs.items()}
        followers: dict[str, list[str]] = {u: [] for u in needs}
        for unit, found in needs.items():
            for other in found:
                followers[other].append(unit)
        ready = [(self.position[u], u) for u, count in waiting.items() if not count]
        heapq.heapify(ready)
        self.order: list[str] = []
        self._at: dict[str, int] = {}
        self._earlier: dict[str, int] = {}
        while ready:
            _, unit = heapq.heappop(ready)
            self._at[unit] = len(self.order)
            self.order.append(unit)
            earlier = 0
            for other in needs[unit]:
                earlier |= self._earlier[other] | 1 << self._at[other]
            self._earlier[unit] = earlier
            for follower in followers[unit]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (self.position[follower], follower))

    def _comes_before(self, first: str, second: str) -> bool:
        return bool(self._earlier[self.unit[second]] >> self._at[self.unit[first]] & 1)


def _only(found: set[str]) -> str:
    """The unit that all have in common; empty where they do not."""
    return next(iter(found)) if len(found) == 1 else ""


def _made_by(order: Sequence[Node], views: set[str]) -> dict[str, str]:
    """value -> the node that computed its bytes: a view of something is made by what made that."""
    made: dict[str, str] = {}
    for node in order:
        for value in node.outputs:
            if node.id not in views:
                made[value] = node.id
            elif node.inputs and node.inputs[0] in made:
                made[value] = made[node.inputs[0]]
    return made


def _group(schedule: Schedule, work: _Work, nodes: Sequence[str], source: str, target: str) -> _Group | None:
    """The parallel operator of these nodes, if they pass the filters."""
    rules = work.rules
    single = {n: min((c for c in work.modes[n] if c.mode.slices == 1), key=rank, default=None) for n in nodes}
    choices = {n: c for n, c in single.items() if c is not None and work.pinned.get(n, 1) == 1}
    op = next((node.op for node in schedule.order if node.id in choices), "")
    if len(choices) < rules.threshold or op not in THREAD_SAFE | set(rules.also):
        return None
    stretched = _beside_each_other(choices, work)
    free = [(0.0, lane) for lane in range(work.lanes)]
    lane: dict[str, int] = {}
    spans: dict[str, tuple[float, float]] = {}
    for node in sorted(choices, key=lambda n: -stretched[n]):  # stable: equals stay in order
        start, first = heapq.heappop(free)
        lane[node], spans[node] = first, (start, start + stretched[node])
        heapq.heappush(free, (spans[node][1], first))
    alone = sum(schedule.choices[n].total_ns for n in choices)
    together = max(end for _, end in spans.values())
    if together > alone * (1 - rules.least_gain):
        return None
    ordered = tuple(sorted(choices, key=lambda n: (spans[n][0], lane[n])))
    told = ParallelOp(op=op, source=source, target=target, nodes=ordered, alone_ns=alone, together_ns=round(together))
    return _Group(told, choices, lane, spans)


def _beside_each_other(choices: Mapping[str, Choice], work: _Work) -> dict[str, float]:
    """Predicted ns of each member while as many of them run as there are lanes, on average ones."""
    time = sum(c.total_ns for c in choices.values())
    moved = sum(c.traffic / 1e6 * c.total_ns for c in choices.values())
    asked = moved / max(1, time) * min(work.lanes, len(choices))
    return {
        n: c.total_ns * bandwidth_factor(load_of(c.traffic / 1e6, 1, work.sharing), asked, work.sharing)
        for n, c in choices.items()
    }


def _rearranged(schedule: Schedule, units: _Units, groups: Mapping[str, _Group]) -> Schedule:
    """Groups start together; everything else runs as before, after one another."""
    choices, lanes = dict(schedule.choices), dict(schedule.lanes)
    order: list[Node] = []
    spans: dict[str, tuple[float, float]] = {}
    now = 0.0
    for unit in units.order:
        group = groups.get(unit)
        if group is None:
            spans[unit] = (now, now + choices[unit].total_ns)
            now = spans[unit][1]
            order.append(units.node[unit])
            continue
        for node in group.told.nodes:
            choices[node], lanes[node] = group.choices[node], (group.lane[node],)
            spans[node] = (now + group.spans[node][0], now + group.spans[node][1])
            order.append(units.node[node])
        now = max(spans[n][1] for n in group.told.nodes)
    told = tuple(groups[u].told for u in units.order if u in groups)
    return replace(schedule, order=tuple(order), choices=choices, lanes=lanes, spans=spans, parallel=told)
