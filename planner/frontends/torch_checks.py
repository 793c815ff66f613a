"""What PyTorch checks of numbers while a module runs, which would be branches that depend on data: left out."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unvalidated(torch: Any) -> Iterator[None]:
    """Within it, neither torch.distributions check their parameters nor gaussian_nll_loss its variances."""
    distribution, functional = torch.distributions.Distribution, torch.nn.functional
    before, checked = distribution._validate_args, functional.gaussian_nll_loss

    def gaussian_nll_loss(
        input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Any:
        return _gaussian_nll(torch, input, target, var, full, eps, reduction)

    distribution.set_default_validate_args(False)
    functional.gaussian_nll_loss = gaussian_nll_loss
    try:
        yield
    finally:
        distribution.set_default_validate_args(before)
        functional.gaussian_nll_loss = checked


def _gaussian_nll(torch: Any, mean: Any, target: Any, var: Any, full: bool, eps: float, reduction: str) -> Any:
    """As in torch.nn.functional. Variances below eps count as eps, but have their gradient."""
    if isinstance(var, float):
        var = var * torch.ones_like(mean)
    if mean.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    if mean.dim() != var.dim() or sum(b for a, b in zip(mean.shape, var.shape, strict=True) if a != b) > 1:
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (mean - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else getattr(loss, reduction)()
