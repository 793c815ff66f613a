"""A planned module inside autograd: the user's own loss and optimizer, against the module in PyTorch."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from codegen.autograd import Planned
from codegen.executor import Executor
from planner.capturing import capture
from planner.errors import UserError
from tests.codegen.plans import make

pytestmark = pytest.mark.xdist_group("autograd")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)]
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    captured = capture(network(), torch.randn(2, 3, 6, 6), loss="caller")
    folder = tmp_path_factory.mktemp("autograd") / "net"
    made = make(captured.graph, folder)
    captured.write_weights(folder / "weights.npz")
    return made


@pytest.fixture
def executor(built: type[Executor]) -> Iterator[Executor]:
    with built(pin=False) as made:
        yield made


def test_trains_with_any_loss_and_optimizer(executor: Executor) -> None:
    """The loss joins the outputs of two forward passes, so that both wait for their backward passes; inputs have
    gradients; parameters and running statistics are the module's own."""
    module, plain = network(), network()
    planned = Planned(module, executor)
    optimizers = [torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in (module, plain)]
    for seed in range(3):
        torch.manual_seed(seed)
        first, second = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6)
        losses, gradients = [], []
        for call, optimizer in zip((planned, plain), optimizers, strict=True):
            x = first.clone().requires_grad_()
            loss = (call(x) - call(second)).square().mean() + 0.1 * call(x).abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            gradients.append(x.grad)
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert executor.steps_done == 9
    torch.testing.assert_close(planned.eval()(first), copy.deepcopy(plain).eval()(first), rtol=1e-3, atol=1e-3)


def test_memory_is_shared(executor: Executor) -> None:
    module = network()
    planned = Planned(module, executor)
    with torch.no_grad():
        planned.module[4].bias.fill_(3.0)  # type: ignore[index]
    assert (executor.state_dict()["4.bias"] == 3).all()


def test_other_plans_and_modules_are_refused(executor: Executor) -> None:
    other = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False))
    with pytest.raises(UserError, match=r"SP1617.*0.weight has the shape \(4, 3, 1, 1\)"):
        Planned(other, executor)
