"""Arithmetic and activations, captured, compute what PyTorch computes."""

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import Function, agree

LABELS = torch.tensor([[-1] * 6, [0, 3, -1, 5, 5, 2], [4, 4, 2, -1, -1, -1], [*range(6)]])
"""Those of a row are in front of its first -1."""
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu6": lambda x: F.relu6(3 * x),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "hardswish": lambda x: F.hardswish(4 * x),
    "hardsigmoid": lambda x: F.hardsigmoid(4 * x),
    "clamp": lambda x: x.clamp(-0.2, 0.3),
    "clamp_one_sided": lambda x: x.clamp(min=-0.2).clamp(max=0.5),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, beta=2.0),
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "glu": lambda x: torch.cat([F.glu(x), F.glu(x, 1)], 1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_rows": lambda x: x.softmax(0),
    "softmax_of_nothing": lambda x: x.masked_fill(x[:, :1] >= x[:, 0].max(), -inf).softmax(-1).nan_to_num(),
    "log_softmax": lambda x: F.log_softmax(x, dim=1),
    "arithmetic": lambda x: (2 * x + 1) / 3 - x * x + (1 - x) - 0.5,
    "rsub_alpha": lambda x: torch.rsub(x, x * x, alpha=2) + torch.add(x, 2, alpha=3) + torch.sub(x, x * x, alpha=0.5),
    "divide": lambda x: x / (x * x + 1) + 1 / (x * x + 2),
    "powers": lambda x: x**2 + x**3 + (x * x + 1) ** 0.5 + (x.abs() + 1) ** -1.5 + 2**x,
    "roots": lambda x: (x * x + 1).rsqrt() + (x * x + 1).sqrt().log() + (x * x).log1p() + x.expm1() + x.exp(),
    "extrema": lambda x: torch.maximum(x, x * x) + torch.minimum(x, -x),
    "mean": lambda x: x - x.mean() + x.mean(1, keepdim=True) + x.sum(0) + x.mean(dim=(0, 1)),
    "variance": lambda x: x / (x.var(1, keepdim=True) + 1) + x.std(0) + x.var() + x.var(1, correction=0)[:, None],
    "norm": lambda x: F.normalize(x, dim=1) + x.norm() + x.norm(p=1, dim=1, keepdim=True),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x)[:, :1] + x,
    "matmul": lambda x: (x @ x.T @ x) / 10 + torch.matmul(x, x[0])[:, None] + torch.dot(x[0], x[1]),
    "bmm": lambda x: torch.bmm(x.view(-1, 2, 3), x.view(-1, 3, 2)).flatten(1).repeat(1, 2)[:, :6],
    "baddbmm": lambda x: torch.baddbmm(x.view(-1, 2, 3), x.view(-1, 2, 3), x.new_ones(x.shape[0], 3, 3)).flatten(1),
    "addmm": lambda x: torch.addmm(x[0], x, x.T @ x, beta=0.5, alpha=2),
    "gamma": lambda x: torch.lgamma(2 * x) + torch.digamma(x.abs() + 0.5) + x * torch.polygamma(1, x.abs() + 1),
    "distances": lambda x: x * torch.pdist(x).sum() + torch.pdist(x, 1.0)[:4, None],
    "covariance": lambda x: x @ torch.cov(x.T) + x * torch.corrcoef(x.T).sum() + x[0].cov(correction=0),
    "entropy": lambda x: torch.xlogy(x - x.detach(), x.abs() + 0.2) + torch.xlogy(x.relu(), x.relu()) + x.xlogy(2),
    "sure": lambda x: F.binary_cross_entropy((1e3 * x).sigmoid(), (x > 0.5).to(x.dtype), x.detach().exp()) * x,
    "unsure": lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid().square(), reduction="sum") * x,
    "margins": lambda x: x * F.multilabel_margin_loss(x, LABELS) + F.multilabel_margin_loss(x[0], LABELS[1]),
    "margins_each": lambda x: x.nan_to_num() * F.multilabel_margin_loss(x, LABELS, reduction="none")[:, None],
    "lerp": lambda x: torch.lerp(x, x * x, 0.3) + torch.addcmul(x, x, x, value=0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning")
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5))


class OfRows(nn.Module):
    """The mean of a function of (8, 3) rows and (6, 3) others."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(5, 3), nn.Linear(4, 3), function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.function(self.first(x), self.second(y))
        return (found * torch.arange(found.numel()).view(found.shape).cos()).mean()


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": torch.cdist,
    "by products": lambda a, b: torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist"),
    "of one matrix": lambda a, b: torch.cdist(a, a) + b.sum(),  # from themselves: 0, with the gradient 0
    "stacks": lambda a, b: torch.cdist(a.view(2, 4, 3), b.view(2, 3, 3)),
    "a stack and a matrix": lambda a, b: torch.cdist(a.view(2, 4, 3), b),
    "a stack and one matrix": lambda a, b: torch.cdist(a.view(2, 1, 4, 3), b[None, None]),
    "a matrix and a stack": lambda a, b: torch.cdist(a, b.view(2, 3, 3)),
    "all stacks": lambda a, b: torch.cdist(a.view(2, 1, 4, 3), b.view(1, 2, 3, 3)),
    "sums of sizes": lambda a, b: torch.cdist(a, b, p=1.0),
    "largest sizes": lambda a, b: torch.cdist(a, b, p=inf),
    "cubes": lambda a, b: torch.cdist(a, b, p=3.0),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name: str) -> None:
    agree(OfRows(DISTANCES[name]), (torch.randn(8, 5), torch.randn(6, 4)), loss=None)


class Of(nn.Module):
    """A function of a number and a row that are parameters."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], row: Tensor) -> None:
        super().__init__()
        self.function, self.row = function, nn.Parameter(row)
        self.number = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.number, self.row) + x


def grouped(*results: Tensor) -> Tensor:
    return torch.stack([r.reshape(()) for r in results]).sum()


class Hashed(nn.Module):
    """Rows of a table, found by the bits of what is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 3)

    def forward(self, words: Tensor, flags: Tensor) -> Tensor:
        mixed = (words ^ (words >> 3)) & 0x1F | (flags.long() << 2)
        odd = (~words & 1).bool() ^ flags | (flags & (words > 9))
        return self.table(mixed & 63) * odd[:, None]


def test_bits_of_whole_numbers() -> None:
    words = torch.tensor([0, 5, 123456789, -7, 2**40 + 3, -(2**50)])
    agree(Hashed(), (words, torch.tensor([True, False, True, False, False, True])), "mse")


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(0, 1),
    "relu6": F.relu6,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "masked": lambda x: x.masked_fill(x < 0, 0),
    "max_pool": lambda x: F.max_pool1d(x.relu(), 2),
}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_infinite_gradients_pass_no_closed_gate(name: str) -> None:
    """A square root's at 0."""
    agree(Function(lambda x: GATES[name](x).sqrt().sum(-1, keepdim=True), outputs=1), torch.randn(4, 5), "mse")


COUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda n: -n,
    "absolute": lambda n: n.abs(),
    "rectified": lambda n: n.relu(),
    "square": lambda n: n.square() + n**2,
    "cube": lambda n: n**3,
    "left_over": lambda n: torch.fmod(n, 3),
    "root": lambda n: n.abs().sqrt() + n.abs() ** 0.5 + (n.abs() + 1).rsqrt(),
    "inverse": lambda n: 1 / (n.abs() + 1) + 2.0**n,
    "bounded": lambda n: 1 / n.clamp(min=1e-5, max=2.5) + n.clip(max=0.5) + n.clamp(-1, torch.tensor(1.5)),
    "curves": lambda n: n.sigmoid() + n.tanh() + n.exp() + torch.log(n.abs() + 1) + torch.log1p(n.abs()),
    "angle": lambda n: torch.atan2(n, n + 1),
    "joined": lambda n: torch.cat([n[:, :3], n[:, 3:] + 0.5], 1) + torch.stack([n > 0, n]).sum(0),
}


class Counted(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(5, 6)

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return (self.layer(x) * self.function(n)).square().sum()


@pytest.mark.parametrize("name", COUNTS)
def test_functions_of_whole_numbers(name: str) -> None:
    agree(Counted(COUNTS[name]), (torch.randn(4, 5), torch.randint(-4, 5, (4, 6))), loss=None)


NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "reductions": lambda n, row: n.sum(0) + n.mean(-1) + n.amax(0) + n.prod(0) + n.norm(3, 0) + n.logsumexp(0),
    "along": lambda n, row: grouped(n.softmax(0), n.cumsum(0), n.cumprod(-1), n.unsqueeze(0), n.unfold(0, 1, 1)),
    "ordered": lambda n, row: grouped(n.sort(0)[0], n.topk(1)[0], n.max(0)[0], n.kthvalue(1)[0], n.argmax(0).float()),
    "picked": lambda n, row: grouped(
        n.gather(0, torch.tensor(0)), n.index_select(0, torch.tensor([0])), n.scatter(0, torch.tensor(0), 2 * n),
        n.scatter_add(0, torch.tensor(0), n), n.index_add(0, torch.tensor([0]), n),
    ),
    "population": lambda n, row: grouped(*torch.var_mean(row, False), torch.std(row, False)),
    "deviation_of_equals": lambda n, row: grouped(*torch.std_mean(0 * row), row.std()) * n,
    "narrow": lambda n, row: n * sum(torch.narrow_copy(row.detach(), 0, i, 2).prod() for i in (2, -3)),
    "norms": lambda n, row: sum((torch.linalg.vector_norm(row.relu(), p) for p in (0.5, 1.5, 3.5)), n),
    "norms_of_zeros": lambda n, row: sum((torch.linalg.vector_norm(0 * row, p) for p in (0.5, 1.5, 3.5, -1, -2.5)), n),
    "unpooled": lambda n, row: F.max_unpool1d(n.expand(1, 1, 4), torch.tensor([[[4, 1, 4, 7]]]), 2).square().sum(),
    "put": lambda n, row: row.index_put((torch.tensor([1, 1, 3]),), n.expand(3)).square().sum(),
    "never_read": lambda n, row: n + torch.where(torch.arange(2) > 0, n.detach() * torch.tensor([inf, 2.0]), 3.0).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_rows(name: str) -> None:
    agree(Of(NUMBERS[name], torch.tensor([0.3, -0.5, 1.7, 0.9, 2.2, -0.4])), torch.randn(()), loss=None)


BOUNDS: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "numbers": lambda x, b: [x.clamp(0, 1), x.clamp(min=1), x.clamp(max=0), x.clamp(2, 0), x.clip(-1, 2)],
    "one_tensor": lambda x, b: [x.clamp(min=b), x.clamp(max=b), x.clamp(min=torch.tensor(0.0))],
    "two_tensors": lambda x, b: [x.clamp(b, b + 1), x.clamp(b - 1, b), x.clamp(b, b), x.clamp(b + 1, b)],
    "constants": lambda x, b: [x.clamp(torch.zeros(4), torch.ones(4)), x.clamp(torch.ones(4), torch.eye(4)[0])],
}


@pytest.mark.parametrize("name", BOUNDS)
def test_gradients_at_bounds(name: str) -> None:
    """As the PyTorch that is installed has them."""

    def weighted(n: Tensor, row: Tensor) -> Tensor:
        clamped = torch.stack(BOUNDS[name](*row.split(4)))
        return (clamped * torch.arange(1.0, clamped.numel() + 1).reshape(clamped.shape)).sum()

    agree(Of(weighted, torch.tensor([-1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 0.0, 2.0])), torch.randn(()), loss=None)


def test_padding_counts_from_the_end() -> None:
    def bags(n: Tensor, row: Tensor) -> Tensor:
        ids, offsets = torch.tensor([4, 1, 1, 0, 4, 4]), torch.tensor([0, 3])
        return F.embedding_bag(ids, row, offsets, padding_idx=-1, mode="mean").square().sum()

    agree(Of(bags, torch.randn(5, 3)), torch.randn(()), loss=None)


def test_empty_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1011: the model's parameter 'row' has the shape \(5, 0\)"):
        capture_module(Of(lambda n, row: n + row.sum(), torch.zeros(5, 0)), torch.randn(()))
