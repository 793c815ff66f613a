"""What the pipeline chooses from: schedules that are planned for unlimited memory, and how they become plans within a
budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.graph.model import Graph
from planner.plan.schema import Plan
from planner.solve.assemble import Setting, alive_bytes, assemble, draft, too_small
from planner.solve.budget import Infeasible, chain, fastest_within, infeasible, pareto, preference, within_budget
from planner.solve.corunning.places import without_unused_lanes
from planner.solve.least import Least
from planner.solve.memory.beside import ABOVE, Beside, small
from planner.solve.memory.frontier import TRAIN, Frontier, frontier
from planner.solve.memory.states import State
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule
from planner.solve.stored import stored_weights
from planner.units import format_bytes

SURE = 1.04
"""Where times are measured, what runs nodes side by side must promise to end this many times sooner than what does not:
kernels are timed with nothing beside them, and smaller promises were not kept (docs/measurements/executors.md)."""
FEW_NODES = 250
"""Nodes of a graph of which a budget's decisions are searched for every schedule that runs one node after the other. Of
a larger one that takes seconds; what is found for the fastest is looked at in the others' modes."""


class Solved:
    """The plan for unlimited memory of one policy, and how it becomes one within the budget."""

    def __init__(self, setting: Setting, schedules: dict[str, Schedule]) -> None:
        self.setting, self.given = setting, schedules
        self._schedules, self._threads = _on_lanes(setting, schedules)
        stored = on_stored(setting, self._schedules)
        if setting.target.gpus:  # under a budget, too
            self._schedules = stored
        self._plan = assemble(replace(setting, unlimited=True), stored, self._threads)
        self.total_ns = total(self._plan)
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

    @cached_property
    def least(self) -> Least | None:
        """What it needs whatever is decided; None: that is not known."""
        if TRAIN not in self.given or self.every_level or not self.setting.same_bits:
            return None
        return Least(self.setting, self._schedules, self._threads, self.total_ns, ABOVE if self.beside else 1.0)

    @property
    def hopeless(self) -> bool:
        """Whether certainly nothing that `rewritten` looks for fits."""
        return self.least is not None and not self.least.fits

    @property
    def _step_ns(self) -> int:
        return self._plan.program[TRAIN].predicted_ns

    @property
    def promised_ns(self) -> float:
        """What its time counts as."""
        return self.counted(self._plan)

    def counted(self, plan: Plan) -> float:
        """What the time of a plan of its schedule counts as, ns."""
        return total(plan) * self.counts

    @property
    def counts(self) -> float:
        """By how much its times count."""
        return SURE if self.beside and self.setting.costs.measured else 1

    @property
    def refused(self) -> Infeasible:
        """What is wrong with it as it is, where it does not fit."""
        made = draft(self.setting, self._schedules, self._threads)
        return Infeasible(too_small(self.setting, made, self.arena).problem, self.arena)

    def rewritten(self, at_least: int, first: "Solved", known: Sequence[Plan]) -> Plan | None:
        """The fastest plan within the budget; None: nothing that fits is faster than those known. `first`: what a
        budget would rewrite first. SP1301."""
        if not self.fits:
            self.setting.say(f"budget: {format_bytes(self.setting.capacity)} is less than {format_bytes(self.arena)}")
        at_least = 0 if self.every_level else max(at_least, self.total_ns)
        if TRAIN not in self._schedules:
            return within_budget(self.setting, self._schedules, self._threads, at_least=at_least)
        choice = self._states(first)
        if choice.prints.always > self.setting.capacity:
            raise infeasible(self.setting, self._schedules, self._threads, choice)
        known_ns = min(map(total, known), default=math.inf)
        given = self.setting, self._schedules, self._threads, choice
        beside = Beside(*given)
        found = [beside.plan(self.arena, at_least, known_ns)] if self.beside else []
        if self.every_level or not any([*found, self.beside and known]):
            known_ns = min([known_ns, *(total(plan) for plan in found if plan)])
            found.append(fastest_within(*given, at_least, known_ns, beside.others_ns))
        if not any([*found, *known]):
            raise infeasible(*given)
        return min((plan for plan in found if plan), key=lambda p: preference(p, at_least), default=None)

    def _states(self, first: "Solved") -> Frontier:
        """The states worth having under some budget: searched for, or those of the first schedule."""
        if self._choice is None:
            searched = first is self or (_few(self.setting.graph) and not self.beside)
            like, slower_ns = (None, 0) if searched else (first._states(first), self._step_ns - first._step_ns)
            # Of a small graph everything is compared, whatever the budget is (beside.py).
            most = math.inf if small(self.setting.graph) else ABOVE * self.setting.capacity
            self._choice = chain(self.setting, self._schedules, like, slower_ns, most)
        return self._choice

    def pareto(self) -> list[Plan]:
        return pareto(self.setting, self._schedules, self._threads)

    def side_by_side(self, first: "Solved") -> list[Plan]:
        """The same of what runs nodes side by side. `first`: what a budget would rewrite first."""
        if not self.beside or TRAIN not in self._schedules:
            return []
        free = replace(self.setting, unlimited=True)
        return Beside(free, self._schedules, self._threads, self._states(first)).along(self.arena)


@dataclass(frozen=True)
class Slow:
    """One node at a time on few lanes, not planned to the end because that is slower where memory is no matter."""

    least_ns: float
    """About the least that a plan of it may take."""
    setting: Setting
    schedules: dict[str, Schedule]

    @cached_property
    def least(self) -> Least | None:
        """As of `Solved`."""
        if TRAIN not in self.schedules or not self.setting.same_bits:
            return None
        return Least(self.setting, *_on_lanes(self.setting, self.schedules), self.least_ns)

    @cached_property
    def alive_fits(self) -> bool:
        """Whether a plan of it in which nothing runs again may fit: no such plan needs fewer bytes than are alive."""
        schedules, threads = _on_lanes(self.setting, self.schedules)
        made = draft(self.setting, on_stored(self.setting, schedules), threads)
        return alive_bytes(made) <= self.setting.capacity

    @property
    def hopeless(self) -> bool:
        """Whether certainly nothing fits."""
        return self.least is not None and not self.least.fits and not self.alive_fits


def _on_lanes(setting: Setting, schedules: dict[str, Schedule]) -> tuple[dict[str, Schedule], tuple[int, ...]]:
    """Without the lanes that nothing runs on; processors of those on second threads."""
    found, unused = without_unused_lanes(schedules, len(setting.cpus))
    return found, tuple(setting.siblings[i] for i in unused)


def on_stored(setting: Setting, schedules: dict[str, Schedule]) -> dict[str, Schedule]:
    """With weights as kernels want them."""
    return schedules if setting.options.plain_weights else stored_weights(setting.graph, schedules)


def _few(graph: Graph) -> bool:
    return sum(len(p.nodes) for p in graph.programs) < FEW_NODES


def total(plan: Plan) -> int:
    return sum(p.predicted_ns for p in plan.programs)
