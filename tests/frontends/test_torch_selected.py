"""Indices that are one number of data: PyTorch's numbers and gradients, whatever the numbers are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

Body = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(5, 6), body
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return self.body(self.first(x), places)


def read(y: Tensor, places: Tensor) -> Tensor:
    """By tensors of one number, by Python's numbers, among slices and vectors."""
    one, other = places[0], int(places[1])
    best = y.mean(1).argmax()
    rows = y[one] + y[other - 4] * y[best] + y.select(0, places[2])
    parts = y[one, 1:3].sum() * y[..., other].sum() * y[None, :, best, None].mean() + y[other, places].sum()
    return rows.sum() * parts + sum(y[i].square().sum() for i in places) + y[1, best] * y[best, one]


def turned(y: Tensor, places: Tensor) -> Tensor:
    """As Autoformer's delays."""
    delays = torch.topk(y.mean(0), 2)[1]
    rolled = [torch.roll(y, -int(delays[i]), -1) * y[:, delays[i]].softmax(0)[:, None] for i in range(2)]
    shift = places[0].item()
    both = y.roll(shift) * y.roll((shift, 1), (0, 1)) * torch.roll(y, shifts=shift, dims=1)
    return (torch.stack(rolled).sum(0) * both).square().mean()


def written(y: Tensor, places: Tensor) -> Tensor:
    one, other = places[0], int(places[1])
    z, kinds = y * 1, torch.zeros(4, dtype=torch.long)
    z[one] += 1
    z[one, 1:3] *= 2
    z[..., other] = y[:, 0].exp()
    z[2, places[2]] = y.mean()
    z[None, one, ..., 0] = 5
    kinds[one] = places[1]
    kinds[places[2]] = other
    held = kinds > 1
    held[other] = False
    return (z * kinds[:, None]).square().mean() + (z * held[:, None]).sum()


@pytest.mark.parametrize("places", [[0, 1, 2], [3, 3, 0], [2, 0, 2]])
@pytest.mark.parametrize("body", [read, turned, written], ids=lambda body: body.__name__)
def test_agrees(body: Body, places: list[int]) -> None:
    torch.manual_seed(1)
    others = (torch.randn(4, 5), torch.tensor([1, 0, 3]))
    agree(Net(body), (torch.randn(4, 5), torch.tensor(places)), None, others=[others])


def test_a_buffer_counts_at_a_place_of_data() -> None:
    class Counts(Net):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            y = self.first(x)
            if self.training:
                self.seen[places[0]] += y.detach().mean()
                self.seen[places[1]] = 2.0
            return (y * self.seen[:, None]).sum()

    agree(Counts(read), (torch.randn(4, 5), torch.tensor([2, 0, 1])), None)


def written_through(y: Tensor, places: Tensor) -> Tensor:
    z = y * 1
    z[places[0]].mul_(2)
    return z.sum()


def of_nested(y: Tensor, places: Tensor) -> Tensor:
    z = y * 1
    z[places[0]][places[1]] = 2
    return z.sum()


def changed_since(y: Tensor, places: Tensor) -> Tensor:
    z = y * 1
    row = z[places[0]]
    z += 1
    return (z * row).sum()


def changed_again(y: Tensor, places: Tensor) -> Tensor:
    z = y * 1
    row = z[places[0]]
    row += 1
    z[places[0]] = row
    row += 1
    return z.sum()


def read_before(y: Tensor, places: Tensor) -> Tensor:
    z = y * 1
    row = z[places[0]]
    row += 1
    total = z.sum()
    z[places[0]] = row
    return z.sum() * total


@pytest.mark.parametrize("body", [written_through, of_nested, changed_since, changed_again, read_before])
def test_refused(body: Body) -> None:
    with pytest.raises(UserError, match=r"SP1014.*which row is data \(tests/frontends/\w+\.py:\d+\)"):
        capture_module(Net(body), (torch.randn(4, 5), torch.tensor([0, 1, 2])), CaptureOptions(loss=None))
