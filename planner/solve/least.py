"""Pass *budget* where certainly nothing fits: the smallest budget is told without looking for what larger ones are
worth.

Whatever is decided, every node of the graph finds in memory what it reads and writes, and what nobody can make again.
Most of that at any node is a bound on what a step needs, in the order and the modes of a schedule. Where a budget is
below the bounds of all schedules, nothing fits. What the lowest bound says is mostly enough for a step that a search
begins with: then there is no smaller one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.plan.schema import Plan
from planner.solve.assemble import Setting
from planner.solve.budget import Infeasible, fastest_within, infeasible
from planner.solve.memory.frontier import Frontier, frontier, search_of
from planner.solve.memory.search import Search
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule


@dataclass(frozen=True)
class Least:
    """One schedule, its nodes one after the other."""

    setting: Setting
    """In which modes are fixed (`same_bits`)."""
    schedules: Mapping[str, Schedule]
    threads: tuple[int, ...] = ()
    step_ns: float = 0.0
    """What its programs take without a budget."""
    beside: float = 1.0
    """Where its nodes run side by side: no plan is looked for within a budget that is so many times smaller than what
    they need one after the other."""

    @cached_property
    def _calmed(self) -> dict[str, Schedule]:
        return calm(self.setting.graph, self.schedules)

    @cached_property
    def _search(self) -> Search:
        return search_of(self.setting, self._calmed)

    @property
    def bytes(self) -> int:
        """The bound; 0: none is known."""
        return self._search.least

    @property
    def fits(self) -> bool:
        """Whether there may be a plan of it within the budget."""
        return self.bytes <= self.beside * self.setting.capacity

    @cached_property
    def choice(self) -> Frontier | None:
        """What needs no more than the bound; None: nothing that has been found."""
        found = self._search.smallest()
        return frontier(self.setting, self._calmed, given=found) if found else None

    @property
    def plan(self) -> Plan | None:
        """A plan of what needs no more than the bound, if it fits."""
        if self.choice is None:
            return None
        return fastest_within(self.setting, self.schedules, self.threads, self.choice)


def lowest(given: Sequence[Least]) -> Least:
    return min(given, key=lambda one: one.bytes)


def told(given: Sequence[Least]) -> Infeasible | None:
    """SP1301 where nothing that is given fits; None: something may, or smaller plans may be found by a search."""
    if any(one.fits for one in given):
        return None
    one = lowest(given)
    # Whether the slower pool has room for what moves is not known before all of it is packed.
    if one.choice is None or any("move" in state.decisions.values() for state in one.choice.states):
        return None
    found = infeasible(one.setting, one.schedules, one.threads, one.choice)
    return found if found.least <= one.bytes else None
