"""Masks that pick one of each row, whatever the data: as margins between classes have them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

Made = Callable[[Tensor, Tensor], Tensor]


def by_places(scores: Tensor, kinds: Tensor) -> Tensor:
    """As pytorch-metric-learning makes it."""
    mask = torch.zeros(scores.shape[0], scores.shape[1], dtype=scores.dtype)
    mask[torch.arange(len(kinds)), kinds] = 1
    return mask == 1


def by_listed_places(scores: Tensor, kinds: Tensor) -> Tensor:
    mask = torch.zeros(4, 6, dtype=torch.long).type_as(scores)
    mask[range(4), kinds] = 1
    return mask.bool()


MADE: dict[str, Made] = {
    "by_places": by_places,
    "by_listed_places": by_listed_places,
    "one_hot": lambda scores, kinds: F.one_hot(kinds, 6).bool(),
    "compared": lambda scores, kinds: F.one_hot(kinds, 6).clone().float().ge(1),
    "scattered": lambda scores, kinds: torch.zeros_like(scores).scatter_(1, kinds.view(-1, 1), 1.0) > 0,
    "true": lambda scores, kinds: torch.zeros_like(scores, dtype=torch.bool).scatter(-1, kinds[:, None], True),
}


class Margin(nn.Module):
    """Angles between what is embedded and its class are larger by a margin (ArcFace), written in two ways."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.before, self.classes, self.made = nn.Linear(5, 4), nn.Parameter(torch.randn(6, 4)), made

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(self.before(x)), F.normalize(self.classes))
        mask = self.made(cosines, kinds)
        own = cosines[mask]
        moved = torch.cos(torch.acos(own.clamp(-0.99, 0.99)) + 0.3)
        scores, others = cosines + mask * (moved - own).unsqueeze(1), cosines * 1
        others[mask] = moved * torch.arange(4)
        others[:, :3][mask[:, :3]] = 0.5
        losses = F.cross_entropy(8 * scores, kinds) + F.cross_entropy(others, kinds)
        return losses + (cosines.masked_select(mask) * torch.tensor([1.0, -2.0, 3.0, 0.5])).sum()


@pytest.mark.parametrize("name", MADE)
def test_one_of_each_row(name: str) -> None:
    torch.manual_seed(2)
    others = (torch.randn(4, 5), torch.tensor([5, 5, 0, 1]))
    graph = agree(Margin(MADE[name]), (torch.randn(4, 5), torch.tensor([1, 2, 0, 5])), None, others=[others])
    assert not any(n.op == "argsort" for n in graph.program["train_step"].nodes)


class Pixels(nn.Module):
    """Of volumes and other axes, in front of the mask and behind it, and of what has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        y, mask = self.layer(x), F.one_hot(kinds, 4).bool()
        scores = y.permute(0, 2, 3, 1)
        pairs = torch.stack([scores, scores.exp()])
        numbers = torch.arange(4).expand(mask.shape)[mask] + (scores > 0)[mask]
        both = torch.stack([scores, -scores], -1)[mask].view(2, 3, 3, 2) + pairs[:, mask].view(2, 2, 3, 3).movedim(
            0, -1
        )
        return both.square().mean() + (scores[mask] * numbers * torch.arange(18)).mean()


def test_axes_around() -> None:
    agree(Pixels(), (torch.randn(2, 2, 3, 3), torch.randint(0, 4, (2, 3, 3))), None)


def written_to(scores: Tensor, kinds: Tensor) -> Tensor:
    mask = F.one_hot(kinds, 6).bool()
    mask[0] = False
    return mask


def of_some_rows(scores: Tensor, kinds: Tensor) -> Tensor:
    mask = torch.zeros(4, 6)
    mask[torch.tensor([0, 1, 1, 3]), kinds] = 1
    return mask == 1


def of_other_numbers(scores: Tensor, kinds: Tensor) -> Tensor:
    return torch.zeros(4, 6).scatter(1, kinds[:, None], 0.5) == 1


def of_columns(scores: Tensor, kinds: Tensor) -> Tensor:
    return torch.zeros(4, 6).scatter(0, kinds[:3, None] % 4, 1) > 0


@pytest.mark.parametrize("made", [written_to, of_some_rows, of_other_numbers, of_columns, lambda s, k: s > 0])
def test_others_pick_a_number_of_rows_that_is_data(made: Made) -> None:
    with pytest.raises(UserError, match=r"SP1014.*a mask of data picks rows"):
        capture_module(Margin(made), (torch.randn(4, 5), torch.tensor([1, 2, 0, 5])), CaptureOptions(loss=None))
