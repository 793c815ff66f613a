"""Arithmetic and activations, captured, compute what PyTorch computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.frontends.torch_agreement import Function, agree

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu6": lambda x: F.relu6(3 * x),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "hardswish": lambda x: F.hardswish(4 * x),
    "hardsigmoid": lambda x: F.hardsigmoid(4 * x),
    "clamp": lambda x: x.clamp(-0.2, 0.3),
    "clamp_one_sided": lambda x: x.clamp(min=-0.2).clamp(max=0.5),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, beta=2.0),
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "glu": lambda x: torch.cat([F.glu(x), F.glu(x, 1)], 1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_rows": lambda x: x.softmax(0),
    "log_softmax": lambda x: F.log_softmax(x, dim=1),
    "arithmetic": lambda x: (2 * x + 1) / 3 - x * x + (1 - x) - 0.5,
    "rsub_alpha": lambda x: torch.rsub(x, x * x, alpha=2) + torch.add(x, 2, alpha=3) + torch.sub(x, x * x, alpha=0.5),
    "divide": lambda x: x / (x * x + 1) + 1 / (x * x + 2),
    "powers": lambda x: x**2 + x**3 + (x * x + 1) ** 0.5 + (x.abs() + 1) ** -1.5 + 2**x,
    "roots": lambda x: (x * x + 1).rsqrt() + (x * x + 1).sqrt().log() + (x * x).log1p() + x.expm1() + x.exp(),
    "extrema": lambda x: torch.maximum(x, x * x) + torch.minimum(x, -x),
    "mean": lambda x: x - x.mean() + x.mean(1, keepdim=True) + x.sum(0) + x.mean(dim=(0, 1)),
    "variance": lambda x: x / (x.var(1, keepdim=True) + 1) + x.std(0) + x.var() + x.var(1, correction=0)[:, None],
    "norm": lambda x: F.normalize(x, dim=1) + x.norm() + x.norm(p=1, dim=1, keepdim=True),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x)[:, :1] + x,
    "matmul": lambda x: (x @ x.T @ x) / 10 + torch.matmul(x, x[0])[:, None] + torch.dot(x[0], x[1]),
    "bmm": lambda x: torch.bmm(x.view(-1, 2, 3), x.view(-1, 3, 2)).flatten(1).repeat(1, 2)[:, :6],
    "baddbmm": lambda x: torch.baddbmm(x.view(-1, 2, 3), x.view(-1, 2, 3), x.new_ones(x.shape[0], 3, 3)).flatten(1),
    "addmm": lambda x: torch.addmm(x[0], x, x.T @ x, beta=0.5, alpha=2),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3) + torch.addcmul(x, x, x, value=0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5))
