"""The simulated step in which pass *corun* schedules: ready nodes, idle lanes, running nodes, and a clock.

Which ready node starts next is not decided here: corun.py, packing_rule.py and smt.py do, each by its rule.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.dependencies import dependencies
from planner.graph.model import Graph, Node, Program
from planner.plan.contention import smt_factor
from planner.plan.schema import Sharing, Slowdown
from planner.solve.corunning.interference import Interference, Run, refusals
from planner.solve.corunning.places import Places
from planner.solve.corunning.priorities import Priority, candidates, frontier, ranked
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice, Options

REFUSALS_KEPT = 3
"""Refused neighbours per node that the plan records."""


@dataclass(frozen=True)
class Rules:
    """One way to choose among ready nodes."""

    name: str
    priority: Priority = "time"
    packed: bool = False
    weigh_paths: bool = False
    """In packing, lanes go to nodes with long remaining paths rather than to where they add most."""


@dataclass(frozen=True)
class Work:
    """What is scheduled: one program with everything that decides its times."""

    graph: Graph
    program: Program
    order: tuple[Node, ...]
    options: Options
    base: Mapping[str, Choice]
    """node id -> what strategies 1 and 2 chose"""
    pinned: Mapping[str, int]
    lanes: tuple[int, ...]
    """The first thread of every core."""
    siblings: tuple[int, ...]
    """Further lanes, on the same cores in the same order (strategy 4); empty without it."""
    tiles: tuple[int, ...]
    """For each of `lanes` the cache that it shares."""
    interference: Interference
    sync_ns: float = 0.0

    @property
    def sharing(self) -> Sharing:
        return self.interference.sharing


@dataclass(slots=True)
class Running:
    """A node that runs in simulated time."""

    run: Run
    choice: Choice
    lanes: tuple[int, ...]
    start: float
    left: float
    """ns of work left, at the speed it has when nothing slows it down"""
    factor: float = 1.0
    cores: frozenset[int] = frozenset()
    """Cores whose other thread it may meet; only filled with strategy 4."""

    @property
    def remaining(self) -> float:
        return self.left * self.factor


class SimulatedStep:
    """What is done, what runs, and what may start."""

    def __init__(self, work: Work, rules: Rules) -> None:
        self.work, self.rules = work, rules
        self.now = 0.0
        self.running: list[Running] = []
        self.places = Places(work.lanes, work.tiles)
        self.threads = Places(work.siblings, work.tiles) if work.siblings else None
        self._first_threads = frozenset(work.lanes)
        self.core_of = {lane: i for group in (work.lanes, work.siblings) for i, lane in enumerate(group)}
        needs = dependencies(work.graph, work.program)
        self.best_ns = {n: min(c.total_ns for c in o) for n, o in work.options.items()}
        self.keys = ranked(rules.priority, work.order, needs, self.best_ns if rules.packed else _times(work.base))
        self.candidates = candidates(work.options, work.base, work.pinned)
        self.frontier = (
            {n: (work.base[n],) if n in work.pinned else frontier(o) for n, o in work.options.items()}
            if rules.packed or work.siblings
            else {}
        )
        self.node = {n.id: n for n in work.order}
        self.waiting = {n.id: len(needs[n.id]) for n in work.order}
        self.followers: dict[str, list[str]] = {n.id: [] for n in work.order}
        for node in work.order:
            for needed in needs[node.id]:
                self.followers[needed].append(node.id)
        self.ready: list[tuple[tuple[float, int], str]] = []
        self.made_on: dict[str, tuple[int, ...]] = {}
        """value -> lanes of the node that wrote it"""
        self.order: list[Node] = []
        self.choices: dict[str, Choice] = {}
        self.lanes: dict[str, tuple[int, ...]] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self.refused: dict[tuple[str, str], float] = {}
        self.together: dict[tuple[str, str], float] = {}

    def begin(self) -> None:
        """The nodes that wait for nothing are ready."""
        for root in [n.id for n in self.work.order if not self.waiting[n.id]]:
            self._release(root)

    def recorded(self) -> Schedule:
        """What was started, when and where, and what interference did to it or kept apart."""
        slow = [Slowdown(node=n, beside=o, factor=round(f, 4)) for (n, o), f in sorted(self.together.items())]
        kept = refusals(self.refused, REFUSALS_KEPT)
        slow += [
            Slowdown(node=n, beside=o, factor=round(f, 4), refused=True)
            for n, o, f in kept
            if (n, o) not in self.together
        ]
        return Schedule(self.work.program.name, tuple(self.order), self.choices, self.lanes, self.spans, tuple(slow))

    def refuse(self, run: Run, beside: Sequence[Run]) -> None:
        """Remember that interference kept two nodes apart."""
        worst = self.work.interference.worst(run, beside)
        if worst is not None:
            other, factor = worst
            self.refused.setdefault((run.node, other.node), factor)

    def start(self, run: Run, choice: Choice, places: Places) -> None:
        """Occupy lanes and run from now on."""
        node = self.node[run.node]
        largest = max(
            (v for v in node.reads if v in self.made_on),
            key=lambda v: self.work.graph.value[v].type.bytes,
            default="",
        )
        lanes = places.take(choice.mode.slices, self.made_on.get(largest, ()), choice.affinity)
        # A stage's slices meet their successors' through signals.
        took = choice.total_ns + self.work.sync_ns * len(choice.stage_ns)
        cores = frozenset(self.core_of[lane] for lane in lanes) if self.threads is not None else frozenset()
        self.running.append(Running(run, choice, lanes, self.now, took, cores=cores))
        self.ready.remove((self.keys[run.node], run.node))
        self._commit(node, choice, lanes)
        self._reconsider()

    def _commit(self, node: Node, choice: Choice, lanes: tuple[int, ...]) -> None:
        self.order.append(node)
        self.choices[node.id], self.lanes[node.id] = choice, lanes
        self.spans[node.id] = (self.now, self.now)
        for value in node.writes:
            self.made_on[value] = lanes

    def _reconsider(self) -> None:
        """What runs has changed: everybody's speed."""
        runs = [r.run for r in self.running]
        for running, factor in zip(self.running, self.work.interference.factors(runs), strict=True):
            running.factor = factor * (self.sibling_factor(running) if self.threads is not None else 1.0)
        if len(runs) > 1 and self.work.interference.has_pairs:
            for one in runs:
                for other in runs:
                    slow = self.work.interference.measured(one, other) if one is not other else None
                    if slow is not None:
                        self.together[one.node, other.node] = slow

    def sibling_factor(self, running: Running) -> float:
        """How much longer a node takes because another runs on its cores' other threads: as its slowest slice."""
        return max(
            (
                smt_factor(running.run.load.bound, other.run.load.bound, self.work.sharing)
                for other in self.running
                if other is not running and not running.cores.isdisjoint(other.cores)
            ),
            default=1.0,
        )

    def advance(self) -> None:
        """To the next end of a node."""
        step = min(r.remaining for r in self.running)
        self.now += step
        ended = []
        for running in self.running:
            if running.remaining <= step * (1 + 1e-9) + 1e-6:
                ended.append(running)
            else:
                running.left -= step / running.factor
        for running in ended:
            self.running.remove(running)
            places = self.places if running.lanes[0] in self._first_threads else self.threads
            if places is not None:
                places.release(running.lanes)
            self.spans[running.run.node] = (running.start, self.now)
        for running in ended:
            self._finished(running.run.node)
        self._reconsider()

    def _finished(self, node: str) -> None:
        for follower in self.followers[node]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                self._release(follower)

    def _release(self, node: str) -> None:
        """Make a node ready; a view needs no lane and is done at once."""
        choice = self.work.base[node]
        if choice.stage_ns:
            insort(self.ready, (self.keys[node], node))
            return
        found = self.node[node]
        made = self.made_on.get(found.inputs[0], ()) if found.inputs else ()
        self._commit(found, choice, (self.work.lanes[0],))
        for value in found.writes:
            self.made_on[value] = made
        self._finished(node)


def _times(choices: Mapping[str, Choice]) -> dict[str, float]:
    return {n: float(c.total_ns) for n, c in choices.items()}
