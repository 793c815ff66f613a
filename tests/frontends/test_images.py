"""Views of channels-last images, sequences and volumes, stay with them: nothing is turned between their layers."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.graph.model import Graph
from planner.ops import op_named
from planner.ops.signature import signature_of
from tests.frontends.torch_agreement import agree


def moved(graph: Graph) -> list[str]:
    """Nodes of a step that only move elements, but for other views of the same bytes."""
    movers = [n for n in graph.program["train_step"].nodes if n.op in ("convert_layout", "permute")]
    return [n.id for n in movers if op_named(n.op).alias(signature_of(graph, n)) is None]


class Sequences(nn.Module):
    """Layers between convolutions of sequences: norms, activations, a residual, numbers per channel, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Conv1d(3, 6, 3, padding=1),
            nn.Conv1d(6, 6, 3, padding=1),
            nn.Conv1d(6, 4, 1),
        )
        self.norm, self.groups, self.bend = nn.BatchNorm1d(6), nn.GroupNorm(2, 6), nn.PReLU(6)
        self.scale = nn.Parameter(torch.rand(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.norm(self.first(x))), 0.0, self.training)
        y = self.groups(self.second(x)) * self.scale + torch.sigmoid(x)
        return self.last(self.bend(y) * 0.5).max(2)[0]


def test_sequences_stay_channels_last() -> None:
    graph = agree(Sequences(), torch.randn(4, 3, 300))
    assert all(name.startswith("first") for name in moved(graph))  # the input, as the caller has it
    assert [n.origin for n in graph.program["train_step"].nodes if n.op == "relu"] == ["bend"]  # the other is a norm's


class Gated(nn.Module):
    """Channels of sequences cut, divided and joined, means over all of a sequence, with the dimension and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(3, 8, 3), nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.first(x), 1)
        y = y * torch.sigmoid(y.mean(2, keepdim=True))
        a, b, c = self.second(y).split((1, 2, 3), 1)
        return self.last(torch.cat([torch.tanh(c), y[:, 1:3], a, b * 2], 1)).mean(-1)


def test_channels_of_sequences_are_those_of_images() -> None:
    assert all(name.startswith("first") for name in moved(agree(Gated(), torch.randn(4, 3, 9))))


class Causal(nn.Module):
    """What convolutions of sequences see of the past is cut off behind them, or added before, learned or not; tokens
    beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 6, 3, padding=4, dilation=2), nn.Conv1d(6, 6, 3, padding=2)
        self.third, self.up, self.table = nn.Conv1d(6, 6, 2), nn.ConvTranspose1d(6, 4, 4, 2), nn.Embedding(9, 6)
        self.start = nn.Parameter(torch.rand(1, 6, 2))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        y = F.relu(self.first(x)[:, :, :-4])
        y = y + F.relu(self.second(y)[..., :-2])
        y = torch.tanh(self.third(F.pad(y, (3, 0), value=0.5)[..., 2:]) + self.table(tokens).transpose(1, 2))
        before, behind = y.split((2, 7), 2)
        y = torch.cat([self.start.expand(4, -1, -1), y.new_zeros(4, 6, 1), behind, before], 2)
        y = self.up(y * 2)[..., 1:-1]
        return torch.softmax(torch.cat([y[1:], y[:1]]), 1)[..., -1]


def test_parts_of_sequences_stay_channels_last() -> None:
    graph = agree(Causal(), (torch.randn(4, 3, 9), torch.randint(9, (4, 9))))
    sizes = {n.id: graph.value[n.inputs[0]].type.elements for n in graph.program["train_step"].nodes if n.inputs}
    assert all(name.startswith("first") or sizes[name] <= 4 * 6 * 2 for name in moved(graph))  # what is put before


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm3d(5), nn.Linear(5, 4)
        self.conv = nn.Conv3d(2, 5, (1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.norm(self.conv(x)) * 2).mean((2, 3, 4)))


def test_volumes() -> None:
    agree(Volumes(), torch.randn(2, 2, 3, 5, 4))


class UNet3d(nn.Module):
    """Convolutions of several depths, one by groups, pooled, made larger again and beside what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.down, self.up = nn.Conv3d(4, 6, 3, stride=(1, 2, 2), padding=1), nn.ConvTranspose3d(6, 4, 2, 2)
        self.groups, self.last = nn.Conv3d(4, 4, 3, padding=1, groups=2), nn.Conv3d(8, 3, (3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        y = F.silu(self.down(F.max_pool3d(x, (2, 1, 1))))
        return self.last(torch.cat([F.relu(self.groups(self.up(y))), x], 1)).sum((2, 3, 4))


def test_volumes_stay_channels_last() -> None:
    """But for the input, as the caller has it, what is turned are weights, and sums are of volumes as they are."""
    net = UNet3d()
    graph = agree(net, torch.randn(2, 2, 4, 6, 4))
    nodes = {n.id: n for n in graph.program["train_step"].nodes}
    sizes = [graph.value[nodes[name].inputs[0]].type.elements for name in moved(graph) if "last" not in name]
    assert [size for size in sizes if size not in {p.numel() for p in net.parameters()}] == [2 * 2 * 4 * 6 * 4]


class Gates3d(nn.Module):
    """Volumes weighted by one number per pixel, beside what they were: an attention gate, on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 1, 1)
        self.norm, self.last = nn.BatchNorm3d(1), nn.Conv3d(8, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.norm(self.gate(x)))
        return self.last(torch.cat([x * gate, gate - x], 1)).sum((2, 3, 4))


def test_gates_of_volumes_stay_channels_last() -> None:
    graph = agree(Gates3d(), torch.randn(2, 2, 4, 5, 4))
    sizes = [
        graph.value[n.inputs[0]].type.elements for n in graph.program["train_step"].nodes if n.op == "convert_layout"
    ]
    assert [size for size in sizes if size > 2 * 2 * 4 * 5 * 4] == []


class Parts3d(nn.Module):
    """Volumes padded and cut to the sizes of others, made larger, and compared class by class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1))
        self.up = nn.ConvTranspose3d(4, 4, (1, 2, 2), (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        y = F.pad(self.up(F.max_pool3d(x, (1, 2, 2))), (0, 1, 0, 0, 0, 0))
        z = F.interpolate(y[:, :, 1:, :, 2:], size=x.shape[2:], mode="trilinear", align_corners=True)
        return torch.softmax(x + y * z, 1).sum((2, 3, 4))


def test_parts_of_volumes_stay_channels_last() -> None:
    graph = agree(Parts3d(), torch.randn(2, 2, 3, 4, 7))
    assert [name for name in moved(graph) if not name.startswith("conv")] == []


class Tokens(nn.Module):
    """Images as tokens and back, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.fc, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        n, c, h, w = y.shape
        tokens = self.fc(y.flatten(2).transpose(1, 2))
        return self.out(y + tokens.transpose(1, 2).reshape(n, c, h, w)).mean((2, 3))


def test_tokens_of_images_are_views() -> None:
    assert moved(agree(Tokens(), torch.randn(2, 3, 6, 7))) == []


class Beside(nn.Module):
    """What fits no image is computed as it is: numbers per pixel, other extents, more dimensions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv1d(3, 6, 3, padding=1), kind
        self.pixels, self.full = nn.Parameter(torch.rand(7)), nn.Parameter(torch.rand(6, 7))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.kind == "pixels":
            y = y * self.pixels
        elif self.kind == "full":
            y = torch.tanh(y) + self.full
        elif self.kind == "first":
            y = self.full[None, :, :1] * y
        elif self.kind == "one more":
            y = (y + self.full[None, None, :1, :1]).mean(0)
        elif self.kind == "wider":
            y = y[:, :1] * x.sum(1, keepdim=True) + y
        else:
            y = y.unsqueeze(1) * self.full[None, None] + y.unsqueeze(2)[:, :, 0:1].transpose(1, 2)
            y = y.mean(1)
        return y.amax(2)


@pytest.mark.parametrize("kind", ["pixels", "full", "first", "one more", "wider", "deeper"])
def test_operands_that_fit_no_image(kind: str) -> None:
    agree(Beside(kind), torch.randn(4, 3, 7))
