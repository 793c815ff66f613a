"""A graph without a backward pass within a budget: it fits as it is, or the smallest budget is named."""

import numpy as np
import pytest

from planner import narray as na
from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.narray.record import recipe, trace
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
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
