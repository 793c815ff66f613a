"""What nobody reads is not computed: the same numbers and gradients as PyTorch's, by fewer elements."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from planner.graph.model import Graph
from tests.frontends.torch_agreement import agree

TOKENS, WIDTH = 6, 8


class Block(nn.Module):
    """A transformer's block, with attention of PyTorch's, or spelled out with a mask of every query's own."""

    def __init__(self, norm: Callable[[int], nn.Module], spelled: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.first, self.second = norm(WIDTH), norm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.spelled, self.causal = spelled, causal
        self.bias = nn.Parameter(torch.randn(TOKENS, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(n, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        if self.spelled:
            y = (q @ k.transpose(-1, -2) + self.bias).softmax(-1) @ v
        elif self.causal:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, self.bias)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(self.second(x))


class Net(nn.Module):
    def __init__(self, read: Callable[[Tensor], Tensor], *blocks: nn.Module) -> None:
        super().__init__()
        self.embed, self.blocks, self.read = nn.Linear(5, WIDTH), nn.Sequential(*blocks), read
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.head(self.norm(self.blocks(self.embed(x)))))


def captured(read: Callable[[Tensor], Tensor], *blocks: nn.Module) -> Graph:
    return agree(Net(read, *blocks), torch.randn(2, TOKENS, 5), "mse")


def rows(graph: Graph, *ops: str) -> dict[str, tuple[int, ...]]:
    """Node -> the shape of its first result."""
    nodes = graph.program["train_step"].nodes
    return {n.id: graph.value[n.outputs[0]].type.shape for n in nodes if n.op in ops and n.phase == "forward"}


def queries(graph: Graph) -> list[tuple[int, ...]]:
    """Of every attention of the step: [images, heads, queries]."""
    return [graph.value[n.outputs[1]].type.shape for n in graph.program["train_step"].nodes if n.op == "attention"]


@pytest.mark.parametrize("norm", [nn.LayerNorm, partial(nn.RMSNorm, eps=1e-5)])
@pytest.mark.parametrize("spelled", [False, True])
def test_behind_the_last_attention_only_the_class_token_is_computed(
    norm: Callable[[int], nn.Module], spelled: bool
) -> None:
    graph = captured(lambda y: y[:, 0], *(Block(norm, spelled) for _ in range(2)))
    found = rows(graph, "linear", "attention")
    assert {k for k, shape in found.items() if shape[-2] == TOKENS} == {
        *(k for k in found if k.startswith("blocks.0") or k.endswith("qkv")),
        "embed",
    }
    assert (2, 2, 1) in queries(graph)


@pytest.mark.parametrize(("read", "count"), [(lambda y: y[:, -1], 1), (lambda y: y[:, 2], TOKENS)])
def test_of_causal_attention_the_last_query_sees_all_keys(read: Callable[[Tensor], Tensor], count: int) -> None:
    graph = captured(read, Block(nn.LayerNorm, causal=True))
    assert set(queries(graph)) == {(2, 2, count)}
    assert rows(graph, "linear")["blocks.0.mlp.0"] == (2, 1, 2 * WIDTH)


def test_what_loses_little_is_sliced_where_it_is_narrow() -> None:
    graph = captured(lambda y: y[:, :-1], Block(nn.LayerNorm))
    assert rows(graph, "slice") == {"head.part": (2, TOKENS - 1, WIDTH)}
    assert rows(graph, "linear")["blocks.0.mlp.2"] == (2, TOKENS, WIDTH)


@pytest.mark.parametrize(
    "read",
    [
        lambda y: torch.cat([y[:, 0], y.mean(1)], -1),
        lambda y: torch.cat([y[:, 0], y[:, 2]], -1),
        lambda y: torch.cat([y[:, :1], y[:, 1:].tanh()], 1),
        lambda y: y.softmax(1)[:, 0],
        lambda y: y[..., 0],
    ],
)
def test_what_is_read_whole_or_in_two_parts_or_depends_on_all_stays_whole(read: Callable[[Tensor], Tensor]) -> None:
    graph = captured(read, Block(nn.LayerNorm))
    assert rows(graph, "linear")["head"][1] == TOKENS


def test_two_operands_are_not_sliced_in_place_of_their_sum() -> None:
    def read(y: Tensor) -> Tensor:
        a, b = y.tanh(), y.sigmoid()
        return (a + b)[:, 0] * a.sum(1) + b.sum(1)

    graph = captured(read)
    assert len(rows(graph, "slice")) == 1


def test_a_slice_of_a_slice() -> None:
    graph = captured(lambda y: y[:, 2:4].tanh()[:, 0] * y[:, 2:4].sum(1))
    assert rows(graph, "linear")["embed"] == (2, 2, WIDTH)


class Encoder(nn.Module):
    """What is sliced is the result itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.embed(x))[:, :2]


def test_a_slice_that_is_returned() -> None:
    graph = agree(Encoder(), torch.randn(3, TOKENS, 5), "mse")
    assert rows(graph, "linear") == {"embed": (3, 2, WIDTH)} and rows(graph, "slice") == {"embed.part": (3, 2, 5)}


class Drawn(nn.Module):
    """Random layers on (2, tokens, width), some of them on a transposed or wider view, residuals, and a slice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(TOKENS, 1))

    def forward(self, x: Tensor) -> Tensor:
        rng = random.Random(self.seed)
        layers: Sequence[Callable[[Tensor], Tensor]] = (
            self.norm,
            torch.tanh,
            lambda x: x * self.scale,
            lambda x: x + x.mean(-1, keepdim=True),
            lambda x: x - x.sum(1, keepdim=True),
            lambda x: x.softmax(-1),
            lambda x: x.transpose(1, 2).cos().transpose(1, 2),
            lambda x: x.reshape(2, TOKENS, 2, WIDTH // 2).cumsum(-1).flatten(2),
            lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
            lambda x: x.view(2 * TOKENS, WIDTH).sigmoid().view(2, TOKENS, WIDTH),
            *self.layers,
        )
        made = [self.layers[0](x)]
        for _ in range(rng.randrange(2, 9)):
            y = rng.choice(layers)(made[-1])
            made.append(y + rng.choice(made) if rng.random() < 0.4 else y)
        axis = rng.choice((0, 1, 1, 1, 2))
        start = rng.randrange(x.shape[axis])
        y = made[-1].narrow(axis, start, rng.randrange(1, x.shape[axis] - start + 1))
        return y + made[-2].mean() if rng.random() < 0.3 else y


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_drawn(seed: int) -> None:
    agree(Drawn(seed), torch.randn(2, TOKENS, WIDTH), "mse")
