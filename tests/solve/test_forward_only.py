"""A graph without a backward pass within a budget: it fits as it is, or the smallest budget is named."""

import numpy as np
import pytest

from planner import narray as na
from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.narray.record import recipe, trace
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_pareto, make_plan
from planner.target.text import load_target


def test_nothing_can_run_again() -> None:
    tracing = na.Tracing()
    x = na.NArray(tracing.given(np.ones((64, 64), np.float32)))
    made = recipe(trace([na.exp(na.exp(x) + 1).sum(1)._record]), "forward", False)
    assert made.graph is not None
    target = load_target("cpu16").restrict(2)
    costs = modelled_costs(made.graph, target)
    plan = make_plan(made.graph, target, costs, PlanOptions(memory_budget=40000))
    assert plan.pools[0].arena <= 40000
    with pytest.raises(UserError, match=r"SP1301.* 33024 bytes"):
        make_plan(made.graph, target, costs, PlanOptions(memory_budget=20000))


def test_branches_that_co_run_have_a_front_too() -> None:
    """Small branches run side by side; nothing of that is rewritten."""
    tracing = na.Tracing()
    parts = [na.NArray(tracing.given(np.ones((16, 16), np.float32))) for _ in range(6)]
    made = recipe(trace([na.exp(na.exp(p) + 1).sum(1)._record for p in parts]), "forward", False)
    assert made.graph is not None
    target = load_target("cpu16")
    costs = modelled_costs(made.graph, target)
    assert 3 in make_plan(made.graph, target, costs).strategies
    plans = make_pareto(made.graph, target, costs)
    assert plans and all(p.pools[0].capacity == target.memory.capacity for p in plans)
    least = min(p.pools[0].arena for p in plans)
    assert make_plan(made.graph, target, costs, PlanOptions(memory_budget=least)).pools[0].arena <= least
