"""Spelled-out attention becomes one node where nothing in between is anybody else's."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Role
from tests.frontends.torch_agreement import STEP, agree, graph_values
from tests.interpreter import run_program

LENGTH, HEADS, WIDTH = 6, 2, 4


class Spelled(nn.Module):
    """x (N, 6, 5) -> (N, 8); `weigh`: from q, k and x to what v is multiplied by."""

    def __init__(self, weigh: Callable[["Spelled", Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.weigh = nn.Linear(5, 3 * HEADS * WIDTH), weigh
        self.learned = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))
        self.learned_of_keys = nn.Parameter(torch.randn(LENGTH))
        self.learned_of_all = nn.Parameter(torch.randn(6, HEADS, LENGTH, LENGTH))
        shut = torch.ones(LENGTH, LENGTH).triu(1)
        self.register_buffer("later", shut.masked_fill(shut == 1, torch.finfo(torch.float32).min), persistent=False)
        self.register_buffer("lower", 1 - shut)
        self.register_buffer("some", torch.rand(LENGTH, LENGTH).fill_diagonal_(1) < 0.5)
        self.register_buffer("of_windows", torch.randn(1, 3, 1, LENGTH, LENGTH))
        self.register_buffer("last_row", torch.arange(LENGTH)[:, None] == LENGTH - 1)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        return (self.weigh(self, q, k, x) @ v).transpose(1, 2).reshape(n, t, -1).mean(1)


def padding(x: Tensor) -> Tensor:
    return (1.0 - (x[:, :, 0] > 0).float())[:, None, None, :] * -10000.0


def late(x: Tensor) -> Tensor:
    """Some keys, never the first."""
    return ((x[:, :, 0] > 0) & (torch.arange(LENGTH) > 0))[:, None, None, :]


def in_windows(scores: Tensor) -> Tensor:
    """(N, heads, ...) -> (N / 3, 3, heads, ...), as Swin sees them where it shuts what was shifted."""
    return scores.view(-1, 3, HEADS, LENGTH, LENGTH)


JOINED: dict[str, Callable[[Spelled, Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda m, q, k, x: (q @ k.mT).softmax(-1),
    "divided": lambda m, q, k, x: (q @ k.mT / 2.0).softmax(-1),
    "scaled_twice": lambda m, q, k, x: (q @ k.mT * 0.7 / 2.0).softmax(-1),
    "masked": lambda m, q, k, x: (q @ k.mT * 0.5 + m.later).softmax(-1),
    "mask_first": lambda m, q, k, x: (m.later + q @ k.mT).softmax(-1),
    "padded": lambda m, q, k, x: (q @ k.mT / 2.0 + padding(x)).softmax(-1),
    "two_masks": lambda m, q, k, x: (q @ k.mT + m.later + padding(x)).softmax(-1),
    "causal_last": lambda m, q, k, x: (padding(x) + q @ k.mT + m.later).softmax(-1),
    "filled": lambda m, q, k, x: (q @ k.mT * 0.5).masked_fill(m.lower == 0, -torch.inf).softmax(-1),
    "chosen": lambda m, q, k, x: torch.where(m.lower > 0, q @ k.mT * 0.5, torch.finfo(x.dtype).min).softmax(-1),
    "filled_by_data": lambda m, q, k, x: (q @ k.mT).masked_fill(late(x), -torch.inf).softmax(-1),
    "filled_otherwise": lambda m, q, k, x: (q @ k.mT).masked_fill(m.some, -1e9).softmax(-1),
    "learned": lambda m, q, k, x: (q @ k.mT * 0.5 + m.learned).softmax(-1),
    "two_masks_of_data": lambda m, q, k, x: (q @ k.mT + padding(-x) + padding(x)).softmax(-1),
    "learned_and_shut": lambda m, q, k, x: (q @ k.mT + m.learned + 9.0 * m.some).softmax(-1),
    "in_windows_and_learned": lambda m, q, k, x: (
        (in_windows(q @ k.mT * 0.5 + m.learned) + m.of_windows).view(-1, HEADS, LENGTH, LENGTH).softmax(-1)
    ),
    "learned_and_causal": lambda m, q, k, x: (q @ k.mT * 0.5 + m.learned + m.later).softmax(-1),
}
CAUSAL = {"masked", "mask_first", "two_masks", "causal_last", "filled", "chosen", "learned_and_causal"}
LEARNED = {"learned", "learned_and_causal", "learned_and_shut", "in_windows_and_learned"}
APART: dict[str, Callable[[Spelled, Tensor, Tensor, Tensor], Tensor]] = {
    "learned_of_keys": lambda m, q, k, x: (q @ k.mT * 0.5 + m.learned_of_keys).softmax(-1),
    "learned_of_all": lambda m, q, k, x: (q @ k.mT * 0.5 + m.learned_of_all).softmax(-1),
    "in_windows": lambda m, q, k, x: (in_windows(q @ k.mT) + m.of_windows).view(-1, HEADS, LENGTH, LENGTH).softmax(-1),
    "mask_scaled": lambda m, q, k, x: ((q @ k.mT + m.later) * 0.5).softmax(-1),
    "learned_and_padded": lambda m, q, k, x: (q @ k.mT + m.learned + padding(x)).softmax(-1),
    "filled_little": lambda m, q, k, x: (q @ k.mT).masked_fill(m.some, -5.0).softmax(-1),
    "filled_by_data_finitely": lambda m, q, k, x: (q @ k.mT).masked_fill(late(x), -1e9).softmax(-1),
    "filled_whole": lambda m, q, k, x: (q @ k.mT).masked_fill(m.last_row, -1e9).softmax(-1),
    "another_axis": lambda m, q, k, x: (q @ k.mT).softmax(-2),
    "read_twice": lambda m, q, k, x: (lambda w: w + w.mT)((q @ k.mT).softmax(-1)),
}


def ops_of(module: nn.Module, keep: tuple[str, ...] = ()) -> list[str]:
    options = CaptureOptions(optimizer=STEP, keep=keep)
    graph, _ = capture_module(module, torch.randn(6, LENGTH, 5), options)
    return [n.op for p in graph.programs for n in p.nodes]


@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str) -> None:
    module = Spelled(JOINED[name])
    agree(module, torch.randn(6, LENGTH, 5))
    ops = ops_of(module)
    assert ops.count("attention") == 2  # of the step and of predict
    assert ops.count("attention_mask_backward" if name in LEARNED else "attention_backward") == 1
    assert not {"softmax", "matmul"} & set(ops)
    graph, _ = capture_module(module, torch.randn(6, LENGTH, 5), CaptureOptions(optimizer=STEP))
    (attrs,) = (n.attrs for n in graph.program["predict"].nodes if n.op == "attention")
    assert attrs.causal == (name in CAUSAL)  # type: ignore[attr-defined]
    if name in CAUSAL:  # and no mask is left to be kept
        assert (LENGTH, LENGTH) not in [v.type.shape for v in graph.values if v.constant]


@pytest.mark.parametrize("name", APART)
def test_apart(name: str) -> None:
    module = Spelled(APART[name])
    agree(module, torch.randn(6, LENGTH, 5))
    assert "attention" not in ops_of(module)


def test_dropout_draws_the_same() -> None:
    """Joined and spelled out: the loss and every parameter after a step."""
    module = Spelled(lambda m, q, k, x: functional.dropout((q @ k.mT / 2.0 + padding(x)).softmax(-1), 0.4))
    x, labels = np.random.default_rng().standard_normal((3, LENGTH, 5)), np.array([1, 0, 7])
    found = []
    for fuse in (True, False):
        graph, weights = capture_module(module, torch.tensor(x).float(), CaptureOptions(optimizer=STEP, fuse=fuse))
        program = graph.program["train_step"]
        ops = [n.op for n in program.nodes]
        assert ("attention" in ops, "dropout" in ops) == (fuse, not fuse)
        assert "dropout" not in [n.op for n in graph.program["predict"].nodes]
        held = run_program(graph, "train_step", graph_values(graph, weights) | {"x": x, "labels": labels})
        found.append([held[program.outputs[0]], *(held[v.id] for v in graph.values if v.role is Role.PARAMETER)])
    for joined, apart in zip(*found, strict=True):
        np.testing.assert_allclose(joined, apart, rtol=1e-9, atol=1e-12)


def test_what_is_kept_stays() -> None:
    module = Spelled(JOINED["divided"])
    assert "attention" in ops_of(module)
    assert "attention" not in ops_of(module, keep=("softmax.y",))


def test_unfused_stays_apart() -> None:
    graph, _ = capture_module(Spelled(JOINED["plain"]), torch.randn(3, LENGTH, 5), CaptureOptions(fuse=False))
    assert "attention" not in [n.op for n in graph.program["train_step"].nodes]
