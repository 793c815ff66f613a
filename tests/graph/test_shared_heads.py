"""Attention reads keys and values that a model repeats where they lie once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.frontends.torch_export import capture_module
from planner.ops.attention import AttentionForward
from planner.ops.signature import signature_of
from tests.frontends.torch_agreement import agree

HEADS, LENGTH, WIDTH = 6, 5, 4


def repeated(x: Tensor, shared: int) -> Tensor:
    """As transformers' repeat_kv."""
    n, groups, length, width = x.shape
    return x[:, :, None].expand(n, groups, shared, length, width).reshape(n, groups * shared, length, width)


def in_turn(x: Tensor, shared: int) -> Tensor:
    """Another order: heads 0, 2, 4 read the first."""
    n, groups, length, width = x.shape
    return x[:, None].expand(n, shared, groups, length, width).reshape(n, groups * shared, length, width)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.5).softmax(-1) @ v


class Grouped(nn.Module):
    def __init__(self, groups: int, repeat: Callable[[Tensor, int], Tensor], attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.groups, self.repeat, self.attend = groups, repeat, attend
        self.q, self.kv = nn.Linear(7, HEADS * WIDTH), nn.Linear(7, 2 * groups * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = self.q(x).view(n, t, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(n, t, 2, self.groups, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        y = self.attend(q, self.repeat(k, HEADS // self.groups), self.repeat(v, HEADS // self.groups))
        return y.transpose(1, 2).flatten(2).mean(1)


def read(module: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the keys and the values that attention reads in the step."""
    graph, _ = capture_module(module, torch.randn(3, LENGTH, 7))
    nodes = graph.program["train_step"].nodes
    (node,) = (n for n in nodes if n.op == "attention")
    views = AttentionForward().views(signature_of(graph, node))
    return [views["k"].shape, views["v"].shape]


@pytest.mark.parametrize("attend", [fused, spelled])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_read_once(groups: int, attend: Callable[..., Tensor]) -> None:
    module = Grouped(groups, repeated, attend)
    graph = agree(module, torch.randn(3, LENGTH, 7))
    assert read(module) == [(3, groups, LENGTH, WIDTH)] * 2
    copies = (3, groups, HEADS // groups, LENGTH, WIDTH)
    assert copies not in [graph.value[v].type.shape for p in graph.programs for n in p.nodes for v in n.outputs]


@pytest.mark.parametrize("groups", [2, 3])
def test_another_order_is_left_alone(groups: int) -> None:
    module = Grouped(groups, in_turn, fused)
    agree(module, torch.randn(3, LENGTH, 7))
    assert read(module) == [(3, HEADS, LENGTH, WIDTH)] * 2
