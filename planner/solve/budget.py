"""Pass *budget*: what is recomputed and what is moved so that a plan fits its memory budget.

The states worth having (search.py) are the same for every budget, so more memory never means a slower plan: of those
that fit, the one with the shortest replay is the plan. A replay that promises to be shorter than the step without a
budget is not taken where there is another: with all the memory in the world there would be less to be had.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InternalError, UserError
from planner.plan.schema import Plan
from planner.solve.assemble import (
    Draft,
    Setting,
    alive_bytes,
    arena_of,
    assemble,
    completed,
    draft,
    too_small,
    unpacked_ns,
)
from planner.solve.memory.frontier import TRAIN, Frontier, fixed_programs, frontier
from planner.solve.memory.states import State, cheapest
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule
from planner.units import format_bytes

CLOSE = 1.02
"""Among states whose peaks are within this factor of the smallest one's is the one that packs into the fewest bytes."""

APART = 0.0005
"""Share of the step's time that a state must save to be worth more memory."""

CERTAIN = 0.998
"""No replay is shorter than this share of the nodes' own times, one after the other."""


class Infeasible(UserError):
    """SP1301 with the bytes of the smallest plan that there is."""

    def __init__(self, problem: str, least: int, besides: str = "") -> None:
        """`besides`: what is to be said of somewhat larger budgets."""
        fix = f"the smallest budget that this solver can meet is {least} bytes ({format_bytes(least)})"
        super().__init__("SP1301", problem, f"{fix}; {besides}" if besides else fix)
        self.least = least


def within_budget(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...] = (),
    choice: Frontier | None = None,
    at_least: int = 0,
) -> Plan:
    """The fastest plan found that fits. SP1301 names the smallest budget that this solver can meet. `choice`: the
    states worth having, where they are known already. `at_least`: ns below which promises are not sought."""
    if TRAIN not in schedules:
        schedules = calm(setting.graph, schedules)
        fitted = {name: other.within(setting.capacity) for name, other in fixed_programs(setting, schedules).items()}
        return _fixed(setting, {**schedules, **fitted}, threads)
    choice = choice or chain(setting, schedules)
    plan = fastest_within(setting, schedules, threads, choice, at_least)
    if plan is None:
        raise infeasible(setting, schedules, threads, choice)
    return plan


def chain(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    like: Frontier | None = None,
    slower_ns: float = 0.0,
    most: float = math.inf,
) -> Frontier:
    """The states worth having, the same for every budget. `like`: those of another schedule, to look at in this one's
    modes instead of searching; `slower_ns`: how much longer the step takes than there; `most`: as of `Search.run`.

    Where memory is nearly enough there are dozens, a hair's breadth apart, and each that might be the fastest is
    planned to the end: of those that are so close, the smallest stays."""
    found = frontier(setting, calm(setting.graph, schedules), like, slower_ns, most=most)
    kept = [*found.states[-1:]]
    for state in found.states[-2::-1]:
        if state.extra_ns <= kept[-1].extra_ns - APART * found.base_ns or state is found.states[0]:
            kept.append(state)
    return replace(found, states=tuple(reversed(kept)))


def fastest_within(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...],
    choice: Frontier,
    at_least: int = 0,
    known_ns: float = math.inf,
    others_ns: float | None = None,
) -> Plan | None:
    """The fastest plan that fits; None: there is none. `known_ns`: time of a plan that there is already; what certainly
    takes longer is not looked at. `others_ns`: as of `certain_others_ns`, where that is known."""
    beside = any(s.spans for s in schedules.values())
    schedules = calm(setting.graph, schedules)
    if others_ns is None:
        others_ns = certain_others_ns(setting, schedules, threads, choice)
    # Signals between lanes are not in the estimates; in steps of microseconds they decide.
    signals = 2 * setting.costs.sync_ns * len(schedules[TRAIN].order)
    # Modes that were chosen to run beside others may do so again.
    sure = CERTAIN / len(setting.cpus) if beside else CERTAIN
    best: Plan | None = None
    for state in choice.states:
        shortest = (choice.base_ns + state.least_ns) * sure - signals
        if state.peak > setting.capacity or shortest + others_ns > known_ns:
            continue
        for plan in _assembled(setting, schedules, threads, choice, state, known_ns, others_ns):
            best = min((p for p in (best, plan) if p), key=lambda p: preference(p, at_least))
        if best and _time(best) >= at_least:
            known_ns = min(known_ns, _time(best))
    return best and _with_bound(setting, choice, best)


def certain_others_ns(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...], choice: Frontier
) -> float:
    """What the programs besides the training step certainly take in every plan under a budget. In one such plan they
    may take longer than in another: they wait for bytes, and where these lie depends on the training step, too."""
    fastest = {name: other.within(setting.target.memory.capacity) for name, other in choice.others.items()}
    made = draft(setting, {**calm(setting.graph, schedules), **fastest}, threads)
    return CERTAIN * sum(unpacked_ns(setting, made, name) for name in made.schedules if name != TRAIN)


def longer(setting: Setting, made: Draft, others_ns: float, known_ns: float) -> bool:
    """Whether a plan certainly takes longer than another one. `others_ns`: of its programs but the training step."""
    if known_ns == math.inf:
        return False
    if CERTAIN * made.schedules[TRAIN].busiest_ns + others_ns > known_ns:  # to replay it takes far longer than this
        return True
    return CERTAIN * unpacked_ns(setting, made, TRAIN) + others_ns > known_ns


def _fixed(setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...]) -> Plan:
    """The plan of a graph about which nothing is decided but modes."""
    try:
        return assemble(setting, schedules, threads)
    except UserError as error:
        if error.code != "SP1301":
            raise
        free = replace(setting, unlimited=True)
        raise Infeasible(error.problem, arena_of(free, draft(free, schedules, threads))) from error


def pareto(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...] = (), points: int = 16
) -> list[Plan]:
    """Plans along the frontier, from the fastest to the smallest, none slower than a smaller one. They state the
    capacity of the target's memory, whatever the budget is; what needs more is left out."""
    free = replace(setting, unlimited=True)
    plans = [assemble(free, schedules, threads)]
    if TRAIN in schedules:
        schedules = calm(setting.graph, schedules)
        choice = frontier(setting, schedules)
        for state in _spread(choice.states, points):
            for overlap in (True, False) if "move" in state.decisions.values() else (True,):
                modes = choice.schedules(state, schedules)
                plans.append(assemble(free, modes, threads, choice.rewrite(state), overlap=overlap))
    return undominated(on_target(setting, plans))


def on_target(setting: Setting, plans: Sequence[Plan]) -> list[Plan]:
    """Those of some plans that the target's memory holds, with its capacity for theirs."""
    most = setting.target.memory.capacity
    return [
        plan.model_copy(update={"pools": (plan.pools[0].model_copy(update={"capacity": most}), *plan.pools[1:])})
        for plan in plans
        if plan.pools[0].arena <= most
    ]


def undominated(plans: Sequence[Plan]) -> list[Plan]:
    """From the fastest to the smallest, without those that another one beats in both."""
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (_time(p), p.pools[0].arena)):
        if not best or plan.pools[0].arena < best[-1].pools[0].arena:
            best.append(plan)
    return best


def _time(plan: Plan) -> int:
    return sum(p.predicted_ns for p in plan.programs)


def preference(plan: Plan, at_least: int) -> tuple[bool, int]:
    """Sorts plans: the fastest of those that take `at_least` so long, else the one that misses it least."""
    time = _time(plan)
    return (True, -time) if time < at_least else (False, time)


def _assembled(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...],
    choice: Frontier,
    state: State,
    known_ns: float,
    others_ns: float,
) -> list[Plan]:
    """The state's plans that fit, without those that certainly take longer than `known_ns`: to pack them would take the
    most time. Transfers that overlap hold more memory, and need not be faster where they wait for each other."""
    rewrites, schedules = choice.rewrite(state), choice.schedules(state, schedules)
    found = []
    for overlap in (True, False) if rewrites[TRAIN].transfers else (True,):
        made = draft(setting, schedules, threads, rewrites, overlap=overlap)
        if longer(setting, made, others_ns, known_ns):
            continue
        try:
            found.append(completed(setting, made))
        except UserError as error:
            if error.code != "SP1301":
                raise
    return found


def _with_bound(setting: Setting, choice: Frontier, plan: Plan) -> Plan:
    """The plan with what recomputation costs at least."""
    if choice.pools[1] or not plan.program[TRAIN].rewrite.recomputes:
        return plan
    least = choice.relaxation.solve(setting.capacity)
    told = {TRAIN: math.floor(least.again_ns) if least else 0}
    programs = tuple(p.model_copy(update={"least_again_ns": told.get(p.name, 0)}) for p in plan.programs)
    return plan.model_copy(update={"programs": programs})


def infeasible(
    setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...], choice: Frontier
) -> Infeasible:
    """SP1301 with the node that binds, and the smallest budget that can be met. States that would not fit into the
    slower pool are none."""
    schedules, free = calm(setting.graph, schedules), replace(setting, unlimited=True)
    found: list[tuple[int, Draft]] = []
    smallest = 0
    for state in reversed(choice.states):
        if found and state.peak > smallest * CLOSE:
            break
        made = draft(free, choice.schedules(state, schedules), threads, choice.rewrite(state), overlap=False)
        # On a GPU another order may be packed.
        if found and not setting.target.gpus and alive_bytes(made) >= min(size for size, _ in found):
            continue
        try:
            found.append((arena_of(free, made), made))
            smallest = smallest or state.peak
        except UserError as error:
            if error.code != "SP1301":
                raise
    least, made = min(found, key=lambda f: f[0])
    if least <= setting.capacity:
        raise InternalError("a state that fits was not tried")
    return Infeasible(too_small(setting, made, least).problem, least)


def _spread(states: Sequence[State], count: int) -> list[State]:
    """At most `count` of the states that no other beats, evenly over their peaks."""
    best = cheapest(states)
    levels = np.linspace(best[0].peak, best[-1].peak, count)
    chosen = {min(range(len(best)), key=lambda i: (abs(best[i].peak - level), i)) for level in levels}
    return [best[i] for i in sorted(chosen)]
