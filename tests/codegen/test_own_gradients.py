"""Executors of modules with custom autograd functions, against PyTorch in float64."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from codegen.autograd import Planned
from planner.capturing import capture
from tests.codegen import plans
from tests.codegen.cuda import plans as gpu_plans
from tests.torch_functions import Reversed, Scaled, Spike, rounded


class Spiking(nn.Module):
    """Weights of few bits, a membrane that spikes over four steps, and a branch whose gradient is reversed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.weight, self.scale = nn.Parameter(torch.randn(6, 8 * 36) / 10), nn.Parameter(torch.randn(6))
        self.last, self.domain = nn.Linear(6, 5), nn.Linear(6, 2)

    def charges(self, images: Tensor) -> list[Tensor]:
        """Of every step; above 0 it spikes."""
        current = self.norm(self.conv(images))
        spikes = charge = torch.zeros_like(current)
        found = []
        for _ in range(4):
            charge = 0.9 * charge * (1 - spikes) + current
            found.append(charge - 1)
            spikes = Spike.apply(found[-1], 5.0)
        return found

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        spikes = Spike.apply(self.charges(images)[-1], 5.0)
        features = nn.functional.linear(spikes.flatten(1), rounded(8 * self.weight) / 8)
        wide, total = Scaled.apply(features, self.scale)
        return self.last(wide + total[:, None]), self.domain(Reversed.apply(features))


def decided() -> tuple[Spiking, Tensor]:
    """A module and images in which rounding decides about no spike."""
    while True:
        module, images = Spiking(), torch.randn(4, 3, 6, 6)
        charges = copy.deepcopy(module).double().charges(images.double())
        if min(float(charge.detach().abs().min()) for charge in charges) > 1e-5:
            return module, images


@pytest.mark.parametrize("device", ["processor", pytest.param("gpu", marks=gpu_plans.asks_the_null_device)])
def test_gradients_are_the_functions(device: str, tmp_path: Path) -> None:
    module, images = decided()
    target = torch.randn(4, 5)
    captured = capture(module, images, loss="caller")
    captured.write_weights(tmp_path / "weights.npz")
    if device == "gpu":
        made = gpu_plans.make(gpu_plans.plan_for(captured.graph, 2), captured.graph, tmp_path)
        executor = made(null_device=gpu_plans.NULL)
    else:
        executor = plans.make(captured.graph, tmp_path)(pin=False)
    exact = copy.deepcopy(module).double()
    with executor:
        executor.delays(1)
        planned = Planned(module, executor)
        for _ in range(3):
            for call, data in ((planned, images), (exact, images.double())):
                prediction, domain = call(data)
                (prediction - target).square().mean().add(domain.square().sum()).backward()
    for (name, parameter), other in zip(module.named_parameters(), exact.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None and other.grad.any()
        off = (parameter.grad.double() - other.grad).norm() / other.grad.norm()
        assert off < 1e-5, (name, off)
