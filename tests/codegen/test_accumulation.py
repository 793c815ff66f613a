"""Steps of several batches: parameters move by the mean of their gradients, as PyTorch's do where each loss is divided
by the number of batches. On processors and, on the null device, on a GPU."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codegen.executor import Executor
from codegen.torch_twin import Twin, optimizer_for
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import op_named
from planner.solve.options import PlanOptions
from tests.codegen.cuda.plans import NULL, plan_for
from tests.codegen.cuda.plans import make as make_cuda
from tests.codegen.following import batch
from tests.codegen.plans import make
from tests.graphs import classifier, conv, deep_net, images, small_net

CO_RUN = PlanOptions(policy="liu", strategies=(1, 2, 3))
COUNTS = (3, 1, 4)
"""Batches of each step."""

Batches = list[list[tuple[np.ndarray[Any, Any], ...]]]


def drawn(graph: Graph, counts: tuple[int, ...] = COUNTS) -> Batches:
    return [[batch(graph, random.randrange(2**32)) for _ in range(count)] for count in counts]


def assert_follows_pytorch(graph: Graph, executor: Any, steps: Batches) -> None:
    """Losses, parameters, statistics and the optimizer's state, in float64."""
    twin = Twin(graph).double().load(executor.state_dict())
    optimizer = optimizer_for(graph, twin)
    for batches in steps:
        for number, inputs in enumerate(batches):
            given = (torch.from_numpy(a).double() if a.dtype.kind == "f" else torch.from_numpy(a) for a in inputs)
            loss, _ = twin(*given)
            (loss / len(batches)).backward()
            call = executor.step if number == len(batches) - 1 else executor.accumulate
            assert executor.batches_held == number
            assert float(call(*inputs)) == pytest.approx(float(loss.detach()), rel=1e-5)
        optimizer.step()
        optimizer.zero_grad()
    got = executor.state_dict()
    want = {name: tensor.detach().numpy() for name, tensor in twin.named_values()}
    for name, parameter in twin.named_values():
        slots = optimizer.state.get(parameter, {})
        want |= {f"{name}.{slot.removesuffix('_buffer')}": slots[slot].numpy() for slot in slots if slot != "step"}
    assert len(want) > len(dict(twin.named_values()))
    assert [n for n, a in want.items() if not np.allclose(got[n], a, rtol=2e-5, atol=2e-6)] == []
    assert executor.steps_done == len(steps) and executor.batches_held == 0


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_net(accumulate=True)


@pytest.fixture(scope="module")
def accumulating(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    return make(graph, tmp_path_factory.mktemp("accumulating"), lanes=3, options=CO_RUN)


def test_a_step_takes_the_mean(accumulating: type[Executor], graph: Graph) -> None:
    with accumulating(seed=1, pin=False, poison=True) as executor:
        executor.delays(random.randrange(1, 2**31))
        assert_follows_pytorch(graph, executor, drawn(graph))


def test_optimizers_count_steps_and_clip_the_mean(tmp_path: Path) -> None:
    """On weights that are stored as convolutions want them."""
    b = GraphBuilder("blocks")
    x = conv(b, conv(b, images(b), 32, "stem", bias=True), 64, "inner", bias=True)
    graph = classifier(b, x, optimizer=Optimizer(kind="adam", lr=1e-2, eps=1e-3), accumulate=True)
    with make(graph, tmp_path / "stored")(seed=1, pin=False, poison=True) as executor:
        assert {p.value for p in executor.plan.placements if p.layout} >= {"inner.weight", "inner.weight.gradient_sum"}
        assert_follows_pytorch(graph, executor, drawn(graph))
    adagrad = Optimizer(kind="adagrad", lr=0.05, lr_decay=0.5, initial_accumulator_value=0.1)
    for optimizer in (Optimizer(kind="rmsprop", lr=1e-2, eps=0.1, momentum=0.9, centered=True), adagrad):
        clipped = small_net(clip_norm=0.3, accumulate=True, optimizer=optimizer)
        with make(clipped, tmp_path / optimizer.kind)(seed=1, pin=False, poison=True) as executor:
            assert_follows_pytorch(clipped, executor, drawn(clipped))


def test_gradients_are_those_of_one_batch_and_change_nothing(accumulating: type[Executor], graph: Graph) -> None:
    first, second, third = (batch(graph, seed) for seed in range(3))
    with accumulating(seed=1, pin=False) as executor, accumulating(seed=1, pin=False) as other:
        alone = executor.gradients(*second)
        for each in (executor, other):
            each.accumulate(*first)
        again = executor.gradients(*second)
        assert alone[0] == again[0] and all(np.array_equal(alone[1][n], g) for n, g in again[1].items())
        for each in (executor, other):
            each.step(*third)
        assert_same(executor.state_dict(), other.state_dict())


def test_a_state_holds_what_waits(accumulating: type[Executor], graph: Graph) -> None:
    given = [batch(graph, seed) for seed in range(4)]
    with accumulating(seed=1, pin=False) as executor, accumulating(seed=2, pin=False) as other:
        executor.step(*given[0])
        executor.accumulate(*given[1])
        saved = executor.state_dict()
        assert (int(saved["stepplan.step"]), int(saved["stepplan.batches"]), int(saved["stepplan.held"])) == (1, 2, 1)
        other.accumulate(*given[0])  # what waits there is forgotten
        other.load_state_dict(saved)
        assert (other.steps_done, other.batches_held) == (1, 1)
        for each in (executor, other):
            each.accumulate(*given[2])
            each.step(*given[3])
        assert_same(executor.state_dict(), other.state_dict())


def test_a_state_that_counts_below_nothing_is_refused(accumulating: type[Executor]) -> None:
    with accumulating(seed=1, pin=False) as executor:
        before = executor.state_dict()
        with pytest.raises(UserError, match=r"SP1610.*held of the state is int64 -1"):
            executor.load_state_dict(before | {"stepplan.held": np.asarray(-1)})
        assert_same(executor.state_dict(), before)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_label_out_of_range_adds_nothing(accumulating: type[Executor], graph: Graph) -> None:
    pictures, labels = batch(graph)
    with accumulating(seed=1, pin=False) as executor:
        executor.accumulate(pictures, labels)
        before = executor.state_dict()
        with pytest.raises(UserError, match="SP1608"):
            executor.accumulate(pictures, np.full_like(labels, 99))
        assert_same(executor.state_dict(), before)


def test_plans_without_sums_do_not_accumulate(small: Executor) -> None:
    before = small.state_dict()
    with pytest.raises(UserError, match=r"SP1612.*does not add up gradients"):
        small.accumulate(*batch(small_net()))
    assert_same(small.state_dict(), before)


@pytest.mark.parametrize(("lanes", "norm"), [(1, None), (3, 0.3)])
def test_on_a_gpu(lanes: int, norm: float | None, tmp_path: Path) -> None:
    """Either kind of run is recorded and replayed."""
    graph = small_net(clip_norm=norm, accumulate=True)
    with make_cuda(plan_for(graph, lanes), graph, tmp_path)(seed=1, poison=True, null_device=NULL) as executor:
        executor.delays(random.randrange(1, 2**31))
        assert_follows_pytorch(graph, executor, drawn(graph, (4, 1, 3, 1)))
        assert executor._native.recorded(executor._handle) == 2


def test_more_parameters_than_one_launch_takes(tmp_path: Path) -> None:
    graph = deep_net(57, Optimizer(lr=0.01, momentum=0.9), accumulate=True)
    sums = [n for n in graph.program["train_step"].nodes if n.op == "gradient_sum"]
    assert len(sums) == 114 > op_named("gradient_sum").joint_launch
    rng = np.random.default_rng()
    steps = [[tuple(rng.standard_normal((2, 3, 6)).astype(np.float32)) for _ in range(2)]]
    with make_cuda(plan_for(graph), graph, tmp_path)(seed=4, poison=True, null_device=NULL) as executor:
        assert_follows_pytorch(graph, executor, steps)
