"""Linear algebra of square matrices, captured, computes what PyTorch computes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn.utils.parametrizations import orthogonal

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import Function, agree, graph_values
from tests.interpreter import run_program


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
    "exponential": lambda x: torch.linalg.matrix_exp(x[:, :4]).repeat(1, 2)[:, :6],
    "exponentials": lambda x: torch.matrix_exp(regular(x) * torch.tensor([0.01, 1.5])[:, None, None]).reshape(3, 6),
    "reflections": lambda x: torch.linalg.householder_product(x.T, x[0, :3]).T.repeat(1, 2)[:, :6],
    "reflections side by side": lambda x: torch.linalg.householder_product(x.reshape(2, 4, 3), x[:2, :2]).reshape(4, 6),
}


@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("outputs", [5, 8])
def test_orthogonal_weights(orthogonal_map: str, outputs: int) -> None:
    layer = orthogonal(nn.Linear(5, outputs), orthogonal_map=orthogonal_map)
    agree(nn.Sequential(layer, nn.Linear(outputs, 3)), torch.randn(4, 5))


def test_a_matrix_too_large_for_its_exponential_is_nan() -> None:
    graph, weights = capture_module(
        Function(lambda x: torch.matrix_exp(1e9 * x[:, :4]).repeat(1, 2)[:, :6]),
        torch.randn(4, 5),
        CaptureOptions(loss="mse"),
    )
    values, step = graph_values(graph, weights), graph.program["predict"]
    found = run_program(graph, "predict", {**values, step.inputs[0]: np.ones((4, 5))})
    assert np.isnan(found[step.outputs[0]]).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5), "mse")
