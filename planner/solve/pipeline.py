"""The passes in their order, and nothing else: graph + target + cost table in, plan out (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. `auto` plans for
unlimited memory under several policies and takes the fastest plan. Where that does not fit the budget, `budget.py`
decides what is recomputed and moved, and the plan is named after the policy that it rewrites: its bits are those of
that policy's unbudgeted plan.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Graph, Node, Program
from planner.graph.precision import require_precision
from planner.plan.schema import Plan
from planner.solve.assemble import Say, Setting, assemble
from planner.solve.budget import on_target, pareto, undominated, within_budget
from planner.solve.corun import PUBLISHED, SEARCHED, best_schedule
from planner.solve.interference import Interference
from planner.solve.options import PlanOptions
from planner.solve.parallel_op import parallel_ops
from planner.solve.places import without_unused_lanes
from planner.solve.route import route
from planner.solve.schedule import Schedule, corun_summary, one_at_a_time, parallel_summary
from planner.solve.simulated_step import Work
from planner.solve.threads import Options, choose_modes, node_options
from planner.solve.warmth import coldness
from planner.target.model import Target
from planner.units import format_bytes, format_ns

SMALL_GRAPH = 2000
"""Nodes of a graph for which `auto` plans every uniform setting, and strategy 3 as published, to the end."""
SURE = 1.04
"""Where times are measured, what runs nodes side by side must promise to end this many times sooner than what does not:
kernels are timed with nothing beside them, and smaller promises were not kept (docs/measurements.md)."""
MOST_UNIFORM = 2
"""Uniform settings that are planned to the end for a larger one."""


def make_plan(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Solve the complete static schedule of every program of the graph.

    SP1033: the graph is in bfloat16, the target has no GPU. SP1202: a node was never profiled. SP1301: the plan needs
    more memory than the budget or the pool. SP1302: a pinned decision cannot be honoured. SP1304: a value cannot be
    kept. `say` receives one line per pass.
    """
    require_precision(graph, bool(target.gpus))
    with _no_collection():
        return _within_budget(_solved(graph, target, costs, options or PlanOptions(), say))


def make_pareto(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> list[Plan]:
    """Plans from all the memory they like to as little as will do, none slower than a smaller one."""
    with _no_collection():
        candidates = _solved(graph, target, costs, options or PlanOptions(), say)
        base = _bases(candidates)[0]
        return undominated([*on_target(base.setting, [c.plan for c in candidates]), *base.pareto()])


@contextmanager
def _no_collection() -> Iterator[None]:
    """A plan of many lanes is millions of small objects without circles; looking for circles among them again and
    again would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                # Straight to the oldest generation, as if it had been looked through.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _Solved:
    """The plan for unlimited memory of one policy, and how it becomes one within the budget."""

    def __init__(self, setting: Setting, schedules: dict[str, Schedule]) -> None:
        self.setting, self.given = setting, schedules
        self._schedules, unused = without_unused_lanes(schedules, len(setting.cpus))
        self._threads = tuple(setting.siblings[i] for i in unused)
        self._plan = assemble(replace(setting, unlimited=True), self._schedules, self._threads)
        self.total_ns = sum(p.predicted_ns for p in self._plan.programs)
        self.beside = setting.options.coruns or setting.options.parallel_ops is not None
        self.fits = self._plan.pools[0].arena <= setting.capacity

    @property
    def plan(self) -> Plan:
        """As it is, within the budget or not."""
        first = self._plan.pools[0].model_copy(update={"capacity": self.setting.capacity})
        return self._plan.model_copy(update={"pools": (first, *self._plan.pools[1:])})

    def rewritten(self) -> Plan:
        self.setting.say(f"budget: {format_bytes(self.setting.capacity)} is less than "
                         f"{format_bytes(self._plan.pools[0].arena)}")  # fmt: skip
        return within_budget(self.setting, self._schedules, self._threads)

    def pareto(self) -> list[Plan]:
        return pareto(self.setting, self._schedules, self._threads)


def _within_budget(candidates: Sequence[_Solved]) -> Plan:
    """The fastest candidate if it fits; else the better of the fastest that does and the base's rewriting.

    What promised too little to be taken there is not taken here either: less memory would seem to be faster."""
    fastest = _fastest(candidates)
    if fastest.fits:
        return fastest.plan
    fitting = [c for c in candidates if c.fits and c.total_ns >= fastest.total_ns]
    plans = [min(fitting, key=lambda c: c.total_ns).plan] if fitting else []
    refused: list[UserError] = []
    for base in _bases(candidates):
        try:
            plans.append(base.rewritten())
        except UserError as error:
            if error.code != "SP1301":
                raise
            refused.append(error)
        if plans:
            break
    if not plans:
        raise refused[0]
    return min(plans, key=lambda p: sum(q.predicted_ns for q in p.programs))


def _fastest(candidates: Sequence[_Solved]) -> _Solved:
    return min(candidates, key=lambda c: c.total_ns * (SURE if c.beside and c.setting.costs.measured else 1))


def _bases(candidates: Sequence[_Solved]) -> list[_Solved]:
    """What a budget rewrites: the fastest whose nodes run one after the other, and the next where that one cannot meet
    it. Modes that are chosen to run beside others are slow alone, and what waits for its partner holds its operands."""
    alone = [c for c in candidates if not c.setting.options.coruns]
    return sorted(alone, key=lambda c: c.total_ns) or [min(candidates, key=lambda c: c.total_ns)]


class Modes(NamedTuple):
    """Every way to run every node of a program, and its nodes in an order to start from."""

    order: tuple[Node, ...]
    options: Options


def known_modes(setting: Setting) -> dict[str, Modes]:
    """program -> what every policy chooses from."""
    graph, cache = setting.graph, setting.cache
    orders = {p.name: route(graph, p) for p in graph.programs}
    for name, order in orders.items():
        setting.say(f"route: {len(order)} nodes in {name}")
    cold, lanes = coldness(graph, orders, cache), len(setting.cpus)
    return {n: Modes(o, node_options(graph, o, cold[n], setting.costs, lanes, cache)) for n, o in orders.items()}


def base_schedules(setting: Setting, modes: Mapping[str, Modes] | None = None) -> dict[str, Schedule]:
    """When and how every node of the graph runs, program by program, before memory is looked at."""
    found = modes or known_modes(setting)
    return {p.name: _schedule(setting, p, found[p.name]) for p in setting.graph.programs}


def _solved(graph: Graph, target: Target, costs: CostTable, options: PlanOptions, say: Say) -> tuple[_Solved, ...]:
    """The plans for unlimited memory that there are to choose from: one, or with `auto` many."""
    if options.policy != "auto":
        setting = Setting(graph, target, costs, options, say)
        return (_Solved(setting, base_schedules(setting)),)
    small = sum(len(p.nodes) for p in graph.programs) <= SMALL_GRAPH
    candidates = options.candidates(smt=target.logical_cpus > target.physical_cores, published=small)
    settings = [Setting(graph, target, costs, candidate, say) for candidate in candidates]
    modes = known_modes(settings[0])
    solved: dict[int, _Solved] = {}

    def solve(number: int, setting: Setting) -> None:
        schedules = base_schedules(setting, modes)
        if twin := next((s for s in solved.values() if s.given == schedules), None):
            say(f"auto: {_named(setting.options)}: as {_named(twin.setting.options)}")
            return
        end = sum(s.end_ns for s in schedules.values())
        if setting.options.coruns and costs.measured and end * SURE >= min(s.total_ns for s in solved.values()):
            say(f"auto: {_named(setting.options)}: {format_ns(end)} as scheduled, not worth it")
            return
        solved[number] = _Solved(setting, schedules)
        say(f"auto: {_named(setting.options)}: {format_ns(solved[number].total_ns)}")

    for number, setting in enumerate(settings):
        if not setting.options.coruns:
            solve(number, setting)
    # Co-running holds bytes longer: where nothing else fits, it is not worth scheduling.
    if any(s.fits for s in solved.values()):
        for number, setting in enumerate((*settings, *_promising(settings[0], modes))):
            if setting.options.coruns:
                solve(number, setting)
    return tuple(solved[number] for number in sorted(solved))


def _promising(first: Setting, modes: Mapping[str, Modes]) -> list[Setting]:
    """The uniform settings worth a whole plan: all of them for a small graph, of a large one those whose schedules
    end first."""
    found = [replace(first, options=o) for o in first.options.uniform_candidates(len(first.cpus))]
    if sum(len(p.nodes) for p in first.graph.programs) <= SMALL_GRAPH:
        return found
    silent = [replace(setting, say=lambda text: None) for setting in found]
    ends = [sum(s.end_ns for s in base_schedules(setting, modes).values()) for setting in silent]
    return [found[i] for i in sorted(range(len(found)), key=lambda i: ends[i])[:MOST_UNIFORM]]


def _named(options: PlanOptions) -> str:
    name = f"{options.policy} {','.join(map(str, options.strategies)) or '-'}"
    if options.coruns and not options.search and options.uniform is None:
        name += ", as published"
    if options.uniform is not None:
        name += f", {options.uniform} lanes each"
    return name + (" and parallel operators" if options.parallel_ops else "")


def _schedule(setting: Setting, program: Program, known: Modes) -> Schedule:
    options, lanes, (order, modes) = setting.options, len(setting.cpus), known
    pinned = {k: v for k, v in options.pins.slices.items() if k in program.node}
    choices = choose_modes(
        order,
        modes,
        lanes,
        policy=options.policy,
        strategies=options.strategies,
        pinned=pinned,
        uniform=options.uniform,
    )
    setting.say(f"threads: {options.policy}, {lanes} lanes")
    if not options.coruns:
        plain = one_at_a_time(program.name, order, choices)
        if options.parallel_ops is None:
            return plain
        together = parallel_ops(plain, program, modes, lanes, setting.sharing(), options.parallel_ops, pinned)
        setting.say(f"parallel_op: {parallel_summary(together)}")
        return together
    work = Work(
        graph=setting.graph,
        program=program,
        order=order,
        options=modes,
        base=choices,
        pinned=pinned if options.uniform is None else {n: c.mode.slices for n, c in choices.items()},
        lanes=tuple(range(lanes)),
        siblings=tuple(range(lanes, lanes + len(setting.siblings))),
        tiles=tuple(setting.tiles),
        interference=Interference(setting.graph, order, setting.costs, setting.sharing()),
        sync_ns=setting.costs.sync_ns,
    )
    schedule, rules, end = best_schedule(work, SEARCHED if options.search else (PUBLISHED,))
    setting.say(f"corun: {program.name}, {rules.name}, {format_ns(round(end))}; {corun_summary(schedule)}")
    return schedule
