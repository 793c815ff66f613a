"""Linear algebra of square matrices, captured, computes what PyTorch computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from tests.frontends.torch_agreement import Function, agree


def regular(x: Tensor) -> Tensor:
    """(4, 6) -> two matrices of 3 rows, far from singular."""
    return x[:3].reshape(2, 3, 3) + 4 * torch.eye(3, dtype=x.dtype)


def definite(x: Tensor) -> Tensor:
    return x[:, :4].T @ x[:, :4] + torch.eye(4, dtype=x.dtype)


def density(x: Tensor) -> Tensor:
    return MultivariateNormal(x[0, :4], definite(x)).log_prob(x[:, 1:5])[:, None] * x


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "inverse": lambda x: torch.linalg.inv(regular(x)).reshape(3, 6),
    "determinant": lambda x: x * torch.det(regular(x))[:, None, None].sum() + torch.logdet(definite(x)),
    "sign": lambda x: x * torch.linalg.slogdet(x[:3, :3])[0] + torch.linalg.slogdet(regular(x))[1].sum(),
    "solve": lambda x: torch.linalg.solve(regular(x), x[:, :3].expand(2, 4, 3).mT).reshape(4, 6),
    "vectors": lambda x: torch.linalg.solve(definite(x), x[:, 0])[:, None] * x,
    "from the right": lambda x: torch.linalg.solve(definite(x), x[:, :4], left=False).repeat(1, 2)[:, :6],
    "cholesky": lambda x: torch.linalg.cholesky(definite(x)).repeat(1, 2)[:, :6],
    "upper": lambda x: torch.linalg.cholesky(definite(x), upper=True).repeat(1, 2)[:, :6],
    "triangular": lambda x: torch.linalg.solve_triangular(definite(x), x[:, :6], upper=False),
    "unit": lambda x: torch.linalg.solve_triangular(x[:, :4], x, upper=True, unitriangular=True),
    "factors": lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(definite(x))),
    "inverse of factors": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(definite(x))).repeat(1, 2)[:, :6],
    "density": density,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5), "mse")
