"""The states worth having under some budget or other: what is recomputed, what moves, and in which modes.

Where modes may round differently (`PlanOptions.same_bits`), the search runs with the fastest modes, with those of the
least scratch, and with some between: what is worth recomputing depends on how much of memory scratch takes. Every state
found is then a ladder of points, from its least scratch to where more helps no more (ways.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from planner.plan.schema import Rewrite
from planner.solve.assemble import Setting
from planner.solve.keep import kept_values
from planner.solve.memory.budget_bound import Relaxation
from planner.solve.memory.footprints import Footprint, Footprints
from planner.solve.memory.published import published
from planner.solve.memory.quick import Quick
from planner.solve.memory.search import Search
from planner.solve.memory.states import State, cheapest, exactly, unfolded
from planner.solve.memory.steps import Decision, Material, Step, material, rewrite_of, steps
from planner.solve.memory.ways import Ways
from planner.solve.rewriting import again_ns, copies_of
from planner.solve.schedule import Schedule
from planner.solve.threads import node_options
from planner.solve.warmth import coldness
from planner.units import format_bytes

TRAIN = "train_step"

FEW = 1_000
"""Where there are no more combinations of decisions, each of them is looked at in every choice of modes."""


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
    prints: Footprints
    ways: Ways | None
    """None: every node in its own mode."""
    others: Mapping[str, "Fixed"]
    """The other programs, where there is a choice of modes."""

    def rewrite(self, state: State) -> dict[str, Rewrite]:
        return {TRAIN: rewrite_of(self.material, unfolded(state, self.material), *self.pools)}

    def schedules(self, state: State, base: Mapping[str, Schedule]) -> dict[str, Schedule]:
        """All programs in the modes that the state stands for."""
        found = {**base, **{name: other.within(state.peak) for name, other in self.others.items()}}
        if self.ways is not None:
            listed = unfolded(state, self.material)
            found[TRAIN] = self.ways.fitting(listed, self.prints.of(listed), state.peak)
        return found


@dataclass(frozen=True)
class Fixed:
    """A program about which nothing is decided but modes."""

    ways: Ways
    steps: list[Step]
    footprint: Footprint

    def within(self, limit: int) -> Schedule:
        return self.ways.fitting(self.steps, self.footprint, limit)


def fixed_programs(setting: Setting, schedules: Mapping[str, Schedule]) -> dict[str, Fixed]:
    """The programs besides the training step whose modes a budget may change."""
    found = {}
    for name, schedule in schedules.items():
        made = material(setting.graph, setting.graph.program[name], schedule.order)
        ways = ways_of(setting, schedules, name, made) if name != TRAIN else None
        if ways:
            listed = steps(made, {})
            found[name] = Fixed(ways, listed, footprints(setting, schedule, made, {}).of(listed))
    return found


def frontier(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    like: Frontier | None = None,
    slower_ns: float = 0.0,
    *,
    given: Sequence[State] = (),
    most: float = math.inf,
) -> Frontier:
    """All states that no other one beats in both memory and time. `like`: those of the same nodes in other modes, to
    choose from instead of searching, without those that are beaten there; `slower_ns`: how much longer the step takes
    than in those modes. `given`: states to choose from instead of searching. `most`: as of `Search.run`."""
    graph, schedule = setting.graph, schedules[TRAIN]
    made = material(graph, graph.program[TRAIN], schedule.order, kept_values(graph, setting.options.keep))
    own = _Space(setting, schedule, made)
    ways = ways_of(setting, schedules, TRAIN, made)
    relaxation = own.relaxed(ways.smallest()) if ways else own.relaxation
    if like is not None and like.material.order == made.order:
        found = list(like.states) if ways else [exactly(s, own.prints, made) for s in like.states]
    elif given:
        found = list(given) if ways else [exactly(s, own.prints, made) for s in given]
    else:
        found = _searched(setting, schedule, own, ways, most)
    best = cheapest(found) if ways is None else _in_all_ways(found, own, ways)
    if like is not None:
        # The smallest stays: what states of equal peaks pack into differs.
        best = [*(s for s in best[:-1] if not _beaten(s, like.states, slower_ns)), best[-1]]
    base = sum(schedule.choices[n.id].total_ns for n in schedule.order)
    setting.say(f"budget: {len(best)} states worth having, from {format_bytes(best[0].peak)} to "
                f"{format_bytes(best[-1].peak)}")  # fmt: skip
    pools = (setting.target.memory.name, setting.target.slower_pool)
    others = fixed_programs(setting, schedules)
    return Frontier(made, tuple(best), base, own.again_ns, relaxation, pools, own.prints, ways, others)


def search_of(setting: Setting, schedules: Mapping[str, Schedule]) -> Search:
    """What searches in the modes of the schedules."""
    graph, schedule = setting.graph, schedules[TRAIN]
    made = material(graph, graph.program[TRAIN], schedule.order, kept_values(graph, setting.options.keep))
    return _Space(setting, schedule, made).search()


def _searched(setting: Setting, schedule: Schedule, own: "_Space", ways: Ways | None, most: float) -> list[State]:
    given = tuple(published(setting.graph, setting.graph.program[TRAIN], own.made).values())
    if ways is None:
        return own.search().run(given, most)
    everything = own.search().all_decisions(FEW)
    if everything is not None:
        return [State(d) for d in everything]
    found = own.search().run(given)
    for level in _different((schedule, ways.at_price(own.price), ways.smallest()))[1:]:
        found += _Space(setting, level, own.made).search().run(given)
    return found


def ways_of(setting: Setting, schedules: Mapping[str, Schedule], name: str, made: Material) -> Ways | None:
    """None: there is only one way to run every node of the program."""
    if setting.same_bits:
        return None
    graph, costs, cache, order = setting.graph, setting.costs, setting.cache, schedules[name].order
    cold = coldness(graph, {n: s.order for n, s in schedules.items()}, cache)[name]
    options = node_options(graph, order, cold, costs, len(setting.cpus), cache, gpu=bool(setting.target.gpus))
    return Ways(graph, schedules[name], made, options, costs) or None


def exact_state(
    setting: Setting, schedules: Mapping[str, Schedule], choice: Frontier, decisions: Mapping[str, Decision]
) -> State:
    """What some decisions need and cost in the schedules' own modes, copies not counted."""
    found = footprints(setting, schedules[TRAIN], choice.material, choice.again_ns).of(
        steps(choice.material, decisions)
    )
    return State(decisions, frozenset(), found.peak, found.again_ns, found.again_ns)


def footprints(
    setting: Setting,
    schedule: Schedule,
    made: Material,
    again: Mapping[str, float],
    copy_ns_per_byte: float = 0.0,
) -> Footprints:
    keep = kept_values(setting.graph, setting.options.keep)
    program = setting.graph.program[schedule.program]
    return Footprints(setting.graph, program, schedule, made, again, copy_ns_per_byte, keep)


class _Space:
    """Decisions about a training step in given modes."""

    def __init__(self, setting: Setting, schedule: Schedule, made: Material) -> None:
        self._setting, self.made = setting, made
        self._slower = setting.target.slower_pool
        known = {n.id: n for n in made.order}
        self.again_ns = {
            name: again_ns(setting.graph, known[name], again, schedule.choices[name], setting.costs)
            for name, again in made.again.items()
        }
        copy = _copy_ns(setting, self._slower) if self._slower else 0.0
        self.prints = footprints(setting, schedule, made, self.again_ns, copy)
        self.relaxation = self.relaxed(schedule)

    def relaxed(self, schedule: Schedule) -> Relaxation:
        """The linear program with these recomputation times and the scratch of a schedule."""
        graph, keep = self._setting.graph, kept_values(self._setting.graph, self._setting.options.keep)
        return Relaxation(graph, graph.program[TRAIN], schedule, self.made, self.again_ns, keep)

    def search(self) -> Search:
        quick = Quick(self.prints, self.made, self.again_ns)
        return Search(self.made, self.prints, quick, self.relaxation, bool(self._slower))

    @property
    def price(self) -> float:
        """ns per byte: what memory costs, half of it being cheaper, where it is gained by running nodes again."""
        return median([self.prints.guess(v, "share") for v in self.made.producer] or [0.0])


def _different(schedules: Iterable[Schedule]) -> list[Schedule]:
    found: list[Schedule] = []
    for schedule in schedules:
        if schedule not in found:
            found.append(schedule)
    return found


def _beaten(state: State, others: Iterable[State], slower_ns: float) -> bool:
    return any(s.peak <= state.peak and s.extra_ns <= state.extra_ns + slower_ns for s in others)


def _in_all_ways(states: Iterable[State], own: _Space, ways: Ways) -> list[State]:
    """The points of all these states that no other one beats."""
    found: list[State] = []
    different = {(tuple(sorted(s.decisions.items())), frozenset(s.held)): s for s in states}
    for state in different.values():
        listed = unfolded(state, own.made)
        footprint = own.prints.of(listed)
        copied = footprint.extra_ns - footprint.again_ns
        found += (
            State(state.decisions, state.held, p.peak, p.again_ns + copied, p.again_ns)
            for p in ways.points(listed, footprint)
        )
    return cheapest(found)


def _copy_ns(setting: Setting, slower: str) -> float:
    """What moving a byte one way costs: the time that it takes from the cores, and some of what they may wait."""
    fast = setting.target.memory.name
    copies = copies_of([(fast, slower), (slower, fast)], setting.target, setting.costs, 0)
    slowest = max(1 / speed for speed in copies.speed.values())
    return slowest / len(setting.cpus) if setting.target.logical_cpus <= len(setting.cpus) else slowest / 4
