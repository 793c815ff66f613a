"""What forward computes of constants alone is known while it is exported: masks, Python's numbers, branches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

EYE = torch.eye(4, dtype=torch.bool)
HELD = {
    "diagonal": EYE,
    "kept": torch.tensor([True, False, True, True]),
    "some": torch.tensor([1, 3]),
    "twice": torch.tensor([0, 2, 2]),
    "many": torch.tensor(3),
    "factor": torch.tensor(2.5),
}


class Held(nn.Module):
    """A function of a weight of (4, 4), with buffers, and the same tensors as ordinary attributes."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 4)), function
        for name, held in HELD.items():
            self.register_buffer(name, held.clone())
            setattr(self, f"own_{name}", held.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.weight * x).square().sum()


def written_constants(m: Any, w: Tensor) -> Tensor:
    """What is made of constants, and of an array, is written to once."""
    held, places = torch.cat([torch.ones(2), torch.zeros(2)]), m.kept.nonzero()[:, 0]
    held[m.kept] -= 0.5
    places -= 2
    array = torch.as_tensor(np.arange(1.0, 5.0, dtype=np.float32))
    array *= 3
    kinds = torch.unique(m.twice)
    kinds[0] = 1
    kinds *= 2
    return w * held * array + w[places].sum(0) * kinds.sum()


def written_masks(m: Any, w: Tensor) -> Tensor:
    """Of contrastive losses: all but the diagonal and the partners."""
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask = mask.fill_diagonal_(0)
    rows = mask[2:]
    for i in range(2):
        mask[i, 2 + i] = 0
        rows[i, i] = 0
    return w[mask].reshape(4, -1).softmax(1)


def partners(m: Any, w: Tensor) -> Tensor:
    """Of the same: labels that follow from the batch's size."""
    labels = torch.cat([torch.arange(2)] * 2)
    same = (labels[None] == labels[:, None]).float()
    others = ~torch.eye(4, dtype=torch.bool)
    same, w = same[others].view(4, -1), w[others].view(4, -1)
    return torch.cat([w[same.bool()].view(4, -1), w[~same.bool()].view(4, -1)], 1).log_softmax(1)


def filled(m: Any, w: Tensor) -> Tensor:
    values, w = w.flatten()[:12].sin(), w.clone()
    w[~m.diagonal] = values
    w[m.diagonal] = 0.5
    return w


def cropped(m: Any, w: Tensor) -> Tensor:
    """Numbers that were written to, and a tensor that holds indices, one after the other."""
    end = torch.zeros(2, dtype=torch.long)
    end[0] += 3
    start, stop = (end - torch.tensor([3, -2])).tolist()
    return w[start:stop, : end[0]] + sum(w[i, 0] * k for k, i in enumerate(m.some))


FUNCTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "made in forward": lambda m, w: w[~torch.eye(4, dtype=torch.bool)].view(4, 3).softmax(-1),
    "a size that follows": lambda m, w: w[torch.arange(4) % 2 == 0].view(-1, 8).softmax(-1),
    "made alike": lambda m, w: (
        w[torch.ones_like(w, dtype=torch.bool).triu(1)] + w[w.new_zeros(4, 4).fill_diagonal_(1) < 1][:6]
    ),
    "a buffer": lambda m, w: w[~m.diagonal].view(4, -1).softmax(-1),
    "an attribute": lambda m, w: w[~m.own_diagonal].mean(),
    "a global": lambda m, w: w[~EYE].view(4, -1).softmax(-1),
    "columns": lambda m, w: w[:, m.kept] + w[:, m.own_kept] + w[:, [True, False, True, True]],
    "a column and a mask": lambda m, w: w[m.kept, 1] + w[None][0, :, m.kept].sum(0),
    "masked_select": lambda m, w: torch.masked_select(w, m.diagonal) + torch.masked_select(w, m.kept)[:4],
    "nonzero": lambda m, w: w[m.diagonal.nonzero()[:, 0]] + w[torch.where(m.diagonal)],
    "below the diagonal": lambda m, w: w[torch.tril(torch.ones(4, 4), -1).nonzero(as_tuple=True)].exp(),
    "unique": lambda m, w: w[torch.unique(m.twice)] + w[m.twice.unique()],
    "bincount": lambda m, w: w * torch.bincount(m.twice, minlength=4),
    "repeats": lambda m, w: w[torch.arange(2).repeat_interleave(m.some)],
    "branches": lambda m, w: w.sin() if m.diagonal.any() and torch.eye(3).sum() > 2 else w.cos(),
    "sizes": lambda m, w: torch.cat(w[: int(m.many) + 1].split(m.some.tolist())[::-1]),
    "sizes of tensors": lambda m, w: (
        w.view(*m.twice.new_tensor([2, 2, 4])).permute(*torch.arange(3).flip(0)).reshape(torch.tensor(4), 4)
        + torch.zeros(torch.tensor(4), 1)
        + w.roll(m.twice[-1])
    ),
    "factors": lambda m, w: w * float(m.factor) + w.sin() * m.factor.item() + m.own_factor.numpy().item(),
    "legacy constructors": lambda m, w: (
        w[torch.LongTensor([1, 0, 2, 3])] * torch.FloatTensor([0.5]).to(w.device) + torch.Tensor([2.0])
    ),
    "equal constants": lambda m, w: w if torch.equal(m.own_factor * w, m.own_factor * w) else -w,
    "equal tensors": lambda m, w: w if torch.equal((w * 2).exp(), (w * 2).exp()) and not w[:2].equal(w) else -w,
    "written constants": written_constants,
    "written masks": written_masks,
    "partners": partners,
    "filled": filled,
    "cropped": cropped,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees(name: str) -> None:
    """And leaves what the module holds, and PyTorch's generator, as they were."""
    module, state = Held(FUNCTIONS[name]), torch.default_generator.get_state()
    agree(module, (torch.randn(4, generator=torch.Generator().manual_seed(1)),), loss=None)
    assert torch.equal(torch.default_generator.get_state(), state)
    for key, held in HELD.items():
        assert torch.equal(getattr(module, key), held) and torch.equal(getattr(module, f"own_{key}"), held)


def unwritten(m: Any, w: Tensor) -> Tensor:
    mask = torch.empty(4, dtype=torch.bool)
    mask[:2] = True
    return w[mask]


def unset(made: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, w: w[made(w) > 0]


def mixed(m: Any, w: Tensor) -> Tensor:
    mask = torch.zeros(4, dtype=torch.bool)
    mask[:2] = w[0, :2] > 0
    return w[mask]


def through_a_view(m: Any, w: Tensor) -> Tensor:
    mask = torch.zeros(2, 2)
    mask.view(-1)[:2].add_(w[0, :2])
    return w[:2, :2][mask > 0]


def constants_apart(m: Any, w: Tensor) -> Tensor:
    held = torch.ones(4)
    one = held * w
    held.add_(1)
    return w if torch.equal(one, held * w) else -w


def written_copies(m: Any, w: Tensor) -> Tensor:
    one, other = w.clone(), w.clone()
    one.view(-1)[:2].add_(1)
    return w if torch.equal(one * 2, other * 2) else -w


UNKNOWN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "of data": lambda m, w: w[w > 0],
    "drawn": lambda m, w: w[torch.rand(4) > 0.5],
    "drawn in place": lambda m, w: w[torch.zeros(4).uniform_() > 0.5],
    "half of it was written": unwritten,
    "nothing was written": unset(lambda w: torch.empty(4)),
    "nothing was written, by size": unset(lambda w: w.new_empty(4)),
    "nothing was written, by type": unset(lambda w: torch.Tensor(4)),
    "nothing was written, alike": unset(lambda w: torch.empty_like(torch.zeros(4))),
    "nothing was written, in strides": unset(lambda w: torch.empty_strided((4,), (1,))),
    "of data and constants": mixed,
    "alike, and data": lambda m, w: w[torch.zeros_like(w) + w.sum() > 0],
    "written through a view": through_a_view,
    "equal tensors, of which a view is written to": written_copies,
    "equal constants, of which one is written to": constants_apart,
    "equal draws": lambda m, w: w if torch.equal(w * torch.rand(4), w * torch.rand(4)) else -w,
    "equal factors": lambda m, w: w if torch.equal(w * 2, w * 3) else -w,
    "equal tensors of others": lambda m, w: w if torch.equal(w, w.t()) else -w,
    "a branch of data": lambda m, w: w if w.sum() > 0 else -w,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_refused(name: str) -> None:
    """Of rows that a mask picks: how many there are, without which they may be picked (test_torch_picked.py)."""

    def counted(m: Any, w: Tensor) -> Tensor:
        found = UNKNOWN[name](m, w)
        return sum((found.sum() for _ in range(found.shape[0])), w.sum())

    with pytest.raises(UserError, match="SP1014"):
        capture_module(Held(counted), (torch.randn(4),), CaptureOptions(loss=None))


class First(nn.Module):
    """What it computes depends on a buffer that it changes in one of several ways."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.layer, self.change = nn.Linear(3, 2), change

    def forward(self, x: Tensor) -> Tensor:
        if self.ready.logical_not().item():
            x = x - x.mean(0)
            self.change(self)
        return self.layer(x)


CHANGES: dict[str, Callable[[Any], None]] = {
    "in place": lambda m: m.ready.fill_(True),
    "by an operator": lambda m: m.ready.__ior__(torch.tensor(True)),
    "an element": lambda m: m.ready.__setitem__((), True),
    "through a view": lambda m: m.ready.view(1)[0].fill_(True),
    "assigned": lambda m: setattr(m, "ready", torch.tensor(True)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_buffer_that_forward_writes_to_decides_nothing(name: str) -> None:
    """In the next step it would be another one."""
    with pytest.raises(UserError, match="SP1014: the module's forward asks for numbers of its buffer 'ready'"):
        capture_module(First(CHANGES[name]), (torch.randn(4, 3),), CaptureOptions(loss="mse"))
    agree(First(lambda m: None), (torch.randn(4, 3),), "mse")


def test_a_loss_of_its_own() -> None:
    """Contrastive: every view's partner is the one half a batch away."""

    def loss(found: Tensor, labels: Tensor) -> Tensor:
        z = F.normalize(found, dim=1)
        likeness = (z @ z.T / 0.5).fill_diagonal_(float("-inf"))
        return (
            F.cross_entropy(likeness, (torch.arange(6) + 3) % 6) + labels.sum() * likeness[~torch.eye(6).bool()].mean()
        )

    agree(nn.Linear(5, 4), (torch.randn(6, 5),), loss, torch.randn(6))
