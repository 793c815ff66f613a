"""Builds and runs what lazy arrays recorded (planner.narray). Importing this makes sessions run with it.

One executor per recorded graph: planned within the memory that is left, checked, emitted, built, and kept. The same
operations on other data find it again; nothing is planned or built then.
"""

import hashlib
import tempfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from codegen.build import build
from codegen.cost_table import fill
from codegen.emit import emit
from codegen.executor import Executor
from codegen.load import executor_class
from planner.capturing import Captured
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_hash
from planner.narray import register
from planner.narray.record import Recipe
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.text import load_target

Array = np.ndarray[Any, Any]

MOST = 32
"""Executors that are kept."""


class Step(NamedTuple):
    """A built graph."""

    folder: Path
    graph: Graph
    plan: Plan
    executor: Executor

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs, in the program's order."""
        self.executor.step(*inputs)
        return list(self.executor.outputs().values())


class Dataflow:
    """Makes a `Step` of every new graph.

    folder: where plans and sources go, to be looked at with `stepplan show`; a temporary folder by default. target:
    the machine at hand by default. costs: "modelled" plans at once, "measured" profiles every new graph first (as long
    as `budget_s` seconds allow), and a cost table is used as it is. pin: whether threads stay on their processors.
    SP1201: other costs; SP1305: another policy.
    """

    def __init__(
        self,
        *,
        folder: Path | str | None = None,
        target: str | Path | Target | None = None,
        costs: Literal["modelled", "measured"] | CostTable = "modelled",
        budget_s: float | None = None,
        policy: Literal["sequential", "liu", "auto"] = "auto",
        pin: bool = True,
    ) -> None:
        if not isinstance(costs, CostTable) and costs not in ("modelled", "measured"):
            fix = 'use "modelled", "measured" or a table (planner.costs.table.read_costs)'
            raise UserError("SP1201", f"costs={costs!r} is no cost table", fix)
        PlanOptions(policy=policy)  # SP1305
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="narray")
            folder = self._temporary.name
        self.folder = Path(folder)
        self._target = target
        self._costs = costs
        self._budget_s, self._policy, self._pin = budget_s, policy, pin
        self.steps: dict[Hashable, Step] = {}
        """In the order of their last use."""
        self.planned = 0
        """How many graphs were planned and built."""

    @property
    def target(self) -> Target:
        if not isinstance(self._target, Target):
            measure = self._costs == "measured"
            self._target = load_target(self._target) if self._target else detect(measure=measure)
        return self._target

    def ready(self, key: Hashable, made: Callable[[], Recipe], room: int | None) -> tuple[Step, int]:
        step = self.steps.pop(key, None)
        if step is None:
            step = self._make(made(), room)
        self.steps[key] = step
        return step, sum(_bytes(s) for s in self.steps.values())

    def _make(self, recipe: Recipe, room: int | None) -> Step:
        """SP1301: it does not fit, even alone."""
        graph = recipe.graph
        assert graph is not None
        while len(self.steps) >= MOST:
            self._close_oldest()
        costs = self._table(graph)
        while True:
            left = None if room is None else room - sum(_bytes(s) for s in self.steps.values())
            try:
                options = PlanOptions(policy=self._policy, memory_budget=None if left is None else max(1, left))
                plan = make_plan(graph, self.target, costs, options)
                break
            except UserError as error:
                if error.code != "SP1301" or not self.steps:
                    raise
                self._close_oldest()
        folder = self.folder / self._name(graph)
        emit(plan, graph, self.target, folder)
        Captured(graph, recipe.weights).write_weights(folder / "weights.npz")
        build(folder)
        self.planned += 1
        return Step(folder, graph, plan, executor_class(folder)(pin=self._pin))

    def _table(self, graph: Graph) -> CostTable:
        if isinstance(self._costs, CostTable):
            return self._costs
        return fill([graph], self.target, modelled=self._costs == "modelled", budget_s=self._budget_s)

    def _name(self, graph: Graph) -> str:
        """The graph's name; with a part of its hash where another graph has it."""
        taken = any(s.folder.name == graph.name for s in self.steps.values())
        short = hashlib.sha256(graph_hash(graph).encode()).hexdigest()[:8]
        return f"{graph.name}_{short}" if taken else graph.name

    def _close_oldest(self) -> None:
        key = next(iter(self.steps))
        self.steps.pop(key).executor.close()

    def close(self) -> None:
        while self.steps:
            self._close_oldest()


def _bytes(step: Step) -> int:
    return sum(pool.arena for pool in step.plan.pools[:1])


register(Dataflow)
