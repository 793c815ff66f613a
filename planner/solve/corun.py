"""Pass *corun*: which nodes run side by side, and on which lanes (Liu et al., strategy 3; strategy 4 in smt.py).

List scheduling by simulated time. Whenever lanes are idle, the three best modes of every ready node are considered,
as far as their count is within 2 of what strategies 1 and 2 chose. One that fits the idle lanes, and does not outlast
what runs, may start; the one with the fewest lanes is preferred, because it leaves lanes for more. Where none fits,
the most time-consuming ready node runs. What would lose throughput by interference does not start (interference.py).

Example, 68 lanes, 48 of them busy for 1.9 s; a ready node takes 1.5 s on 18 lanes, 1.3 s on 20 and 2.1 s on 16: it
starts on 18.

Beyond the paper (`SEARCHED`): other priorities (longest remaining path first, since gradients w.r.t. weights are off
the critical path; the memory-saving order), and *packing*, which hands the idle lanes to all ready nodes at once, each
further lane where it adds most: several gradients w.r.t. weights with few threads each may beat one with many.
`best_schedule` takes whichever ends first by simulation.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import InternalError
from planner.graph.model import Graph, Node, Program, dependencies
from planner.plan.contention import smt_factor
from planner.plan.schema import Sharing, Slowdown
from planner.solve.interference import LEAST_GAIN, Interference, Run, refusals
from planner.solve.packing_rule import pack_ready
from planner.solve.places import Places
from planner.solve.priorities import Priority, candidates, frontier, ranked
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice, Options

LOOK = 32
"""Ready nodes that are considered at a time; the paper seldom saw more than five."""

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


PUBLISHED = Rules("published")
SEARCHED = (
    PUBLISHED,
    Rules("critical path", "path"),
    Rules("memory", "memory"),
    Rules("packed", "path", packed=True),
    Rules("packed, critical path", "path", packed=True, weigh_paths=True),
)


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


def best_schedule(work: Work, rules: Sequence[Rules]) -> tuple[Schedule, Rules, float]:
    """The schedule that ends first by simulation, its rules and its end, ns; the first of `rules` wins a tie."""
    best: tuple[Schedule, Rules, float] | None = None
    for each in rules:
        loop = CoRun(work, each)
        schedule = loop.schedule()
        if best is None or loop.now < best[2]:
            best = (schedule, each, loop.now)
    if best is None:
        raise InternalError("no rules to schedule by")
    return best


class CoRun:
    """The simulated step: ready nodes, idle lanes, running nodes, and a clock."""

    def __init__(self, work: Work, rules: Rules) -> None:
        self.work, self.rules = work, rules
        self.now = 0.0
        self.running: list[Running] = []
        self.places = Places(work.lanes, work.tiles)
        self.threads = Places(work.siblings, work.tiles) if work.siblings else None
        self.core_of = {lane: i for group in (work.lanes, work.siblings) for i, lane in enumerate(group)}
        needs = dependencies(work.program)
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

    def schedule(self) -> Schedule:
        work = self.work
        for root in [n.id for n in work.order if not self.waiting[n.id]]:
            self._release(root)
        while self.ready or self.running:
            self._start_ready()
            if not self.running:
                raise InternalError(f"no ready node of {work.program.name} fits {len(work.lanes)} lanes")
            self._advance()
        slow = [Slowdown(node=n, beside=o, factor=round(f, 4)) for (n, o), f in sorted(self.together.items())]
        kept = refusals(self.refused, REFUSALS_KEPT)
        slow += [
            Slowdown(node=n, beside=o, factor=round(f, 4), refused=True)
            for n, o, f in kept
            if (n, o) not in self.together
        ]
        return Schedule(work.program.name, tuple(self.order), self.choices, self.lanes, self.spans, tuple(slow))

    # -- who starts --------------------------------------------------------------------------------------------
    def _start_ready(self) -> None:
        if self.rules.packed:
            pack_ready(self)
        else:
            while self.ready and self.places.idle and self._start_one():
                pass
        if self.threads is not None:
            from planner.solve.smt import fill_siblings

            fill_siblings(self)

    def _start_one(self) -> bool:
        """Start one ready node by the published rule; False when nothing may start before something ends."""
        _, first = self.ready[0]
        if not self.running:
            return self._try(first, self.work.base[first], must=True)
        horizon = max(r.remaining for r in self.running)
        fitting = [
            (choice.mode.slices, key, node, choice)
            for key, node in self.ready[:LOOK]
            for choice in self.candidates[node]
            if choice.mode.slices <= self.places.idle and choice.total_ns <= horizon
        ]
        tried: set[str] = set()
        for _, _, node, choice in sorted(fitting, key=lambda f: f[:2]):
            if node not in tried and self._try(node, choice, horizon=horizon):
                return True
            tried.add(node)  # a neighbour that is in the way is so with one slice more or less, too
        base = self.work.base[first]
        return base.mode.slices <= self.places.idle and first not in tried and self._try(first, base)

    def _try(self, node: str, choice: Choice, horizon: float = float("inf"), must: bool = False) -> bool:
        """Start the node unless what runs, slowed down by it, would get less done, or it outlasts `horizon` ns."""
        run = self.work.interference.run(node, choice, self.best_ns[node])
        if self.running and not must:
            runs = [r.run for r in self.running]
            together = [*runs, run]
            factors = self.work.interference.factors(together)
            if choice.total_ns * factors[-1] > horizon:
                return False
            gain = sum(r.worth / f for r, f in zip(together, factors, strict=True))
            if gain < self.work.interference.throughput(runs) + LEAST_GAIN:
                self.refuse(run, runs)
                return False
        self.start(run, choice, self.places)
        return True

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

    # -- time --------------------------------------------------------------------------------------------------
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

    def _advance(self) -> None:
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

    @property
    def _first_threads(self) -> frozenset[int]:
        return frozenset(self.work.lanes)


def _times(choices: Mapping[str, Choice]) -> dict[str, float]:
    return {n: float(c.total_ns) for n, c in choices.items()}
