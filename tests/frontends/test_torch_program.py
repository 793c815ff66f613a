"""Modules that cannot be captured say why."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module


class Forward(nn.Module):
    def __init__(self, forward: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.body = nn.Linear(5, 3), forward

    def forward(self, x: Tensor) -> Any:
        return self.body(self.fc, x)


ERRORS: dict[str, tuple[str, Callable[[nn.Linear, Tensor], Any], str]] = {
    "op": ("SP1001", lambda fc, x: fc(x).cumsum(1), "cumsum"),
    "line": ("SP1001", lambda fc, x: fc(x).cumsum(1), "(tests/frontends/test_torch_program.py:"),
    "detach": ("SP1001", lambda fc, x: fc(fc(x).detach()[:, :1].expand(-1, 5)), "detach"),
    "no_grad": ("SP1001", lambda fc, x: fc(x) + no_grad(lambda: fc(x) * 2), "no_grad"),
    "random": ("SP1001", lambda fc, x: fc(x) + torch.randn(3), "randn"),
    "sorted": ("SP1001", lambda fc, x: fc(x).sort(1)[0], "sort"),
    "argument": ("SP1001", lambda fc, x: F.avg_pool2d(fc(x)[None, None], 2, divisor_override=3), "divisor_override"),
    "tuple": ("SP1015", lambda fc, x: (fc(x), x), "2 values"),
    "nothing": ("SP1015", lambda fc, x: None, "no"),
    "selection": ("SP1014", lambda fc, x: fc(x)[x[:, 0] > 0], "dynamic shape"),
    "branch": ("SP1014", lambda fc, x: fc(x) if x.sum() > 0 else fc(2 * x), "data"),
    "broken": ("SP1013", lambda fc, x: fc(x.T), "reduction dim"),
    "half": ("SP1001", lambda fc, x: fc(x).half(), "float16"),
}


def no_grad(function: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return function()


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    code, forward, text = ERRORS[name]
    with pytest.raises(UserError, match=code) as caught:
        capture_module(Forward(forward), torch.randn(4, 5))
    message = str(caught.value)
    assert text in message
    assert not any(place in message for place in (os.getcwd(), sys.prefix, "site-packages"))


def test_unsupported_ops_name_node_op_line_and_nearest() -> None:
    with pytest.raises(UserError) as caught:
        capture_module(Forward(lambda fc, x: fc(x).cumsum(1)), torch.randn(4, 5))
    assert caught.value.code == "SP1001"
    assert "'cumsum'" in caught.value.problem and "aten.cumsum" in caught.value.problem
    assert "nearest supported op is aten." in caught.value.fix
