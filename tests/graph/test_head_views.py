"""Attention on views: nothing is moved between linear layers and attention, and the numbers are the same."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Graph
from planner.ops.attention_base import AttentionAttrs
from tests.frontends.torch_agreement import STEP, agree

N, LENGTH, HEADS, WIDTH = 3, 5, 2, 4
WIDE = HEADS * WIDTH


class Attends(nn.Module):
    """x (3, 5, 8) -> (3, 8); `parts`: from three linear layers, of x to 24, to 16 and to 8, and x to the result."""

    def __init__(self, parts: Callable[["Attends", Tensor], Tensor]) -> None:
        super().__init__()
        self.three, self.two, self.one = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, 2 * WIDE), nn.Linear(WIDE, WIDE)
        self.last, self.parts = nn.Linear(WIDE, WIDE), parts

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(self, x).mean(1)


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def rows(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)


def packed(m: Attends, x: Tensor) -> Tensor:
    """As timm."""
    q, k, v = m.three(x).reshape(N, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
    return m.last(rows(attend(q, k, v)))


def in_three(m: Attends, x: Tensor) -> Tensor:
    """As GPT-2."""
    return m.last(rows(attend(*(heads(part) for part in m.three(x).split(WIDE, 2)), is_causal=True)))


def side_by_side(m: Attends, x: Tensor) -> Tensor:
    """Of each head, as BLOOM."""
    q, k, v = heads(m.three(x)).chunk(3, -1)
    return m.last(rows(attend(q, k, v)))


def keys_and_values(m: Attends, x: Tensor) -> Tensor:
    """Of one projection; fewer heads than the queries'."""
    k, v = m.two(x).view(N, LENGTH, 2, 1, WIDE).permute(2, 0, 3, 1, 4).unbind(0)
    q = torch.cat([m.one(x), x], 2).view(N, LENGTH, 2, WIDE).transpose(1, 2)
    return attend(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)


def sequences_first(m: Attends, x: Tensor) -> Tensor:
    """As nn.MultiheadAttention with batch_first=True."""
    q, k, v = m.three(x.transpose(0, 1)).view(LENGTH, N, 3, HEADS, WIDTH).permute(2, 1, 3, 0, 4).unbind(0)
    y = attend(q, k, v).permute(2, 0, 1, 3).reshape(LENGTH * N, WIDE)
    return m.last(y).view(LENGTH, N, WIDE).transpose(0, 1)


def two_layers(m: Attends, x: Tensor) -> Tensor:
    """The first's result is the second's queries, but for a linear layer."""
    y = rows(attend(heads(m.one(x)), heads(x), heads(x)))
    return rows(attend(heads(m.last(y)), heads(y), heads(y)))


def straight_on(m: Attends, x: Tensor) -> Tensor:
    """The second attention's queries are the first one's result, of which it takes rows for images: one says it."""
    y = attend(*(heads(part) for part in m.three(x).split(WIDE, 2)))
    k, v = m.two(x).view(N, LENGTH, 2, HEADS, WIDTH).permute(2, 1, 3, 0, 4).unbind(0)
    return attend(y.permute(2, 1, 0, 3), k, v).permute(2, 0, 1, 3).flatten(2)


def turned_twice(m: Attends, x: Tensor) -> Tensor:
    """A layer between two attentions takes rows that were moved behind the first: it moves with one of them."""
    y = attend(*(heads(part) for part in m.three(x).split(WIDE, 2)))
    between = y.permute(2, 0, 1, 3).reshape(LENGTH, N, WIDE).transpose(0, 1)
    return rows(attend(heads(m.last(between)), heads(x), heads(x)))


def columns(m: Attends, x: Tensor) -> Tensor:
    """The layer takes features for rows, which is no order of rows; heads of width 1, which may be any elements."""
    square = torch.cat([x, x[:, :3]], 1).transpose(1, 2)
    return rows(attend(heads(m.one(square), WIDE), heads(x, WIDE), heads(x, WIDE)))


def half_rows(m: Attends, x: Tensor) -> Tensor:
    """The layer's rows are made of parts of others."""
    mixed = x.view(N, LENGTH, 2, WIDTH).transpose(1, 2).reshape(N, LENGTH, WIDE)
    return rows(attend(heads(m.one(mixed)), heads(x), heads(x)))


def as_weights(m: Attends, x: Tensor) -> Tensor:
    """The result is what a linear layer multiplies by."""
    y = rows(attend(heads(m.one(x)), heads(x), heads(x)))
    return F.linear(x, y.reshape(N * LENGTH, WIDE)).transpose(0, 1)[:N]


SEEN: dict[str, tuple[Callable[[Attends, Tensor], Tensor], tuple[int, ...]]] = {
    "packed": (packed, (0, 0, 0)),
    "in_three": (in_three, (0, 0, 0)),
    "side_by_side": (side_by_side, (0, 0, 0)),
    "keys_and_values": (keys_and_values, (0, 1, 1)),
    "sequences_first": (sequences_first, (0, 0, 0)),
}
"""And the tensors of q, k and v."""


def captured(parts: Callable[[Attends, Tensor], Tensor]) -> Graph:
    graph, _ = capture_module(Attends(parts), torch.randn(N, LENGTH, WIDE), CaptureOptions(loss="mse", optimizer=STEP))
    return graph


def views(graph: Graph) -> list[AttentionAttrs]:
    return [n.attrs for n in graph.program["predict"].nodes if isinstance(n.attrs, AttentionAttrs)]


def moves(graph: Graph) -> Counter[str]:
    nodes = graph.program["train_step"].nodes
    return Counter(n.op for n in nodes if n.op in ("permute", "split", "concat", "reshape"))


@pytest.mark.parametrize("name", SEEN)
def test_nothing_is_moved(name: str) -> None:
    parts, sources = SEEN[name]
    agree(Attends(parts), torch.randn(N, LENGTH, WIDE))
    graph = captured(parts)
    assert [a.sources for a in views(graph)] == [sources]
    assert moves(graph).keys() <= {"reshape"} | ({"concat", "slice"} if name == "keys_and_values" else set())


@pytest.mark.parametrize("parts", [two_layers, straight_on, turned_twice])
def test_one_behind_the_other(parts: Callable[[Attends, Tensor], Tensor]) -> None:
    agree(Attends(parts), torch.randn(N, LENGTH, WIDE))
    graph = captured(parts)
    assert len(views(graph)) == 2
    assert not moves(graph)["permute"] or parts is two_layers


@pytest.mark.parametrize("parts", [columns, half_rows, as_weights])
def test_other_layers_stay_what_they_are(parts: Callable[[Attends, Tensor], Tensor]) -> None:
    agree(Attends(parts), torch.randn(N, LENGTH, WIDE))
    assert views(captured(parts))[0].q is not None


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("other", [True, False])
def test_multi_head_attention(batch_first: bool, other: bool) -> None:
    """Of what it attends to, and of another sequence."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDE, HEADS, batch_first=batch_first)
            self.layer = nn.Linear(WIDE, WIDE)

        def forward(self, x: Tensor) -> Tensor:
            memory = self.layer(x).narrow(int(batch_first), 1, 2) if other else x
            y, _ = self.attention(x, memory, memory, need_weights=False)
            return (x + y).mean(1)

    agree(Net(), torch.randn(N, LENGTH, WIDE))
    graph, _ = capture_module(Net(), torch.randn(N, LENGTH, WIDE), CaptureOptions(optimizer=STEP))
    assert not moves(graph)["permute"]


def kept(m: Attends, x: Tensor) -> Tensor:
    """Keys that something else reads, too, are made for both."""
    q, k, v = (heads(part) for part in m.three(x).split(WIDE, 2))
    return rows(attend(q, k, v)) * k.mean((1, 2, 3))[:, None, None]


def of_windows(m: Attends, x: Tensor) -> Tensor:
    """Rows of the layer in an order that attention cannot say: [n, 2, 2, 2, 2] between images and windows."""
    windows = x[:, :4].reshape(N, 2, 2, WIDE).permute(0, 2, 1, 3)
    tiles = torch.cat([windows, windows], 1).view(N, 2, 2, 2, WIDE).transpose(2, 3).reshape(N * 2, 4, WIDE)
    y = m.last(rows(attend(heads(m.one(tiles)), heads(tiles), heads(tiles))))
    return y.view(N, 2, 2, 2, WIDE).transpose(2, 3).reshape(N, 8, WIDE)


@pytest.mark.parametrize("parts", [kept, of_windows])
def test_what_no_view_says_is_moved(parts: Callable[[Attends, Tensor], Tensor]) -> None:
    agree(Attends(parts), torch.randn(N, LENGTH, WIDE))
    graph = captured(parts)
    assert moves(graph)["permute"]
    assert [a.sources for a in views(graph)] == [(0, 1, 2)]
