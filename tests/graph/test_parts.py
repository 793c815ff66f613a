"""Slices that fill an axis together become one split; everything else stays as it is."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import agree


class Cut(nn.Module):
    def __init__(self, cut: Callable[[Tensor], Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.cut = inner or nn.Linear(6, 8), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(self.inner(x)).flatten(1)


def recurrence(x: Tensor) -> Tensor:
    state = x[:, 0] * 0
    for t in range(x.shape[1]):
        state = torch.tanh(x[:, t] + state * x[:, t])  # one slice, spelled twice
    return state


def rotated(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 4:], x[..., :4]], -1) * x


def gap(x: Tensor) -> Tensor:
    return x[..., :3] * x[..., 4:7]


def overlap(x: Tensor) -> Tensor:
    return x[..., :5] * x[..., 3:]


def strided(x: Tensor) -> Tensor:
    return x[..., ::2] * x[..., 1::2]


def unused(x: Tensor) -> Tensor:
    """The gradient of one part is missing."""
    return x[..., :4] * x[..., 4:].detach()


def ops_of(module: nn.Module, x: Tensor) -> list[str]:
    graph, _ = capture_module(module, x)
    return [n.op for n in graph.program["train_step"].nodes]


@pytest.mark.parametrize("cut", [recurrence, rotated, unused])
def test_slices_that_fill_an_axis_are_one_split(cut: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 5, 6)
    ops = ops_of(Cut(cut), x)
    assert ops.count("split") == 1
    assert "slice_backward" not in ops  # concatenations have slices in their gradients
    agree(Cut(cut), x)


@pytest.mark.parametrize("cut", [gap, overlap, strided])
def test_others_stay(cut: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 5, 6)
    ops = ops_of(Cut(cut), x)
    assert "split" not in ops and ops.count("slice_backward") == 2
    agree(Cut(cut), x)


def test_what_nothing_is_trained_through_is_read_when_it_is_needed() -> None:
    module = nn.Sequential(Cut(recurrence, nn.Identity()), nn.Linear(6, 2))
    ops = ops_of(module, torch.randn(3, 5, 6))
    assert "split" not in ops and "slice" in ops


@pytest.mark.parametrize("wide", [False, True])
def test_queries_keys_and_values_are_read_where_their_projection_left_them(wide: bool) -> None:
    def attended(x: Tensor) -> Tensor:
        n, t, _ = x.shape
        if wide:  # as nn.MultiheadAttention has it
            q, k, v = x.unflatten(-1, (4, 2)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous().unbind(0)[:3]
        else:
            p = x.view(n, t, 4, 2).permute(2, 0, 1, 3)
            q, k, v = p[0] * p[3], p[1], p[2]
        return torch.tanh(q) * k + v

    x = torch.randn(3, 5, 6)
    ops = ops_of(Cut(attended), x)
    assert ops.count("split") == 1
    assert "permute" not in ops and "slice_backward" not in ops
    agree(Cut(attended), x)
