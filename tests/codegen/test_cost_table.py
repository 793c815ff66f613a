"""One way to a cost table per kind of target; estimates where nothing can run."""

import os

import pytest

import codegen.facts
from codegen import cost_table
from codegen.cost_table import fill
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.precision import mixed_precision
from planner.ops.base import Facts, Mode, Signature
from planner.ops.signature import signatures_of
from planner.plan.check import check
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.text import load_target
from tests.codegen.plans import target_of
from tests.graphs import small_net


@pytest.mark.parametrize("name", ["cpu16", "knl7250", "h200"])
def test_a_machine_that_is_not_at_hand_can_be_planned_for(name: str) -> None:
    graph, target = small_net(), load_target(name)
    saved: list[CostTable] = []
    table = fill([graph], target, modelled=True, save=saved.append)
    assert saved == [table] and {e.source for e in table.entries} == {"modelled"}
    assert {e.signature for e in table.entries} == {s.text for s in signatures_of([graph])}
    assert check(graph, make_plan(graph, target, table, PlanOptions()), target) == []


def test_a_processor_without_bfloat16_can_plan_for_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library describes no such kernel; what it describes it is still asked about."""
    graph, target = mixed_precision(small_net()), load_target("cpu16")
    here = detect()
    without = here.model_copy(update={"cpu": here.cpu.model_copy(update={"isa": ("avx2",)})})
    monkeypatch.setattr(cost_table, "detect", lambda: without)
    monkeypatch.setattr(codegen.facts, "facts", asked := Refusing())
    table = fill([graph], target, modelled=True)
    assert asked.count and any(e.facts for e in table.entries)
    assert check(graph, make_plan(graph, target, table, PlanOptions(policy="sequential")), target) == []


class Refusing:
    """The library of a processor without instructions for bfloat16."""

    count = 0

    def __call__(self, signature: Signature, mode: Mode) -> Facts:
        assert "bf16" not in signature.text
        self.count += 1
        return {}


def test_estimates_fill_gaps_only() -> None:
    graph, target = small_net(), load_target("h200")
    whole = fill([graph], target, modelled=True)
    known = whole.entries[0].model_copy(update={"source": "measured", "warm_ns": (7.0,), "cold_ns": (7.0,)})
    table = fill([graph], target, whole.model_copy(update={"entries": (known,)}), modelled=True)
    assert known in table.entries and len(table.entries) == len(whole.entries)


def test_processors_that_are_not_there_are_told_before_anything_is_timed() -> None:
    target = target_of(2)
    core = target.cpu.cores[1].model_copy(update={"cpus": (1_000_000,)})
    cpu = target.cpu.model_copy(update={"cores": (target.cpu.cores[0], core)})
    larger = target.model_copy(update={"cpu": cpu})
    allowed = os.sched_getaffinity(0)
    with pytest.raises(UserError, match=r"SP1603: .* may not use: 1000000\n.*--modelled"):
        fill([small_net()], larger)
    assert os.sched_getaffinity(0) == allowed
    assert fill([small_net()], larger, modelled=True).entries


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="SP1804"):
        fill([small_net()], load_target("cpu2"), modelled=True, tf32=True)
    with pytest.raises(UserError, match="SP1204"):
        fill([small_net()], load_target("cpu2"), CostTable(target="x", fingerprint="another machine"), modelled=True)
