"""Buffers that forward changes: what they have when a step is over, and which may not change. Several steps and state
dicts: tests/test_torch_training.py, module `critic`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.coverage import coverage_text
from planner.frontends.torch_export import capture_module, explain_module
from planner.frontends.torch_lowering import CALLERS, CaptureOptions
from planner.graph.model import Role
from tests.frontends.torch_agreement import agree


class Changing(nn.Module):
    """`change(buffer, y)` in training mode, or in both."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any], kept: Tensor, always: bool = False, saved: bool = True):
        super().__init__()
        self.change, self.always, self.fc = change, always, nn.Linear(5, 6)
        self.register_buffer("kept", kept, persistent=saved)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training or self.always:
            self.change(self.kept, y)  # type: ignore[arg-type]
        return y * self.kept  # type: ignore[operator]


def average(kept: Tensor, y: Tensor) -> None:
    kept.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)


def average_without_gradient(kept: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        average(kept, y)


def part(kept: Tensor, y: Tensor) -> None:
    """What the block returns is not what is read behind it."""
    with torch.no_grad():
        kept[2:4].copy_(y.mean(0)[2:4])


def twice(kept: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        kept[0] = y[0, 0]
    part(kept, y)


@pytest.mark.parametrize("change", [average, average_without_gradient, part, twice])
def test_gradients_and_contents_are_pytorchs(change: Callable[[Tensor, Tensor], None]) -> None:
    torch.manual_seed(5)
    start = torch.rand(6)
    module = Changing(change, start.clone())
    graph = agree(module, torch.randn(4, 5))
    (state,) = (v for v in graph.values if v.role is Role.STATE)
    assert [n.updates for n in graph.program["train_step"].nodes if n.op == "state_update"] == [(state.id,)]
    torch.testing.assert_close(module.kept, start)  # capturing has changed nothing


def count(kept: Tensor, y: Tensor) -> None:
    kept.add_(1)


REFUSED: dict[str, tuple[nn.Module, str, str]] = {
    "whole numbers": (Changing(count, torch.zeros(6, dtype=torch.int64)), "which holds int64", "float32"),
    "not saved": (Changing(average, torch.rand(6), saved=False), "does not save", "persistent=False"),
    "evaluation": (Changing(average, torch.rand(6), always=True), "in evaluation mode", "only if self.training"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    module, problem, fix = REFUSED[name]
    with pytest.raises(UserError, match=r"SP1020.*'kept'") as caught:
        capture_module(module, torch.randn(4, 5))
    assert problem in caught.value.problem and fix in caught.value.fix


def test_only_a_step_with_its_own_loss_says_when_it_is_over() -> None:
    with pytest.raises(UserError, match=r"SP1020.*'kept'") as caught:
        capture_module(Changing(average, torch.rand(6)), torch.randn(4, 5), CaptureOptions(loss=CALLERS))
    assert "with its loss" in caught.value.fix


def test_running_statistics_of_single_images_are_refused() -> None:
    norm = nn.InstanceNorm2d(2, track_running_stats=True)
    with pytest.raises(UserError, match=r"SP1001.*running statistics that are computed"):
        capture_module(nn.Sequential(norm, nn.Flatten()), torch.randn(3, 2, 4, 4))


def test_explained() -> None:
    uses = explain_module(Changing(average, torch.rand(6)), torch.randn(4, 5))
    assert "unsupported" not in {use.kind for use in uses}
    assert "aten.mean" in coverage_text(uses)
