"""Functions that return what they are given, under torch.no_grad(): the tensor keeps its gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.torch_agreement import Function, agree

SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x.float() if x.dtype is torch.float32 else x.double(),
    "to": lambda x: x.to("cpu").type_as(x).cpu(),
    "flatten": lambda x: x.flatten(1),
    "real": lambda x: +x.real,
    "at least": lambda x: torch.atleast_2d(torch.as_tensor(x)),
}


def scaled(same: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = same(x).abs().mean()
        return x / scale + same(x)

    return function


@pytest.mark.parametrize("name", SAME)
def test_who_reads_the_tensor_later_has_its_gradient(name: str) -> None:
    agree(Function(scaled(SAME[name])), torch.randn(4, 5), "mse")


def test_what_is_written_to_meanwhile_is_what_was_written() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        return y.mul_(2).flatten(1) + y.to(x.dtype).sub_(1) * y.flatten(1)

    agree(Function(function), torch.randn(4, 5), "mse")
