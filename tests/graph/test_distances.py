"""Distances between rows, spelled out, as one node."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree

ROWS, OTHERS, WIDTH = 6, 10, 7

Apart = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """`apart` makes distances of (ROWS, WIDTH) rows from (OTHERS, WIDTH) ones."""

    def __init__(self, apart: Apart) -> None:
        super().__init__()
        self.first, self.second, self.apart = nn.Linear(5, WIDTH), nn.Linear(4, WIDTH), apart

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-self.apart(self.first(x), self.second(y))).mean()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 5), torch.randn(OTHERS, 4)


def ops(apart: Apart) -> set[str]:
    """Those of the forward pass, of a graph that agrees with PyTorch."""
    graph = agree(Net(apart), inputs(), loss=None)
    return {n.op for n in graph.program["train_step"].nodes if n.phase == "forward"}


def stacked(a: Tensor, rows: int = 2) -> Tensor:
    return a.view(rows, -1, WIDTH)


JOINED: dict[str, Apart] = {
    "squares": lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1),
    "the other way round": lambda a, b: (b[None] - a[:, None]).square().sum(-1),
    "without a one in front": lambda a, b: (a[:, None] - b).pow(2).sum(2),
    "times itself": lambda a, b: (lambda d: (d * d).sum(-1))(a[:, None] - b),
    "means": lambda a, b: (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).mean(2),
    "norms": lambda a, b: torch.linalg.vector_norm(a[:, None] - b, dim=-1),
    "of one matrix": lambda a, b: (a[:, None] - a).square().sum(-1),
    "expanded": lambda a, b: (
        (a[:, None].expand(ROWS, OTHERS, WIDTH) - b[None].expand(ROWS, OTHERS, WIDTH)).pow(2).sum(2)
    ),
    "dimensions kept": lambda a, b: ((a[:, None] - b) ** 2).sum(-1, keepdim=True)[..., 0],
    "stacks": lambda a, b: (stacked(a)[:, :, None] - stacked(b)[:, None]).square().sum(-1),
    "a stack and a matrix": lambda a, b: (stacked(a)[:, :, None] - b).square().sum(-1),
    "a matrix and a stack": lambda a, b: (a - stacked(b)[:, :, None]).square().mean(-1),
}


@pytest.mark.parametrize("form", JOINED)
def test_is_one_node(form: str) -> None:
    found = ops(JOINED[form])
    assert "distances" in found and not found & {"sub", "square", "reduce_sum"}


LEFT: dict[str, Apart] = {
    "differences that are read": lambda a, b: (lambda d: d.square().sum(-1) + d.sum(-1))(a[:, None] - b),
    "one row": lambda a, b: (a[:1] - b).square().sum(-1),
    "weighted": lambda a, b: ((a[:, None] - b) ** 2 * torch.arange(1.0, WIDTH + 1)).sum(-1),
    "over rows": lambda a, b: ((a[:, None] - b) ** 2).sum(1),
    "all of it": lambda a, b: ((a[:, None] - b) ** 2).sum((1, 2)),
    "cubes": lambda a, b: ((a[:, None] - b) ** 3).sum(-1),
    "row by row": lambda a, b: (a - b[:ROWS]).square().sum(-1),
}


@pytest.mark.parametrize("form", LEFT)
def test_stays_apart(form: str) -> None:
    assert "distances" not in ops(LEFT[form])


def test_what_is_kept_stays() -> None:
    module = Net(JOINED["squares"])
    apart, _ = capture_module(module, inputs(), CaptureOptions(loss=None, fuse=False))
    (difference,) = (n.outputs[0] for n in apart.program["train_step"].nodes if n.op == "sub")
    kept, _ = capture_module(module, inputs(), CaptureOptions(loss=None, keep=(difference,)))
    assert difference in kept.value and "distances" not in {n.op for n in kept.program["train_step"].nodes}
