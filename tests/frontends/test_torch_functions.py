"""Custom autograd functions: their gradients are those that they compute, however they are written and called."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree
from tests.torch_functions import Largest, Outer, Reversed, Round, Scaled, Spike, SquaredError, rounded

Function: TypeAlias = torch.autograd.Function


class Net(nn.Module):
    def __init__(self, body: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(5, 6), nn.Linear(6, 3), nn.Parameter(torch.randn(6))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self, self.first(x)))


def without_gradient(net: Net, y: Tensor) -> Tensor:
    with torch.no_grad():
        z = rounded(4 * y)
    return z * y


BODIES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "bound before": lambda net, y: rounded(4 * y) / 4,
    "twice": lambda net, y: rounded(4 * Round.apply(8 * y)) * y,
    "surrogate": lambda net, y: Spike.apply(y, 5.0),
    "default argument": lambda net, y: Spike.apply(y),
    "keyword argument": lambda net, y: Spike.apply(y, slope=2.0),
    "in a loop": lambda net, y: sum((Spike.apply(y - i / 4, 5.0) for i in range(4)), y),
    "two results": lambda net, y: torch.add(*(r.view(4, -1) for r in Scaled.apply(y, net.scale))),
    "one of two results": lambda net, y: Scaled.apply(y, net.scale)[0],
    "the other result": lambda net, y: y * Scaled.apply(y, net.scale)[1][:, None],
    "no gradient of the scale": lambda net, y: Scaled.apply(y, torch.ones(6))[0],
    "reversed": lambda net, y: y + Reversed.apply(y),
    "without what arrives": lambda net, y: y * Largest.apply(y)[0][:, None],
    "not differentiable": lambda net, y: y * Largest.apply(y)[2][:, None],
    "of a parameter": lambda net, y: y * rounded(net.scale),
    "no gradient wanted": without_gradient,
    "nested": lambda net, y: Outer.apply(y),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_the_functions(name: str, fuse: bool) -> None:
    graph = agree(Net(BODIES[name]), torch.randn(4, 5), "mse", torch.randn(4, 3), fuse=fuse)
    train = graph.program["train_step"].nodes
    assert all(n.phase == "backward" for n in train if n.id.endswith(".backward"))


@pytest.mark.parametrize("loss", [SquaredError.apply, lambda y, labels: 2 * SquaredError.apply(y, labels)])
def test_losses_may_be_such_functions(loss: Callable[..., Tensor]) -> None:
    agree(Net(lambda net, y: y.tanh()), torch.randn(4, 5), loss, torch.randn(4, 3))


def test_of_images() -> None:
    """Channels-last, while the gradient of what is flattened is not."""
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3), Apply(lambda y: Spike.apply(y - 4) + Scaled.apply(y, torch.ones(3))[0] / 9)
    )
    agree(nn.Sequential(*body, nn.Flatten(), nn.Linear(36, 3)), torch.randn(2, 3, 5, 5))
    agree(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Apply(rounded), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        torch.randn(2, 3, 5, 5),
    )


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(4 * x) / 4


def test_nothing_of_the_stand_ins_is_left() -> None:
    graph = agree(Net(BODIES["surrogate"]), torch.randn(4, 5), "mse", torch.randn(4, 3))
    ops = [n.op for n in graph.program["train_step"].nodes]
    assert "detach" not in ops and ops.count("own_gradient") == 1
    assert "own_gradient" not in [n.op for n in graph.program["predict"].nodes]


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Lacking(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


REFUSED: dict[str, tuple[Callable[[Net, Tensor], Tensor], str]] = {
    "writes": (lambda net, y: Dirty.apply(y), "function Dirty, which writes to its input"),
    "counts": (
        lambda net, y: Lacking.apply(y, net.scale),
        "function Lacking, whose backward returns 1 gradients",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors(name: str) -> None:
    body, text = REFUSED[name]
    with pytest.raises(UserError, match="SP1024") as caught:
        capture_module(Net(body), torch.randn(4, 5), CaptureOptions(loss="mse"))
    assert text in str(caught.value)
    assert "(tests/frontends/test_torch_functions.py:" in str(caught.value)


class Again(nn.Module):
    """Two checkpoints; the first one's argument has no gradient, so PyTorch does not train it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.first, x, use_reentrant=True) + self.second(x)
        return checkpoint(lambda y, scale: self.last(y.tanh()) * scale, y, 2.0, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_a_checkpoint_computes_again_is_trained() -> None:
    graph = agree(Again(), torch.randn(4, 5))
    assert "first.weight.update" not in {n.id for n in graph.program["train_step"].nodes}


def test_functions_run_as_ever_afterwards() -> None:
    capture_module(Net(BODIES["bound before"]), torch.randn(4, 5), CaptureOptions(loss="mse"))
    x = torch.randn(3, requires_grad=True)
    y = rounded(x)
    assert type(y.grad_fn).__name__ == "RoundBackward"
    y.sum().backward()
    assert x.grad is not None and x.grad.eq(1).all()


class Kernel(Function):
    """As Gaussian processes have it: it cannot be differentiated by what it is given, and is told what is wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: Tensor) -> Tensor:
        if ctx.needs_input_grad[0]:
            raise RuntimeError("no gradient of x")
        y = torch.exp(-x / length)
        ctx.save_for_backward(y * x / length.square())
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor | None]:
        return None, (dy * ctx.saved_variables[0]).sum() if ctx.needs_input_grad[1] else None  # as older code


class OfInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.length, self.fixed = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return Kernel.apply(x, self.length) + Kernel.apply(x, self.fixed)


def test_functions_are_told_which_gradients_are_wanted() -> None:
    """With the caller's loss, those of the inputs as well."""
    module = OfInputs()
    agree(module, torch.randn(4, 3), "mse", torch.randn(4, 3))
    with pytest.raises(UserError, match="no gradient of x"):
        capture_module(module, torch.randn(4, 3), CaptureOptions(loss="caller"))
