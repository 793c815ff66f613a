"""Graph + target + cost table in, plan out: which candidates are planned, and which is taken (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. The passes of a
candidate are called by scheduling.py, before memory is looked at, and by assemble.py. `auto` plans for unlimited memory
under several policies and takes the fastest plan. Where that does not fit the budget, `budget.py` decides what is
recomputed and moved, and the plan is named after the policy that it rewrites: its bits are those of that policy's
unbudgeted plan.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from planner.costs.table import CostTable
from planner.graph.model import Graph
from planner.graph.precision import require_precision
from planner.plan.schema import Plan
from planner.solve.assemble import Say, Setting
from planner.solve.budget import CERTAIN, Infeasible, on_target, undominated
from planner.solve.candidates import SURE, Slow, Solved, on_stored, total
from planner.solve.least import Least, lowest, told
from planner.solve.memory.beside import small
from planner.solve.options import PlanOptions
from planner.solve.schedule import Schedule
from planner.solve.scheduling import Scheduler, base_schedules
from planner.target.model import Target
from planner.units import format_bytes, format_ns

SMALL_GRAPH = 2000
"""Up to so many nodes, `auto` plans everything that runs nodes side by side to the end. Of larger graphs, where that
takes long, it plans MOST_PLANNED."""
MOST_PLANNED = 2
"""Candidates, those that end first as scheduled. That need not be the first when waits are counted: of 24 pairs of
network and target, 23 had the best plan first and one second."""
MANY_OBJECTS = 100_000
"""As many are looked through for circles within milliseconds."""
WORTH = 0.97
"""What runs the nodes of a graph that is not small side by side is rewritten for a budget only where, without one, it
takes no more than this share of what runs them one after the other: smaller gains are lost, because what runs again
does so on all lanes."""
LITTLE = 1.05
"""A larger budget than the smallest is mentioned, too, if it is at most so many times as large, ..."""
FASTER = 0.7
"""... and its plan takes at most this share of the smallest one's time: that may run on a single lane, whose scratch is
that of one lane."""


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


def _within_budget(candidates: Sequence[Solved], slow: Sequence[Slow]) -> Plan:
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
    refused: dict[int, tuple[Infeasible, float]] = {}
    """By the candidate's number in the order in which they have their turns, with its time without a budget, ns."""
    bases = _bases(candidates)
    least = _least(bases, slow)
    if not plans and least and not any(left.alive_fits for left in slow):
        hopeless = told(least)
        if hopeless:
            needs = [(one.bytes, one.step_ns) for one in least]
            raise _smallest([(hopeless, lowest(least).step_ns)], whole, needs)

    def rewrite(number: int, base: Solved) -> None:
        try:
            plan = base.rewritten(fastest.total_ns, bases[0], plans)
        except Infeasible as error:
            refused[number] = error, base.total_ns
        else:
            plans.extend([plan] if plan else [])

    too_large: dict[int, Solved | Slow] = {}
    """What certainly does not fit: how small it would be is worth a search only where nothing else fits."""
    turns = sorted(bases, key=lambda c: c.total_ns)
    for number, base in enumerate(turns):
        if plans and not base.every_level and base.total_ns >= min(map(total, plans)):
            continue
        if base.hopeless:
            too_large[number] = base
        else:
            rewrite(number, base)
    for number, left in enumerate(sorted(slow, key=lambda left: left.least_ns), len(turns)):
        if plans and left.least_ns >= min(map(total, plans)):
            break
        if left.hopeless:
            too_large[number] = left
            continue
        other = Solved(left.setting, left.schedules)
        if other.fits:
            plans.append(other.plan)
        else:
            rewrite(number, other)
    if not plans:
        plans = [plan for one in least if one.bytes <= one.setting.capacity and (plan := one.plan)]
    if not plans:
        for number, one in too_large.items():
            rewrite(number, one if isinstance(one, Solved) else Solved(one.setting, one.schedules))
        raise _smallest([refused[number] for number in sorted(refused)], whole)
    return min(plans, key=total)


def _least(bases: Sequence[Solved], slow: Sequence[Slow]) -> list[Least]:
    """What each of them needs at least; nothing where that is not known of all."""
    found = [*(base.least for base in bases), *(left.least for left in slow)]
    known = [one for one in found if one]
    return known if len(known) == len(found) else []


def _smallest(
    refused: Sequence[tuple[Infeasible, float]], whole: Sequence[Solved], needs: Sequence[tuple[int, float]] = ()
) -> Infeasible:
    """The error with the smallest budget that can be met. `refused`: with the time of a step without a budget, ns;
    `needs`: bytes that others need at least, with theirs."""
    fewest = min(whole, key=lambda c: c.arena)
    if all(fewest.arena < error.least for error, _ in refused):
        refused = [(fewest.refused, fewest.total_ns)]
    best, best_ns = min(refused, key=lambda r: r[0].least)
    sizes = [*((error.least, ns) for error, ns in refused), *((c.arena, c.total_ns) for c in whole), *needs]
    ns, size = min((ns, max(size, best.least)) for size, ns in sizes if size <= LITTLE * best.least)
    if ns > FASTER * best_ns:
        return best
    faster = f"plans that take about {ns / best_ns:.0%} of its time where memory is no matter"
    besides = f"{faster} need {size} bytes ({format_bytes(size)}) or little more"
    return Infeasible(best.problem, best.least, besides)


def _bases(candidates: Sequence[Solved]) -> list[Solved]:
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
) -> tuple[tuple[Solved, ...], list[Slow]]:
    """The plans for unlimited memory that there are to choose from: one, or with `auto` many."""
    if options.policy != "auto":
        setting = Setting(graph, target, costs, options, say)
        return (Solved(setting, base_schedules(setting)),), []
    candidates = options.candidates(smt=target.logical_cpus > target.physical_cores)
    settings = [Setting(graph, target, costs, candidate, say) for candidate in candidates]
    settings += [replace(settings[0], options=o) for o in options.uniform_candidates(len(settings[0].cpus))]
    scheduler = Scheduler(settings[0])
    solved: dict[int, Solved] = {}
    slow: list[Slow] = []
    for number, setting in enumerate(settings):
        if not setting.options.coruns:
            schedules = scheduler.schedules(setting.options)
            if _told_twin(setting, schedules, [(s.setting, s.given) for s in solved.values()]):
                continue
            least = _least_ns(setting, schedules) if setting.options.uniform is not None else 0
            if least and least >= min(s.total_ns for s in solved.values()):
                say(f"auto: {_named(setting.options)}: {format_ns(round(least))} at least, not worth it")
                slow.append(Slow(least, setting, schedules))
                continue
            solved[number] = Solved(setting, schedules)
            say(f"auto: {_named(setting.options)}: {format_ns(solved[number].total_ns)}")
    _solve_side_by_side(settings, scheduler, solved)
    return tuple(solved[number] for number in sorted(solved)), slow


def _solve_side_by_side(settings: Sequence[Setting], scheduler: Scheduler, solved: dict[int, Solved]) -> None:
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
            solved[number] = Solved(settings[number], schedules[number])
            first.say(f"auto: {name}: {format_ns(solved[number].total_ns)}")


def _least_ns(setting: Setting, schedules: dict[str, Schedule]) -> float:
    """About the least that a plan of such schedules may take, ns. Where nodes run side by side, each was charged with a
    signal per stage, and need not wait for any; where they do not, weights may be stored as kernels pack them."""
    if any(s.spans for s in schedules.values()):
        stages = sum(len(c.stage_ns) for s in schedules.values() for c in s.choices.values())
        return sum(s.end_ns for s in schedules.values()) - setting.costs.sync_ns * stages
    return CERTAIN * sum(s.end_ns for s in on_stored(setting, schedules).values())


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
