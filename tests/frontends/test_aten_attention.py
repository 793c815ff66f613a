"""Scaled dot-product attention, captured: one op where it fits, the same numbers as PyTorch everywhere."""

from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.ops.attention_base import AttentionAttrs
from planner.ops.signature import signature_of
from tests.frontends.torch_agreement import STEP, agree

LENGTH, HEADS, WIDTH = 6, 4, 3


class Attends(nn.Module):
    """x (N, 6, 5) -> (N, 12), by attention of 4 heads, of which groups may share keys and values."""

    def __init__(self, groups: int = HEADS, **given: object) -> None:
        super().__init__()
        self.groups, self.given = groups, given
        self.q = nn.Linear(5, HEADS * WIDTH)
        self.kv = nn.Linear(5, 2 * groups * WIDTH)

    def mask(self, x: Tensor) -> Tensor | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = self.q(x).view(n, t, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(n, t, 2, self.groups, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        grouped = self.groups < HEADS
        y = F.scaled_dot_product_attention(q, k, v, self.mask(x), enable_gqa=grouped, **self.given)  # type: ignore[arg-type]
        return y.transpose(1, 2).flatten(2).mean(1)


class Masked(Attends):
    def __init__(self, mask: Tensor, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self.register_buffer("shut", mask)

    def mask(self, x: Tensor) -> Tensor | None:
        return self.shut


class Padded(Attends):
    """A mask of which examples end early, from the data; one sees nothing at all."""

    def mask(self, x: Tensor) -> Tensor | None:
        return (x[:, :, 0] > 0.3)[:, None, None, :]


class Learned(Attends):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(shape))

    def mask(self, x: Tensor) -> Tensor | None:
        return self.bias


LOWER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
ONE_OP = {
    "plain": lambda: Attends(),
    "scaled": lambda: Attends(scale=0.7),
    "causal": lambda: Attends(is_causal=True),
    "grouped": lambda: Attends(groups=2, is_causal=True),
    "one_group": lambda: Attends(groups=1),
    "boolean": lambda: Masked(torch.rand(LENGTH, LENGTH) > 0.4),
    "added": lambda: Masked(torch.randn(1, HEADS, 1, LENGTH)),
    "nothing_seen": lambda: Masked(torch.randn(LENGTH, LENGTH).index_fill(0, torch.tensor([2]), -inf)),
    "from_data": lambda: Padded(),
    "lower": lambda: Masked(LOWER),
    "lower_added": lambda: Masked(torch.zeros(LENGTH, LENGTH).masked_fill(~LOWER, -inf)),
    "first_key_for_all": lambda: Masked(LOWER[:1]),
}
LEARNED = {
    "of_heads": lambda: Learned(HEADS, LENGTH, LENGTH),
    "of_examples": lambda: Learned(3, 1, LENGTH, LENGTH),
    "of_all": lambda: Learned(LENGTH, LENGTH),
}
IN_PARTS = {
    "learned_of_keys": lambda: Learned(LENGTH),
    "learned_whole": lambda: Learned(3, HEADS, LENGTH, LENGTH),
    "broadcast": lambda: Masked(torch.randn(LENGTH, 1)),
}


def ops_of(module: nn.Module) -> dict[str, int]:
    graph, _ = capture_module(module, torch.randn(3, LENGTH, 5))
    assert graph.program["train_step"]
    ops = [n.op for n in graph.program["train_step"].nodes]
    return {op: ops.count(op) for op in ops}


@pytest.mark.parametrize("name", ONE_OP)
def test_one_op(name: str) -> None:
    module = ONE_OP[name]()
    agree(module, torch.randn(3, LENGTH, 5))
    ops = ops_of(module)
    assert ops["attention"] == ops["attention_backward"] == 1
    assert not {"softmax", "matmul", "dropout", "reduce_sum", "mul"} & ops.keys()


@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_mask(name: str) -> None:
    module = LEARNED[name]()
    agree(module, torch.randn(3, LENGTH, 5))
    ops = ops_of(module)
    assert ops["attention"] == ops["attention_mask_backward"] == 1
    assert not {"softmax", "matmul"} & ops.keys()


@pytest.mark.parametrize("name", IN_PARTS)
def test_in_parts(name: str) -> None:
    module = IN_PARTS[name]()
    agree(module, torch.randn(3, LENGTH, 5))
    ops = ops_of(module)
    assert "attention" not in ops
    assert ops["softmax"] == 1


@pytest.mark.parametrize("name", ["causal", "lower", "lower_added"])
def test_a_constant_lower_triangle_is_no_mask(name: str) -> None:
    graph, _ = capture_module(ONE_OP[name](), torch.randn(3, LENGTH, 5))
    (node,) = (n for n in graph.program["train_step"].nodes if n.op == "attention")
    assert isinstance(node.attrs, AttentionAttrs)
    assert len(node.inputs) == node.attrs.tensors
    assert node.attrs.causal


def test_dropout_is_part_of_it() -> None:
    graph, _ = capture_module(Attends(dropout_p=0.5), torch.randn(3, LENGTH, 5))
    found = {p.name: [n.attrs for n in p.nodes if n.op.startswith("attention")] for p in graph.programs}
    forward, backward = found["train_step"]
    (predict,) = found["predict"]
    assert forward == backward
    assert (forward.dropout, predict.dropout) == (0.5, 0.0)  # type: ignore[attr-defined]
    assert "dropout" not in ops_of(Attends(dropout_p=0.5))


def test_each_draws_its_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Attends(dropout_p=0.5), Attends(dropout_p=0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.second(x)

    graph, _ = capture_module(Twice(), torch.randn(3, LENGTH, 5))
    first, second = (n for n in graph.program["train_step"].nodes if n.op == "attention")
    assert first.attrs.stream != second.attrs.stream  # type: ignore[attr-defined]
    assert signature_of(graph, first).text == signature_of(graph, second).text  # and costs are measured once


class Given(nn.Module):
    """Attention with a mask that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, q: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * self.factor, q, q, mask)


@pytest.mark.parametrize(("loss", "op"), [("mse", "attention_backward"), ("caller", "attention_mask_backward")])
def test_a_mask_whose_gradient_the_caller_may_want(loss: str, op: str) -> None:
    inputs = (torch.randn(2, LENGTH, WIDTH), torch.randn(LENGTH, LENGTH))
    graph, _ = capture_module(Given(), inputs, CaptureOptions(loss=loss, optimizer=STEP))
    assert op in [n.op for n in graph.program[graph.programs[0].name].nodes]
