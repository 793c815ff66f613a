"""Measures how much two nodes slow each other down: plan, time the pairs that the plan runs side by side, plan again.

For every pair three programs run in turn, on cold memory and on the lanes that the plan would use: each node alone,
and both together, the shorter one several times in a row so that both last about as long. What a pair loses is
recorded whether the planner likes it or not; what loses is not run side by side again.

Pairs that slow each other down are visited again after all others, up to three times, for the reason in
codegen/profile.py: taking turns does not help where a host runs two virtual processors on one core, which a node on one
lane does not feel and two nodes on two lanes do. The visit that took least time counts, with all of its runs: a factor
is never from two visits.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from codegen.facts import facts
from codegen.measure import Bench, Progress
from codegen.profile_cases import Case, Memory, Programs, case_node
from planner.costs.table import Beside, CoRun, CostTable
from planner.graph.model import Graph, Node
from planner.ops.base import Mode
from planner.ops.signature import signature_of
from planner.plan.expand import TRANSFER, expanded
from planner.plan.schema import NodePlan, Plan, ProgramPlan
from planner.plan.simulate import replay
from planner.report.events import node_spans
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target

ROUNDS = 3
"""Plans whose pairs are measured: a plan that avoids the losers of the last may want others."""
MOST_PAIRS = 12
"""Pairs per round, those that overlap longest."""
MOST_COPIES = 4
"""Repetitions of the shorter node of a pair."""
REPETITIONS = (2, 15)
"""(least, most)"""
LONG_NS = 1.5e9
"""Nodes that took this long alone, all repetitions together, are not timed again."""
LARGEST_FACTOR = 20.0
LEAST_OVERLAP = 0.3
"""Of the shorter one's time: below, a pair was not really side by side."""
HARMLESS = 1.1
"""Pairs whose factors are below need no second visit: a disturbance hits two lanes more than one, so it would show."""
MORE_VISITS = 3

Key = tuple[str, Mode]


class Pair(NamedTuple):
    """Two nodes to time side by side; the smaller key first."""

    first: Case
    second: Case
    copies: tuple[int, int]

    @property
    def key(self) -> tuple[Key, Key]:
        return (self.first.signature.text, self.first.mode), (self.second.signature.text, self.second.mode)


class PairTime(NamedTuple):
    """Of two nodes, each repeated so that both last about as long; ns."""

    alone: tuple[float, float]
    beside: tuple[float, float]
    overlap: float

    @property
    def total(self) -> float:
        return sum(self.alone) + sum(self.beside)

    @property
    def factors(self) -> tuple[float, float]:
        """How much longer each takes beside the other."""
        if self.overlap <= LEAST_OVERLAP * min(self.beside):
            return 1.0, 1.0  # over before the other has begun: nothing to see
        first, second = (slowdown(a, b, self.overlap) for a, b in zip(self.alone, self.beside, strict=True))
        return first, second

    @property
    def gain(self) -> float:
        """Time one after the other / time side by side: what Liu et al.'s table VII reports."""
        return sum(self.alone) / max(1e-9, sum(self.beside) - self.overlap)


def profile_pairs(
    graphs: Sequence[Graph],
    target: Target,
    table: CostTable,
    *,
    options: PlanOptions | None = None,
    budget_s: float | None = None,
    progress: Progress = lambda what, done, total: None,
    save: Callable[[CostTable], None] = lambda table: None,
) -> CostTable:
    """The table with the slow-downs of the pairs that plans of these graphs run side by side.

    `budget_s`: no round starts later than that. Nothing happens on one lane, or where no plan co-runs.
    """
    options = options or PlanOptions()
    cpus = target.lanes(options.lanes)
    begun = time.monotonic()
    for _ in range(ROUNDS if len(cpus) > 1 else 0):
        wanted: dict[tuple[Key, Key], Pair] = {}
        for graph in graphs:
            wanted |= {p.key: p for p in wanted_pairs(graph, make_plan(graph, target, table, options), table)}
        if not wanted:
            break
        pairs = [wanted[key] for key in sorted(wanted)]
        table = table.with_coruns(_measure(pairs, target, cpus, progress))
        save(table)
        if budget_s is not None and time.monotonic() - begun > budget_s:
            break
    return table


def wanted_pairs(graph: Graph, plan: Plan, table: CostTable) -> list[Pair]:
    """The pairs of (signature, mode) that overlap longest in the plan's replay and were never timed."""
    run = expanded(graph, plan)
    return [
        _pair(run, run.program[program].node, plan.program[program], first, second)
        for program, first, second in longest_overlaps(graph, plan, table)
    ]


def longest_overlaps(graph: Graph, plan: Plan, table: CostTable) -> list[tuple[str, str, str]]:
    """(program, node, node), the node of the smaller key first, of the pairs that overlap longest and were never
    timed: one for each pair of (signature, mode). What runs again is among them, copies between pools are not."""
    run = expanded(graph, plan)
    overlap: dict[tuple[Key, Key], float] = {}
    found: dict[tuple[Key, Key], tuple[str, str, str]] = {}
    for program in plan.programs:
        nodes = run.program[program.name].node
        keys: dict[str, Key] = {
            n.node: (signature_of(run, nodes[n.node]).text, n.mode)
            for n in program.nodes
            if nodes[n.node].phase != TRANSFER
        }
        spans = node_spans(replay(plan, program, sync_ns=table.sync_ns).rows())
        lanes = {n: frozenset(at) for n, at in _lanes_of(program).items()}
        open_: list[tuple[float, str]] = []
        for start, end, name in sorted((s, e, n) for n, (s, e) in spans.items() if n in keys):
            open_ = [o for o in open_ if o[0] > start]
            for other_end, other in open_:
                first, second = sorted((name, other), key=keys.__getitem__)
                key = (keys[first], keys[second])
                # Nodes that follow each other on a lane overlap by a slice; they do not run side by side.
                if key not in table.pairs and lanes[name].isdisjoint(lanes[other]):
                    found[key] = (program.name, first, second)
                    overlap[key] = overlap.get(key, 0.0) + min(end, other_end) - start
            open_.append((end, name))
    longest = sorted(overlap, key=lambda k: (-overlap[k], k))[:MOST_PAIRS]
    return [found[k] for k in longest]


def _lanes_of(program: ProgramPlan) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for lane, entries in enumerate(program.lanes):
        for entry in entries:
            found.setdefault(entry.run.rpartition("/")[0], []).append(lane)
    return found


def _pair(graph: Graph, nodes: Mapping[str, Node], program: ProgramPlan, a: str, b: str) -> Pair:
    cases = []
    for name in (a, b):
        signature, mode = signature_of(graph, nodes[name]), program.node[name].mode
        cases.append((signature.text, mode, Case(signature, mode, facts(signature, mode)), program.node[name]))
    (_, _, first, one), (_, _, second, other) = sorted(cases, key=lambda c: c[:2])
    ratio = max(1, one.predicted_ns) / max(1, other.predicted_ns)
    copies = (max(1, min(MOST_COPIES, round(1 / ratio))), max(1, min(MOST_COPIES, round(ratio))))
    return Pair(first, second, copies)


def _measure(pairs: Sequence[Pair], target: Target, cpus: Sequence[int], progress: Progress) -> list[CoRun]:
    with tempfile.TemporaryDirectory(prefix="stepplan-pairs-") as folder:
        bench = PairBench(pairs, target, cpus, Path(folder) / "pairs")
        times = visit_pairs(bench, len(pairs), progress)
        bench.close()
    found = []
    for pair, (one, other) in zip(pairs, (t.factors for t in times), strict=True):
        found.append(CoRun(first=beside(pair.first, one), second=beside(pair.second, other)))
    return found


def beside(case: Case, factor: float) -> Beside:
    """One of a measured pair, as the cost table has it."""
    mode = case.mode
    return Beside(
        signature=case.signature.text,
        kernel=mode.kernel,
        dim=mode.dim,
        slices=mode.slices,
        implementation=mode.implementation,
        factor=round(factor, 3),
    )


class PairBench(Bench):
    """An executor with three programs per pair: the first alone, the second alone, both."""

    def __init__(self, pairs: Sequence[Pair], target: Target, cpus: Sequence[int], folder: Path) -> None:
        super().__init__((), target, cpus, folder)
        self._pairs = pairs
        self._open(pair_programs(pairs, target, cpus), folder)

    def visit(self, number: int) -> PairTime:
        """Medians of a few rounds, in each of which everything runs once."""
        pair, footprint = self._pairs[number], self._footprints[3 * number + 2]
        split, replicas = pair.first.mode.slices, self._replicas(footprint)
        self._fill(footprint, replicas)
        alone: tuple[list[float], list[float]] = ([], [])
        beside: tuple[list[float], list[float]] = ([], [])
        overlaps: list[float] = []
        for repetition in range(REPETITIONS[1]):
            for which in (0, 1):
                place = self._place(3 * repetition + which, footprint.bytes, replicas, cold=True)
                begin, end = self._span(3 * number + which, place, slice(None))
                alone[which].append(end - begin)
            place = self._place(3 * repetition + 2, footprint.bytes, replicas, cold=True)
            self._native.run_shifted(self._handle, 3 * number + 2, place)
            one = self._last_span(3 * number + 2, slice(0, split))
            other = self._last_span(3 * number + 2, slice(split, None))
            beside[0].append(one[1] - one[0])
            beside[1].append(other[1] - other[0])
            overlaps.append(min(one[1], other[1]) - max(one[0], other[0]))
            if repetition + 1 >= REPETITIONS[0] and sum(alone[0]) + sum(alone[1]) > LONG_NS:
                break
        return PairTime((median(alone[0]), median(alone[1])), (median(beside[0]), median(beside[1])), median(overlaps))

    def _span(self, program: int, shift: int, lanes: slice) -> tuple[float, float]:
        self._native.run_shifted(self._handle, program, shift)
        return self._last_span(program, lanes)

    def _last_span(self, program: int, lanes: slice) -> tuple[float, float]:
        spans = [s for lane in self._native.spans(self._handle, program)[lanes] for s in lane]
        return float(min(s for s, _ in spans)), float(max(e for _, e in spans))


def visit_pairs(bench: PairBench, count: int, progress: Progress = lambda what, done, total: None) -> list[PairTime]:
    """The less disturbed visit of each of the bench's pairs."""
    times: list[PairTime] = []
    for number in range(count):
        progress("timing pairs", number, count)
        times.append(bench.visit(number))
    for _ in range(MORE_VISITS):
        again = [number for number, best in enumerate(times) if max(best.factors) >= HARMLESS]
        for done, number in enumerate(again):
            progress("timing pairs again", done, len(again))
            times[number] = min(times[number], bench.visit(number), key=lambda visit: visit.total)
    return times


def slowdown(alone: float, beside: float, overlap: float) -> float:
    """From the whole duration to the time while both ran: alone + overlap x (1 - 1 / factor) = beside.

    A neighbour makes nothing faster: a factor below 1 is noise."""
    lost = min(1 - 1 / LARGEST_FACTOR, max(0.0, (beside - alone) / overlap))
    return 1 / (1 - lost)


def pair_programs(pairs: Sequence[Pair], target: Target, cpus: Sequence[int]) -> Programs:
    """Three programs per pair (first alone, second alone, both), all on the same memory."""
    programs = Programs("pairs", target, cpus)
    for number, pair in enumerate(pairs):
        memory = Memory(target.memory.name)
        split = pair.first.mode.slices
        made: list[list[tuple[Node, NodePlan, int]]] = []
        for which, case in enumerate((pair.first, pair.second)):
            names = [f"pair{number}.{'ab'[which]}{copy}" for copy in range(pair.copies[which])]
            made.append([(*case_node(name, case, memory), split if which else 0) for name in names])
        programs.hold(memory)
        for nodes in (made[0], made[1], made[0] + made[1]):
            programs.add(nodes, memory.footprint)
    return programs
