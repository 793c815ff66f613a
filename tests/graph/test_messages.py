"""Messages along edges, and what they are added up to, as one product of a sparse matrix."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from planner.graph.model import Graph, Node, Role
from planner.ops.entries import SortEntriesAttrs
from planner.ops.sparse import EntriesAttrs, SddmmAttrs, SpmmAttrs
from tests.frontends.torch_agreement import agree

NODES, EDGES, WIDTH, HEADS = 6, 17, 12, 3

Send = Callable[["Net", Tensor, Tensor, Tensor], Tensor]


class Net(nn.Module):
    """`send` makes (EDGES, WIDTH) messages of (NODES, WIDTH) rows, their sources and their targets, which are an input
    of the model, or constants where they are given."""

    def __init__(self, send: Send, edges: Tensor | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.send = send
        self.table, self.first, self.last = nn.Embedding(NODES, width), nn.Linear(5, width), nn.Linear(width, 3)
        self.edge, self.heads = nn.Parameter(torch.randn(EDGES)), nn.Parameter(torch.randn(EDGES, HEADS))
        if edges is not None:
            self.register_buffer("edges", edges)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        sources, targets = edges or self.edges
        h = self.first(x)
        messages = self.send(self, h, sources, targets)
        y = torch.zeros_like(h).scatter_add(0, targets[:, None].expand_as(messages), messages)
        return self.last(y + h)


def weighted(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return net.edge.tanh()[:, None] * h[sources]


def with_heads(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    parts = h.view(NODES, HEADS, -1).index_select(0, sources)
    return (net.heads.softmax(1)[..., None] * parts).flatten(1)


def plain(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return h[sources]


def attended(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """As PyTorch Geometric's TransformerConv."""
    key, value = h.tanh().view(NODES, HEADS, -1)[sources], h.view(NODES, HEADS, -1)[sources]
    scores = (h.view(NODES, HEADS, -1)[targets] * key).sum(-1)
    return (scores.sigmoid()[..., None] * value).flatten(1)


def compared(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return (h[sources] * h.tanh()[targets]).sum(1, keepdim=True) * h.cos()[sources]


def gated(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return h[sources] * h[targets].sigmoid()


def scaled_by_column(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return h[sources] * net.last.weight[0]


def read_twice(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    picked = h[sources]
    return picked * picked.mean(1, keepdim=True)


def of_a_table(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return net.table(sources)


def ops(graph: Graph) -> list[str]:
    found = [n.op for n in graph.program["train_step"].nodes]
    return [op for op in ("spmm", "sddmm", "embedding", "embedding_backward") for _ in range(found.count(op))]


def random_edges() -> Tensor:
    return torch.randint(0, NODES, (2, EDGES))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("send", [attended, compared])
def test_neither_are_rows_that_are_compared(send: Send, constant: bool) -> None:
    edges = random_edges()
    net, x = Net(send, edges if constant else None), torch.randn(NODES, 5)
    graph = agree(net, x if constant else (x, *edges), "mse")
    # The sum and three gradients of rows; scores and the gradient of the weights. Of edges that are constants, scores
    # move back and weights there, in predict, too, and the gradient of scores to either end.
    assert Counter(ops(graph)) == {"spmm": 4, "sddmm": 2, **({"embedding": 6} if constant else {})}
    assert not [v for v in graph.values if v.type.shape[:1] == (EDGES,) and v.type.elements >= EDGES * WIDTH]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("send", [plain, weighted, with_heads])
def test_no_message_is_a_value(send: Send, constant: bool) -> None:
    edges = random_edges()
    net, x = Net(send, edges if constant else None), torch.randn(NODES, 5)
    graph = agree(net, x if constant else (x, *edges), "mse")
    # The sum and its gradient; the gradient of the weights. Of edges that are constants, weights move to their order in
    # the step's two products and in predict's, and their gradient back.
    found = ["spmm", "spmm", *(["sddmm", *(["embedding"] * 3 if constant else [])] if send is not plain else [])]
    assert ops(graph) == found
    assert not [v for v in graph.values if v.type.shape[:1] == (EDGES,) and v.type.elements >= EDGES * WIDTH]
    assert "spmm" not in ops(agree(net, x if constant else (x, *edges), "mse", fuse=False))


@pytest.mark.parametrize("send", [gated, scaled_by_column, read_twice, of_a_table])
def test_others_stay_in_parts(send: Send) -> None:
    found = ops(agree(Net(send), (torch.randn(NODES, 5), *random_edges()), "mse"))
    assert "spmm" not in found and "embedding_backward" in found


def test_equal_constants_are_one_and_expanded_ones_stay_narrow() -> None:
    edges = random_edges()

    def mean(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        count = torch.zeros(NODES).index_add(0, targets, torch.ones(EDGES))
        return (h / count.clamp(min=1)[:, None].expand(NODES, WIDTH))[sources]

    graph = agree(Net(mean, edges), torch.randn(NODES, 5), "mse")
    constants = {v.name: v.type.shape for v in graph.values if v.constant}
    ends = {f"{end}_{n}": (EDGES,) for end in ("sources", "targets") for n in range(2)}
    assert constants == {**ends, next(n for n in constants if n not in ends): (NODES, 1)}


def products(net: Net) -> list[tuple[Node, list[np.ndarray]]]:
    """The products of the step, and the contents of what says where their entries are."""
    graph, weights = capture_module(net, torch.randn(NODES, 5))
    assert set(weights) >= {v.name for v in graph.values if v.constant}
    found = [n for n in graph.program["train_step"].nodes if n.op in ("spmm", "sddmm")]
    return [(n, [weights[v] for v in n.inputs[1:] if v in weights]) for n in found]


@pytest.mark.parametrize("send", [plain, weighted, with_heads])
def test_constant_entries_are_put_in_order(send: Send) -> None:
    edges = random_edges()
    found = products(Net(send, edges))
    ends = {"forward": edges.flip(0), "backward": edges, "weights": edges.flip(0)}
    for node, (sources, targets) in found:
        own, others = ends["weights" if node.op == "sddmm" else node.phase]
        order = np.argsort(own.numpy(), kind="stable")
        np.testing.assert_array_equal(targets, own[order])
        np.testing.assert_array_equal(sources, others[order])
    assert {n.attrs for n, _ in found if n.op == "spmm"} == {SpmmAttrs(rows=NODES, ordered=True)}
    heads = {plain: set(), weighted: {1}, with_heads: {HEADS}}[send]
    assert {n.attrs for n, _ in found if n.op == "sddmm"} == {SddmmAttrs(heads=h, ordered=True) for h in heads}


def test_constant_weights_go_with_their_entries() -> None:
    edges, factors = random_edges(), torch.rand(EDGES)

    def scaled(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        return h[sources] * factors[:, None]

    agree(Net(scaled, edges), torch.randn(NODES, 5), "mse")
    for (node, (*_, weights)), own in zip(products(Net(scaled, edges)), edges.flip(0), strict=True):
        assert len(node.inputs) == 4
        np.testing.assert_array_equal(weights[:, 0], factors[np.argsort(own.numpy(), kind="stable")])


def test_what_is_in_order_stays_as_it_is() -> None:
    edges = torch.stack((torch.arange(EDGES) % NODES, torch.arange(EDGES) // 3))
    (forward, _), (back, _) = products(Net(plain, edges))
    assert [n.split("_")[0] for n in forward.inputs[1:]] == ["constant"] * 2
    assert [n.split("_")[0] for n in back.inputs[1:]] == ["sources", "targets"]
    assert {n.attrs for n in (forward, back)} == {SpmmAttrs(rows=NODES, ordered=True)}


def test_narrow_messages_along_edges_that_are_an_input_stay_as_they_are() -> None:
    graph, _ = capture_module(Net(plain), (torch.randn(NODES, 5), *random_edges()))
    assert {n.attrs for n in graph.program["train_step"].nodes if n.op == "spmm"} == {SpmmAttrs(rows=NODES)}


@pytest.mark.parametrize("send", [plain, weighted, with_heads, attended, compared])
def test_wide_ones_are_put_in_order_in_the_step(send: Send) -> None:
    """Once for every end that something is added up at, whatever reads it; what belongs to the edges is moved."""
    inputs = (torch.randn(NODES, 5), *random_edges())
    graph = agree(Net(send, width=48), inputs, "mse")
    nodes = graph.program["train_step"].nodes
    found = [n for n in nodes if n.op in ("spmm", "sddmm")]
    assert found and all(n.attrs.ordered for n in found if isinstance(n.attrs, EntriesAttrs))
    sorts = [n for n in nodes if n.op == "sort_entries"]
    assert len(sorts) == len({n.inputs for n in sorts}) == 2
    moves = {plain: 0, weighted: 3, with_heads: 3, attended: 6, compared: 6}
    assert ops(graph).count("embedding") == moves[send]


class Layers(nn.Module):
    """Each takes the ends of the edges by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for linear in self.linears:
            targets = edges[1][:, None].expand(EDGES, 32)
            x = linear(x).relu() + torch.zeros_like(x).scatter_add(0, targets, x[edges[0]])
        return x


def test_layers_that_take_the_ends_anew_share_an_order() -> None:
    graph = agree(Layers(), (torch.randn(NODES, 32), random_edges()), "mse")
    nodes = graph.program["train_step"].nodes
    assert [n.phase for n in nodes if n.op == "sort_entries"] == ["forward", "backward"]
    assert len([n for n in nodes if n.op == "spmm"]) == 5 and len([n for n in nodes if n.op == "slice"]) == 2
    read = {v for p in graph.programs for n in p.nodes for v in (*n.reads, *n.outputs)}
    assert {v.id for v in graph.values} - read <= {i for p in graph.programs for i in (*p.inputs, *p.outputs)}


def test_what_sorts_knows_which_index_is_wrong() -> None:
    graph, _ = capture_module(Net(plain, width=48), (torch.randn(NODES, 5), *random_edges()))
    sort, *_ = (n for n in graph.program["train_step"].nodes if n.op == "sort_entries")
    assert sort.attrs == SortEntriesAttrs(source_rows=NODES, target_rows=NODES)
    assert [graph.value[v].role for v in sort.inputs] == [Role.INPUT] * 2, sort


@pytest.mark.parametrize("add", ["scatter_add", "index_add", "scatter_reduce"])
def test_nothing_is_added_to_zeros(add: str) -> None:
    edges = random_edges()

    def summed(net: Net, h: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        messages, zeros = h[sources], h.new_zeros(NODES, WIDTH)
        wide = targets[:, None].expand(EDGES, WIDTH)
        y = {
            "scatter_add": lambda: zeros.scatter_add(0, wide, messages),
            "index_add": lambda: zeros.index_add(0, targets, messages),
            "scatter_reduce": lambda: zeros.scatter_reduce(0, wide, messages, "sum"),
        }[add]()
        return y[sources]

    graph = agree(Net(summed, edges), torch.randn(NODES, 5), "mse")
    assert not [n for n in graph.program["train_step"].nodes if n.op == "ones" and n.attrs.shape == (NODES, WIDTH)]
