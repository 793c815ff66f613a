"""Tensors that share memory: refused where one is written to, unless they are one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree


class Two(nn.Module):
    def __init__(self, change: Callable[["Two"], object]) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(5, 5), nn.Linear(5, 5), nn.BatchNorm1d(5)
        self.register_buffer("w", torch.randn(5, 5))
        change(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(torch.tanh(self.a(x)))) @ self.w


def tied_by_data(m: Two) -> None:
    m.b.weight.data = m.a.weight.data


def turned(m: Two) -> None:
    m.b.weight = nn.Parameter(m.a.weight.data.t())


def buffer_of_a_parameter(m: Two) -> None:
    m.w = m.a.weight.detach()


def attribute_of_a_parameter(m: Two) -> None:
    del m.w
    m.w = m.a.weight.detach()


def statistics(m: Two) -> None:
    m.norm.running_var = m.w[0]


@pytest.mark.parametrize("loss", ["mse", nn.L1Loss()])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        (tied_by_data, {"a.weight", "b.weight"}),
        (turned, {"a.weight", "b.weight"}),
        (buffer_of_a_parameter, {"a.weight", "w"}),
        (attribute_of_a_parameter, {"a.weight", "w"}),
        (statistics, {"norm.running_var", "w"}),
    ],
)
def test_shared_memory_is_refused(change: Callable[[Two], None], names: set[str], loss: str | nn.Module) -> None:
    options = CaptureOptions(loss=loss, labels=None if isinstance(loss, str) else torch.randn(4, 5))
    with pytest.raises(UserError, match="SP1026") as raised:
        capture_module(Two(change), torch.randn(4, 5), options)
    assert set(raised.value.problem.split("'")[1::2]) == names


def one_parameter(m: Two) -> None:
    m.b.weight = m.a.weight


def frozen(m: Two) -> None:
    m.requires_grad_(False)
    m.norm.weight.requires_grad_(True)
    m.b.weight.data = m.w.data


def neighbours(m: Two) -> None:
    """Columns of one matrix, of which rows lie between each other."""
    both = torch.randn(5, 10)
    m.a.weight, m.b.weight = nn.Parameter(both[:, :5]), nn.Parameter(both[:, 5:])


@pytest.mark.parametrize("change", [one_parameter, frozen, neighbours])
def test_what_is_one_or_stays_or_lies_apart(change: Callable[[Two], None]) -> None:
    agree(Two(change), torch.randn(4, 5), loss="mse")
