"""Lists as indices, which PyTorch takes for tuples: its numbers and gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.frontends.torch_agreement import agree


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(5, 6), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).square().sum()


def written(y: Tensor) -> Tensor:
    z = y.clone()
    z[[slice(0, 2), slice(1, 3)]] = y[[slice(2, 4), slice(0, 2)]]
    z[[[3, 2], [4, 5]]] = 0.5
    return z


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "slices": lambda y: y[[slice(0, 2), slice(1, 3)]],
    "lists": lambda y: y[[[0, 1], [1, 2]]],
    "arrays": lambda y: y[[np.array([0, 1]), np.array([1, 2])]],
    "tensors": lambda y: y[[torch.tensor([0, 1]), slice(0, 2)]],
    "a new axis": lambda y: y[[None, 1]] * y[[Ellipsis, 0]].sum(),
    "one slice": lambda y: y[[slice(1, 3)]],
    "numbers": lambda y: y[[0, 1]] + y[[True, False, True, False]],
    "of constants": lambda y: y * torch.arange(36.0).view(6, 6)[[[0, 1, 2, 3, 4, 5], [1, 0, 5, 2, 3, 4]]].to(y.dtype),
    "written": written,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_as_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(2)
    agree(Net(function), torch.randn(4, 5), loss=None)
