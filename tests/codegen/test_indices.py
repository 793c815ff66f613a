"""Indices that a step computes: those that pick rows of a result are told of where they are out of range, as those of
what is read are."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codegen.executor import Executor
from codegen.indices import Told
from planner.capturing import Captured, capture
from planner.errors import UserError
from tests.codegen.cuda.plans import NULL
from tests.codegen.cuda.plans import make as make_cuda
from tests.codegen.cuda.plans import plan_for as plan_for_cuda
from tests.codegen.plans import make

PLACES = torch.tensor([0, 3, 1, 2, 1, 0])
OFFSETS = torch.tensor([0, 1, 3, 6])
FRAMES, LABELS = torch.tensor([2, 3]), torch.tensor([1, 0])
NO = torch.zeros(1, dtype=torch.int64)
INPUTS = (PLACES, NO, NO, NO, OFFSETS, FRAMES, LABELS)


class Written(nn.Module):
    """Rows without gradients are added up, compared, and sent along edges, where inputs say; a bag has offsets, and an
    alignment lengths, one of which is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bag = nn.Linear(3, 2), nn.EmbeddingBag(7, 3, mode="sum")

    def forward(self, x: Tensor, i: Tensor, added: Tensor, compared: Tensor, sent: Tensor, *more: Tensor) -> Tensor:
        offsets, frames, labels = more
        empty = torch.zeros(4, 3)
        y = empty.index_add(0, i + added, x)
        y = y + empty.index_reduce(0, i + compared, x, "amax")
        y = y + empty.index_add(0, i + sent, x[i])
        scores = x.reshape(3, 2, 3).log_softmax(2)
        aligned = F.ctc_loss(scores, torch.tensor([[1, 2], [2, 1]]), frames, labels + 1, zero_infinity=True)
        return self.fc(y + self.bag(i, offsets)) + aligned


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture(Written(), (torch.randn(6, 3), *INPUTS), loss="mse")


def test_each_index_is_looked_at_once(captured: Captured) -> None:
    """Gradients have the indices of what was read."""
    told, found = Told(captured.graph), {}
    for node in captured.graph.program["train_step"].nodes:
        found[node.id] = node.op, told.by_kernel(node) >= 0, [look.operand for look in told.before(node)]
    told_of = [v for v in found.values() if v[1] or v[2]]
    assert sorted(v for v in told_of if v[0] != "embedding") == [
        ("ctc_loss", False, [2, 3]),
        ("embedding_backward", False, [1]),
        ("embedding_backward", False, [1]),
        ("embedding_backward", False, [1]),
        ("segment_max", True, [2]),
        ("spmm", True, [2]),
    ]
    assert found["bag.backward"] == ("embedding_backward", False, [])


@pytest.fixture(params=["cpu", "cuda"])
def executor(captured: Captured, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    graph = captured.graph
    captured.write_weights(tmp_path / "weights.npz")
    if request.param == "cpu":
        with make(graph, tmp_path)(pin=False) as on_cpu:
            yield on_cpu
    else:
        with make_cuda(plan_for_cuda(graph), graph, tmp_path)(null_device=NULL) as on_gpu:
            yield on_gpu


def test_places_out_of_range_are_told(executor: Executor) -> None:
    """By position; the next run has none."""
    x = np.random.default_rng().standard_normal((6, 3)).astype(np.float32)
    right = [x, *(t.numpy() for t in INPUTS)]
    for which, shift, position in ((2, 1, 1), (3, 1, 1), (4, -1, 0), (5, 1, 0), (6, 1, 1), (7, -2, 1), (7, 2, 0)):
        inputs = list(right)
        inputs[which] = np.minimum(inputs[which] + shift, 6)
        for call in (executor.predict, lambda *given: float(executor.step(*given, np.zeros((4, 2), np.float32)))):
            with pytest.raises(UserError, match=rf"SP1608.*at position {position}, which is out of range"):
                call(*inputs)
        executor.predict(*right)
