"""Planned modules inside autograd on the null device: the user's own loss and optimizer, against PyTorch's module."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from codegen.autograd import Planned
from codegen.cuda.executor import CudaExecutor
from planner.capturing import Captured, capture
from planner.errors import UserError
from tests.codegen.cuda.plans import asks_the_null_device, make, plan_for
from tests.torch_draws import Replayed

pytestmark = asks_the_null_device  # its modules live on the processor


class Net(nn.Module):
    """Two results; indices; random numbers; branches that co-run; running statistics; what a budget makes again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(11, 24)
        layers = [(nn.Linear(24, 24, bias=False), nn.BatchNorm1d(24), nn.Tanh()) for _ in range(4)]
        self.body = nn.Sequential(*(layer for block in layers for layer in block))
        self.a, self.b = nn.Linear(24, 3), nn.Linear(24, 2)

    def forward(self, x: torch.Tensor, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x + self.words(word))
        noisy = y * torch.randn_like(y) if self.training else y
        return self.a(noisy), self.b(torch.tanh(noisy))


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(64, 24), torch.randint(0, 11, (64,))


def captured_net() -> Captured:
    return capture(Net(), given(0), loss="caller")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> type[CudaExecutor]:
    """On three streams, under a budget."""
    captured, folder = captured_net(), tmp_path_factory.mktemp("autograd") / "net"
    whole = plan_for(captured.graph, 3)
    plan = plan_for(captured.graph, 3, int(0.8 * whole.program["train_step"].peak_bytes))
    rewrite = plan.program["train_step"].rewrite
    assert rewrite.recomputes or rewrite.transfers
    assert sum(len(e.wait) for lane in plan.program["train_step"].lanes for e in lane) > 5
    found = make(plan, captured.graph, folder)
    captured.write_weights(folder / "weights.npz")
    return found


@pytest.fixture
def executor(made: type[CudaExecutor]) -> Iterator[CudaExecutor]:
    with made(seed=5, poison=True, null_device=True) as found:
        yield found


def test_trains_with_any_loss_and_optimizer(executor: CudaExecutor) -> None:
    """Several steps in random orders of the streams; the inputs' gradients too. PyTorch gets the executor's noise."""
    module, plain = Net(), Net()
    planned = Planned(module, executor)
    optimizers = [torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in (module, plain)]
    for step in range(1, 7):
        executor.delays(step)
        x, word = given(step)
        losses, gradients = [], []
        for call, optimizer in zip((planned, plain), optimizers, strict=True):
            own = x.clone().requires_grad_()
            with Replayed(executor._graph, 5, step) if call is plain else nullcontext():
                a, b = call(own, word)
            loss = a.square().mean() + (b.exp() * torch.arange(2)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            gradients.append(own.grad)
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)
        for (name, mine), other in zip(module.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(executor.state_dict()[name], module.state_dict()[name], err_msg=name)
    assert executor.steps_done == 6
    for mine, other in zip(planned.eval()(*given(0)), plain.eval()(*given(0)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
    assert executor._native.recorded(executor._handle) >= 2


def passes(executor: CudaExecutor, module: Net, steps: int) -> list[torch.Tensor]:
    """Predictions and gradients of some steps."""
    planned, found = Planned(module, executor), list[torch.Tensor]()
    for step in range(steps):
        module.zero_grad()
        results = planned(*given(step))
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        found += [*(r.detach() for r in results), *(p.grad for p in module.parameters() if p.grad is not None)]
    return found


def test_replayed_and_asked_for_are_the_same(made: type[CudaExecutor]) -> None:
    """In every order of the streams."""
    found = []
    for record, order in ((True, 0), (False, 0), (True, 1), (False, 2), (True, 3)):
        with made(seed=5, poison=True, null_device=True, record=record) as executor:
            executor.delays(order)
            found.append(passes(executor, Net(), 4))
            graphs = executor._native.recorded(executor._handle)
            assert graphs >= 2 if record else graphs == 0
    assert len(found[0]) == 4 * (2 + len(list(Net().parameters())))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_forward_pass_that_was_followed_is_computed_again(executor: CudaExecutor) -> None:
    """The bits of the backward pass that goes on where its forward pass ended; statistics and parameters stay."""
    module = Net()
    planned, inputs = Planned(module, executor), given(1)
    first = planned(*inputs)
    gradients = [torch.randn_like(y) for y in first]
    step, arrays = executor.steps_done, [x.numpy() for x in (*inputs, *gradients)]
    at_once, _ = executor.backward(step, *arrays)
    planned(*given(2))
    state = executor.state_dict()
    again, of_x = executor.backward(step, *arrays)
    torch.autograd.backward(first, gradients)
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(at_once[name], again[name], err_msg=name)
        np.testing.assert_array_equal(parameter.grad, again[name], err_msg=name)
    assert of_x["x"].shape == (64, 24)
    for name, array in executor.state_dict().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    results, number = executor.forward(*(x.numpy() for x in inputs))
    assert number == 3 and [r.shape for r in results] == [(64, 3), (64, 2)]


def test_gradients_are_the_callers_own(executor: CudaExecutor) -> None:
    """Later passes do not change what an earlier one returned."""
    module = Net()
    planned = Planned(module, executor)
    results = planned(*given(1))
    (found,) = torch.autograd.grad(results[0].sum(), [module.a.weight])
    kept, predicted = found.clone(), results[0].detach().clone()
    torch.autograd.backward([r.square().sum() for r in planned(*given(2))])
    assert torch.equal(found, kept) and torch.equal(results[0], predicted)


def test_the_module_outlives_the_executor(made: type[CudaExecutor]) -> None:
    module = Net()
    executor = made(null_device=True)
    planned = Planned(module, executor)
    with torch.no_grad():
        module.a.bias.fill_(3.0)
    planned(*given(1))
    state = executor.state_dict()
    assert (state["a.bias"] == 3.0).all()
    executor.close()
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(tensor, state[name], err_msg=name)
    with pytest.raises(UserError, match=r"SP1617.*lies no longer in the executor's memory"):
        planned(*given(1))


def test_bad_indices_are_told(executor: CudaExecutor) -> None:
    """On the host before anything runs."""
    planned = Planned(Net(), executor)
    x, word = given(1)
    word[3] = 11
    with pytest.raises(UserError, match=r"SP1608.*position 3"):
        planned(x, word)
    assert executor.steps_done == 0
    planned(*given(2))


def test_a_module_elsewhere_is_refused(executor: CudaExecutor) -> None:
    with pytest.raises(UserError, match=r"SP1617.*lies on meta, the executor's memory on cpu") as raised:
        Planned(Net().to("meta"), executor)
    assert "module.to('cpu')" in raised.value.fix


def test_a_step_of_its_own_runs_both_passes(executor: CudaExecutor) -> None:
    """With the gradients given, parameters are updated by the plan's plain SGD, at the rate that is asked for."""
    inputs = given(1)
    gradients = [torch.randn(64, 3), torch.randn(64, 2)]
    module = Net()
    planned = Planned(module, executor)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    torch.autograd.backward(planned(*inputs), gradients)
    made = executor.step(*inputs, *gradients, lr=0.1)
    made.wait()
    assert executor.steps_done == 2
    moved = before["a.bias"] - module.a.bias.detach()
    torch.testing.assert_close(moved, 0.1 * gradients[0].sum(0), rtol=1e-4, atol=1e-5)
    times = executor.node_times(repetitions=1)
    assert set(times) == {n.node for n in executor.plan.program["train_step"].nodes if n.stage_ns}


class Masked(nn.Module):
    """A structure with a mask, another one in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.out(x)
        return {"y": [y, None], "positive": y > 0} if self.training else (y > 0, "mask")


def test_returns_what_the_module_returns(tmp_path: Path) -> None:
    captured, x = capture(Masked(), torch.randn(5, 8), loss="caller"), torch.randn(5, 8)
    found = make(plan_for(captured.graph, 2), captured.graph, tmp_path / "masked")
    captured.write_weights(tmp_path / "masked" / "weights.npz")
    with found(poison=True, null_device=True) as executor:
        planned, plain = Planned(Masked(), executor), Masked()
        ours, theirs = planned(x), plain(x)
        assert list(ours) == list(theirs) and ours["y"][1] is None
        torch.testing.assert_close(ours["y"][0], theirs["y"][0])
        for call, results in ((planned, ours), (plain, theirs)):
            results["y"][0][results["positive"]].square().sum().backward()
            call.eval()
        torch.testing.assert_close(planned.module.out.weight.grad, plain.out.weight.grad)
        mask, text = planned(x)
        assert torch.equal(mask, plain(x)[0]) and text == "mask"
