"""Convolutions of volumes in executors: every kind of kernel, few volumes on many lanes, against PyTorch in float64."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from codegen.build import build
from codegen.cpu.emit import emit
from planner.capturing import Captured, capture
from tests.codegen.plans import plan_for
from tests.codegen.quick import quick
from tests.codegen.test_few_images import assert_gradients
from tests.codegen.test_lanes import no_races, sanitizer

__all__ = ["sanitizer"]


class Kinds(nn.Module):
    """By Winograd, by the library, strided, one by groups, one by channels, dilated, transposed, of one depth."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(2, 16, 3, padding=1), nn.BatchNorm3d(16)
        self.winograd = nn.Conv3d(16, 32, 3, padding=1)
        self.down, self.groups = (
            nn.Conv3d(32, 24, 3, stride=2, padding=1),
            nn.Conv3d(24, 24, (3, 3, 1), groups=4, padding=1),
        )
        self.channels = nn.Conv3d(24, 24, 3, padding=1, groups=24)
        self.dilated = nn.Conv3d(24, 16, 3, padding=2, dilation=2)
        self.up, self.plane = nn.ConvTranspose3d(16, 8, 2, 2), nn.Conv3d(8, 3, (1, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.winograd(F.relu(self.norm(self.first(x))))
        y = F.silu(self.groups(self.down(x)))
        y = self.dilated(self.channels(y)) + y.narrow(1, 0, 16)
        return self.plane(F.silu(self.up(y))).mean((2, 3, 4))


def captured_net(volumes: int) -> tuple[Kinds, Captured]:
    torch.manual_seed(volumes)
    module = Kinds()
    return module, capture(module, torch.zeros(volumes, 2, 6, 8, 6), name=f"volumes{volumes}")


@pytest.mark.parametrize("volumes,lanes", [(1, 3), (3, 5)])
def test_gradients_of_volumes(tmp_path: Path, volumes: int, lanes: int) -> None:
    module, captured = captured_net(volumes)
    plan, target = plan_for(captured.graph, lanes)
    ops = {n.id: n.op for n in captured.graph.program["train_step"].nodes}
    ways = {(ops.get(n.node, ""), n.dim) for n in plan.program["train_step"].nodes}
    for op in ("conv3d", "conv3d_backward_data", "conv3d_backward_weights"):
        assert (op, "rows") in ways
    emit(plan, captured.graph, target, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    build(tmp_path, flags=quick(target))
    x, labels = torch.randn(volumes, 2, 6, 8, 6), torch.randint(0, 3, (volumes,))
    vanishing = {"first.bias": "norm.bias"}  # before a batch norm
    assert_gradients(tmp_path, module, x, labels, share=2e-5, scales=vanishing)


class Images(nn.Module):
    """What `no_races` feeds, four images, as one volume of four depths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.winograd = nn.Conv3d(3, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)
        self.channels, self.last = nn.Conv3d(16, 16, 3, padding=1, groups=16), nn.Conv3d(16, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.winograd(F.relu(self.first(x.transpose(0, 1)[None])))
        return self.last(self.channels(x)).mean((3, 4))[0].T


def test_volumes_have_no_races(tmp_path: Path, sanitizer: str) -> None:
    captured = capture(Images(), torch.zeros(4, 3, 8, 8), name="volumes")
    plan, target = plan_for(captured.graph, 3)
    assert any(n.dim == "rows" and n.kernel == "onednn" for n in plan.program["train_step"].nodes)
    emit(plan, captured.graph, target, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    no_races(tmp_path, sanitizer)
