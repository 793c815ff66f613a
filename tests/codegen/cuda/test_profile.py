"""Profiling for a GPU, as a dry run on the null device: everything is measured once and can be planned with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from codegen.cuda import probe as probe_module
from codegen.cuda.pairs import profile_pairs
from codegen.cuda.probe import Algorithm, algorithms, probe
from codegen.cuda.profile import _guessed, _worth_keeping, copy_bandwidths, profile
from planner.capturing import capture
from planner.costs.table import CostTable, read_costs, write_costs
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Init, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.attention_base import AttentionAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.signature import signatures_of
from planner.plan.check import check
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.codegen.cuda.plans import gpu
from tests.graphs import small_net


def test_a_profiled_graph_can_be_planned(tmp_path: Path) -> None:
    graph, target = small_net(), gpu()
    saved = []
    table = profile([graph], target, null_device=True, save=saved.append)
    assert {e.signature for e in table.entries} == {s.text for s in signatures_of([graph])}
    assert {e.source for e in table.entries} == {"measured"}
    assert len(saved[-1].entries) == len(table.entries) and table.bandwidth > 0
    assert not {f for e in table.entries for f in e.facts if f.startswith("stored")}, "that is a plan's decision"
    for plain in (False, True):
        plan = make_plan(graph, target, table, PlanOptions(policy="sequential", plain_weights=plain))
        assert check(graph, plan, target) == []
        assert any(p.layout for p in plan.placements) is not plain
    assert plan.program["train_step"].node["conv1"].implementation == "plain"
    write_costs(table, tmp_path / "costs.json")
    again = profile([graph], target, read_costs(tmp_path / "costs.json"), null_device=True)
    assert again.entries == table.entries


def test_a_table_of_other_kernels_is_measured_again() -> None:
    """What another version had, with other scratch: a plan of such a table would be refused, whenever it was made."""
    graph, target = small_net(), gpu()
    table = profile([graph], target, null_device=True)
    old = [e.model_copy(update={"warm_ns": (7.0,), "cold_ns": (7.0,)}) for e in table.entries]
    strange = {e.signature for e in old if e.facts.get("partial_bytes")}
    assert strange and strange < {e.signature for e in old}
    old = [
        e.model_copy(update={"facts": {**e.facts, "partial_bytes": 64}}) if e.signature in strange else e for e in old
    ]
    again = profile([graph], target, table.model_copy(update={"entries": tuple(old)}), null_device=True)
    assert {e.signature: e.facts for e in again.entries} == {e.signature: e.facts for e in table.entries}
    assert strange <= {e.signature for e in again.entries if e.cold_ns != (7.0,)}


def test_a_captured_module_is_timed_without_its_weights() -> None:
    """And without what else its file holds: statistics, and a table of indices."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.table = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Embedding(5, 8)
            self.register_buffer("places", torch.tensor([4, 0, 2, 1]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.first(x))) + self.table(self.places)

    graph, target = capture(Net(), torch.randn(4, 6), loss="mse").graph, gpu()
    assert any(v.init is not None and v.init.kind == "data" for v in graph.values)
    table = profile([graph], target, null_device=True)
    assert {e.signature for e in table.entries} == {s.text for s in signatures_of([graph])}
    found = profile_pairs([graph], target, table, null_device=True)
    assert check(graph, make_plan(graph, target, found, PlanOptions(lanes=2)), target) == []


@pytest.mark.parametrize("exact", [True, False])
def test_exact_products_do_not_round(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others take TF32: of Fourier transforms, for instance. Neither measured nor guessed, nor in a gradient."""
    b = GraphBuilder("exact")
    x, target = (b.input(name, TensorType(shape=(4, 6))) for name in ("x", "target"))
    w = b.parameter("w", (6, 6), Init(kind="normal", value=1.0))
    y = b.op("matmul", [x, w], MatmulAttrs(exact=exact), name="product")[0]
    graph = b.finish(layers.mse(b, y, target), y, Optimizer(lr=0.1))
    products = [s for s in signatures_of([graph]) if s.op == "matmul"]
    assert len(products) == 2
    asked: list[bool] = []

    def product(*arguments: Any) -> list[tuple[str, int, float]]:
        asked.append(arguments[4])
        return [("one", 0, 1.0)]

    monkeypatch.setattr(probe_module, "probe", lambda arch, null: SimpleNamespace(product=product))
    for signature in products:
        assert algorithms(signature, "sm_90", tf32=True)
    assert asked == [not exact] * 2
    empty = CostTable(target=gpu().name, fingerprint=gpu().fingerprint())
    guessed = [e for e in _guessed(graph, gpu(), empty, tf32=True) if e.kernel == "cublaslt"]
    assert len(guessed) == 2 and {e.implementation for e in guessed} == {"" if exact else ":tf32"}


def attending_net() -> Graph:
    """x (2, 3, 8, 4) through one attention."""
    b = GraphBuilder("attending")
    x, target = (b.input(name, TensorType(shape=(2, 3, 8, 4))) for name in ("x", "target"))
    q = layers.linear(b, x, 4, name="q")
    y = b.op("attention", [q, x, x], AttentionAttrs(scale=0.5, causal=True), name="attend")[0]
    return b.finish(layers.mse(b, y, target), y, Optimizer(lr=0.1))


@pytest.mark.parametrize("own_kernels", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_products_within_an_attention(tf32: bool, own_kernels: bool) -> None:
    """They take the library's first choice, in the table's precision; the plan holds the scores."""
    graph, target = attending_net(), gpu()
    table = profile([graph], target, tf32=tf32, own_kernels=own_kernels, null_device=True)
    plan = make_plan(graph, target, table, PlanOptions(policy="sequential"))
    assert check(graph, plan, target) == []
    for name, matrices in (("attend", 1), ("attend.backward", 2)):
        node = plan.program["train_step"].node[name]
        assert (node.kernel, node.implementation) == ("cublaslt", ":tf32" if tf32 else "")
        assert node.facts["partial_bytes"] == matrices * 2 * 3 * 8 * 8 * 4


def test_algorithms_that_a_faster_and_smaller_one_beats_are_left_out() -> None:
    ways = [Algorithm("a", 100, 5.0), Algorithm("b", 200, 6.0), Algorithm("c", 10, 7.0), Algorithm("d", 10, 9.0)]
    assert [w.name for w in _worth_keeping(ways)] == ["a", "c"]


def test_copies_in_every_direction() -> None:
    assert set(copy_bandwidths(gpu(), null_device=True)) == {"in", "out", "inside"}


def test_other_ops_have_no_algorithms() -> None:
    found = {s.op: algorithms(s, "sm_90", tf32=False, null_device=True) for s in signatures_of([small_net()])}
    assert found["relu" if "relu" in found else "sgd_update"] == ()
    assert [w.name for w in found["conv2d"]] == ["plain"]


def test_tables_and_gpus_of_another_kind() -> None:
    with pytest.raises(UserError, match="SP1204"):
        profile([], gpu(), CostTable(target="h200", fingerprint="another machine"), null_device=True)
    assert probe("sm_90", True).describe(0)["arch"] == "sm_90"
    with pytest.raises(UserError, match="SP1205"):
        profile([], load_target("k40c"), null_device=True)
