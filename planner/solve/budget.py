"""Pass *budget*: what is recomputed and what is moved so that a plan fits its memory budget.

The states worth having (search.py) are the same for every budget, so more memory never means a slower plan: of those
that fit, the one with the shortest replay is the plan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InternalError, UserError
from planner.plan.schema import Plan, Rewrite
from planner.solve.assemble import Setting, assemble
from planner.solve.budget_bound import Relaxation
from planner.solve.footprints import Footprints
from planner.solve.keep import kept_values
from planner.solve.published import published
from planner.solve.quick import Quick
from planner.solve.rewriting import again_choice, copies_of
from planner.solve.route import route
from planner.solve.schedule import Schedule
from planner.solve.search import Search, State, cheapest
from planner.solve.steps import Decision, Material, material, rewrite_of, steps
from planner.units import format_bytes

TRAIN = "train_step"

CLOSE = 1.02
"""Among states whose peaks are within this factor of the smallest one's is the one that packs into the fewest bytes."""

SURE = 0.998
"""No replay is shorter than this share of the nodes' own times, one after the other."""


@dataclass(frozen=True)
class Frontier:
    """The states worth having, from the fastest to the smallest."""

    material: Material
    states: tuple[State, ...]
    base_ns: float
    """Time of the graph's own nodes."""
    again_ns: Mapping[str, float]
    """forward node -> time of running it again"""
    relaxation: Relaxation
    pools: tuple[str, str]

    def rewrite(self, state: State) -> dict[str, Rewrite]:
        return {TRAIN: rewrite_of(self.material, state.decisions, *self.pools)}


def frontier(setting: Setting, schedules: Mapping[str, Schedule]) -> Frontier:
    """All states of the chain that no other one beats in both memory and time."""
    graph, schedule = setting.graph, schedules[TRAIN]
    keep = kept_values(graph, setting.options.keep)
    made = material(graph, graph.program[TRAIN], schedule.order, keep)
    slower = setting.target.slower_pool
    again_ns = _again_ns(setting, schedule, made)
    prints = Footprints(graph, graph.program[TRAIN], schedule, made, again_ns, 0.0, keep)
    if slower:
        prints.copy_ns_per_byte = _copy_ns(setting, slower)
    relaxation = Relaxation(graph, graph.program[TRAIN], schedule, made, again_ns, keep)
    search = Search(made, prints, Quick(prints, made, again_ns), relaxation, bool(slower))
    best = search.run(published(graph, graph.program[TRAIN], made).values())
    base = sum(schedule.choices[n.id].total_ns for n in schedule.order)
    setting.say(f"budget: {len(best)} states worth having, from {format_bytes(best[0].peak)} to "
                f"{format_bytes(best[-1].peak)}")  # fmt: skip
    return Frontier(made, tuple(best), base, again_ns, relaxation, (setting.target.memory.name, slower))


def within_budget(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...] = (),
    choice: Frontier | None = None,
) -> Plan:
    """The fastest plan found that fits. SP1301 names the smallest budget that this solver can meet. `choice`: the
    frontier, where it is known already; it does not depend on the budget."""
    schedules = _calm(setting, schedules)
    if TRAIN not in schedules:
        return assemble(setting, schedules, threads)
    choice = choice or frontier(setting, schedules)
    # Signals between lanes are not in the estimates; in steps of microseconds they decide.
    signals = 2 * setting.costs.sync_ns * len(schedules[TRAIN].order)
    best: Plan | None = None
    for state in choice.states:
        shortest = (choice.base_ns + state.least_ns) * SURE - signals
        if state.peak > setting.capacity or (best and shortest > best.program[TRAIN].predicted_ns):
            continue
        plan = _assembled(setting, schedules, threads, choice, state)
        if plan is not None and (best is None or _time(plan) < _time(best)):
            best = plan
    if best is None:
        raise _infeasible(setting, schedules, threads, choice)
    return _with_bound(setting, choice, best)


def pareto(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...] = (), points: int = 16
) -> list[Plan]:
    """Plans along the frontier, from the fastest to the smallest, none slower than a smaller one."""
    free = replace(setting, unlimited=True)
    plans = [assemble(free, schedules, threads)]
    if TRAIN in schedules:
        schedules = _calm(setting, schedules)
        choice = frontier(setting, schedules)
        for state in _spread(choice.states, points):
            for overlap in (True, False) if "move" in state.decisions.values() else (True,):
                plans.append(assemble(free, schedules, threads, choice.rewrite(state), overlap=overlap))
    return undominated(plans)


def undominated(plans: Sequence[Plan]) -> list[Plan]:
    """From the fastest to the smallest, without those that another one beats in both."""
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (_time(p), p.pools[0].arena)):
        if not best or plan.pools[0].arena < best[-1].pools[0].arena:
            best.append(plan)
    return best


def _calm(setting: Setting, schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """Without co-running: it starts nodes early that hold their results, and late those that free their operands.
    Slices on different lanes may still run side by side, but lifetimes do not count on it."""
    program = setting.graph.program
    return {
        name: Schedule(name, route(setting.graph, program[name]), s.choices, s.lanes) if s.spans else s
        for name, s in schedules.items()
    }


def _time(plan: Plan) -> int:
    return sum(p.predicted_ns for p in plan.programs)


def _assembled(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...], choice: Frontier, state: State
) -> Plan | None:
    """The state's plan; with transfers that overlap where there is room for that."""
    rewrites = choice.rewrite(state)
    for overlap in (True, False) if rewrites[TRAIN].transfers else (True,):
        try:
            return assemble(setting, schedules, threads, rewrites, overlap=overlap)
        except UserError as error:
            if error.code != "SP1301":
                raise
    return None


def _with_bound(setting: Setting, choice: Frontier, plan: Plan) -> Plan:
    """The plan with what recomputation costs at least."""
    if choice.pools[1] or not plan.program[TRAIN].rewrite.recomputes:
        return plan
    least = choice.relaxation.solve(setting.capacity)
    told = {TRAIN: math.floor(least.again_ns) if least else 0}
    programs = tuple(p.model_copy(update={"least_again_ns": told.get(p.name, 0)}) for p in plan.programs)
    return plan.model_copy(update={"programs": programs})


def exact_state(
    setting: Setting, schedules: Mapping[str, Schedule], choice: Frontier, decisions: Mapping[str, Decision]
) -> State:
    """What some decisions need and cost."""
    keep = kept_values(setting.graph, setting.options.keep)
    made, program = choice.material, setting.graph.program[TRAIN]
    exact = Footprints(setting.graph, program, schedules[TRAIN], made, choice.again_ns, 0.0, keep)
    found = exact.of(steps(made, decisions))
    return State(decisions, found.peak, found.extra_ns, found.again_ns)


def _infeasible(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...], choice: Frontier
) -> UserError:
    """SP1301 with the node that binds, and the smallest budget that can be met."""
    free = replace(setting, unlimited=True)
    close = [s for s in choice.states if s.peak <= choice.states[-1].peak * CLOSE]
    plans = [(assemble(free, schedules, threads, choice.rewrite(s), overlap=False), s) for s in close]
    least, state = min(plans, key=lambda p: p[0].pools[0].arena)
    size = least.pools[0].arena
    fix = f"the smallest budget that this solver can meet is {size} bytes ({format_bytes(size)})"
    try:
        assemble(setting, schedules, threads, choice.rewrite(state), overlap=False)
    except UserError as error:
        return UserError("SP1301", error.problem, fix)
    raise InternalError("a state that fits was not tried")


def _again_ns(setting: Setting, schedule: Schedule, made: Material) -> dict[str, float]:
    """forward node -> ns of running it again."""
    known = {n.id: n for n in made.order}
    found = {}
    for name, again in made.again.items():
        choice = schedule.choices[name]
        if again.op != known[name].op:
            types = setting.graph.types(again.inputs)
            choice = again_choice(again.op, again.attrs, types, types[:1], choice, setting.costs)
        found[name] = float(choice.total_ns)
    return found


def _copy_ns(setting: Setting, slower: str) -> float:
    """What moving a byte one way costs: the time that it takes from the cores, and some of what they may wait."""
    fast = setting.target.memory.name
    copies = copies_of([(fast, slower), (slower, fast)], setting.target, setting.costs, 0)
    slowest = max(1 / speed for speed in copies.speed.values())
    return slowest / len(setting.cpus) if setting.target.logical_cpus <= len(setting.cpus) else slowest / 4


def _spread(states: Sequence[State], count: int) -> list[State]:
    """At most `count` of the states that no other beats, evenly over their peaks."""
    best = cheapest(states)
    levels = np.linspace(best[0].peak, best[-1].peak, count)
    chosen = {min(range(len(best)), key=lambda i: (abs(best[i].peak - level), i)) for level in levels}
    return [best[i] for i in sorted(chosen)]
