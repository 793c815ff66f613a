"""Modules that check their numbers are captured without the checks."""

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import agree

ROWS, COLUMNS = 6, 3


class Gaussian(nn.Module):
    """The likelihood of targets under means and variances: one for every number, or for every row."""

    def __init__(self, variances: int, full: bool, eps: float, reduction: str = "mean") -> None:
        super().__init__()
        self.mean, self.variance, self.variances = nn.Linear(4, COLUMNS), nn.Linear(4, 3), variances
        self.loss = nn.GaussianNLLLoss(full=full, eps=eps, reduction=reduction)
        self.register_buffer("target", torch.randn(ROWS, COLUMNS))

    def forward(self, x: Tensor) -> Tensor:
        variance = self.variance(x).square()[:, : self.variances]
        loss = self.loss(self.mean(x), self.target, variance)
        return loss.sum() if loss.dim() else loss


@pytest.mark.parametrize("full,eps,reduction", [(False, 1e-6, "mean"), (True, 0.4, "none"), (True, 0.4, "sum")])
@pytest.mark.parametrize("variances", [1, 3])
def test_gaussian_likelihoods(variances: int, full: bool, eps: float, reduction: str) -> None:
    """Also where variances are below eps: they count as eps, and their gradient passes."""
    before = nn.functional.gaussian_nll_loss
    agree(Gaussian(variances, full, eps, reduction), torch.randn(ROWS, 4), loss=None)
    assert nn.functional.gaussian_nll_loss is before


def test_variances_of_another_size_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1013.*var is of incorrect size"):
        capture_module(Gaussian(2, False, 1e-6), torch.randn(ROWS, 4))
