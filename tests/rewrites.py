"""Rewritten plans for tests: targets with a slower pool, and random decisions."""

import random
from collections.abc import Mapping

from codegen.facts import facts
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.plan.schema import Plan, Rewrite
from planner.solve.assemble import Setting, assemble
from planner.solve.memory.steps import Decision, Held, Material, material, rewrite_of, steps
from planner.solve.options import PlanOptions
from planner.solve.scheduling import base_schedules
from planner.target.model import Pool, Target
from tests.codegen.plans import target_of

SLOW = 2_000_000_000


Nodes = tuple[int, ...] | None
"""Of a pool: NUMA nodes, or wherever the system takes its pages from."""


def with_pool(
    target: Target,
    kind: str = "dram",
    capacity: int = 2**34,
    nodes: tuple[Nodes, Nodes] = (None, None),
) -> Target:
    """A second pool behind the first: other memory, or a disk. `nodes`: the NUMA nodes of both."""
    fields = {"name": "slow", "kind": kind, "capacity": capacity, "bandwidth": 2 * SLOW}
    pool = Pool.model_validate(fields | {"link_in": SLOW, "link_out": SLOW, "nodes": nodes[1]})
    first = target.pools[0].model_copy(update={"nodes": nodes[0]})
    return Target.model_validate(target.model_dump() | {"pools": (first, *target.pools[1:], pool)})


class Rewriter:
    """Plans one graph under any decisions about its training step."""

    def __init__(
        self,
        graph: Graph,
        lanes: int = 2,
        kind: str = "dram",
        policy: str = "sequential",
        nodes: tuple[Nodes, Nodes] = (None, None),
    ) -> None:
        self.graph, self.target = graph, with_pool(target_of(lanes), kind, nodes=nodes)
        costs = modelled_costs(graph, self.target, facts)
        options = PlanOptions.model_validate({"policy": policy})
        self.setting = Setting(graph, self.target, costs, options, lambda text: None)
        self.schedules = base_schedules(self.setting)

    @property
    def material(self) -> Material:
        program = self.graph.program["train_step"]
        return material(self.graph, program, self.schedules["train_step"].order)

    def rewrite(self, decisions: Mapping[str, Decision], held: Held = frozenset()) -> Rewrite:
        return rewrite_of(self.material, steps(self.material, decisions, held), self.target.memory.name, "slow")

    def plan(self, decisions: Mapping[str, Decision], held: Held = frozenset(), overlap: bool = True) -> Plan:
        rewrites = {"train_step": self.rewrite(decisions, held)}
        return assemble(self.setting, self.schedules, rewrites=rewrites, overlap=overlap)

    def everything(self, way: Decision) -> dict[str, Decision]:
        """That decision about every value for which there is it."""
        made = self.material
        return {v: way for v in made.values if way in made.ways(v, True)}

    def draw(self, rng: random.Random) -> dict[str, Decision]:
        made = self.material
        return {v: rng.choice(("keep", *made.ways(v, True))) for v in made.values}
