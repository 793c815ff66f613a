"""Extremes, sorting, running sums, reads and writes by index, rounding: many operators at once, against PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.torch_agreement import Function, agree

NOWHERE = torch.zeros(0, dtype=torch.long)
PLACES = torch.tensor([[5, 1, 2, 3, 4, 0]] * 4)
SAME = torch.tensor([[0, 0, 2, 2, 4, 5]] * 4)


def moved(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.tensor([0, 2])] = 2 * x[:2]
    y.view(-1)[1::3] *= 2
    return y


def left_out(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.arange(4), x.argmax(1)] = -torch.inf
    return y.softmax(1)


def detached(x: Tensor) -> Tensor:
    with torch.no_grad():
        means = x.mean(1, keepdim=True)
    return (x - x.round()).detach() * x + means * x


def long(x: Tensor) -> Tensor:
    """100 factors, of which one is 0."""
    return torch.cat([1 + 0.1 * x.repeat(1, 17)[:, :99], 0 * x[:, :1]], 1).roll(73, 1)


def nothing(x: Tensor) -> Tensor:
    """Logarithms of nothing: at the beginning of every row, and all of one."""
    return x.masked_fill(torch.tensor([[3], [1], [6], [0]]) > torch.arange(6), -torch.inf)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "extremes": (
        lambda x: x.max(1, keepdim=True)[0] + x,
        lambda x: x - x.amin((0, 1), keepdim=True),
        lambda x: F.one_hot(x.argmax(1), 6) * x,
        lambda x: x.gather(1, x.min(1, keepdim=True)[1]).expand(4, 6),
        lambda x: x - x.logsumexp(1, keepdim=True),
        lambda x: torch.clamp(x, x.mean(), torch.maximum(x, -x)),
        lambda x: F.normalize(x, p=float("inf")) + F.normalize(x, p=3) + F.normalize(0 * x),
    ),
    "order": (
        lambda x: x.sort(1, descending=True)[0],
        lambda x: x.topk(3, 0)[0].repeat(2, 1)[:4],
        lambda x: x.gather(1, x.argsort(1)),
        lambda x: x - x.median(1, keepdim=True)[0],
        lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)) * x,
    ),
    "accumulated": (
        lambda x: x.cumsum(1),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(1),
        lambda x: x.prod(1, keepdim=True) + x,
        lambda x: long(x).cumprod(1)[:, 70:76] + long(x).flip(1).T.cumprod(0)[60:66].T,
        lambda x: x.logcumsumexp(1) - x.logcumsumexp(0),
        lambda x: nothing(x).logcumsumexp(1).exp().detach() * x + nothing(x).logsumexp(1, keepdim=True).exp().detach(),
    ),
    "picked": (
        lambda x: x.gather(1, PLACES),
        lambda x: torch.zeros_like(x).scatter(1, PLACES, x),
        lambda x: torch.ones_like(x).scatter_add(1, SAME, x),
        lambda x: x.new_zeros(3, 6).index_add(0, torch.tensor([0, 1, 1, 2]), x)[torch.tensor([0, 1, 2, 0])],
        lambda x: x.index_add(0, NOWHERE, x[:0]).index_put((NOWHERE,), x[:0]) * 2,
        lambda x: x.new_zeros(3, 6).index_reduce(0, torch.tensor([0, 1, 1, 2]), x, "amax")[torch.tensor([0, 1, 2, 0])],
        lambda x: torch.ones_like(x).scatter_reduce(1, SAME, x.clamp(-0.5, 0.5), "amin", include_self=False),
        lambda x: x[torch.arange(4), x.argmax(1)][:, None] + x,
        lambda x: x[:, (x.argmax(1) + 7) % 6].repeat(1, 2)[:, :6],
        moved,
        left_out,
        lambda x: x.scatter(1, SAME[:, :3], -torch.inf).softmax(1),
        lambda x: x.scatter(1, PLACES, x.masked_fill(x < x.mean(1, keepdim=True), -torch.inf)).softmax(1),
        lambda x: x.unfold(1, 3, 1).sum(-1).repeat(1, 2)[:, :6] + torch.diag_embed(x).diagonal(0, 1, 2),
    ),
    "rounded": (
        lambda x: x - (3 * x).floor() + (3 * x).ceil() * x + x.frac(),
        lambda x: (4 * x).round() * 0.25 * x + x % 0.7 + x.sign() * torch.fmod(x, 0.3),
        detached,
        lambda x: x.sin() + x.cos() * x.erf() + torch.atan2(x, x + 1),
        lambda x: x.tanh().mul(0.9).asin() + x.asinh() + x.abs().add(1).log2(),
        lambda x: torch.where(x.isfinite(), x, 0) + x.isnan() * x,
        lambda x: torch.copysign(x, x.round() * 1e-3) + torch.copysign(x, -0.0) + x * (-x.round()).signbit(),
        lambda x: torch.sinc(x) + torch.sinc(x.relu()) + torch.sinc(x.argsort(1)) * x,
        lambda x: torch.copysign(x.argsort(1), x) + x.argsort(1).neg().signbit() * x,
    ),
}


@pytest.mark.parametrize("function", [torch.remainder, torch.fmod])
def test_what_division_leaves_is_one_node(function: Callable[..., Tensor]) -> None:
    """Of a tensor or a number, with gradients of both; not composed, which is exact for small quotients alone."""

    def both(x: Tensor) -> Tensor:
        return function(9 * x, x.flip(0) + 3) + function(x, 0.3)

    graph = agree(Function(both), torch.randn(4, 5, generator=torch.Generator().manual_seed(3)), "mse", fuse=False)
    names = [n.op for n in graph.program["train_step"].nodes]
    assert names.count(function.__name__) == 2 and "floor" not in names and "trunc" not in names


def test_powers_of_zeros_and_of_negative_numbers() -> None:
    """The gradient by the exponent is 0 where the base is, not NaN; whole powers of negative numbers are numbers."""
    exponents = torch.arange(5.0)

    def powers(x: Tensor) -> Tensor:
        own = x.flip(0).sigmoid()
        several = (x.tanh()[..., None] ** exponents).sum(-1) + (x.tril() ** exponents) + (-2.0) ** exponents
        return x.relu() ** (own + 1) + several + 0.0 ** (own + 1) + 3.0**own + x.triu(1) ** 0

    agree(Function(powers, width=5, outputs=5), torch.randn(4, 5, generator=torch.Generator().manual_seed(3)), "mse")


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("family", FUNCTIONS)
def test_agrees(family: str) -> None:
    functions = FUNCTIONS[family]

    def all_of_them(x: Tensor) -> Tensor:
        return torch.cat([function(x) for function in functions], 1)

    torch.manual_seed(3)
    agree(Function(all_of_them, outputs=6 * len(functions)), torch.randn(4, 5), "mse")


def test_one_index_per_row_stays_one() -> None:
    """Where a scatter repeats it over the columns, rows are added and compared as they are."""
    rows = torch.tensor([0, 1, 1, 2])[:, None].expand(4, 6)

    def reduced(x: Tensor) -> Tensor:
        added = x.new_zeros(3, 6).scatter_add(0, rows, x)
        return added + x.new_zeros(3, 6).scatter_reduce(0, rows, 2 * x, "amax")

    graph = agree(Function(reduced), torch.randn(4, 5), "mse")
    nodes = [n for n in graph.program["train_step"].nodes if n.op in ("embedding_backward", "segment_max")]
    assert {graph.value[v].type.shape for n in nodes for v in n.inputs[1:]} == {(4,)}


class Graph(nn.Module):
    """Messages along edges that are an input, and what a module computes with whole numbers and booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([0, 4]))
        self.table, self.fc, self.bag = nn.Embedding(9, 5), nn.Linear(5, 3), nn.EmbeddingBag(9, 3, mode="sum")

    def forward(self, edges: Tensor, kinds: Tensor, keep: Tensor, bytes_: Tensor) -> Tensor:
        x = self.table(kinds + self.first).sum(1) * bytes_.float()[:, None] / 255
        messages = self.fc(x)[edges[0]]
        sums = torch.zeros(4, 3).to(x).index_add(0, edges[1], messages)
        again = torch.zeros(4, 3).to(x).scatter_add(0, edges[1][:, None].expand_as(messages), messages)
        places = (keep.long().cumsum(0) - 1).clamp(min=0) // 2
        bags = self.bag(kinds.reshape(-1), torch.tensor([0, 1, 1, 5]))
        return (sums - 2 * again).masked_fill(~keep[:, None], 0) * places[:, None] + bags


def test_whole_numbers_booleans_and_edges() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
    kinds, keep = torch.tensor([[0, 3], [1, 4], [2, 0], [3, 1]]), torch.tensor([True, False, True, True])
    agree(Graph(), (edges, kinds, keep, torch.tensor([0, 255, 7, 99], dtype=torch.uint8)), "mse")
