"""Whose names a state has: the module's, those of a loss that is a module, and the optimizer's."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.capturing import capture
from planner.errors import UserError
from planner.graph.precision import full_precision, mixed_precision
from planner.graph.text import read_graph, write_graph
from tests.codegen.plans import make


class Scaled(nn.Module):
    """A loss that trains a factor, moves statistics, and keeps a constant and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.norm(prediction) * self.scale + self.frozen, labels, weight=self.weight)


def test_a_loss_has_a_state_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, loss = nn.Linear(5, 3), Scaled()
    x, labels = torch.randn(8, 5), torch.randint(0, 3, (8,))
    optimizer = torch.optim.SGD([*module.parameters(), *loss.parameters()], lr=0.1, momentum=0.9)
    captured = capture(module, x, loss=loss, labels=labels, optimizer=optimizer)
    executor_class = make(captured.graph, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    back, loss_back = copy.deepcopy(module), copy.deepcopy(loss)
    with executor_class(seed=0, pin=False) as executor:
        for _ in range(3):
            executor.step(x, labels)
            optimizer.zero_grad()
            loss(module(x), labels).backward()
            optimizer.step()
        back.load_state_dict(executor.torch_state_dict())
        loss_back.load_state_dict(executor.loss_state_dict())
        for ours, theirs in ((back, module), (loss_back, loss)):
            for name, tensor in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
        everything = executor.state_dict()
        executor.load_state_dict(back.state_dict())  # what a loss keeps stays as it is
        assert all(np.array_equal(executor.state_dict()[name], data) for name, data in everything.items())
        with pytest.raises(UserError, match=r"5 missing \(loss.frozen, loss.norm.bias, "):
            executor.load_state_dict({**back.state_dict(), "loss.scale": np.float32(1)})


def test_a_graph_tells_what_is_a_losss(tmp_path: Path) -> None:
    def of(loss: object) -> str:
        graph = capture(nn.Linear(5, 3), torch.randn(8, 5), loss=loss, labels=torch.zeros(8, dtype=torch.long)).graph
        write_graph(graph, tmp_path / "graph.json")
        assert read_graph(tmp_path / "graph.json") == graph
        assert mixed_precision(graph).loss_prefix == full_precision(graph).loss_prefix == graph.loss_prefix
        return graph.loss_prefix

    assert of(Scaled()) == "loss."
    assert of(nn.CrossEntropyLoss()) == ""
    assert of(F.cross_entropy) == ""
