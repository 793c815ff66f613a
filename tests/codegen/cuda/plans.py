"""Plans for GPUs in tests: emitted, and built for the null device; with STEPPLAN_TEST_GPU=1 for the GPU at hand."""

import os
from pathlib import Path

import pytest

from codegen.build import build
from codegen.cuda.build import HOST
from codegen.cuda.emit import emit_cases
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import facts
from codegen.cuda.profile import profile
from codegen.emit import emit
from codegen.load import executor_class
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.graph.model import Graph
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target
from tests.codegen import quick

NULL = not os.environ.get("STEPPLAN_TEST_GPU")
FLAGS = ("-Wall", "-Wextra", *(["-Werror"] if NULL else []))
"""NVIDIA's headers have warnings of their own."""
INCLUDED = (*quick.INCLUDED, "functional", "memory", "stdexcept", "string", "vector")
"""What the runtime's headers include: half of what a small plan's sources take."""
asks_the_null_device = pytest.mark.skipif(not NULL, reason="asks for what only the null device records or pretends")


def flags() -> quick.Flags:
    """Of a plan's own sources: FLAGS, for the null device with those headers compiled beforehand."""
    if not NULL:
        return FLAGS
    return (*FLAGS, *quick.beforehand("null", INCLUDED, (*HOST, "-O0", "-DSTEPPLAN_NULL_DEVICE", *FLAGS)))


def gpu() -> Target:
    return load_target("h200")


def plan_for(graph: Graph, lanes: int = 1, budget: int | None = None) -> Plan:
    """With several lanes nodes co-run wherever they may."""
    policy = {"policy": "liu", "strategies": (1, 3)} if lanes > 1 else {"policy": "sequential"}
    options = PlanOptions.model_validate({**policy, "lanes": lanes, "memory_budget": budget})
    return make_plan(graph, gpu(), costs_of(graph), options)


def costs_of(graph: Graph) -> CostTable:
    """Modelled; on a GPU with algorithms that its libraries have."""
    return modelled_costs(graph, gpu(), facts) if NULL else profile([graph], gpu(), own_kernels=False, brief=True)


def make(plan: Plan, graph: Graph, folder: Path, safe: bool = True) -> type[CudaExecutor]:
    """`safe=False`: emit a plan that `check` would reject."""
    (emit if safe else emit_cases)(plan, graph, gpu(), folder)
    build(folder, flags=flags(), null_device=NULL)
    found = executor_class(folder)
    assert issubclass(found, CudaExecutor)
    return found
