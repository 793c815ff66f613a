"""Maxima over rows that share an index: ties, what was there before, picked rows, and the order of constant edges."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from planner.graph.model import Graph, Node
from planner.ops.sparse import EntriesAttrs
from tests.frontends.torch_agreement import Function, agree

NODES, EDGES, WIDTH = 9, 14, 6

Rows = Callable[["Net", Tensor, Tensor], Tensor]


class Net(nn.Module):
    """The largest of (EDGES, WIDTH) `rows`, which are made of (NODES, WIDTH) ones and their sources, for their targets.
    These are inputs of the model, or constants where they are given. Many elements are equal."""

    def __init__(self, rows: Rows, start: float = 0.0, include: bool = False, edges: Tensor | None = None) -> None:
        super().__init__()
        self.rows, self.start, self.include = rows, start, include
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.table = nn.Embedding(NODES, WIDTH)
        with torch.no_grad():
            for parameter in (*self.first.parameters(), *self.table.parameters()):
                parameter.copy_((2 * parameter).round() / 2)
        if edges is not None:
            self.register_buffer("edges", edges)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        sources, targets = edges or self.edges
        h = self.first(x)
        rows = self.rows(self, h, sources)
        before = h.new_full((NODES, WIDTH), self.start)
        if self.include:
            before = torch.where(before == 0.5, h, before)
        places = targets[:, None].expand(EDGES, WIDTH)
        y = before.scatter_reduce(0, places, rows, "amax", include_self=self.include)
        return self.last(y.clamp(min=-9.0) + h)


def picked(net: Net, h: Tensor, sources: Tensor) -> Tensor:
    return h[sources]


def computed(net: Net, h: Tensor, sources: Tensor) -> Tensor:
    return -h.abs()[sources] + h[sources.flip(0)]


def of_a_table(net: Net, h: Tensor, sources: Tensor) -> Tensor:
    return net.table(sources)


def given() -> tuple[Tensor, Tensor]:
    """Features, and edges of which none ends at the last two nodes."""
    edges = torch.stack((torch.randint(0, NODES, (EDGES,)), torch.randint(0, NODES - 2, (EDGES,))))
    return torch.randint(-1, 2, (NODES, 5)).float() / 2, edges


def named(graph: Graph, *ops: str) -> list[Node]:
    return [n for n in graph.program["train_step"].nodes if n.op in ops]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("start", "include"), [(0.0, False), (-float("inf"), True), (0.0, True), (0.5, True)])
@pytest.mark.parametrize("rows", [picked, computed])
def test_equal_rows_share_a_gradient(rows: Rows, start: float, include: bool, constant: bool) -> None:
    x, edges = given()
    graph = agree(Net(rows, start, include, edges if constant else None), x if constant else (x, *edges), "mse")
    assert [n.phase for n in named(graph, "segment_max", "segment_max_backward")] == ["forward", "backward"]
    if rows is picked:
        assert not named(graph, "embedding", "embedding_backward")
        assert not [v for v in graph.values if v.type.shape == (EDGES, WIDTH)]


def test_rows_of_a_trained_table_are_values() -> None:
    """Their gradient is added to the table where it lies."""
    x, edges = given()
    graph = agree(Net(of_a_table), (x, *edges), "mse")
    assert [n.op for n in named(graph, "embedding", "embedding_sgd_update")] == ["embedding", "embedding_sgd_update"]


@pytest.mark.parametrize("rows", [picked, computed])
def test_constant_entries_are_put_in_order(rows: Rows) -> None:
    x, edges = given()
    graph, weights = capture_module(Net(rows, edges=edges), x)
    forward, backward = named(graph, "segment_max", "segment_max_backward")
    sources = edges[0].numpy() if rows is picked else np.arange(EDGES)
    for node, first, own, others in ((forward, 1, edges[1].numpy(), sources), (backward, 3, sources, edges[1].numpy())):
        order = np.argsort(own, kind="stable")
        np.testing.assert_array_equal(weights[node.inputs[first]], others[order])
        np.testing.assert_array_equal(weights[node.inputs[first + 1]], own[order])
        assert isinstance(node.attrs, EntriesAttrs) and node.attrs.ordered


def test_a_gradient_is_in_order_wherever_rows_are_values() -> None:
    """Each row has one entry, in its place, also where targets are an input."""
    x, edges = given()
    graph, _ = capture_module(Net(computed), (x, *edges))
    nodes = named(graph, "segment_max", "segment_max_backward")
    assert [n.attrs.ordered for n in nodes if isinstance(n.attrs, EntriesAttrs)] == [False, True]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_of_rows_that_share_an_index(include: bool, zeros: int) -> None:
    """A product of a zero and of others has a gradient for the zero alone, of two zeros none."""
    index = torch.tensor([2, 0, 2, 2, 0, 3, 2])

    def product(x: Tensor) -> Tensor:
        rows = torch.cat([x, 1 + x[:3]]) * (torch.arange(7) >= zeros)[:, None]
        alone = torch.ones(4, 6).to(x.dtype).scatter_reduce(0, (index[:, None] + torch.arange(6)) % 4, rows, "prod")
        return alone + x.index_reduce(0, index, rows, "prod", include_self=include)

    agree(Function(product), torch.randn(4, 5), "mse")


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_the_product_of_one_row_is_itself() -> None:
    agree(Function(lambda x: x.index_reduce(0, torch.tensor([2]), 1 + x[:1], "prod")), torch.randn(4, 5), "mse")
