"""What forward assigns to buffers and other attributes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import agree


class Exchange(nn.Module):
    """Two buffers that change places, one of them changed, beside one that is None."""

    even: Tensor
    odd: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", None)
        self.register_buffer("even", torch.rand(6))
        self.register_buffer("odd", torch.rand(6))

    def forward(self, y: Tensor) -> Tensor:
        if self.training:
            self.even, self.odd = self.odd, self.even * 0.5 + y.mean(0)
        return y * self.even + self.odd


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Linear(5, 6), Exchange()
        self.register_buffer("nothing", None)
        self.register_buffer("share", torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y, before = self.inner(self.fc(x)), self.get_buffer("share")
        if self.training:
            self.share = before * 0.9
        return y * before + self.share  # type: ignore[operator]


@pytest.mark.parametrize("loss", ["cross_entropy", lambda p, labels: 2 * F.cross_entropy(p, labels)])
def test_buffers_of_all_parts(loss: Any) -> None:
    torch.manual_seed(3)
    module, labels = Outer(), torch.randint(0, 6, (4,))
    held = dict(module.named_buffers())
    start = {n: t.clone() for n, t in held.items()}
    agree(module, torch.randn(4, 5), loss, None if isinstance(loss, str) else labels)
    assert all(t is held[n] and torch.equal(t, start[n]) for n, t in module.named_buffers())
    assert "forward" not in vars(module)


class Assigning(nn.Module):
    """`assign(self, y)` in training mode."""

    def __init__(self, assign: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.assign, self.fc = assign, nn.Linear(5, 6)
        self.register_buffer("none", None)
        self.register_buffer("kept", torch.rand(6))
        self.plain, self.listed, self.seen = torch.rand(6), [torch.rand(6)], torch.rand(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = y * self.plain + self.listed[0] * self.kept  # type: ignore[operator]
        if self.training:
            self.assign(self, y)
        return y


def plain(module: Any, y: Tensor) -> None:
    module.plain = y.detach().mean(0)


def listed(module: Any, y: Tensor) -> None:
    module.listed[0] = y.detach().mean(0)


def made(module: Any, y: Tensor) -> None:
    module.none = y.detach().mean(0)


def reshaped(module: Any, y: Tensor) -> None:
    module.kept = y.detach().mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("assign", "told"),
    [
        (plain, "keeps a tensor from one step for the next in 'plain'"),
        (listed, r"keeps a tensor from one step for the next in 'listed\[0\]'"),
        (made, "buffer 'none' is None before or after"),
        (reshaped, r"buffer 'kept' is float32 \[6\], and becomes float32 \[1, 6\]"),
    ],
)
def test_refused(assign: Callable[[Any, Tensor], Any], told: str) -> None:
    module = Assigning(assign)
    held = module.kept
    with pytest.raises(UserError, match=f"SP1020.*{told}"):
        capture_module(module, torch.randn(4, 5))
    assert module.none is None and module.kept is held


def test_what_is_only_shown_may_be_assigned() -> None:
    def show(module: Any, y: Tensor) -> None:
        module.seen, module.fresh = y.detach(), y
        module.history.append(y)

    torch.manual_seed(8)
    module: Any = Assigning(show)
    module.history, seen = [], module.seen
    agree(module, torch.randn(4, 5))
    assert module.seen is seen and module.history == [] and not hasattr(module, "fresh")
