"""CTC losses, captured, compute what PyTorch computes, over labels and lengths of all kinds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

LABELS = torch.tensor([[1, 2, 2, 3], [4, 4, 0, 0], [5, 6, 6, 6]])
LENGTHS = torch.tensor([9, 7, 4]), torch.tensor([4, 2, 1])
TOO_SHORT = torch.tensor([9, 2, 3]), torch.tensor([4, 2, 3])


class Recogniser(nn.Module):
    """Frames of 5 numbers to 7 classes, beside labels and lengths that are inputs."""

    def __init__(self, normalised: bool = True, **options: Any) -> None:
        super().__init__()
        self.fc, self.loss, self.normalised = nn.Linear(5, 7), nn.CTCLoss(**options), normalised

    def forward(self, x: Tensor, words: Tensor, frames: Tensor, counts: Tensor) -> Tensor:
        scores = self.fc(x)
        scores = scores.log_softmax(-1) if self.normalised else scores
        return self.loss(scores.transpose(0, 1), words, frames, counts).sum()


CASES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "mean": (Recogniser(), (LABELS, *LENGTHS)),
    "sum": (Recogniser(reduction="sum", blank=3), (LABELS % 3, *LENGTHS)),
    "scores as they are": (Recogniser(normalised=False), (LABELS, *LENGTHS)),
    "impossible": (Recogniser(reduction="none", zero_infinity=True), (LABELS, *TOO_SHORT)),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_and_lengths_are_inputs(case: str) -> None:
    module, given = CASES[case]
    agree(module, (torch.randn(3, 9, 5), *given), None)


def behind_each_other(x: Tensor) -> Tensor:
    scores = x.log_softmax(-1)[:, None].expand(-1, 3, -1)
    return F.ctc_loss(scores, torch.tensor([1, 2, 2, 3, 4, 4, 5]), (9, 9, 9), (4, 2, 1), blank=0)


def one_sequence(x: Tensor) -> Tensor:
    return F.ctc_loss(x.log_softmax(-1), torch.tensor([2, 2, 1]), torch.tensor(9), torch.tensor(3))


def other_axis(x: Tensor) -> Tensor:
    return F.ctc_loss(x.log_softmax(0), torch.tensor([2, 2, 1]), torch.tensor(8), torch.tensor(3), reduction="none")


class Frames(nn.Module):
    def __init__(self, loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.loss = nn.Linear(5, 7), loss

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.fc(x))


@pytest.mark.parametrize("function", [behind_each_other, one_sequence, other_axis])
def test_labels_are_constants(function: Callable[[Tensor], Tensor]) -> None:
    agree(Frames(function), torch.randn(9, 5), None)


def test_pytorch_is_left_as_it_was() -> None:
    before = torch.ctc_loss
    capture_module(CASES["mean"][0], (torch.randn(3, 9, 5), LABELS, *LENGTHS), CaptureOptions(loss=None))
    assert torch.ctc_loss is before


def test_labels_behind_each_other_need_lengths_that_are_known() -> None:
    class Joined(Recogniser):
        def forward(self, x: Tensor, words: Tensor, frames: Tensor, counts: Tensor) -> Tensor:
            return super().forward(x, words.reshape(-1), frames, counts)

    with pytest.raises(UserError, match="whose numbers depend on the data"):
        capture_module(Joined(), (torch.randn(3, 9, 5), LABELS, *LENGTHS), CaptureOptions(loss=None))
