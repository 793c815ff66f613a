"""More lanes than images, or than features: rows, tiles and depths of nodes, executed."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from planner.capturing import capture
from planner.costs.model import modelled_costs
from planner.costs.table import CostEntry, CostTable
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.plan.schema import ProgramPlan
from tests.codegen.following import assert_follows_reference
from tests.codegen.plans import plan_for, target_of
from tests.codegen.quick import quick
from tests.codegen.test_lanes import no_races, sanitizer
from tests.graphs import batch_norm, classifier, conv, images, small_net

__all__ = ["sanitizer"]


def net(batch: int) -> Graph:
    b = GraphBuilder("few_images")
    x = batch_norm(b, conv(b, images(b, batch, size=9), 16, "first", bias=True), "bn", "relu")
    return classifier(b, conv(b, x, 32, "second"))


def ways(program: ProgramPlan, ops: dict[str, str], op: str) -> set[tuple[str, int]]:
    return {(n.dim, n.slices) for n in program.nodes if ops.get(n.node) == op}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_of_few_images_runs_on_all_lanes(tmp_path: Path, batch: int) -> None:
    graph = net(batch)
    plan, target = plan_for(graph, 5)
    ops = {n.id: n.op for n in graph.program["train_step"].nodes}
    step = plan.program["train_step"]
    assert ways(step, ops, "conv2d") == ways(step, ops, "conv2d_backward_data") == {("rows", 5)}
    assert ("rows", 5) in ways(step, ops, "conv2d_backward_weights")
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=quick(target))
    with executor_class(tmp_path)(pin=False, poison=True) as executor:
        executor.delays(batch)
        assert_follows_reference(executor, graph, steps=2)


def test_rows_of_images_have_no_races(tmp_path: Path, sanitizer: str) -> None:
    plan, target = plan_for(small_net(), 5)
    assert any(n.dim == "rows" and n.kernel == "onednn" for n in plan.program["train_step"].nodes)
    emit(plan, small_net(), target, tmp_path)
    no_races(tmp_path, sanitizer)


def preferring(costs: CostTable, dims: dict[str, str], slices: int) -> CostTable:
    """Of these ops, where they can be cut along such a dimension into so many slices, that mode alone."""

    def wanted(e: CostEntry) -> bool:
        return (e.dim, e.slices) == (dims.get(e.signature.partition("(")[0]), slices)

    there = {e.signature for e in costs.entries if wanted(e)}
    kept = tuple(e for e in costs.entries if wanted(e) or e.signature not in there)
    return costs.model_copy(update={"entries": kept})


def assert_gradients(
    folder: Path, module: nn.Module, x: torch.Tensor, labels: torch.Tensor, share: float, scales: Mapping[str, str]
) -> None:
    """Loss and gradients of a built executor, under delays, beside the module's in float64. `scales`: of parameters
    whose gradients vanish, whose size is theirs."""
    exact = nn.functional.cross_entropy(module.double()(x.double()), labels)
    exact.backward()
    found = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    assert len(found) == len(list(module.parameters()))
    with executor_class(folder)(pin=False, poison=True) as executor:
        for delay in (0, 1, 2):
            executor.delays(delay)
            loss, gradients = executor.gradients(x, labels)
            assert loss == pytest.approx(exact.item(), rel=1e-5)
            for name, want in found.items():
                scale = np.linalg.norm(found[scales.get(name, name)])
                assert np.linalg.norm(gradients[name] - want) <= share * scale, name


def test_tiles_and_depths_compute_what_pytorch_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 512))
    captured = capture(module, torch.zeros(512, 24), name="narrow")
    graph, lanes = captured.graph, 6
    dims = {"linear": "tiles", "linear_backward_weights": "depth"}
    costs = preferring(modelled_costs(graph, target_of(lanes), facts), dims, lanes)
    plan, target = plan_for(graph, lanes, costs=costs)
    assert {"tiles", "depth"} <= {n.dim for n in plan.program["train_step"].nodes}
    emit(plan, graph, target, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    build(tmp_path, flags=quick(target))
    x, labels = torch.randn(512, 24), torch.randint(0, 512, (512,))
    assert_gradients(tmp_path, module, x, labels, share=1e-5, scales={})
