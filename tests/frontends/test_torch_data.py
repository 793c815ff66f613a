"""What a module reads and writes through `.data`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import Function, agree


class Averaged(nn.Module):
    """Moving averages as vector quantisation has them: of buffers, under no_grad and not, and of a view of one."""

    mean: Tensor
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("rows", torch.ones(2, 4))
        self.scale = torch.linspace(1, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.before(x)
        if self.training:
            with torch.no_grad():
                self.mean.data.lerp_(z.mean(0), 0.1)
            self.rows.data[0].mul_(0.5).add_(z.data.mean(0))
        self.after.weight.data = self.after.weight.data.to(x.device)
        return self.after(z * z.data.exp() * self.mean + self.rows[0] * self.before.bias.data * self.scale.data)


def test_data_are_detached() -> None:
    agree(Averaged(), torch.randn(4, 5))
    assert "data" not in vars(Tensor)


def clamped(z: Tensor) -> Tensor:
    z.data.clamp_(-1, 1)
    return z


def replaced(z: Tensor) -> Tensor:
    z = 2 * z
    z.data = z.data.clamp(-1, 1)
    return z


@pytest.mark.parametrize(("function", "told"), [(clamped, "through a detached view"), (replaced, "assigns to .data")])
def test_writes_that_autograd_does_not_see(function: Callable[[Tensor], Tensor], told: str) -> None:
    with pytest.raises(UserError, match=rf"SP1020.*{told}.*\(tests/frontends/\w+\.py:\d+\)"):
        capture_module(Function(function), torch.randn(4, 5))


class Followed(nn.Module):
    """`follow(module, what it follows)` changes a parameter that is not trained, and says what is added."""

    def __init__(self, follow: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.follow = nn.Linear(5, 3), follow
        self.kept = nn.Parameter(torch.ones(3, 5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + (self.follow(self, self.fc.weight.data).sum() if self.training else 0)


def view_of_the_old(module: Any, other: Tensor) -> Tensor:
    view = module.kept.t()
    module.kept.data = module.kept.data * 0.5 + other
    return view


def same_memory(module: Any, other: Tensor) -> Tensor:
    module.kept.data = other
    return module.kept


def written_to_later(module: Any, other: Tensor) -> Tensor:
    new = other * 2
    module.kept.data = new
    new.add_(1)
    return module.kept


def of_another_shape(module: Any, other: Tensor) -> Tensor:
    module.kept.data = other[:2] * 2
    return module.kept


@pytest.mark.parametrize("follow", [view_of_the_old, same_memory, written_to_later, of_another_shape])
def test_what_shares_memory_is_not_assigned(follow: Callable[[nn.Module, Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=r"SP1020.*assigns to .data.*\(tests/frontends/\w+\.py:\d+\)"):
        capture_module(Followed(follow), torch.randn(4, 5))
