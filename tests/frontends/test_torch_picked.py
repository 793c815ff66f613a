"""Rows that a mask of data picks: PyTorch's numbers and gradients, whatever the mask."""

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
from tests.torch_functions import Spike


class Net(nn.Module):
    def __init__(self, body: Callable[["Net", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.body = nn.Linear(5, 6), nn.Linear(6, 3), body

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        return self.body(self, self.first(x), kinds)


def put(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out, mask = y.new_zeros(4, 7, 3), labels > 1
    out[mask] = net.last(y[mask])
    out[~mask] = -y[~mask][:, :3]
    return out.pow(2).mean()


def put_at(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """One-hot targets by places, as detectors write them."""
    mask = labels > 1
    out = torch.zeros(4, 7, 3, dtype=y.dtype)
    where = mask.nonzero(as_tuple=True)
    out[where[0], where[1], labels[mask]] = 1.0
    out[mask, 0] = y[mask].mean(1)
    out[:, labels[0] > 1] *= 2.0
    return F.binary_cross_entropy_with_logits(net.last(y), out.sigmoid())


def put_into_zeros(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out = torch.zeros(4, 7, dtype=y.dtype)
    out[labels > 0] = 0.5
    return (out[..., None] * y).sum()


def scattered(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """As graph networks add up messages along edges that a mask keeps; and one row that is put elsewhere."""
    rows, ends = y[labels > 0], labels[labels > 0]
    sums = rows.new_zeros((3, 6)).scatter_add_(0, ends.view(-1, 1).expand_as(rows), rows)
    first = (labels.flatten().cumsum(0) == 1) & (labels.flatten() == 1)
    copied = y.flatten(0, 1).index_copy(0, first.nonzero()[:, 0], y.flatten(0, 1)[first] * 3)
    return sums.square().sum() + copied.square().mean()


def sent(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """A mixture of experts that picks tokens by their places."""
    flat, out = y.flatten(0, 1), torch.zeros(28, 3, dtype=y.dtype)
    for i in range(3):
        places = torch.where(labels.flatten() == i)[0]
        out.index_add_(0, places, net.last(flat[places]) * (i + 1))
    return out.square().mean()


def changed(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """Writing to rows, and to views of them."""
    rows = y[labels > 1]
    view = rows[:, 0]
    view += 1
    rows[:, 1:3] *= 2
    rows[rows[:, 3] > 0, 4] = 3.0
    rows[torch.arange(rows.shape[0]), labels[labels > 1]] = -1.0
    return rows.square().mean()


def within(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    rows = y[labels > 0]
    inner = rows[:, 0] > 0
    places = inner.nonzero().squeeze(1)
    return rows[inner].mean() + rows[places].exp().sum() + rows[rows > 0].mean() + (inner.sum() * rows).sum()


def sorted_rows(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """In order, as the Lovasz loss has them: errors, and the labels that belong to them."""
    errors, truths = (y[labels > 0] - 1).abs()[:, 0], (labels[labels > 0] == 2).to(y.dtype)
    ordered, places = torch.sort(errors, 0, descending=True)
    there = truths[places]
    union = there.sum() + (1 - there).cumsum(0)
    return torch.dot(ordered, 1 - (there.sum() - there.cumsum(0)) / union)


def by_number(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    rows = y[labels > 1]
    zeros = torch.zeros(int(rows.shape[0]), 3, dtype=y.dtype)
    wide = rows.view(rows.size(0), 2, 3) + net.last.bias.expand(len(rows), -1)[:, None]
    return (wide.sum(1) - zeros).square().sum() / max(rows.shape[0], 1) + rows.sum() / rows.numel() / float(len(rows))


def spoken(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """As speech is recognised: labels of several sequences, one behind the other, with those left out that pad them."""
    counted = labels[:, :3] > 0
    scores = y.transpose(0, 1).log_softmax(-1)
    times = torch.full((len(y),), 7)
    words = labels[:, :3].masked_select(counted)
    sizes = counted.sum(-1)
    own = F.ctc_loss(scores, words, times, sizes, reduction="none", zero_infinity=True).square().sum()
    return own + F.ctc_loss(scores, words, times, sizes, blank=0, reduction="mean", zero_infinity=True)


def hardest(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """Of what is not to be found as many as three times what is."""
    errors, found = y.square().mean(-1).flatten(), (labels > 1).sum()
    number = min(3 * found, labels.numel() - found)
    first, last = errors.sort(descending=True)[0][:number], errors.sort()[0][-(number // 2 + 1) :]
    most, places = errors.topk(min(int(number) + 1, 28), sorted=False)
    rows = y.flatten(0, 1).clone()
    rows[: int(number)] = rows[: int(number)] * 2
    return first.mean() + last.sum() + most.mean() + errors[places].sum() + rows.mean() + y[:, : number + 1].mean()


def normed(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    rows = F.batch_norm(y[labels > 1], None, None, net.last.weight[0], net.last.weight[1], training=True)
    return rows.pow(3).mean() + y[labels > 1].var(0).sum() + y[labels > 1].std(0, False).prod()


def experts(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for i in range(3):
        chosen = labels == i
        out[chosen] += torch.tanh(y[chosen]) * (i + 1)
    return out.square().sum()


def asked(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """What rows are, as pytorch-metric-learning asks."""
    mask = labels.flatten() > 0
    losses, places = y.flatten(0, 1)[mask].square().mean(1), torch.arange(28)[mask]
    if (not torch.is_tensor(losses)) and losses == 0:
        return y.sum() * 0
    assert torch.is_tensor(places) and len(losses) == len(places)
    return losses.mean()


BODIES: dict[str, Callable[[Net, Tensor, Tensor], Tensor]] = {
    "as many as there are of others": hardest,
    "mean": lambda net, y, labels: y[labels > 1].mean(),
    "mean of an axis": lambda net, y, labels: y[labels > 1].mean(0).square().sum(),
    "sum": lambda net, y, labels: (y[labels > 1] ** 2).sum(),
    "sum of an axis": lambda net, y, labels: y[labels > 1].sum(0).square().sum(),
    "of rows": lambda net, y, labels: y[labels > 1].softmax(-1).amax(1).log().mean(),
    "of elements": lambda net, y, labels: y[y > 0].sqrt().mean(),
    "logarithms of what is picked": lambda net, y, labels: -torch.log(y[y > 0]).sum(),
    "masked_select": lambda net, y, labels: torch.masked_select(y, y > 0).mean(),
    "two": lambda net, y, labels: F.mse_loss(y[labels > 1][:, 0], labels[labels > 1].float()),
    "losses": lambda net, y, labels: F.l1_loss(y[labels > 0], y.detach()[labels > 0] + 1, reduction="sum"),
    "classes": lambda net, y, labels: F.cross_entropy(net.last(y[labels > 0]), labels[labels > 0]),
    "smooth classes": lambda net, y, labels: F.cross_entropy(
        net.last(y[labels > 0]), labels[labels > 0], label_smoothing=0.1, reduction="sum"
    ),
    "weighted classes": lambda net, y, labels: F.cross_entropy(
        net.last(y[labels > 0]), labels[labels > 0], weight=y.new_tensor([0.5, 1.0, 2.0])
    ),
    "classes of each": lambda net, y, labels: (
        F.cross_entropy(net.last(y[labels > 0]), labels[labels > 0], reduction="none").square().mean()
    ),
    "a layer": lambda net, y, labels: net.last(y[labels > 1]).abs().mean(),
    "a norm": lambda net, y, labels: F.layer_norm(y[labels > 1], (6,), y[0, 0]).square().mean(),
    "looked up": lambda net, y, labels: F.embedding(labels[labels > 0], net.last.weight).square().mean(),
    "picked by labels": lambda net, y, labels: y[labels > 0].gather(1, labels[labels > 0][:, None]).mean(),
    "flat": lambda net, y, labels: y[labels > 1].view(-1).square().mean(),
    "by its own size": lambda net, y, labels: y[labels > 1].view(-1, 2, 3).sum(2).pow(2).sum() / y.shape[-1],
    "broadcast": lambda net, y, labels: (2 - y[labels > 1] * y[0, 0]).square().mean(),
    "largest": lambda net, y, labels: y[labels > 1].max() - y[labels > 1].amin(),
    "whole axes": lambda net, y, labels: y.view(4, 7, 2, 3)[labels > 1, :, :].square().sum((1, 2)).mean(),
    "kept axes": lambda net, y, labels: (y[labels > 1].sum(0, True) * y[labels > 1].mean(0, keepdim=True)).sum(),
    "the larger": lambda net, y, labels: torch.max(y[labels > 1], y[labels > 1] * 2).mean(),
    "within bounds": lambda net, y, labels: y[labels > 1].clamp(min=y.new_zeros(6)).to(y.dtype).mean(),
    "both": lambda net, y, labels: nn.BCEWithLogitsLoss(pos_weight=y.new_ones(6) * 2)(
        y[labels > 1], (y[labels > 1] > 0).to(y.dtype)
    ),
    "pixels": lambda net, y, labels: F.cross_entropy(
        y.view(4, 7, 3, 2)[labels > 0], torch.stack([labels, 2 - labels], -1)[labels > 0]
    ),
    "truths": lambda net, y, labels: (y[(y > 0)] * (y > 1)[y > 0]).sum() * (labels[labels > 1] == 2).all(),
    "other places of the mask": lambda net, y, labels: (
        y[:, labels[0] > 0].square().mean() + y[labels > 0, 1:3].mean() + y[1, labels[1] > 0, 2].sum()
    ),
    "beside other indices": lambda net, y, labels: (
        y[labels > 0, labels[labels > 0]].square().mean() + y[labels > 0][:, [0, 2]].mean()
    ),
    "joined": lambda net, y, labels: torch.cat([y[labels > 1], y[:, 0] * 3, y[labels == 0] * 2]).square().mean(),
    "side by side": lambda net, y, labels: torch.cat([y[labels > 1], y[labels > 1].exp()], 1).square().mean(),
    "turned": lambda net, y, labels: (
        (y[labels > 1].T @ y[labels > 1]).square().mean() + torch.einsum("nd,ne->", y[labels > 1], y[labels > 1])
    ),
    "softmax of all": lambda net, y, labels: (y[labels > 1].softmax(0) * y[labels > 1]).sum(),
    "norms": lambda net, y, labels: y[labels > 1].norm() + y[labels > 1].norm(1, 0).prod() + y[labels > 1].std(),
    "places of the largest": lambda net, y, labels: (
        y[labels > 1].max(0)[0].sum() * y[labels > 1].argmax(0).sum() + y[labels > 1].median()
    ),
    "the type of another": lambda net, y, labels: (labels[labels > 1].type_as(y) * y[labels > 1][:, 0]).sum(),
    "types and devices": lambda net, y, labels: (
        labels[labels > 1].cpu().to(y.device, y.dtype) * y[labels > 1][:, 0].type(y[labels > 1].type())
    ).sum(),
    "put at places": put_at,
    "written to": changed,
    "sent": sent,
    "masks of rows": within,
    "sorted": sorted_rows,
    "by their number": by_number,
    "normed": normed,
    "scattered": scattered,
    "parts and back": lambda net, y, labels: (
        (F.log_softmax(y[labels > 1].view(-1, 3), 1).gather(1, labels[labels > 1].view(-1, 1).repeat(1, 2).view(-1, 1)))
        .view(y[labels > 1].shape[0], 2)
        .prod(1)
        .mean()
    ),
    "put into zeros": put_into_zeros,
    "put": put,
    "experts": experts,
    "asked": asked,
    "spoken": spoken,
}


@pytest.mark.parametrize("name", BODIES)
def test_agrees(name: str) -> None:
    agree(Net(BODIES[name]), (torch.randn(4, 7, 5), torch.randint(0, 3, (4, 7))), None)


@pytest.mark.parametrize("name", ["sum", "put", "experts", "losses", "sent", "put at places", "written to"])
@pytest.mark.parametrize("label", [0, 2])
def test_nothing_or_all(name: str, label: int) -> None:
    agree(Net(BODIES[name]), (torch.randn(4, 7, 5), torch.full((4, 7), label)), None)


def weighted(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    loss: Any = F.mse_loss  # its stub has no weights
    found: Tensor = loss(y[labels > 1], y[labels > 1] + 1, weight=y[labels > 1])
    return found


def put_across(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    out[labels > 1] = y[labels > 1].sum(1)
    return out.sum()


def written(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    mask = labels > 1
    first = y[mask]
    mask[0] = False
    return (first + y[mask]).sum()


def first_of(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    return y[labels > 1][torch.arange(3)].sum()


def queries(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    rows = y[labels > 1]
    return F.scaled_dot_product_attention(rows, rows, rows).sum()


REFUSED: dict[str, tuple[Callable[[Net, Tensor, Tensor], Tensor], str]] = {
    "their number": (
        lambda net, y, labels: y[[*range(len(y[labels > 1]))]].sum(),
        "a range is made of numbers of data",
    ),
    "a branch": (lambda net, y, labels: y.sum() if len(y[labels > 1]) else -y.sum(), "depends on numbers of data"),
    "some by place": (first_of, "some of them"),
    "pairs": (lambda net, y, labels: (y[labels > 1] @ y[labels > 1].T).sum(), "matmul across"),
    "largest of several": (lambda net, y, labels: y[labels > 1].topk(2, 0)[0].sum(), "topk across"),
    "attention among them": (queries, "scaled_dot_product_attention of them"),
    "a view of some": (lambda net, y, labels: y[labels > 1][:2].sum(), "some of them"),
    "one of them": (lambda net, y, labels: y[labels > 1][0].sum(), "some of them"),
    "other masks": (lambda net, y, labels: (y[labels > 1] + y[labels > 0]).sum(), "different masks"),
    "compared": (lambda net, y, labels: y.sum() if torch.equal(y[labels > 1], y[labels > 0]) else y, "equal of them"),
    "weights of each": (weighted, "mse_loss with weights"),
    "axes that are not there": (put_across, "other axes"),
    "returned": (lambda net, y, labels: y[labels > 1], "forward returns them"),
    "custom functions": (lambda net, y, labels: Spike.apply(y[labels > 1]).sum(), "autograd function Spike"),
    "picked by others": (lambda net, y, labels: y[labels > 1].gather(1, labels[:1, :1]).sum(), "gather across"),
    "branches": (lambda net, y, labels: y.sum() if y[labels > 1].sum(0)[0] > 0 else -y.sum(), ""),
    "written to": (written, "different masks"),
    "all rows": (lambda net, y, labels: (y[labels > 1] + y.flatten(0, 1)).sum(), r"tensor of shape \(28, 6\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, what = REFUSED[name]
    with pytest.raises(UserError, match=f"SP1014.*{what}.*test_torch_picked.py"):
        capture_module(Net(body), (torch.randn(4, 7, 5), torch.randint(0, 3, (4, 7))), CaptureOptions(loss=None))
