"""Branches that depend on data, of which both sides are computed: PyTorch's numbers and gradients in either."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.test_torch_picked import Net
from tests.frontends.torch_agreement import agree

Body = Callable[[Any, Tensor, Tensor], Tensor]


def named(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    total, factor = y.sum(), 1
    if (labels > 0).any():
        rows = y[labels > 0]
        total = total + rows.mean()
        factor += 2
    else:
        rows = y[0]
        total = rows.sum()
    if labels.float().mean() > 0.5:
        y = torch.clamp(y, -0.5, 0.5)
    y += total  # what it was before, nobody reads
    return total * factor + y.square().sum()


def carried(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    running: Any = 0
    found = y.new_zeros(3)
    for i in range(3):
        mask = labels == i
        if mask.any():
            running = running + y[mask].mean() * (i + 1)
            found[i] = running
    for i in range(2):
        kept: Any = None, None
        if net.training:
            chosen = y[i] * 2
            if labels[i, 0] == 1:
                continue
            kept = chosen, kept[1]
            running = running + kept[0].sum()
        if i > 5:
            running = running + kept[1]
        y = y * 0.5
    return found.sum() + running + y.sum()


def otherwise(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found, z = y.new_zeros(1), y.clone()
    if not (labels > 0).any():
        found[0] = 2.0
        z.mul_(2)
        parts = {"a": (y.sum(), 1), "b": [y]}
    else:
        found[0] = 1.0
        z += 1
        z[0], parts = 3.0, {"a": (y.mean(), 2), "b": [y * 3]}
    total, number = parts["a"]
    return (found * z).sum() * total * number + sum(part.mean() for part in parts["b"])


def several(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    if (labels == 0).all():
        out, scale = y * 2, 1.5
    elif (labels == 2).all() or not (labels != 1).any() or y is None:
        out, scale = y.exp(), 2.5
    else:
        scale = labels.float().mean()
        out = net.last(y)[..., :1].expand(4, 7, 6)
    return (out * scale).square().mean()


def divided(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """By nothing in the side that is not taken, and by indices out of bounds."""
    number, least = (labels > 0).sum(), labels.min()
    total = (y * (labels > 0)[..., None]).sum()
    if number > 0:
        loss = total / number + total.abs().sqrt() + number.float().log() * net.last.bias.sum()
    else:
        loss = y.sum() * 0.1
    if least > 0:
        return loss + y[0, labels - least].sum() + F.cross_entropy(net.last(y).flatten(0, 1), labels.flatten() - least)
    return loss


def returned(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    loss: Any = 0.0
    if not (labels > 0).any():
        return y.mean() * 0
    rows = y[labels > 0]
    loss = loss + F.cross_entropy(net.last(rows), labels[labels > 0])
    parts = []
    for i in range(3):
        parts.append((rows * i).mean())
    if labels.sum() == 56:
        return loss + scaled(rows[..., :1], labels)
    else:
        factor = torch.stack(parts).sum()
    return loss + factor


def scaled(y: Tensor, labels: Tensor) -> Tensor:
    """Called within a branch; without gradients in part."""
    with torch.no_grad():
        scale = y.mean() if (labels > 1).any() else y.abs().sum()
    return (y * scale).sum()


def either_of(*bodies: Body) -> Body:
    return lambda net, y, labels: sum((body(net, y + i, labels) for i, body in enumerate(bodies)), y.new_zeros(()))


def states(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    """Tuples that were there before, as those of recurrent layers."""
    pair = y.sum(0), (y.mean(0), labels.float().mean())
    before = pair
    if (labels > 1).any():
        pair = pair[0] * 2, (pair[1][0] + 1, pair[1][1])
    return (pair[0] * pair[1][0] + before[0] * pair[1][1]).sum()


@pytest.mark.parametrize("bodies", [(named, carried, otherwise), (several, divided, returned), (states,)])
def test_agrees(bodies: tuple[Body, ...]) -> None:
    """On either side of every branch."""
    torch.manual_seed(4)
    labels = [torch.randint(0, 3, (4, 7)), *(torch.full((4, 7), kind) for kind in range(3))]
    codes = [body.__code__ for body in (*bodies, scaled)]  # type: ignore[attr-defined]
    first, *others = [(torch.randn(4, 7, 5), chosen) for chosen in labels]
    agree(Net(either_of(*bodies)), first, None, others=others)
    assert [body.__code__ for body in (*bodies, scaled)] == codes  # type: ignore[attr-defined]
    assert not [name for name in globals() if "stepplan" in name]


def shapes(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    z = y.sum(0) if y is None else y.sum(1)
    if (labels > 0).any():
        z = y.sum(0)
    return z.sum()


def nothing(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = None
    if (labels > 0).any():
        found = y.mean()
    return y.sum() if found is None else found


def part_of_nothing(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found: Any = None, y
    if (labels > 0).any():
        found = y.mean(), y
    return found[0] + y.sum()


def counting(net: Any, y: Tensor, labels: Tensor) -> Tensor:
    z = net.last(y)
    if (labels > 0).any():
        z = z * count(net)
    return z.sum()


def count(net: Any) -> int:
    net.calls = getattr(net, "calls", 0) + 1
    return 2


def stored(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = list[Tensor]()

    def store(x: Tensor) -> Tensor:
        found.append(x)
        return x * 2

    if (labels > 0).any():
        y = store(y)
    return y.sum() * len(found)


def popped(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    found = [1.0, 2.0]
    factor = 3.0
    if (labels > 0).any():
        factor = found.pop()
    return (y * factor * len(found)).sum()


def one_list(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    first, second = [y.sum()], [y.mean()]
    found = first
    if (labels > 0).any():
        found = second
    found.append(y.std())
    return torch.stack(first + second).sum()


def written(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    x, z = y * 1, y * 3
    if (labels > 0).any():
        z = x
    z += 1
    return (z * x).sum()


def written_before(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    x, z = y * 1, y * 3
    if (labels > 0).any():
        z = x[0:]
    x[0] = 5.0
    return (z * x).sum()


def in_a_loop(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    for _ in range(2):
        if (labels > 0).any():
            return y.sum()
        y = y * 2
    return y.mean()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (shapes, "'z' is not of one shape and type behind both"),
        (nothing, "'found' is not of one shape and type behind both"),
        (part_of_nothing, "'found' is not of one shape and type behind both"),
        (counting, "more than tensors is changed within it"),
        (stored, "more than tensors is changed within it"),
        (popped, "numbers of data"),
        (one_list, "'found' is not of one shape"),
        (written, "'z', which it chooses, is written to"),
        (written_before, "'z', which it chooses, is written to"),
        (in_a_loop, "numbers of data"),
    ],
)
def test_refused(body: Body, told: str) -> None:
    module, code = Net(body), body.__code__  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"SP1014.*branch depends on.*{told}"):
        capture_module(module, (torch.randn(4, 7, 5), torch.randint(0, 3, (4, 7))), CaptureOptions(loss=None))
    assert body.__code__ is code  # type: ignore[attr-defined]


def _without(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.masked_fill(mask[:, None], 0.0)


def dropped(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    padding, seen = labels[:, 0].eq(1), labels[:, 1].ne(2)
    if not padding.any():
        padding = None  # type: ignore[assignment]
    if seen.all():
        seen = None  # type: ignore[assignment]
    y = _without(y, padding if padding is not None else None)
    return (y if seen is None else y * seen[:, None]).square().sum()


def dropped_in_an_expression(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    mask = labels[:, 0].eq(1)
    kept = mask if torch.any(mask).item() else None
    return _without(y, kept).square().sum()


@pytest.mark.parametrize("body", [dropped, dropped_in_an_expression])
def test_a_mask_that_is_dropped_where_it_masks_nothing(body: Body) -> None:
    """Is there in every step, which a warning tells: here labels have both, none, and all."""
    torch.manual_seed(3)
    given = [torch.tensor([[i, j]] * 3 + [[0, 1]]) for i in (0, 1) for j in (1, 2)]
    with pytest.warns(RuntimeWarning, match=r"SP1014: the module drops '\w+' where that masks nothing"):
        agree(Net(body), (torch.randn(4, 5), given[3]), loss=None, others=[(torch.randn(4, 5), x) for x in given])


def turned_over(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    mask = labels[:, 0].eq(1)
    if mask.any():
        mask = None  # type: ignore[assignment]
    return _without(y, mask).square().sum()


def of_another(net: Net, y: Tensor, labels: Tensor) -> Tensor:
    mask = labels[:, 0].eq(1)
    if not labels[:, 1].eq(1).any():
        mask = None  # type: ignore[assignment]
    return _without(y, mask).square().sum()


@pytest.mark.parametrize("body", [turned_over, of_another])
def test_a_mask_that_is_dropped_where_it_masks_something(body: Body) -> None:
    with pytest.raises(UserError, match=r"SP1014.*'mask' is not of one shape and type behind both of its sides"):
        capture_module(Net(body), (torch.randn(4, 5), torch.zeros(4, 2, dtype=torch.long)), CaptureOptions(loss=None))
