"""Branches that depend on data: those that only write to tensors, whether the condition holds or not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.test_torch_picked import Net
from tests.frontends.torch_agreement import agree

Body = Callable[[Any, Tensor, Tensor], Tensor]


def experts(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out = y.new_zeros(4, 7, 3)
    for i in range(3):
        mask = labels == i
        if mask.any():
            out[mask] = net.last(y[mask]) * (i + 1)
    return out.square().mean()


def skipped(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    flat, out = y.flatten(0, 1), y.new_zeros(28, 3)
    for i in range(3):
        places = torch.where(labels.flatten() == i)[0]
        if places.numel() == 0:
            continue
        chosen = net.last(flat[places])
        out.index_add_(0, places, chosen * (i + 1))
    return out.square().mean()


def losses(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """Means of nothing have no gradient that is NaN."""
    found, mask = y.new_zeros(2), labels > 0
    assert (labels >= 0).all()
    if (labels > 5).any():
        raise ValueError("there are five classes")
    if mask.sum():
        rows = y[mask]
        found[0] = rows.square().mean() + F.cross_entropy(net.last(rows), labels[mask])
        found[1] += F.mse_loss(rows, rows.detach() * 2)
    return found.sum() + y.mean()


def nested(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = y.new_zeros(3)
    for i in range(3):
        mask = labels == i
        if not mask.any():
            continue
        rows = y[mask]
        if (rows > 0.5).any():
            found[i] += rows[rows > 0.5].mean()
    return found.square().sum() + y.mean()


def written(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out, has = y.clone(), torch.zeros(7, dtype=torch.bool)
    if not (labels > 0).any():
        out.mul_(2)
        out[0] = 3.0
        has[2:] = True
    if labels[0, 0] > 0:
        out[1] = out[1] * 4
    return out.square().mean() + y[:, has].sum()


def divided(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """By nothing where the condition does not hold: neither that nor its gradient goes on."""
    found, mask = y.new_zeros(3), labels > 1
    number, squares = mask.sum(), (y.square() * mask[..., None]).sum()
    if number > 0:
        found[0] = squares / number * net.last.weight.mean()
        found[1] = squares.sqrt() + F.normalize(y * mask[..., None], dim=-1, eps=0.0)[mask].sum()
        found[2] = (y[mask].mean() * net.last.bias.sum()).exp() + number.item() ** -0.5 * y.sum()
    return found.sum() + y.mean()


def again(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """A condition of data, then one of Python's at the same place."""
    out = y.new_zeros(2)
    for i, at in enumerate([labels[0, 0], torch.tensor(1)]):
        if at > 5 * (1 - i):
            out[i] = y.mean() + 1
    return out.sum() + y.sum()


def again_of_python(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """As before, with no call of PyTorch's in between."""
    out = y.new_zeros(4)
    for i, at in enumerate([labels[0, 0], 1, labels[1, 1], 0]):
        if at > 5 * ((i + 1) % 2):
            out[i] = 7.0
    return (out * y[0, 0, 0]).sum() + y.sum()


def again_while(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    out, at = y.new_zeros(2), labels[0, 0]
    while True:
        if at > 5:
            out[0] = 7.0
        if isinstance(at, int):
            return (out * y[0, 0, :2]).sum() + y.sum()
        at = 6


def written_rows(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    rows = y[labels > 0]
    if labels[0, 0] > 0:
        rows += 1
    if (labels > 0).any():
        rows[:, 1] *= 2
    return rows.sum() + rows[:, 1].square().sum()


def counted(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """Who is called within a branch may count, and look things up."""
    found, tables, calls = y.clone(), {6: torch.arange(6.0)}, list[int]()

    def table(n: int) -> Tensor:
        calls.append(n)
        return tables[n]

    if (labels > 0).any():
        found[0] = y[1] * table(6)
    if (labels > 1).any():
        found[1] = y[2] * table(6)
    return found.square().sum()


TAKEN: dict[str, Body] = {
    "written rows": written_rows,
    "divided": divided,
    "counted": counted,
    "again": again,
    "again, of Python's": again_of_python,
    "again, while": again_while,
    "experts": experts,
    "the rest of a loop": skipped,
    "losses": losses,
    "nested": nested,
    "written": written,
}


@pytest.mark.parametrize("labels", ["mixed", "0", "2"])
@pytest.mark.parametrize("name", TAKEN)
def test_agrees(name: str, labels: str) -> None:
    chosen = torch.randint(0, 3, (4, 7)) if labels == "mixed" else torch.full((4, 7), int(labels))
    agree(Net(TAKEN[name]), (torch.randn(4, 7, 5), chosen), None)


def listed(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = [y.sum()]
    if (labels > 0).any():
        found.append(y.mean())
    return torch.stack(found).sum()


def chained(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = y.new_zeros(1)
    if 0 < labels.sum() < 5:
        found[0] = 1.0
    return (found * y).sum()


def asked_twice(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = y.new_zeros(1)
    if bool((labels > 0).any()) == (y is None):
        found[0] = 1.0
    return (found * y).sum()


class Keeping(Net):
    """What a module keeps within a branch."""

    def __init__(self) -> None:
        super().__init__(Keeping.branch)
        self.register_buffer("kept", torch.zeros(()))

    def branch(self: Any, y: Tensor, labels: Tensor) -> Tensor:
        found = y.clone()
        if (labels > 0).any():
            found[0] = self.keep(y)
        return found.square().sum() * self.kept

    def keep(self: Any, y: Tensor) -> Tensor:
        self.kept = y.mean().detach()
        return y[1] * 2


class Moving(Net):
    """A batch norm within a branch moves its statistics or not."""

    def __init__(self) -> None:
        super().__init__(Moving.branch)
        self.norm = nn.BatchNorm1d(6)

    def branch(self: Any, y: Tensor, labels: Tensor) -> Tensor:
        found = y.clone()
        if (labels > 0).any():
            found[:] = self.norm(y.flatten(0, 1)).view(4, 7, 6)
        return found.square().sum()


def left(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = y.sum()
    for i in range(3):
        if (labels == i).all():
            break
        found = found * 2
    return found


def divided_in_place(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    y = y.clone()
    if labels.sum() > 0:
        y /= labels.sum()
    return y.sum()


def noted(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found, notes = y.clone(), list[Tensor]()

    def noting(rows: Tensor) -> Tensor:
        notes.append(rows.square().mean())
        return rows * 2

    for i in range(2):
        if not (labels == i).any():
            continue
        found[labels == i] = noting(y[labels == i])
    return found.square().sum() + sum(notes)


def tabled(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """What is made within a branch is zero where that is not taken, and the other one would find it."""
    found, tables = y.clone(), dict[int, Tensor]()

    def table(n: int) -> Tensor:
        return tables.setdefault(n, torch.arange(float(n)))

    if (labels > 0).any():
        found[0] = y[1] * table(6)
    if (labels > 1).any():
        found[1] = y[2] * table(6)
    return found.square().sum()


REFUSED: dict[str, Body] = {
    "noted": noted,
    "tabled": tabled,
    "left": left,
    "divided in place": divided_in_place,
    "listed": listed,
    "chained": chained,
    "asked twice": asked_twice,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"SP1014.*test_torch_branches.py"):
        capture_module(Net(REFUSED[name]), inputs(), CaptureOptions(loss=None))


def test_statistics_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1014.*batch_norm within it changes more"):
        capture_module(Moving(), inputs(), CaptureOptions(loss=None))


def test_what_is_kept_is_refused() -> None:
    with pytest.raises(UserError, match=r"SP1014.*'kept' is assigned within it"):
        capture_module(Keeping(), inputs(), CaptureOptions(loss=None))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 7, 5), torch.randint(0, 3, (4, 7))
