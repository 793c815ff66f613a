"""What several families share."""

from typing import Any

import torch
from torch import Tensor, nn

from planner.graph.optimizer import Optimizer

Made = tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]

SGD = {"optimizer": Optimizer(lr=0.05, momentum=0.9, weight_decay=1e-4)}
ADAM = {"optimizer": Optimizer(kind="adamw", lr=2e-3, weight_decay=1e-2, eps=1e-5)}


def images(batch: int, size: int, channels: int = 3) -> tuple[Tensor, ...]:
    return (torch.randn(batch, channels, size, size),)


class Conv(nn.Sequential):
    """Convolution, batch norm, activation; padding keeps the size."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] | None = nn.ReLU,
    ) -> None:
        layers = [
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        super().__init__(*layers, *([act(inplace=True)] if act else []))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.act, self.gate = act(inplace=True), gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(self.pool(x)))))
