"""The passes in their order, and nothing else: graph + target + cost table in, plan out (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. Where the plan for
unlimited memory does not fit the budget, `budget.py` decides what is recomputed and moved.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from planner.costs.table import CostTable
from planner.errors import InternalError
from planner.graph.model import Graph, Program
from planner.plan.schema import Plan
from planner.solve.assemble import Say, Setting, assemble
from planner.solve.budget import pareto, within_budget
from planner.solve.corun import PUBLISHED, SEARCHED, Work, best_schedule
from planner.solve.interference import Interference
from planner.solve.options import PlanOptions
from planner.solve.parallel_op import parallel_ops
from planner.solve.places import without_unused_lanes
from planner.solve.route import route
from planner.solve.schedule import Schedule, corun_summary, one_at_a_time, parallel_summary
from planner.solve.threads import choose_modes, node_options
from planner.target.model import Target
from planner.units import format_bytes, format_ns


def make_plan(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Solve the complete static schedule of every program of the graph.

    SP1202: a node was never profiled. SP1301: the plan needs more memory than the budget or the pool.
    SP1302: a pinned decision cannot be honoured. SP1304: a value cannot be kept. `say` receives one line per pass.
    """
    with _no_collection():
        return _solved(graph, target, costs, options or PlanOptions(), say).within_budget()


def make_pareto(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> list[Plan]:
    """Plans from all the memory they like to as little as will do, none slower than a smaller one."""
    with _no_collection():
        return _solved(graph, target, costs, options or PlanOptions(), say).pareto()


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
            gc.enable()


class _Solved:
    """The plan for unlimited memory, and how it becomes one within the budget."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._schedules, unused = without_unused_lanes(base_schedules(setting), len(setting.cpus))
        self._threads = tuple(setting.siblings[i] for i in unused)
        self._plan = assemble(replace(setting, unlimited=True), self._schedules, self._threads)
        self.total_ns = sum(p.predicted_ns for p in self._plan.programs)

    def within_budget(self) -> Plan:
        setting, first = self._setting, self._plan.pools[0]
        if first.arena > setting.capacity:
            setting.say(f"budget: {format_bytes(setting.capacity)} is less than {format_bytes(first.arena)}")
            return within_budget(setting, self._schedules, self._threads)
        fits = first.model_copy(update={"capacity": setting.capacity})
        return self._plan.model_copy(update={"pools": (fits, *self._plan.pools[1:])})

    def pareto(self) -> list[Plan]:
        return pareto(self._setting, self._schedules, self._threads)


def base_schedules(setting: Setting) -> dict[str, Schedule]:
    """When and how every node of the graph runs, program by program, before memory is looked at."""
    return {p.name: _schedule(setting, p) for p in setting.graph.programs}


def _solved(graph: Graph, target: Target, costs: CostTable, options: PlanOptions, say: Say) -> _Solved:
    """`auto`: the candidate with the least predicted time, before memory is looked at; a budget rewrites that one, so
    that what it computes stays the same to the bit."""
    if options.policy != "auto":
        return _Solved(Setting(graph, target, costs, options, say))
    best: _Solved | None = None
    for candidate in options.candidates(smt=target.logical_cpus > target.physical_cores):
        solved = _Solved(Setting(graph, target, costs, candidate, say))
        name = ",".join(map(str, candidate.strategies)) or "-"
        parallel = " and parallel operators" if candidate.parallel_ops else ""
        say(f"auto: {candidate.policy} {name}{parallel}: {format_ns(solved.total_ns)}")
        if best is None or solved.total_ns < best.total_ns:
            best = solved
    if best is None:
        raise InternalError("auto has no candidates")
    return best


def _schedule(setting: Setting, program: Program) -> Schedule:
    options, order = setting.options, route(setting.graph, program)
    setting.say(f"route: {len(order)} nodes in {program.name}")
    lanes = len(setting.cpus)
    cache = 0 if setting.target.gpus else setting.target.last_level_cache
    modes = node_options(setting.graph, order, setting.costs, lanes, cache)
    pinned = {k: v for k, v in options.pins.slices.items() if k in program.node}
    choices = choose_modes(order, modes, lanes, policy=options.policy, strategies=options.strategies, pinned=pinned)
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
        pinned=pinned,
        lanes=tuple(range(lanes)),
        siblings=tuple(range(lanes, lanes + len(setting.siblings))),
        tiles=tuple(setting.tiles),
        interference=Interference(setting.graph, order, setting.costs, setting.sharing()),
        sync_ns=setting.costs.sync_ns,
    )
    schedule, rules, end = best_schedule(work, SEARCHED if options.search else (PUBLISHED,))
    setting.say(f"corun: {program.name}, {rules.name}, {format_ns(round(end))}; {corun_summary(schedule)}")
    return schedule
