"""Pass *budget* for schedules that co-run: nodes side by side within the budget.

The states worth having are those of nodes that run one after the other (frontier.py). Each of them is scheduled side by
side within a number of bytes (side_by_side.py): the more of these a state leaves, the more can run side by side, but
the more runs again. So at every *level* of bytes the state is taken whose schedule ends first. Levels do not depend on
the budget. A plan may take more bytes than its level, because not all bytes alive at once can be packed without waste,
or less; of those plans that fit, the fastest is the plan.

The other programs run one after the other: they need less than a training step, and more of it would not shorten that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from planner.errors import UserError
from planner.graph.model import Graph
from planner.plan.schema import Plan, Slowdown
from planner.solve.assemble import Draft, Setting, alive_bytes, completed, draft
from planner.solve.budget import certain_others_ns, longer, preference
from planner.solve.corunning.interference import Interference
from planner.solve.keep import kept_values
from planner.solve.memory.frontier import TRAIN, Frontier
from planner.solve.memory.room import lifetimes
from planner.solve.memory.side_by_side import Within, Work, side_by_side
from planner.solve.memory.states import State
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule

APART = 1.03
"""A level is so many times the next one."""

PATIENCE = 3
"""States, each of which runs more again than the last, that may end later than the best so far before a level's search
is over."""

SMALL = 150
"""Nodes of a graph of which the plans of all levels are compared, so that more memory is never slower. Of a larger one
that takes minutes,"""
FITTING = 3
"""and so many levels do that fit: what is planned for fewer bytes is seldom faster, and then by less than 1 %."""
ABOVE = 1.1
"""What is scheduled within so many times the budget may still not need more than that."""

SURE = 0.98
"""A replay, which counts waits and who really runs beside whom, takes no less than this share of the time as
scheduled."""


@dataclass(frozen=True)
class Beside:
    """One schedule whose nodes co-run, under any budget."""

    setting: Setting
    schedules: Mapping[str, Schedule]
    threads: tuple[int, ...]
    """Processors of lanes on the second threads of cores."""
    choice: Frontier
    """The states worth having in the modes of `schedules`."""
    _known: dict[int, "_Ways"] = field(default_factory=dict)

    @cached_property
    def others_ns(self) -> float:
        """What the programs besides the training step certainly take."""
        return certain_others_ns(self.setting, self.schedules, self.threads, self.choice)

    def plan(self, top: int, at_least: int, known_ns: float) -> Plan | None:
        """The fastest plan that fits; None: none does, or none is faster than one that there is already. `top`: the
        highest level, bytes. `at_least`: ns below which promises are not sought. `known_ns`: time of the plan that
        there is."""
        every = small(self.setting.graph)
        # Signals between lanes are not in a schedule's times; in steps of microseconds they decide.
        signals = 2 * self.setting.costs.sync_ns * len(self.schedules[TRAIN].order)
        best: Plan | None = None
        seen: list[Mapping[str, Schedule]] = []
        fitting = 0
        for level in levels(top, self.choice.states[-1].peak):
            made = self._at(level) if every or level <= ABOVE * self.setting.capacity else None
            if made is None or made.schedules in seen:
                continue
            if fitting == FITTING and not every:
                break
            seen.append(made.schedules)
            if SURE * made.schedules[TRAIN].end_ns - signals + self.others_ns > known_ns:
                if every:
                    continue
                break
            if alive_bytes(made) > self.setting.capacity:
                continue
            if longer(self.setting, made, self.others_ns, known_ns):
                fitting += 1  # it fits, and is slower than what is known: levels below most likely are, too
                continue
            plan = self._fitting(made)
            if plan is not None:
                fitting += 1
                best = min((p for p in (best, plan) if p), key=lambda p: preference(p, at_least))
                known_ns = min(known_ns, sum(p.predicted_ns for p in plan.programs))
        return best

    def along(self, top: int) -> list[Plan]:
        """The plans of every third level, for as much memory as they take."""
        found = (self._at(level) for level in islice(levels(top, self.choice.states[-1].peak), 0, None, 3))
        return [completed(self.setting, _told(self.setting, made)) for made in found if made]

    def _fitting(self, made: Draft) -> Plan | None:
        try:
            return completed(self.setting, _told(self.setting, made))
        except UserError as error:
            if error.code != "SP1301":
                raise
            return None

    def _at(self, level: int) -> Draft | None:
        """The draft that ends first within so many bytes, without waste; None: no state needs so few."""
        best, worse = None, 0
        for number, state in enumerate(self.choice.states):
            if state.peak > level:
                continue
            made = min(self._ways(number, state).within(level), key=_end)
            if best is None or _end(made) < _end(best):
                best, worse = made, 0
            else:
                worse += 1
            if worse == PATIENCE:
                break
        return best

    def _ways(self, number: int, state: State) -> "_Ways":
        if number not in self._known:
            self._known[number] = _Ways(self, state)
        return self._known[number]


def small(graph: Graph) -> bool:
    """Whether trying everything takes no more than seconds."""
    return sum(len(p.nodes) for p in graph.programs) < SMALL


def levels(top: int, least: int) -> Iterator[int]:
    """From `top` bytes down to the last that is not less than `least`."""
    level = float(top)
    while level >= least:
        yield int(level)
        level /= APART


def _end(made: Draft) -> float:
    return made.schedules[TRAIN].end_ns


class _Ways:
    """What there is to schedule of one state: in the order of the co-running schedule and in that of the least memory;
    with transfers that hold memory longer to run beside the nodes, and without."""

    def __init__(self, given: Beside, state: State) -> None:
        self._given, self._rewrites = given, given.choice.rewrite(state)
        quiet = given.choice.schedules(state, calm(given.setting.graph, given.schedules))
        eager = {name: replace(s, order=given.schedules[name].order) for name, s in quiet.items()}
        self._works: list[tuple[Draft, tuple[_Levels, ...]]] = []
        for overlap in (True, False) if self._rewrites[TRAIN].transfers else (True,):
            lean, wanted = (self._draft(schedules, overlap) for schedules in (quiet, eager))
            self._works.append((lean, self._work(lean, wanted)))

    def _draft(self, schedules: Mapping[str, Schedule], overlap: bool) -> Draft:
        return draft(self._given.setting, schedules, self._given.threads, self._rewrites, overlap=overlap)

    def _work(self, lean: Draft, wanted: Draft) -> tuple["_Levels", ...]:
        setting, schedule = self._given.setting, lean.schedules[TRAIN]
        keep = frozenset(kept_values(setting.graph, setting.options.keep))
        work = Work(
            graph=lean.graph,
            lean=schedule,
            wanted=wanted.schedules[TRAIN].order,
            lives=lifetimes(lean.graph, lean.schedules, TRAIN, keep, lean.pools),
            took=self._took(schedule),
            cores=len(setting.cpus),
            lanes=len(lean.cpus),
        )
        return _Levels(work), _Levels(replace(work, wanted=schedule.order))

    def _took(self, schedule: Schedule) -> dict[str, float]:
        """ns of every node beside others; what runs again has not been seen beside any."""
        given, sync_ns = self._given.schedules[TRAIN], self._given.setting.costs.sync_ns
        took = {n: float(c.total_ns + sync_ns * len(c.stage_ns)) for n, c in schedule.choices.items() if c.stage_ns}
        for node, (start, end) in given.spans.items():
            if end > start and schedule.choices[node] == given.choices[node]:
                took[node] = max(took[node], end - start)
        return took

    def within(self, level: int) -> list[Draft]:
        """Each of them scheduled within so many bytes."""
        return [
            replace(lean, schedules={**lean.schedules, TRAIN: levels.at(level)})
            for lean, ways in self._works
            for levels in ways
        ]


class _Levels:
    """The schedules of one work within any number of bytes; many levels have the same."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._found: list[Within] = []

    def at(self, level: int) -> Schedule:
        known = next((f.schedule for f in self._found if f.least <= level < f.below), None)
        if known is None:
            self._found.append(side_by_side(self._work, level))
            known = self._found[-1].schedule
        return known


def _told(setting: Setting, made: Draft) -> Draft:
    """With the measured pairs that run side by side now."""
    schedule = made.schedules[TRAIN]
    interference = Interference(made.graph, schedule.order, setting.costs, setting.sharing(made.cpus))
    if not interference.has_pairs:
        return made
    runs = {n.id: interference.run(n.id, schedule.choices[n.id], 0) for n in schedule.order}
    found = []
    for one, other in _beside(schedule):
        for node, beside in ((one, other), (other, one)):
            factor = interference.measured(runs[node], runs[beside])
            if factor is not None:
                found.append(Slowdown(node=node, beside=beside, factor=round(factor, 4)))
    told = replace(schedule, slowdowns=tuple(sorted(found, key=lambda s: (s.node, s.beside))))
    return replace(made, schedules={**made.schedules, TRAIN: told})


def _beside(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """Pairs of nodes of which the second starts while the first runs."""
    running: Sequence[tuple[float, str]] = []
    for node in schedule.order:
        start, end = schedule.spans[node.id]
        running = [r for r in running if r[0] > start]
        if end > start:
            yield from ((other, node.id) for _, other in running)
            running = [*running, (end, node.id)]
