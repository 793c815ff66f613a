"""Recurrent layers: what long sequences join at a time, and what whoever reads a part of the outputs leaves undone."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.graph.model import Graph
from planner.graph.shared_weights import LEAST_ROWS, steps_of_blocks
from tests.frontends.torch_agreement import agree


class Reading(nn.Module):
    """y = read(outputs, last states) of a layer of 5 units over (2, steps, 4)."""

    def __init__(self, kind: type[nn.RNNBase], read: Callable[[Tensor, Any], Tensor], **options: Any) -> None:
        super().__init__()
        self.layer, self.read = kind(4, 5, batch_first=True, **options), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(*self.layer(x))


def read_of(
    kind: type[nn.RNNBase], steps: int, read: Callable[[Tensor, Any], Tensor], batch: int = 2, **options: Any
) -> Graph:
    return agree(Reading(kind, read, **options), torch.randn(batch, steps, 4), "mse")


def counted(graph: Graph, phase: str = "") -> Counter[str]:
    return Counter(n.op for n in graph.program["train_step"].nodes if phase in ("", n.phase))


LAST: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "selected": lambda y, _: y[:, -1],
    "sliced": lambda y, _: y[:, -1:],
    "narrow": lambda y, _: y.narrow(1, 6, 1).squeeze(1),
    "unbound": lambda y, _: y.unbind(1)[6],
    "state": lambda _, h: h[-1],
}


@pytest.mark.parametrize("name", LAST)
def test_who_reads_the_last_output_alone_joins_no_outputs(name: str) -> None:
    graph = read_of(nn.GRU, 7, LAST[name])
    assert not {"concat", "pad", "add_slice"} & set(counted(graph, "forward"))
    assert counted(graph, "backward")["concat"] == 3, "the operands of the weights' gradients"
    assert not {"pad", "add_slice"} & set(counted(graph, "backward"))


def test_the_other_direction_has_made_its_last_output_at_once() -> None:
    graph = read_of(nn.LSTM, 7, lambda y, _: y[:, -1], bidirectional=True)
    assert counted(graph, "forward")["lstm_cell"] == 7 + 1


def test_parts_of_what_was_joined_are_these() -> None:
    def read(y: Tensor, _: Any) -> Tensor:
        both = torch.cat([y[:, :3], y[:, 4:].tanh()], 1)
        first, *_ = both.split([3, 3], 1)
        return torch.cat([first.sum(1), both[:, 4], both[:, 2:5].sum(1), torch.stack([y, y * 2])[1, :, 0]], 1)

    graph = read_of(nn.RNN, 7, read)
    assert counted(graph, "forward")["concat"] == 3, "the outputs, both, and the result; not what was stacked"


@pytest.mark.parametrize("both", [False, True])
def test_long_sequences_are_joined_block_by_block(both: bool) -> None:
    steps, batch = 150, 4
    graph = read_of(nn.LSTM, steps, lambda y, _: y.sum(1), batch, bidirectional=both, num_layers=1)
    nodes = graph.program["train_step"].nodes
    joined = [graph.value[n.outputs[0]].type.shape for n in nodes if n.op == "concat" and n.phase == "backward"]
    rows = {shape[0] for shape in joined if shape[1] in (5, 20)}
    assert rows == {batch * steps // 2} and min(rows) >= LEAST_ROWS


@pytest.mark.parametrize(
    ("steps", "rows", "features", "blocks"),
    [
        (100, 16, [(256, 32), (256, 64)], (16, 17, 17, 16, 17, 17)),  # 256 rows at least: 1600 // 256
        (64, 32, [(2048, 512)], (64,)),  # 4 * 2048 * 512 // 2560 = 1638 rows: 2048 // 1638
        (7, 1, [(8, 4)], (7,)),
    ],
)
def test_steps_of_blocks(steps: int, rows: int, features: list[tuple[int, int]], blocks: tuple[int, ...]) -> None:
    assert steps_of_blocks(steps, rows, features) == blocks


class Pooled(nn.Module):
    """Set2Set's: the first step is asked of nothing but zeros."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.asking = kind(6, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        asked, state = self.asking(torch.zeros(1, 4, 6, dtype=x.dtype))
        asked, _ = self.asking(x[None] * asked.mean(), state)
        return self.out(asked[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_constants_are_sequences(kind: type[nn.RNNBase]) -> None:
    agree(Pooled(kind), torch.randn(4, 6))
