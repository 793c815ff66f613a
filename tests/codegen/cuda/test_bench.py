"""`bench` of executors on a GPU, as a dry run: every number is there and hangs together, whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codegen.bench_text import bench_text
from codegen.cost_table import fill
from codegen.cuda.bench import CONTENDERS, bench, device_inputs, rounds_to_tf32, torch_contenders
from codegen.steps import random_inputs
from planner import zoo
from planner.bundle import read_bundle
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.cuda.plans import gpu, make, plan_for
from tests.graphs import small_net


def test_numbers_of_a_dry_run(tmp_path: Path) -> None:
    graph = small_net()
    costs = fill([graph], gpu(), modelled=True)
    plan = make_plan(graph, gpu(), costs, PlanOptions(policy="sequential"))
    made = make(plan, graph, tmp_path)
    found = bench(made, read_bundle(tmp_path), repetitions=2, costs=costs, null_device=True)
    assert found["name"] == plan.name and found["step_ms"] > 0 and 0 < found["host_ms"] < found["step_ms"]
    assert found["predicted_ms"] == plan.program["train_step"].predicted_ns / 1e6
    assert found["memory"]["planned_bytes"] == plan.pools[0].arena
    assert found["memory"]["over"] == found["memory"]["gained_bytes"] - plan.pools[0].arena
    assert found["floor_ms"] > 0 and found["over_floor"] == pytest.approx(found["step_ms"] / found["floor_ms"])
    text = bench_text(found)
    assert "until step returns" in text and "overhead" not in text and "lanes  " not in text
    assert [a.shape for a in device_inputs(graph, 0, null_device=True)] == [a.shape for a in random_inputs(graph)]


def test_a_plan_tells_its_precision() -> None:
    graph = small_net()
    assert not rounds_to_tf32(plan_for(graph))
    table = fill([graph], gpu(), modelled=True)
    rounded = [
        e.model_copy(update={"implementation": f"{e.implementation}:tf32"}) if e.kernel == "cudnn" else e
        for e in table.entries
    ]
    table = CostTable(target=table.target, fingerprint=table.fingerprint, entries=tuple(rounded))
    assert rounds_to_tf32(make_plan(graph, gpu(), table, PlanOptions(policy="sequential")))


@torch._dynamo.config.patch(recompile_limit=2)
def test_pytorch_beside_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders run, on the processor; and each one is compiled, however many a process has: PyTorch takes so many
    variants of one code object, eight by default, and runs the others without its compiler."""
    graph, compiled, original = zoo.build("mlp", 2), [], torch.compile

    def counted(module: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        compiled.append(module)
        return module.forward

    def compile_(module: torch.nn.Module, mode: str, dynamic: bool) -> Any:
        return original(module, backend=counted, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compile_)
    made = make(plan_for(graph), graph, tmp_path)
    found = bench(made, read_bundle(tmp_path), against="torch", contenders=CONTENDERS, repetitions=1, null_device=True)
    assert list(found["against"]) == list(CONTENDERS) and found["fastest"]["name"] in CONTENDERS
    assert all(each["ms"] > 0 for each in found["against"].values())
    assert len(compiled) == 2
    with made(seed=0, null_device=True) as executor:
        state = executor.state_dict()
    for batch in range(3, 6):
        other = zoo.build("mlp", batch)
        for _ in torch_contenders(other, random_inputs(other), state, "bf16", 0, ("max-autotune",), null_device=True):
            pass
    assert len(compiled) == 5
    several = zoo.build("dcgan", 2)
    with pytest.raises(UserError, match=r"SP1513.*2 losses"):
        next(torch_contenders(several, random_inputs(several), {}, "bf16", 0, ("eager",), null_device=True))
