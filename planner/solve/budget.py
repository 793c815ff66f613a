"""Pass *budget*: what is recomputed and what is moved so that a plan fits its memory budget.

One chain of decisions is walked, the same for every budget: from everything kept to as little memory as can be had.
At each link the decision is taken that costs the least time per byte by which it lowers the peak and what is nearly as
high (`Footprint.above`); so the budget alone decides how far to go, and more memory never means a slower plan:

    keep -> share -> fresh          a value is made again once, or for every reader
    keep, share, fresh -> move      where the target has a slower pool

Every link is a state; of those that fit, the one with the shortest replay among the cheapest few is the plan. Published
strategies are points of the same space (everything share: speed-centric; everything fresh: memory-centric).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InternalError, UserError
from planner.plan.schema import Plan, Rewrite
from planner.solve.assemble import Setting, assemble
from planner.solve.footprints import Footprint, Footprints
from planner.solve.keep import kept_values
from planner.solve.rewriting import again_choice, copies_of
from planner.solve.route import route
from planner.solve.schedule import Schedule
from planner.solve.steps import Decision, Material, material, rewrite_of, steps
from planner.units import format_bytes

TRAIN = "train_step"

TARGET = 0.96
"""A link aims at this share of the present peak: everything above counts."""

RELAXED = 12
"""States from which superfluous decisions are taken back."""

LOOKED_AT = 6
"""Candidates that are tried per link, best first by what was last known of them."""

CLOSE = 1.02
"""Estimated peaks within this factor of the budget are tried: packing may need a little more, in-place use less."""

SURE = 0.995
"""No replay is shorter than this share of the nodes' own times, one after the other."""


@dataclass(frozen=True)
class State:
    """Decisions, and what is estimated of them."""

    decisions: Mapping[str, Decision]
    peak: int
    """Bytes of the first pool."""
    extra_ns: float
    least_ns: float
    """The same, if all copies cost nothing because they run beside the nodes."""


@dataclass(frozen=True)
class Frontier:
    """The states worth having, from the fastest to the smallest."""

    material: Material
    states: tuple[State, ...]
    base_ns: float
    """Time of the graph's own nodes."""
    pools: tuple[str, str]

    def rewrite(self, state: State) -> dict[str, Rewrite]:
        return {TRAIN: rewrite_of(self.material, state.decisions, *self.pools)}


def frontier(setting: Setting, schedules: Mapping[str, Schedule]) -> Frontier:
    """All states of the chain that no other one beats in both memory and time."""
    graph, schedule = setting.graph, schedules[TRAIN]
    keep = kept_values(graph, setting.options.keep)
    made = material(graph, graph.program[TRAIN], schedule.order, keep)
    slower = setting.target.slower_pool
    prints = Footprints(graph, graph.program[TRAIN], schedule, made, _again_ns(setting, schedule, made), 0.0, keep)
    if slower:
        prints.copy_ns_per_byte = _copy_ns(setting, slower)
    found = _Chain(made, prints, bool(slower)).run()
    best = _undominated(found)
    base = sum(schedule.choices[n.id].total_ns for n in schedule.order)
    setting.say(f"budget: {len(found)} states, {len(best)} worth having, from {format_bytes(best[0].peak)} to "
                f"{format_bytes(best[-1].peak)}")  # fmt: skip
    return Frontier(made, tuple(best), base, (setting.target.memory.name, slower))


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
        if state.peak > setting.capacity * CLOSE or (best and shortest > best.program[TRAIN].predicted_ns):
            continue
        plan = _assembled(setting, schedules, threads, choice, state)
        if plan is not None and (best is None or _time(plan) < _time(best)):
            best = plan
    if best is None:
        raise _infeasible(setting, schedules, threads, choice)
    return best


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
    best = _undominated(states)
    levels = np.linspace(best[0].peak, best[-1].peak, count)
    chosen = {min(range(len(best)), key=lambda i: (abs(best[i].peak - level), i)) for level in levels}
    return [best[i] for i in sorted(chosen)]


def _undominated(states: Sequence[State]) -> list[State]:
    """From the fastest to the smallest."""
    best: list[State] = []
    for state in sorted(states, key=lambda s: (s.extra_ns, s.peak)):
        if not best or state.peak < best[-1].peak:
            best.append(state)
    return best


def _state(decisions: Mapping[str, Decision], footprint: Footprint) -> State:
    return State(dict(decisions), footprint.peak, footprint.extra_ns, footprint.again_ns)


_LESS: tuple[Decision, ...] = ("keep", "share")


class _Chain:
    """Walks from everything kept to the smallest footprint."""

    def __init__(self, made: Material, prints: Footprints, slower: bool) -> None:
        self._made, self._prints, self._slower = made, prints, slower
        self._known: dict[tuple[str, Decision], float] = {}
        """(value, decision) -> ns per byte when it was last tried"""

    def run(self) -> list[State]:
        start: dict[str, Decision] = {}
        found = self._walk(start)
        # Single decisions do not lead everywhere: corners of the space, and few kept values with all between them made
        # again at once, are starts of their own.
        reached = found[-1].peak
        starts = [self._state(self._corner(way)) for way in ("share", "fresh", "move", "mixed")]
        starts += [self._state(d) for d in self._segmented()]
        found += starts
        smaller = sorted((s for s in starts if s.peak < reached), key=lambda s: (s.peak, s.extra_ns))
        cheapest = sorted(starts, key=lambda s: (s.extra_ns * s.peak, s.peak))
        for state in {id(s): s for s in (*smaller[:1], *cheapest[:3])}.values():
            found += self._walk(dict(state.decisions))
        return [*found, *(self._relaxed(s) for s in _spread(found, RELAXED))]

    def _segmented(self) -> list[dict[str, Decision]]:
        """Segments of about equal bytes between kept cuts; everything else is made again, a segment at a time."""
        found: list[dict[str, Decision]] = []
        share = self._corner("share")
        cuts = [v for v in self._made.cuts if v in share]
        before: list[int] = []
        total = 0
        for value in self._made.values:
            if value in cuts:
                before.append(total)
            total += self._prints.size(value) if value in share else 0
        for segments in sorted({*range(2, 9), 10, 12, 16, 20, 24, 32, len(cuts)}):
            if segments <= len(cuts):
                kept = {min(zip(before, cuts, strict=True), key=lambda c: abs(c[0] - total * i / segments))[1]
                        for i in range(1, segments)}  # fmt: skip
                found.append({v: d for v, d in share.items() if v not in kept})
        return found

    def _relaxed(self, state: State) -> State:
        """The same peak with less work: decisions that do not lower it are taken back, dear ones first."""
        decisions, now = dict(state.decisions), self._prints.of(steps(self._made, state.decisions))
        price = {v: self._first_guess(v, d) * self._prints.size(v) for v, d in decisions.items()}
        for value in sorted(decisions, key=lambda v: (-price[v], v)):
            for way in _LESS:
                if decisions[value] in (way, "keep") or (way == "share" and value not in self._made.producer):
                    continue
                less = {**decisions, value: way}
                after = self._prints.of(steps(self._made, less))
                if after.peak <= now.peak and after.extra_ns < now.extra_ns:
                    decisions, now = less, after
                    break
        return _state(decisions, now)

    def _corner(self, way: str) -> dict[str, Decision]:
        found: dict[str, Decision] = {}
        for value in self._made.values:
            ways = self._made.ways(value, self._slower)
            if way == "mixed":  # whatever is there late is moved, the rest is made again
                found[value] = "move" if "move" in ways else "fresh"
            elif way in ways:
                found[value] = way
            if found.get(value) not in ways:
                found.pop(value, None)
        return found

    def _state(self, decisions: Mapping[str, Decision]) -> State:
        print_ = self._prints.of(steps(self._made, decisions))
        return _state(decisions, print_)

    def _walk(self, decisions: dict[str, Decision]) -> list[State]:
        now = self._prints.of(steps(self._made, decisions))
        found = [_state(decisions, now)]
        while True:
            taken = self._next(decisions, now, TARGET) or self._next(decisions, now, 0.999)
            if taken is None:
                return found
            value, way, now = taken
            decisions[value] = way
            found.append(_state(decisions, now))

    def _next(
        self, decisions: Mapping[str, Decision], now: Footprint, target: float
    ) -> tuple[str, Decision, Footprint] | None:
        """The best of the candidates that are in memory at the peak."""
        level = now.peak * target
        before = now.above(level)
        candidates = sorted(
            (self._known.get((v, way), self._first_guess(v, way)), v, way)
            for v in self._made.values
            if v in now.at_peak
            for way in self._ways(v, decisions.get(v, "keep"))
        )
        best: tuple[float, str, Decision, Footprint] | None = None
        tried = 0
        for guess, value, way in candidates:
            if best and (tried >= LOOKED_AT or guess >= best[0]):
                break
            after = self._prints.of(steps(self._made, {**decisions, value: way}))
            gain, cost = before - after.above(level), after.extra_ns - now.extra_ns
            tried += 1
            if gain <= 0 or after.peak > now.peak:
                self._known.pop((value, way), None)
                continue
            score = cost / gain
            self._known[value, way] = score
            if best is None or score < best[0]:
                best = (score, value, way, after)
        return best[1:] if best else None

    def _ways(self, value: str, now: Decision) -> tuple[Decision, ...]:
        later: Mapping[Decision, Sequence[Decision]] = {
            "keep": ("share", "fresh", "move"),
            "share": ("fresh", "move"),
            "fresh": ("move",),
            "move": (),
        }
        there = self._made.ways(value, self._slower)
        return tuple(w for w in later[now] if w in there)

    def _first_guess(self, value: str, way: Decision) -> float:
        return self._prints.guess(value, way)
