"""The passes in their order, and nothing else: graph + target + cost table in, plan out (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. `auto` plans for
unlimited memory under several policies and takes the fastest plan. Where that does not fit the budget, `budget.py`
decides what is recomputed and moved, and the plan is named after the policy that it rewrites: its bits are those of
that policy's unbudgeted plan.
"""

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from planner.costs.table import CostTable
from planner.graph.model import Graph
from planner.graph.precision import require_precision
from planner.plan.schema import Plan
from planner.solve.assemble import Say, Setting, alive_bytes, assemble, draft, too_small
from planner.solve.budget import (
    CERTAIN,
    Infeasible,
    chain,
    fastest_within,
    infeasible,
    on_target,
    pareto,
    preference,
    undominated,
    within_budget,
)
from planner.solve.corunning.places import without_unused_lanes
from planner.solve.least import Least, told
from planner.solve.memory.beside import ABOVE, Beside, small
from planner.solve.memory.frontier import TRAIN, Frontier, frontier
from planner.solve.memory.search import State
from planner.solve.options import PlanOptions
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule
from planner.solve.scheduling import Scheduler, base_schedules
from planner.solve.stored import stored_weights
from planner.target.model import Target
from planner.units import format_bytes, format_ns

SMALL_GRAPH = 2000
"""Nodes of a graph of which `auto` plans everything that runs nodes side by side to the end,"""
MOST_PLANNED = 2
"""and how much of a larger one, where that takes long. What ends first as scheduled need not when waits are counted; of
24 pairs of network and target, 23 had the best plan first and one second."""
SURE = 1.04
"""Where times are measured, what runs nodes side by side must promise to end this many times sooner than what does not:
kernels are timed with nothing beside them, and smaller promises were not kept (docs/measurements/executors.md)."""
FEW_NODES = 250
"""Nodes of a graph of which a budget's decisions are searched for every schedule that runs one node after the other. Of
a larger one that takes seconds; what is found for the fastest is looked at in the others' modes."""
MANY_OBJECTS = 100_000
"""As many are looked through for circles within milliseconds."""
WORTH = 0.97
"""What runs the nodes of a graph that is not small side by side is rewritten for a budget only where it takes no more
than this share of the time without one: smaller gains are lost, because what runs again does so on all lanes."""


def make_plan(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Solve the complete static schedule of every program of the graph.

    SP1033: the graph is in bfloat16, which the target has no kernels for. SP1108: more lanes than the target has.
    SP1202: a node was never profiled. SP1301: the plan needs more memory than the budget or the pool. SP1302: a pinned
    decision cannot be honoured. SP1304: a value cannot be kept. `say` receives one line per pass.
    """
    require_precision(graph, target.name, target.bfloat16)
    options = options or PlanOptions()
    with _no_collection():
        return _within_budget(*_solved(graph, target, costs, options, say))


def make_pareto(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> list[Plan]:
    """Plans from all the memory they like to as little as will do, none slower than a smaller one."""
    with _no_collection():
        candidates, _ = _solved(graph, target, costs, options or PlanOptions(), say)
        bases = _bases(candidates)
        found = [*on_target(bases[0].setting, [c.plan for c in candidates]), *bases[0].pareto()]
        for base in bases:
            found += on_target(base.setting, base.side_by_side(bases[0]))
        return undominated(found)


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
            # Straight to the oldest generation, as if they had been looked through; where somebody has frozen objects,
            # who would lose that, they are counted one by one.
            if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _Solved:
    """The plan for unlimited memory of one policy, and how it becomes one within the budget."""

    def __init__(self, setting: Setting, schedules: dict[str, Schedule]) -> None:
        self.setting, self.given = setting, schedules
        self._schedules, self._threads = _on_lanes(setting, schedules)
        stored = _stored(setting, self._schedules)
        if setting.target.gpus:  # under a budget, too
            self._schedules = stored
        self._plan = assemble(replace(setting, unlimited=True), stored, self._threads)
        self.total_ns = _total(self._plan)
        self.beside = any(s.spans for s in schedules.values())
        self.arena = self._plan.pools[0].arena
        self.fits = self.arena <= setting.capacity
        self._choice: Frontier | None = None

    @property
    def every_level(self) -> bool:
        """Whether all plans of it side by side, within every level of bytes, are compared."""
        return self.beside and TRAIN in self._schedules and small(self.setting.graph)

    @property
    def plan(self) -> Plan:
        """As it is, within the budget or not."""
        first = self._plan.pools[0].model_copy(update={"capacity": self.setting.capacity})
        return self._plan.model_copy(update={"pools": (first, *self._plan.pools[1:])})

    def anew(self, known_ns: float) -> Plan | None:
        """What ends the soonest of what fits where it is scheduled within fewer bytes: that may be sooner than as it
        is, and then is so with more bytes, too. Nothing runs again or moves, although now and then a step of
        microseconds would end a little sooner so. `known_ns`: time of a plan that there is already; None: none is
        faster, or not all levels are compared."""
        if not self.every_level:
            return None
        quiet = replace(self.setting, say=lambda text: None)
        choice = frontier(quiet, calm(quiet.graph, self._schedules), given=[State({})])
        return Beside(quiet, self._schedules, self._threads, choice).plan(self.arena, 0, known_ns)

    @property
    def least(self) -> Least:
        """What it needs whatever is decided."""
        return Least(self.setting, self._schedules, self._threads, ABOVE if self.beside else 1.0)

    @property
    def _step_ns(self) -> int:
        return self._plan.program[TRAIN].predicted_ns

    @property
    def promised_ns(self) -> float:
        """What its time counts as."""
        return self.counted(self._plan)

    def counted(self, plan: Plan) -> float:
        """What the time of a plan of its schedule counts as, ns."""
        return _total(plan) * self.counts

    @property
    def counts(self) -> float:
        """By how much its times count."""
        return SURE if self.beside and self.setting.costs.measured else 1

    @property
    def refused(self) -> Infeasible:
        """What is wrong with it as it is, where it does not fit."""
        return Infeasible(too_small(self.setting, self._schedules, self._threads, self.arena).problem, self.arena)

    def rewritten(self, at_least: int, first: "_Solved", known: Sequence[Plan]) -> Plan | None:
        """The fastest plan within the budget; None: nothing that fits is faster than those known. `first`: what a
        budget would rewrite first. SP1301."""
        if not self.fits:
            self.setting.say(f"budget: {format_bytes(self.setting.capacity)} is less than "
                             f"{format_bytes(self.arena)}")  # fmt: skip
        at_least = 0 if self.every_level else max(at_least, self.total_ns)
        if TRAIN not in self._schedules:
            return within_budget(self.setting, self._schedules, self._threads, at_least=at_least)
        choice = self._states(first)
        if choice.prints.always > self.setting.capacity:
            raise infeasible(self.setting, self._schedules, self._threads, choice)
        known_ns = min(map(_total, known), default=math.inf)
        given = self.setting, self._schedules, self._threads, choice
        found = [Beside(*given).plan(self.arena, at_least, known_ns)] if self.beside else []
        if self.every_level or not any([*found, self.beside and known]):
            known_ns = min([known_ns, *(_total(plan) for plan in found if plan)])
            found.append(fastest_within(*given, at_least, known_ns))
        if not any([*found, *known]):
            raise infeasible(*given)
        return min((plan for plan in found if plan), key=lambda p: preference(p, at_least), default=None)

    def _states(self, first: "_Solved") -> Frontier:
        """The states worth having under some budget: searched for, or those of the first schedule."""
        if self._choice is None:
            searched = first is self or (_few(self.setting.graph) and not self.beside)
            given = () if searched else (first._states(first), self._step_ns - first._step_ns)
            self._choice = chain(self.setting, self._schedules, *given)
        return self._choice

    def pareto(self) -> list[Plan]:
        return pareto(self.setting, self._schedules, self._threads)

    def side_by_side(self, first: "_Solved") -> list[Plan]:
        """The same of what runs nodes side by side. `first`: what a budget would rewrite first."""
        if not self.beside or TRAIN not in self._schedules:
            return []
        free = replace(self.setting, unlimited=True)
        return Beside(free, self._schedules, self._threads, self._states(first)).along(self.arena)


class _Slow(NamedTuple):
    """One node at a time on few lanes, not planned to the end because that is slower where memory is no matter."""

    least_ns: float
    """About the least that a plan of it may take."""
    setting: Setting
    schedules: dict[str, Schedule]

    @property
    def least(self) -> Least:
        """What it needs whatever is decided."""
        return Least(self.setting, *_on_lanes(self.setting, self.schedules))

    @property
    def alive(self) -> int:
        """No plan of it in which nothing runs again needs fewer bytes."""
        schedules, threads = _on_lanes(self.setting, self.schedules)
        return alive_bytes(self.setting, draft(self.setting, _stored(self.setting, schedules), threads))


def _on_lanes(setting: Setting, schedules: dict[str, Schedule]) -> tuple[dict[str, Schedule], tuple[int, ...]]:
    """Without the lanes that nothing runs on; processors of those on second threads."""
    found, unused = without_unused_lanes(schedules, len(setting.cpus))
    return found, tuple(setting.siblings[i] for i in unused)


def _stored(setting: Setting, schedules: dict[str, Schedule]) -> dict[str, Schedule]:
    """With weights as kernels want them."""
    return schedules if setting.options.plain_weights else stored_weights(setting.graph, schedules)


def _within_budget(candidates: Sequence[_Solved], slow: Sequence[_Slow]) -> Plan:
    """The fastest candidate if it fits, or what is faster of those that are scheduled anew; else the better of the
    fastest that does fit and the bases' rewritings. Where these are slower than what was too slow without a budget
    may be, or there are none, that takes its turn: on fewer lanes nodes need less scratch.

    Neither the time nor the bytes that a candidate takes as it is bound what it takes scheduled anew, within fewer
    bytes. So that is looked for even if it does not fit as it is, or is slower than a plan that is known: a smaller
    budget, under which that is not known, would have a faster plan."""
    fastest = min(candidates, key=lambda c: c.promised_ns)
    if fastest.fits:
        best, best_ns = fastest.plan, fastest.promised_ns
        for candidate in sorted(candidates, key=lambda c: c.promised_ns):
            found = candidate.anew(best_ns / candidate.counts)
            if found and candidate.counted(found) < best_ns:
                best, best_ns = found, candidate.counted(found)
        return best
    whole = [c for c in candidates if c.total_ns >= fastest.total_ns]
    fitting = [c for c in whole if c.fits]
    plans = [min(fitting, key=lambda c: c.total_ns).plan] if fitting else []
    refused: list[Infeasible] = []
    bases = _bases(candidates)
    least = _least(bases, slow)
    if not plans and least and all(left.alive > left.setting.capacity for left in slow):
        hopeless = told(least)
        if hopeless:
            raise _smallest([hopeless], whole)

    def rewrite(base: _Solved) -> None:
        try:
            plan = base.rewritten(fastest.total_ns, bases[0], plans)
        except Infeasible as error:
            refused.append(error)
        else:
            plans.extend([plan] if plan else [])

    for base in sorted(bases, key=lambda c: c.total_ns):
        if plans and not base.every_level and base.total_ns >= min(map(_total, plans)):
            continue
        rewrite(base)
    for least_ns, setting, schedules in sorted(slow, key=lambda left: left.least_ns):
        if plans and least_ns >= min(map(_total, plans)):
            break
        other = _Solved(setting, schedules)
        if other.fits:
            plans.append(other.plan)
        else:
            rewrite(other)
    if not plans:
        plans = [plan for one in least if one.bytes <= one.setting.capacity and (plan := one.plan)]
    if not plans:
        raise _smallest(refused, whole)
    return min(plans, key=_total)


def _least(bases: Sequence[_Solved], slow: Sequence[_Slow]) -> list[Least]:
    """What each of them needs at least; nothing where that is not known of all."""
    settings = [base.setting for base in bases]
    if any(TRAIN not in base.given or base.every_level for base in bases) or not all(s.same_bits for s in settings):
        return []
    return [*(base.least for base in bases), *(left.least for left in slow)]


def _smallest(refused: Sequence[Infeasible], whole: Sequence[_Solved]) -> Infeasible:
    """The error with the smallest budget that can be met."""
    best = min(refused, key=lambda error: error.least, default=None)
    fewest = min(whole, key=lambda c: c.arena)
    return fewest.refused if best is None or fewest.arena < best.least else best


def _few(graph: Graph) -> bool:
    return sum(len(p.nodes) for p in graph.programs) < FEW_NODES


def _total(plan: Plan) -> int:
    return sum(p.predicted_ns for p in plan.programs)


def _bases(candidates: Sequence[_Solved]) -> list[_Solved]:
    """What a budget rewrites: those whose nodes run one after the other, the fastest first, and then those that promise
    to be faster than these by running nodes side by side; of a large graph the best of them, if it is worth it.

    What promised too little to be taken without a budget is not taken with one either: less memory would seem to be
    faster."""
    alone = sorted((c for c in candidates if not c.beside), key=lambda c: c.total_ns)
    if not alone:
        return list(candidates)
    promising = [c for c in candidates if c.beside and c.promised_ns < alone[0].total_ns]
    promising.sort(key=lambda c: c.promised_ns)
    if not small(alone[0].setting.graph):
        promising = [c for c in promising[:1] if c.promised_ns <= WORTH * alone[0].total_ns]
    return alone + promising


def _solved(
    graph: Graph, target: Target, costs: CostTable, options: PlanOptions, say: Say
) -> tuple[tuple[_Solved, ...], list[_Slow]]:
    """The plans for unlimited memory that there are to choose from: one, or with `auto` many."""
    if options.policy != "auto":
        setting = Setting(graph, target, costs, options, say)
        return (_Solved(setting, base_schedules(setting)),), []
    candidates = options.candidates(smt=target.logical_cpus > target.physical_cores)
    settings = [Setting(graph, target, costs, candidate, say) for candidate in candidates]
    settings += [replace(settings[0], options=o) for o in options.uniform_candidates(len(settings[0].cpus))]
    scheduler = Scheduler(settings[0])
    solved: dict[int, _Solved] = {}
    slow: list[_Slow] = []
    for number, setting in enumerate(settings):
        if not setting.options.coruns:
            schedules = scheduler.schedules(setting.options)
            if _told_twin(setting, schedules, [(s.setting, s.given) for s in solved.values()]):
                continue
            least = _least_ns(setting, schedules) if setting.options.uniform is not None else 0
            if least and least >= min(s.total_ns for s in solved.values()):
                say(f"auto: {_named(setting.options)}: {format_ns(round(least))} at least, not worth it")
                slow.append(_Slow(least, setting, schedules))
                continue
            solved[number] = _Solved(setting, schedules)
            say(f"auto: {_named(setting.options)}: {format_ns(solved[number].total_ns)}")
    _solve_side_by_side(settings, scheduler, solved)
    return tuple(solved[number] for number in sorted(solved)), slow


def _solve_side_by_side(settings: Sequence[Setting], scheduler: Scheduler, solved: dict[int, _Solved]) -> None:
    """Schedule everything that runs nodes side by side, and plan to the end what ends first, as far as it may be worth
    it: of a large graph no more than MOST_PLANNED."""
    first = settings[0]
    given = [(s.setting, s.given) for s in solved.values()]
    ends: dict[int, float] = {}
    schedules: dict[int, dict[str, Schedule]] = {}
    for number, setting in enumerate(settings):
        if setting.options.coruns:
            found = scheduler.schedules(setting.options)
            if not _told_twin(setting, found, given):
                given.append((setting, found))
                schedules[number], ends[number] = found, sum(s.end_ns for s in found.values())
    large = sum(len(p.nodes) for p in first.graph.programs) > SMALL_GRAPH
    for place, number in enumerate(sorted(ends, key=lambda n: ends[n])):
        name, end = _named(settings[number].options), ends[number]
        margin = SURE if first.costs.measured else 0  # modelled times leave nothing out
        hopeless = _least_ns(settings[number], schedules[number]) * margin >= min(s.total_ns for s in solved.values())
        if hopeless or (large and place >= MOST_PLANNED):
            first.say(f"auto: {name}: {format_ns(end)} as scheduled, not worth it")
        else:
            solved[number] = _Solved(settings[number], schedules[number])
            first.say(f"auto: {name}: {format_ns(solved[number].total_ns)}")


def _least_ns(setting: Setting, schedules: dict[str, Schedule]) -> float:
    """About the least that a plan of such schedules may take, ns. Where nodes run side by side, each was charged with a
    signal per stage, and need not wait for any; where they do not, weights may be stored as kernels pack them."""
    if any(s.spans for s in schedules.values()):
        stages = sum(len(c.stage_ns) for s in schedules.values() for c in s.choices.values())
        return sum(s.end_ns for s in schedules.values()) - setting.costs.sync_ns * stages
    return CERTAIN * sum(s.end_ns for s in _stored(setting, schedules).values())


def _told_twin(
    setting: Setting, schedules: dict[str, Schedule], given: Sequence[tuple[Setting, dict[str, Schedule]]]
) -> bool:
    """Whether another setting has led to the same schedules, and say so."""
    twin = next((other for other, known in given if known == schedules), None)
    if twin is not None:
        setting.say(f"auto: {_named(setting.options)}: as {_named(twin.options)}")
    return twin is not None


def _named(options: PlanOptions) -> str:
    name = f"{options.policy} {','.join(map(str, options.strategies)) or '-'}"
    if options.coruns and not options.search and options.uniform is None:
        name += ", as published"
    if options.uniform is not None:
        name += f", {options.uniform} lanes each"
    return name + (" and parallel operators" if options.parallel_ops else "")
