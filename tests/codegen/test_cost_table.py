"""One way to a cost table per kind of target; estimates where nothing can run."""

import pytest

from codegen.cost_table import fill
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.ops.signature import signatures_of
from planner.plan.check import check
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import small_net


@pytest.mark.parametrize("name", ["cpu16", "knl7250", "h200"])
def test_a_machine_that_is_not_at_hand_can_be_planned_for(name: str) -> None:
    graph, target = small_net(), load_target(name)
    saved: list[CostTable] = []
    table = fill([graph], target, modelled=True, save=saved.append)
    assert saved == [table] and {e.source for e in table.entries} == {"modelled"}
    assert {e.signature for e in table.entries} == {s.text for s in signatures_of([graph])}
    assert check(graph, make_plan(graph, target, table, PlanOptions()), target) == []


def test_estimates_fill_gaps_only() -> None:
    graph, target = small_net(), load_target("h200")
    whole = fill([graph], target, modelled=True)
    known = whole.entries[0].model_copy(update={"source": "measured", "warm_ns": (7.0,), "cold_ns": (7.0,)})
    table = fill([graph], target, whole.model_copy(update={"entries": (known,)}), modelled=True)
    assert known in table.entries and len(table.entries) == len(whole.entries)


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="SP1804"):
        fill([small_net()], load_target("cpu2"), modelled=True, tf32=True)
    with pytest.raises(UserError, match="SP1204"):
        fill([small_net()], load_target("cpu2"), CostTable(target="x", fingerprint="another machine"), modelled=True)
