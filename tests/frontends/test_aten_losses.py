"""Losses of rows by themselves: cross-entropies that keep two numbers per row, whichever way they are spelled."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

LABELS = torch.tensor([[0, 2, 1], [2, 2, 0]])
Loss = Callable[[Tensor, Tensor], Tensor]
ROWS: dict[str, Loss] = {
    "each": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none"),
    "smoothed": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none", label_smoothing=0.2),
    "some ignored": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none", ignore_index=2),
    "of images": lambda x, y: F.cross_entropy(x.mT[..., None], y[..., None], reduction="none").flatten(),
    "of one": lambda x, y: F.cross_entropy(x[0, 0], y[0, 0], reduction="none")[None],
    "gathered": lambda x, y: -x.log_softmax(-1).gather(-1, y[..., None]).flatten(),
    "gathered from shut ones": lambda x, y: (
        x.masked_fill(torch.arange(3) > y[..., None], float("-inf")).log_softmax(-1).gather(2, y[..., None]).flatten()
    ),
    "nll": lambda x, y: F.nll_loss(x.flatten(0, 1).log_softmax(1), y.flatten(), reduction="none", ignore_index=1),
}
OTHERS: dict[str, Loss] = {
    "weighted": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), x.new_tensor([1, 2, 3]), reduction="none"),
    "two of each": lambda x, y: x.log_softmax(-1).gather(-1, torch.stack([y, 2 - y], -1)).flatten(),
    "along rows": lambda x, y: x.log_softmax(-1).gather(1, y[:, :1, None].expand(-1, -1, 3)).flatten(),
    "over rows": lambda x, y: x.log_softmax(1).gather(2, y[..., None]).flatten(),
}


class Weighted(nn.Module):
    """A loss of rows that each have another weight."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.inner, self.loss = nn.Linear(4, 3), loss

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        losses = self.loss(self.inner(x), kinds)
        return (losses.square() * torch.arange(1, len(losses) + 1)).sum()


@pytest.mark.parametrize("name", ROWS)
def test_rows_keep_two_numbers_each(name: str) -> None:
    module, x = Weighted(ROWS[name]), torch.randn(2, 3, 4)
    graph, _ = capture_module(module, (x, LABELS), CaptureOptions(loss=None))
    ops = {n.op for n in graph.program["train_step"].nodes}
    assert {"cross_entropy_rows", "cross_entropy_rows_backward"} <= ops and "log_softmax_backward" not in ops
    agree(module, (x, LABELS), None)


@pytest.mark.parametrize("name", OTHERS)
def test_other_picks_of_logarithms(name: str) -> None:
    module, x = Weighted(OTHERS[name]), torch.randn(2, 3, 4)
    graph, _ = capture_module(module, (x, LABELS), CaptureOptions(loss=None))
    assert "cross_entropy_rows" not in {n.op for n in graph.program["train_step"].nodes}
    agree(module, (x, LABELS), None)
