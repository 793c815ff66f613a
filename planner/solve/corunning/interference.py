"""What running nodes side by side would cost, for the scheduler: the rules of plan/contention.py on choices.

Throughput is counted in sequential work: a node that takes t ns in its chosen mode, and would take b ns in its best
one, gets b / t of its sequential time done per time, divided by how much its neighbours slow it down. Co-running pays
when the sum over what runs grows; a pair for which it shrinks loses, and is kept apart.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.costs.table import CostTable
from planner.graph.model import Graph, Node
from planner.ops.base import Mode
from planner.ops.signature import signature_of
from planner.plan.contention import Load, bandwidth_factor, load_of
from planner.plan.schema import Sharing
from planner.solve.threads import Choice

LEAST_GAIN = 0.01
"""Sequential work per time that a further node must add; less is lost in what no model sees."""


class Run(NamedTuple):
    """A node in a mode, as far as its neighbours are concerned."""

    node: str
    key: tuple[str, Mode]
    """(signature, mode): what measured pairs are keyed by."""
    load: Load
    worth: float
    """Sequential work per time when nothing slows it down: best time / chosen time."""


class Interference:
    """Slow-downs of sets of running nodes under one cost table."""

    def __init__(self, graph: Graph, order: Sequence[Node], costs: CostTable, sharing: Sharing) -> None:
        self.sharing = sharing
        self._pairs = costs.pairs
        self._signatures = {n.id: signature_of(graph, n).text for n in order} if self._pairs else {}
        self._loads: dict[tuple[int, int], Load] = {}

    @property
    def has_pairs(self) -> bool:
        """Whether any pair was measured."""
        return bool(self._pairs)

    def run(self, node: str, choice: Choice, best_ns: int) -> Run:
        slices, traffic = choice.mode.slices, choice.traffic
        load = self._loads.get((traffic, slices))
        if load is None:
            load = self._loads[traffic, slices] = load_of(traffic / 1e6, slices, self.sharing)
        return Run(node, (self._signatures.get(node, ""), choice.mode), load, best_ns / max(1, choice.total_ns))

    def measured(self, run: Run, beside: Run) -> float | None:
        """How much longer the first takes beside the second, if that was measured."""
        return self._pairs.get((run.key, beside.key))

    def factors(self, runs: Sequence[Run]) -> list[float]:
        """How much longer each of them takes when all run."""
        total = sum(r.load.traffic for r in runs)
        if not self._pairs:
            return [bandwidth_factor(r.load, total, self.sharing) for r in runs]
        found = []
        for i, run in enumerate(runs):
            seen, measured = total, 1.0
            for j, other in enumerate(runs):
                factor = self.measured(run, other) if i != j else None
                if factor is not None:
                    measured *= factor
                    seen -= other.load.traffic
            found.append(measured * bandwidth_factor(run.load, seen, self.sharing))
        return found

    def throughput(self, runs: Sequence[Run]) -> float:
        """Sequential work per time of all of them together."""
        return sum(r.worth / f for r, f in zip(runs, self.factors(runs), strict=True))

    def worst(self, run: Run, beside: Sequence[Run]) -> tuple[Run, float] | None:
        """The neighbour with the largest measured factor, in either direction."""
        found = [
            (other, max(self.measured(run, other) or 0.0, self.measured(other, run) or 0.0))
            for other in beside
            if self.measured(run, other) is not None
        ]
        return max(found, key=lambda item: item[1], default=None)


def refusals(pairs: Mapping[tuple[str, str], float], most: int) -> list[tuple[str, str, float]]:
    """(node, beside, factor) of the pairs that were kept apart: for every node the `most` with the largest factors."""
    by_node: dict[str, list[tuple[float, str]]] = {}
    for (node, beside), factor in pairs.items():
        by_node.setdefault(node, []).append((-factor, beside))
    return [(n, other, -f) for n, found in sorted(by_node.items()) for f, other in sorted(found)[:most]]
