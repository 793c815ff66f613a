"""Distances between rows, on processors and on a GPU, against float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.capturing import capture
from tests.codegen import plans
from tests.codegen.cuda import plans as gpu_plans


class Near(nn.Module):
    """Distances of a few hundredths between rows that lie a thousand from the origin, whose products have no digit of
    them; a weight for each, which is the input."""

    def __init__(self, rows: int, others: int, features: int) -> None:
        super().__init__()
        center = 1000 * torch.randn(features)
        self.rows, self.others = (nn.Parameter(center + 0.02 * torch.randn(n, features)) for n in (rows, others))

    def forward(self, weights: Tensor) -> Tensor:
        return (torch.cdist(self.rows, self.others, compute_mode="donot_use_mm_for_euclid_dist") * weights).sum()


@pytest.mark.parametrize("device", ["processor", "gpu"])
@pytest.mark.parametrize("sizes", [(45, 131, 7), (3, 900, 70)])
def test_of_near_rows(device: str, sizes: tuple[int, int, int], tmp_path: Path) -> None:
    module, weights = Near(*sizes), torch.randn(sizes[0], sizes[1])
    captured = capture(module, weights, loss=None)
    assert "distances" in {n.op for n in captured.graph.program["train_step"].nodes}
    captured.write_weights(tmp_path / "weights.npz")
    if device == "gpu":
        made = gpu_plans.make(gpu_plans.plan_for(captured.graph), captured.graph, tmp_path)
        executor = made(null_device=gpu_plans.NULL)
    else:
        executor = plans.make(captured.graph, tmp_path)(pin=False)
    with executor:
        loss, gradients = executor.gradients(weights)
    exact = module.double()(weights.double())
    exact.backward()
    with torch.no_grad():
        size = float((torch.cdist(module.rows, module.others) * weights.abs()).sum())
        assert abs(loss - float(exact)) <= 1e-6 * size
    for name, parameter in module.named_parameters():
        wanted = parameter.grad.numpy()
        assert np.abs(gradients[name] - wanted).max() <= 3e-6 * np.abs(wanted).max(), name
