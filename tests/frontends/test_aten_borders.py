"""Padding with what is at the border against PyTorch: sequences, images and volumes, with and without a batch."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from tests.frontends.test_images import moved
from tests.frontends.torch_agreement import agree


class Padded(nn.Module):
    def __init__(self, mode: str, pads: tuple[int, ...], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.mode, self.pads = mode, pads
        self.scale = nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(F.pad(x * self.scale, self.pads, mode=self.mode) * 3)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((2, 3, 7), (2, 5)),
        ((3, 7), (0, 4)),
        ((2, 3, 5, 6), (1, 2, 3, 4)),
        ((3, 5, 6), (5, 0, 0, 1)),
        ((2, 3, 4, 5, 6), (1, 2, 3, 4, 2, 1)),
        ((3, 4, 5, 6), (0, 2, 0, 0, 3, 0)),
        ((2, 3, 7), (2, -3)),
        ((2, 3, 5, 6), (-1, 2, 1, -2)),
        ((2, 3, 5, 6), (-1, -1, -2, 3)),
        ((2, 3, 4, 5, 6), (-1, 2, 0, -1, 2, -1)),
    ],
)
def test_padding(mode: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    agree(Padded(mode, pads, shape), torch.randn(shape), loss="mse")


def test_circular_padding_of_more_than_is_left() -> None:
    """PyTorch copies what it has not written yet."""
    with pytest.raises(UserError, match=r"SP1001.*negative padding that leaves less than what goes around"):
        agree(Padded("circular", (3, -3), (2, 3, 5)), torch.randn(2, 3, 5), loss="mse")


class Generator(nn.Module):
    """As CycleGAN's: every convolution behind reflected borders."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.ReflectionPad2d(3), nn.Conv2d(3, 6, 7), nn.InstanceNorm2d(6), nn.ReLU()),
            *(nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_images_stay_as_they_lie() -> None:
    assert moved(agree(Generator(), torch.randn(2, 3, 8, 9))) == []
