"""What a module reads and writes through `.data`."""

from collections.abc import Callable

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
