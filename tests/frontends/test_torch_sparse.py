"""Sparse matrices in modules: PyTorch's numbers and gradients, and products of sparse matrices in the plan."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Graph
from tests.frontends.torch_agreement import agree


def matrix(*shape: int) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) > 0.6)


class Net(nn.Module):
    """`a`: a sparse buffer, 7 x 6; `pair`: one per batch, 2 x 3 x 6; `several`: no buffers."""

    def __init__(self, function: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(5, 4)
        self.register_buffer("before", torch.rand(4))
        self.register_buffer("a", matrix(7, 6).to_sparse())
        self.register_buffer("pair", matrix(2, 3, 6).to_sparse(), persistent=False)
        self.register_buffer("after", torch.rand(4))
        self.several = [matrix(6, 6).to_sparse() for _ in range(2)]
        self.places, self.weights = torch.tensor([[0, 2, 2, 1], [5, 1, 1, 0]]), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x) * self.before + self.after).square().sum()


def of_data(net: Net, y: Tensor) -> Tensor:
    made = torch.sparse_coo_tensor(net.places, net.weights * y.mean(), (3, 6))
    return torch.sparse.mm(made, y) + made.coalesce().to_dense().sum()


def scaled(net: Net, y: Tensor) -> Tensor:
    degrees = torch.sparse.sum(net.a, 1).to_dense()
    return (net.a * 0.5 @ y) / (degrees.abs()[:, None] + 1) + net.a.values().sum() * net.a.sum()


FUNCTIONS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "unused": lambda net, y: y,
    "product": lambda net, y: torch.sparse.mm(net.a, y),
    "operator": lambda net, y: net.a @ y + torch.mm(net.a, y),
    "transposed": lambda net, y: net.a.t().coalesce() @ (net.a.float().to(y.dtype) @ y),
    "from the right": lambda net, y: y.t() @ net.a.t(),
    "vector": lambda net, y: torch.mv(net.a, y[:, 0]) + net.a @ y[:, 1],
    "batch": lambda net, y: torch.bmm(net.pair, torch.stack([y, y * 2])),
    "added": lambda net, y: torch.sparse.addmm(y[0], net.a, y, beta=2, alpha=0.5),
    "dense": lambda net, y: net.a.to_dense() @ y,
    "several": lambda net, y: sum((a.to(y.dtype) @ y for a in net.several), y),
    "of data": of_data,
    "scaled": scaled,
}


def captured(function: Callable[[Net, Tensor], Tensor]) -> Graph:
    torch.manual_seed(4)
    return agree(Net(function), torch.randn(6, 5), loss=None)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_as_pytorch(function: Callable[[Net, Tensor], Tensor]) -> None:
    captured(function)


def test_products_are_those_of_sparse_matrices() -> None:
    graph = captured(FUNCTIONS["product"])
    ops = [n.op for n in graph.program["train_step"].nodes]
    assert ops.count("spmm") == 2 and not {"embedding", "embedding_backward", "index_add"} & set(ops)


@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_csc"])
def test_compressed_matrices(layout: str) -> None:
    torch.manual_seed(4)
    net = Net(FUNCTIONS["operator"])
    graph, _ = capture_module(net, torch.randn(6, 5), CaptureOptions(loss=None))
    net.a = getattr(net.a, layout)()
    again, _ = capture_module(net, torch.randn(6, 5), CaptureOptions(loss=None))
    assert again == graph


def test_the_module_is_as_it_was() -> None:
    net = Net(FUNCTIONS["product"])
    held, names = net.a, [n for n, _ in net.named_buffers()]
    _, weights = capture_module(net, torch.randn(6, 5), CaptureOptions(loss=None))
    assert net.a is held and [n for n, _ in net.named_buffers()] == names and "a" not in vars(net)
    assert all(x.is_sparse for x in net.several) and "a" not in weights and {"before", "after"} <= set(weights)


def test_refused() -> None:
    net = Net(lambda net, y: torch.sparse.softmax(net.a, 1) @ y)
    with pytest.raises(
        UserError, match=r"SP1017: sparse_softmax of a sparse tensor is not known \(tests.*test_torch_sparse"
    ):
        capture_module(net, torch.randn(6, 5), CaptureOptions(loss=None))
    net = Net(lambda net, y: torch.sparse_coo_tensor(net.places, net.weights) @ y)
    with pytest.raises(UserError, match=r"SP1014: a sparse tensor's size is made of data"):
        capture_module(net, torch.randn(6, 5), CaptureOptions(loss=None))
    with pytest.raises(UserError, match=r"SP1017: an example input is a sparse tensor"):
        capture_module(nn.Linear(5, 4), matrix(6, 5).to_sparse(), CaptureOptions(loss="mse"))
    layer = nn.Linear(5, 4)
    layer.scale = nn.Parameter(matrix(4, 4).to_sparse())
    with pytest.raises(UserError, match=r"SP1017: parameter 'scale' is a sparse tensor"):
        capture_module(layer, torch.randn(6, 5), CaptureOptions(loss="mse"))
