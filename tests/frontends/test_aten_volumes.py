"""Layers over volumes, sequences and windows of other sizes, against PyTorch."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.torch_agreement import agree

MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "convolutions": (
        nn.Sequential(
            nn.Conv3d(2, 4, (2, 3, 1), stride=(2, 1, 1), padding=(1, 1, 0), dilation=(2, 1, 1), groups=2),
            nn.BatchNorm3d(4),
            nn.ConvTranspose3d(4, 2, 3, stride=2, padding=(2, 1, 0), output_padding=1, groups=2),
        ),
        (2, 2, 5, 4, 3),
    ),
    "pools": (
        nn.Sequential(
            nn.MaxPool3d((2, 3, 2), (1, 2, 2), padding=1, ceil_mode=True),
            nn.Upsample(size=(3, 6, 5), mode="trilinear", align_corners=True),
            nn.AvgPool3d(2, 1, 1, count_include_pad=False),
            nn.Upsample(scale_factor=2),
            nn.AdaptiveAvgPool3d((2, 3, 4)),
            nn.AdaptiveMaxPool3d((2, 2, 4)),
            nn.Conv3d(2, 2, 1),
        ),
        (2, 2, 5, 4, 6),
    ),
    "sequence": (nn.Sequential(nn.ConvTranspose1d(3, 4, 4, 2, 1, 1), nn.AdaptiveMaxPool1d(3)), (2, 3, 6)),
    "projected": (nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3), (5, 2, 4)),
    "alone": (nn.GRU(4, 3, bidirectional=True), (5, 4)),
}


class Output(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize("name", MODULES)
def test_agrees(name: str) -> None:
    module, shape = MODULES[name]
    torch.manual_seed(1)
    agree(Output(module) if isinstance(module, nn.RNNBase) else module, torch.randn(shape), "mse")


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.conv(x), size=(4, 3), mode="bilinear", antialias=True)
        return F.fold(F.unfold(F.avg_pool2d(y, 2, 1, divisor_override=3), 2, padding=1), (3, 2), 2, padding=1)


def test_windows() -> None:
    agree(Resized(), torch.randn(2, 2, 9, 7), "mse")


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"kind": self.a(x), "place": self.b(x)}


def test_a_loss_of_several_results() -> None:
    from planner.frontends.torch_export import capture_module
    from planner.frontends.torch_lowering import CaptureOptions

    def loss(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(found["kind"], wanted["kind"]) + F.mse_loss(found["place"], wanted["place"])

    labels = {"kind": torch.tensor([0, 1, 2, 0]), "place": torch.zeros(4, 2)}
    graph, _ = capture_module(Pair(), torch.randn(4, 5), CaptureOptions(loss=loss, labels=labels))
    assert [graph.value[v].type.shape for v in graph.program["predict"].outputs] == [(4, 3), (4, 2)]
    given, _ = capture_module(Pair(), torch.randn(4, 5), CaptureOptions(loss="caller"))
    assert given.program["train_step"].inputs[1:] == ("d_prediction", "d_prediction_1")
    assert [n.inputs[0] for n in given.program["train_step"].nodes if n.op == "caller_gradient"] == [
        "d_prediction",
        "d_prediction_1",
    ]
