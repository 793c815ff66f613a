"""Captured modules in bfloat16 whose first operators work on float32 inputs: gradients are as near to float64 as those
of PyTorch's autocast."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.capturing import capture
from tests.frontends.torch_agreement import STEP, graph_values
from tests.interpreter import run_program


class Waves(nn.Module):
    """Of learned frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.frequencies)


class Around(nn.Module):
    """A normalisation with a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.scale = nn.LayerNorm(8), nn.Linear(8, 8), nn.Parameter(torch.full((8,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.fc(self.norm(x)) - 2


class Headed(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.fc = first, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(self.fc(self.first(x).reshape(-1, 8))) - 0.5).square().mean()


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        (nn.BatchNorm1d(8), (32, 8)),
        (nn.BatchNorm2d(4), (4, 4, 4, 4)),
        (nn.LayerNorm(8), (16, 8)),
        (nn.GroupNorm(2, 4), (4, 4, 8)),
        (Around(), (16, 8)),
        (Waves(), (16, 8)),
    ],
    ids=["batch_norm", "images", "layer_norm", "group_norm", "around", "waves"],
)
def test_gradients_take_what_the_forward_pass_took(first: nn.Module, shape: tuple[int, ...]) -> None:
    """Numbers of 2000, whose neighbours in bfloat16 are 8 apart, as years are."""
    torch.manual_seed(0)
    module, x = Headed(first), torch.randn(shape) * 10 + 2000
    graph, weights = capture(module, (x,), loss=None, optimizer=STEP).in_precision("bf16")
    values = graph_values(graph, weights)
    step = graph.program["train_step"]
    found = run_program(graph, "train_step", {**values, step.inputs[0]: x.double().numpy()})
    exact, rounded = copy.deepcopy(module).double(), copy.deepcopy(module)
    exact(x.double()).backward()
    with torch.autocast("cpu", torch.bfloat16):
        loss = rounded(x)
    loss.backward()
    names = {v.name: v.id for v in graph.values}
    for (name, parameter), beside in zip(exact.named_parameters(), rounded.parameters(), strict=True):
        assert parameter.grad is not None and beside.grad is not None
        ours = torch.from_numpy(np.asarray(values[names[name]] - found[names[name]]))
        allowed = 4 * float((beside.grad - parameter.grad).norm()) + 0.01 * float(parameter.grad.norm())
        assert float((ours - parameter.grad).norm()) <= allowed, name
