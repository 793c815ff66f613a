"""Generated executors against PyTorch in float64, in every timing that a plan allows.

Every run draws another seed; a failure prints it. `STEPPLAN_TEST_SEED=N` repeats it.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from codegen import kinks
from codegen.bench import random_inputs
from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.initial import draw
from codegen.load import executor_class
from codegen.torch_twin import Call, Twin
from codegen.truth import FLOOR, Row, compare, truth, worst_per_kind
from planner import zoo
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops import all_ops
from planner.ops.base import op_named
from planner.solve.options import PlanOptions
from tests.codegen.every_op import every_op_net
from tests.codegen.plans import plan_for

SEED = int(os.environ.get("STEPPLAN_TEST_SEED") or np.random.SeedSequence().generate_state(1)[0])
SEQUENTIAL, LIU = PlanOptions(policy="sequential"), PlanOptions(policy="liu", strategies=(1, 2))
CALM = Optimizer(lr=1e-3, momentum=0.9, weight_decay=1e-4)
"""So slow that three steps do not multiply rounding errors."""

CASES: dict[str, tuple[Callable[[], Graph], int, PlanOptions]] = {
    "mlp": (lambda: zoo.build("mlp", 6), 2, LIU),
    "digits_cnn": (lambda: zoo.build("digits_cnn", 5), 3, SEQUENTIAL),
    "resnet18": (lambda: zoo.build("resnet18", 4, image_size=64, classes=10, optimizer=CALM), 2, LIU),
    "every op, adam": (lambda: every_op_net(Optimizer(kind="adamw", lr=1e-3, weight_decay=0.1)), 2, SEQUENTIAL),
    "every op, sgd": (lambda: every_op_net(Optimizer(lr=0.05, momentum=0.9, nesterov=True)), 3, LIU),
}


@pytest.fixture(scope="module", params=CASES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, type[Executor]]:
    make, lanes, options = CASES[request.param]
    graph, folder = make(), tmp_path_factory.mktemp("net")
    plan, target = plan_for(graph, lanes, options)
    emit(plan, graph, target, folder)
    build(folder)
    return graph, executor_class(folder)


def test_as_near_to_the_truth_as_torch(built: tuple[Graph, type[Executor]]) -> None:
    graph, executors = built
    with executors(seed=SEED, pin=False, poison=True) as executor:
        rows = truth(graph, executor, seed=SEED)
    assert {"loss", "gradient", "parameter"} <= {row.kind for row in rows}
    wrong = [row for row in rows if not row.explained]
    assert not wrong, f"seed {SEED}: {len(wrong)} of {len(rows)} tensors, worst {worst_per_kind(wrong)}"


def test_the_same_bits_in_every_timing(built: tuple[Graph, type[Executor]]) -> None:
    graph, executors = built
    batches = [random_inputs(graph, SEED + step) for step in range(3)]
    found = []
    for delays in (0, SEED % 1000 + 1, SEED % 1000 + 2):
        with executors(seed=SEED, pin=False, poison=True) as executor:
            executor.delays(delays)
            losses = [executor.step(*batch) for batch in batches]
            found.append({"losses": np.array(losses)} | executor.state_dict())
    for other in found[1:]:
        differing = [name for name, array in found[0].items() if array.tobytes() != other[name].tobytes()]
        assert not differing, f"seed {SEED}: {differing[:5]}"


def test_every_family_is_used() -> None:
    graph = every_op_net(Optimizer())
    used = {op_named(node.op).family for program in graph.programs for node in program.nodes}
    assert used == {op.family for op in all_ops().values()}


def test_wrong_and_missing_tensors_are_told() -> None:
    true = {"loss": {}, "gradient": {"a.weight": np.full(4, 2.0), "a.bias": np.full(2, 1e-17), "b": np.ones(3)}}
    good = {"loss": {}, "gradient": {"a.weight": np.full(4, 2.0 + 1e-6), "a.bias": np.full(2, 1e-7), "b": np.ones(3)}}
    bad = {"loss": {}, "gradient": {"a.weight": np.full(4, 2.1), "a.bias": np.full(2, np.nan)}}
    assert all(row.ok for row in compare(good, good, true))
    rows = {row.name: row for row in compare(bad, good, true)}
    assert not any(row.ok for row in rows.values())
    assert rows["a.weight"].error == pytest.approx(0.05) and rows["a.weight"].allowed == FLOOR
    assert rows["a.bias"].torch_error == pytest.approx(5e-8), "relative to the layer's weight"
    assert rows["b"].error == float("inf")
    assert Row("loss", "x", 3e-5, 2e-5).ok and not Row("loss", "x", 5e-5, 2e-5).ok


def test_kinks_change_nothing_but_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = every_op_net(Optimizer())
    state = {v.name: draw(v, 3) for v in graph.values if v.name}
    batch = [torch.from_numpy(a) for a in random_inputs(graph, 3)]
    keep = {"dropout": lambda node, inputs, updates: inputs[0]}

    def loss_and_gradient(calls: dict[str, Call], dtype: torch.dtype = torch.float64) -> tuple[float, torch.Tensor]:
        twin = Twin(graph, keep | calls).to(dtype).load(state)
        loss, _ = twin(*(a.to(dtype) if a.is_floating_point() else a for a in batch))
        loss.backward()
        return float(loss.detach()), twin.gradients()["grouped.weight"].double()

    loss, gradient = loss_and_gradient({})
    for reach, least, most in ((0.0, 0.0, 1e-12), (300.0, 1e-6, 0.5)):
        monkeypatch.setattr(kinks, "REACH", reach)
        found = kinks.Kinks()
        rough_loss, rough = loss_and_gradient(found.watching(), torch.float32)
        assert rough_loss == pytest.approx(loss, rel=1e-5) and (rough - gradient).norm() < 1e-4 * gradient.norm()
        bent_loss, bent = loss_and_gradient(found.beyond())
        assert bent_loss == pytest.approx(loss, rel=1e-2)
        assert least <= (bent - gradient).norm() / gradient.norm() <= most, f"reach {reach}"
