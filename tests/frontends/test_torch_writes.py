"""Writes in place that autograd does not see are as in PyTorch, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import Function, agree


def view(y: Tensor) -> Tensor:
    y.detach()[0].mul_(2)
    return y


def beside_its_view(y: Tensor) -> Tensor:
    seen = y.detach()
    seen.mul_(2)
    return y + seen


def constant(y: Tensor) -> Tensor:
    zeros = torch.zeros(4, 6)
    zeros.detach().add_(1)
    return y * zeros


def whole(y: Tensor) -> Tensor:
    with torch.no_grad():
        y.mul_(2)
    return y


def rows(y: Tensor) -> Tensor:
    with torch.no_grad():
        y[0:2] = 0.0
    return y


def filled_before(y: Tensor) -> Tensor:
    made = torch.zeros(4, 6)
    made[:2] = y[:2]
    with torch.no_grad():
        made[0] = 1.0
    return made


def changed_behind(y: Tensor) -> Tensor:
    seen = y.detach()
    return y.mul_(2) + seen


def part_behind(y: Tensor) -> Tensor:
    made = y * 2
    seen = made[0].detach()
    made[0:2] = 1.0
    return made + seen


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    f.__name__: (f, how)
    for f, how in (
        (view, "through a detached view"),
        (beside_its_view, "through a detached view"),
        (constant, "through a detached view"),
        (whole, "has a gradient, under torch.no_grad()"),
        (rows, "has a gradient, under torch.no_grad()"),
        (filled_before, "has a gradient, under torch.no_grad()"),
        (changed_behind, "reads a view without gradient"),
        (part_behind, "reads a view without gradient"),
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_is_refused(name: str) -> None:
    function, how = REFUSED[name]
    with pytest.raises(UserError, match=r"SP1020.*\(tests/frontends/") as caught:
        capture_module(Function(function), torch.randn(4, 5))
    assert how in str(caught.value)


def straight_through(y: Tensor) -> Tensor:
    rounded = y.detach().round()
    rounded[rounded > 1] = 1.0
    return y + (rounded - y).detach()


def filled_behind(y: Tensor) -> Tensor:
    made = torch.zeros_like(y)
    with torch.no_grad():
        made[0] = 1.0
    made[1:] = y[1:]
    return made


def mask(y: Tensor) -> Tensor:
    with torch.no_grad():
        kept = torch.zeros_like(y)
        kept.scatter_(1, y.argmax(1, keepdim=True), 1.0)
        share = y.softmax(1)
        share.clamp_(min=0.1)
    return y * kept.mul(2) + y * share


def flat_view(y: Tensor) -> Tensor:
    seen = y.detach().clone()
    seen.view(-1)[:12].mul_(2)
    return y + seen


def before_it_changes(y: Tensor) -> Tensor:
    seen, old = y.detach(), y.detach().clone()
    least = seen.amin()
    y.mul_(2)
    return (y + old) * least + y.detach()


@pytest.mark.parametrize("function", [before_it_changes, straight_through, filled_behind, mask, flat_view])
def test_what_nothing_else_sees_is_as_in_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(7)
    agree(Function(function), torch.randn(4, 5), "mse")
