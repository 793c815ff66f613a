"""Executors in bfloat16 with float32 master weights, on processors."""

from pathlib import Path

import numpy as np
import pytest
import torch

from codegen.autocast import distances
from codegen.autograd import Planned
from codegen.executor import Executor
from codegen.torch_steps import prepare
from planner.capturing import capture
from planner.graph.model import DType, Graph
from planner.graph.precision import full_precision, mixed_precision
from planner.solve.options import PlanOptions
from planner.target.detect import detect
from planner.zoo import build as build_network
from tests.codegen.following import batch, reference_state
from tests.codegen.plans import make, plan_for
from tests.codegen.quick import STRICT
from tests.codegen.test_rewrites import assert_same, run
from tests.graphs import gated_net
from tests.interpreter import run_program
from tests.models.transformers import Gpt2, next_token

pytestmark = pytest.mark.skipif(not detect().bfloat16, reason="this processor has no instructions for bfloat16")

STEP = "train_step"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return mixed_precision(gated_net())


def gradients_follow_reference(executor: Executor, graph: Graph) -> None:
    """Every gradient within what a rounding to the next bfloat16 changes, and the loss."""
    data = batch(graph)
    given = dict(zip(executor.input_names, (data[0].astype(np.float64), data[1]), strict=True))
    expected = run_program(graph, STEP, reference_state(executor, graph) | given)
    loss, gradients = executor.gradients(*data)
    assert loss == pytest.approx(float(expected[graph.program[STEP].outputs[0]]), rel=2e-3)
    for node in graph.program[STEP].nodes:
        if node.op == "sgd_update":
            want = expected[node.inputs[0]]
            off = np.linalg.norm(gradients[graph.value[node.updates[0]].name] - want) / np.linalg.norm(want)
            assert off < 0.01, (node.id, off)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_step_is_that_of_the_reference(tmp_path: Path, graph: Graph, lanes: int) -> None:
    made = make(graph, tmp_path, lanes, STRICT)
    with made(seed=3, pin=False, poison=True) as executor:
        executor.delays(1)
        gradients_follow_reference(executor, graph)
        losses = [executor.step(*batch(graph)) for _ in range(3)]
        assert losses[2] < losses[0]
        assert executor.predict(batch(graph)[0]).dtype == np.float32
        state = executor.state_dict()
        assert all(state[v.name].dtype == np.float32 for v in graph.values if v.name)


def test_the_same_bits_under_any_timing_and_budget(tmp_path: Path, graph: Graph) -> None:
    plain, _ = plan_for(graph, 2)
    # Not less: on AMX the library wants more scratch.
    budget = PlanOptions(policy="sequential", memory_budget=round(0.86 * plain.pools[0].arena))
    rewritten, _ = plan_for(graph, 2, budget)
    assert rewritten.program[STEP].rewrite
    expected = run(make(graph, tmp_path / "plain", flags=STRICT), graph)
    executor = make(graph, tmp_path / "small", flags=STRICT, options=budget)
    for seed in (0, 1, 2):
        assert_same(run(executor, graph, seed), expected)


def test_activations_take_half_the_bytes() -> None:
    full = build_network("resnet18", 32)
    arenas = [plan_for(g)[0].pools[0].arena for g in (full, mixed_precision(full))]
    weights = sum(v.type.bytes for v in full.values if v.name)
    assert arenas[1] - weights < 0.6 * (arenas[0] - weights)


@pytest.mark.parametrize(("network", "size"), [("digits_cnn", 16), ("resnet18", 8)])
def test_no_further_off_than_autocast(tmp_path: Path, network: str, size: int) -> None:
    """Against the same steps in float64. Both round to 8 bits, at other places. Of a loss, one number a step, either
    may be nearer by chance."""
    full = build_network(network, size, image_size=None if network == "digits_cnn" else 64)
    with make(mixed_precision(full), tmp_path, flags=STRICT)(pin=False) as executor:
        executor.lr = 1e-3
        for found in distances(full, executor, device="cpu"):
            limit = 0.01 if found.kind == "loss" else 1.25 * found.autocast
            assert found.executor <= limit, found


def test_a_deep_transformer_is_no_further_off(tmp_path: Path) -> None:
    """Gradients that go around the layers are added up in float32: rounded at each of 24 sums they were 1.4 times as
    far off as autocast's."""
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    module = Gpt2(vocabulary=50, width=64, depth=12, heads=2, length=16, act=torch.nn.GELU())
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    ids = torch.randint(0, 50, (4, 16))
    captured = capture(module, (ids,), loss=next_token, labels=ids)
    low = captured.in_precision("bf16")
    made = make(low.graph, tmp_path, flags=STRICT)
    low.write_weights(tmp_path / "weights.npz")
    with made(pin=False) as executor:
        (gradient,) = (d for d in distances(captured.graph, executor, device="cpu") if d.kind == "gradient")
    assert gradient.executor <= 1.25 * gradient.autocast, gradient


def test_inside_autograd(tmp_path: Path) -> None:
    """The caller's loss and optimizer; gradients of parameters arrive in float32. The rows drawn are those where no
    unit is so near zero that rounding decides it: what rounding then changes of a gradient is small."""
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    module = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    rows = torch.randn(1000, 24)
    decided = (module[0](rows).abs() > 0.015).all(dim=1)  # rounding changed 3 million units by 0.009 at most
    x, target = rows[decided][:16].requires_grad_(), torch.randn(16, 8)
    captured = capture(module, x.detach(), loss="caller").in_precision("bf16")
    assert any(v.type.dtype is DType.BFLOAT16 for v in captured.graph.values)
    torch.nn.functional.mse_loss(module(x), target).backward()
    true = [x.grad, *(p.grad for p in module.parameters())]
    x.grad = None
    module.zero_grad()
    made = make(captured.graph, tmp_path, flags=STRICT)
    captured.write_weights(tmp_path / "weights.npz")
    with made(pin=False) as executor:
        torch.nn.functional.mse_loss(Planned(module, executor)(x), target).backward()
        for mine, other in zip([x.grad, *(p.grad for p in module.parameters())], true, strict=True):
            assert mine.dtype == torch.float32
            assert (mine - other).norm() <= 0.02 * other.norm()


def test_bench_compares_with_autocast(tmp_path: Path, graph: Graph) -> None:
    """What `stepplan bench` gives PyTorch is the float32 graph, which autocast rounds: near its loss, not the same."""
    assert full_precision(graph) == gated_net()
    data = [np.ascontiguousarray(a) for a in batch(graph)]
    with make(graph, tmp_path, flags=STRICT)(pin=False) as executor:
        state = executor.state_dict()

    def loss_of(contender_of: Graph) -> float:
        step = prepare(contender_of, data, state, 2, "eager NCHW")
        first, *_, last = (float(step()) for _ in range(4))
        assert last < first, "it trains"
        return last

    rounded, full = loss_of(graph), loss_of(gated_net())
    assert rounded != full and rounded == pytest.approx(full, rel=0.05)
