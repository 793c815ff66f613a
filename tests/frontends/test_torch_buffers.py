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
from planner.frontends.torch_loss import CALLERS
from planner.frontends.torch_lowering import CaptureOptions
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


def detached_before(kept: Tensor, y: Tensor) -> Tensor:
    seen = kept.detach()
    average(kept, y)
    return seen


def changed_through_a_view(kept: Tensor, y: Tensor) -> Tensor:
    kept.detach()[:2].mul_(0.5)
    return kept


@pytest.mark.parametrize("change", [detached_before, changed_through_a_view])
def test_a_detached_buffer_is_the_buffer(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Reading(Changing):
        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return y * (self.change(self.kept, y) if self.training else self.kept)  # type: ignore[arg-type]

    torch.manual_seed(6)
    agree(Reading(change, torch.rand(6)), torch.randn(4, 5))


def test_a_view_that_was_made_without_gradient() -> None:
    class Reading(Changing):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                seen = self.kept.view(6)  # type: ignore[operator]
            y = self.fc(x)
            if self.training:
                self.change(self.kept, y)  # type: ignore[arg-type]
            return y * seen

    with pytest.raises(UserError, match=r"SP1020.*view without gradient"):
        capture_module(Reading(average, torch.rand(6)), torch.randn(4, 5))


class Statistics(nn.Module):
    """Reads running statistics, as `read` has them, before the batch norm or behind it."""

    def __init__(self, read: Callable[[Tensor], Tensor], before: bool) -> None:
        super().__init__()
        self.read, self.before, self.fc, self.norm = read, before, nn.Linear(5, 6), nn.BatchNorm1d(6)
        nn.init.uniform_(self.norm.running_mean)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if self.before:  # cloned: PyTorch's gradient is else that of the statistics behind the batch norm
            scaled = torch.tanh(h) * self.read(self.norm.running_mean).clone()  # type: ignore[arg-type]
            return self.norm(h) * scaled + scaled
        seen = self.read(self.norm.running_mean)  # type: ignore[arg-type]
        return self.norm(h) * torch.tanh(h) * seen


@pytest.mark.parametrize("read", [Tensor.clone, Tensor.detach, lambda t: t.view(2, 3).reshape(1, 6), lambda t: t])
@pytest.mark.parametrize("before", [True, False])
def test_statistics_are_read_as_they_are_by_then(read: Callable[[Tensor], Tensor], before: bool) -> None:
    torch.manual_seed(4)
    agree(Statistics(read, before), torch.randn(4, 5))


def test_counters_of_batches_cannot_be_read() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) / (1 + self.norm.num_batches_tracked)  # type: ignore[operator]

    with pytest.raises(UserError, match=r"SP1020.*norm\.num_batches_tracked"):
        capture_module(Counting(), torch.randn(4, 5))


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


def test_explained() -> None:
    uses = explain_module(Changing(average, torch.rand(6)), torch.randn(4, 5))
    assert "unsupported" not in {use.kind for use in uses}
    assert "aten.mean" in coverage_text(uses)


def test_batch_norms_without_gradient_move_and_read_their_own_statistics() -> None:
    """As those of a teacher do, which follows from outside. What a block reads beside what it writes has gradients cut
    off, but a buffer stays the one that the module saves."""

    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pupil, self.teacher = nn.Linear(5, 6), nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))
            self.still = nn.BatchNorm1d(6)
            nn.init.uniform_(self.still.running_var, 1, 2)  # type: ignore[arg-type]

        def train(self, mode: bool = True) -> "Taught":
            super().train(mode).still.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                told = self.still(self.teacher(x))
            return self.pupil(x) * told  # type: ignore[no-any-return]

    torch.manual_seed(9)
    graph = agree(Taught().train(), torch.randn(4, 5))
    norms = [f"{n}.running_{what}" for n in ("still", "teacher.1") for what in ("mean", "var")]
    assert sorted(v.name for v in graph.values if v.role is Role.STATE) == norms


def test_a_batch_norm_that_runs_without_gradient_and_with_it() -> None:
    """As of twins, one of which is only looked at."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twin = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                seen = self.twin(x + 1)
            return self.twin(x) * seen  # type: ignore[no-any-return]

    torch.manual_seed(10)
    graph = agree(Twins(), torch.randn(4, 5))
    norms = [n for n in graph.program["train_step"].nodes if n.op == "batch_norm"]
    assert [n.updates for n in norms] == [("twin.1.running_mean", "twin.1.running_var")] * 2


class Teacher(nn.Module):
    """A teacher that follows its student, in forward as MoCo has it; `follow(teacher's, student's)`."""

    def __init__(self, follow: Callable[[nn.Parameter, nn.Parameter], Any]) -> None:
        super().__init__()
        self.follow = follow
        self.student = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        self.teacher = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for theirs, own in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                self.follow(theirs, own)
        with torch.no_grad():
            seen = self.teacher(x)
        return torch.einsum("nc,mc->nm", self.student(x), seen)


def follow_in_place(theirs: nn.Parameter, own: nn.Parameter) -> None:
    with torch.no_grad():
        theirs.mul_(0.9).add_(own, alpha=0.1)


def follow_by_data(theirs: nn.Parameter, own: nn.Parameter) -> None:
    theirs.data.lerp_(own.data, 0.1)


def follow_anew(theirs: nn.Parameter, own: nn.Parameter) -> None:
    theirs.data = theirs.data * 0.9 + own.data * 0.1


def follow_in_lists(theirs: nn.Parameter, own: nn.Parameter) -> None:
    """As lightly's update_momentum does."""
    with torch.no_grad():
        torch._foreach_mul_([theirs], 0.9)
        torch._foreach_add_([theirs], [own], alpha=0.1)


@pytest.mark.parametrize("follow", [follow_in_place, follow_by_data, follow_anew, follow_in_lists])
def test_parameters_that_are_not_trained_may_change(follow: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
    torch.manual_seed(3)
    module = Teacher(follow)
    start = {n: p.clone() for n, p in module.named_parameters()}
    graph = agree(module, torch.randn(4, 5))
    states = {v.name for v in graph.values if v.role is Role.STATE and not v.constant}
    assert states >= {n for n, p in module.named_parameters() if not p.requires_grad}
    torch.testing.assert_close(dict(module.named_parameters()), start)


def test_trained_parameters_may_not() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.fc.weight.data = self.fc.weight.data / self.fc.weight.data.norm()
            return self.fc(x)

    with pytest.raises(UserError, match=r"SP1020.*its parameter 'fc\.weight'"):
        capture_module(Scaled(), torch.randn(4, 5))
    module = Teacher(follow_anew)
    with pytest.raises(UserError, match=r"SP1020.*its parameter 'teacher\.0\.weight'"):
        capture_module(module, torch.randn(4, 5), CaptureOptions(loss=CALLERS))
