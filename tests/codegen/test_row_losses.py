"""Executors with a loss per row: beside PyTorch, and what they say of labels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codegen.executor import Executor
from planner.capturing import Captured, capture
from planner.errors import UserError
from tests.codegen.cuda.plans import NULL
from tests.codegen.cuda.plans import make as make_cuda
from tests.codegen.cuda.plans import plan_for as plan_for_cuda
from tests.codegen.plans import make

LABELS = torch.tensor([3, -1, 0, 70, 2, 3])
"""One is no class: it is not picked. Nor is any other in the second run."""


class Rewarded(nn.Module):
    """Rows are picked by their labels and weighted; other labels are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 71)

    def forward(self, x: Tensor, labels: Tensor, rewards: Tensor, added: Tensor) -> Tensor:
        y, picked = self.fc(x), labels > 0
        losses = F.cross_entropy(y[picked], labels[picked] - 1, reduction="none").square().sum()
        chosen = y.log_softmax(-1).gather(-1, (labels.abs() + added)[:, None])[:, 0]
        return losses - (chosen * rewards).mean()


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(4)
    inputs = (torch.randn(6, 5), LABELS, torch.randn(6), torch.zeros(6, dtype=torch.int64))
    return capture(Rewarded(), inputs, loss=None)


@pytest.fixture(params=["cpu", "cuda"])
def executor(captured: Captured, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    captured.write_weights(tmp_path / "weights.npz")
    if request.param == "cpu":
        with make(captured.graph, tmp_path, 2)(pin=False) as on_cpu:
            yield on_cpu
    else:
        with make_cuda(plan_for_cuda(captured.graph), captured.graph, tmp_path)(null_device=NULL) as on_gpu:
            yield on_gpu


def test_gradients_and_labels(captured: Captured, executor: Executor) -> None:
    torch.manual_seed(4)
    module = Rewarded().double()
    module.load_state_dict(executor.torch_state_dict())
    x, rewards, added = torch.randn(6, 5), torch.randn(6), torch.zeros(6, dtype=torch.int64)
    for labels in (LABELS, torch.full_like(LABELS, -1)):
        loss, gradients = executor.gradients(x, labels, rewards, added)
        expected = module(x.double(), labels, rewards.double(), added)
        module.zero_grad()
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=2e-6)
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            exact = parameter.grad.numpy()
            assert np.abs(np.asarray(gradients[name]) - exact).max() < 3e-6 * np.abs(exact).max()
    for wrong, position in ((1, 3), (-1, 2)):
        with pytest.raises(UserError, match=rf"SP1608.*at position {position}, which is out of range"):
            float(executor.step(x, LABELS, rewards, added + wrong))
    executor.step(x, LABELS, rewards, added)
