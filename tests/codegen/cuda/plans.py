"""Plans for GPUs in tests: emitted, and built for the null device."""

from pathlib import Path

from codegen.build import build
from codegen.cuda.emit import emit_cases
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import facts
from codegen.emit import emit
from codegen.load import executor_class
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target

FLAGS = ("-Wall", "-Wextra", "-Werror")


def gpu() -> Target:
    return load_target("h200")


def plan_for(graph: Graph, lanes: int = 1, budget: int | None = None) -> Plan:
    """With several lanes nodes co-run wherever they may."""
    policy = {"policy": "liu", "strategies": (1, 3)} if lanes > 1 else {"policy": "sequential"}
    options = PlanOptions.model_validate({**policy, "lanes": lanes, "memory_budget": budget})
    return make_plan(graph, gpu(), modelled_costs(graph, gpu(), facts), options)


def make(plan: Plan, graph: Graph, folder: Path, safe: bool = True) -> type[CudaExecutor]:
    """`safe=False`: emit a plan that `check` would reject."""
    (emit if safe else emit_cases)(plan, graph, gpu(), folder)
    build(folder, flags=FLAGS, null_device=True)
    found = executor_class(folder)
    assert issubclass(found, CudaExecutor)
    return found
