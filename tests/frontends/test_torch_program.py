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
from planner.frontends.coverage import coverage_text
from planner.frontends.torch_export import capture_module, explain_module
from planner.frontends.torch_lowering import CaptureOptions


class Forward(nn.Module):
    def __init__(self, forward: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.body = nn.Linear(5, 3), forward

    def forward(self, x: Tensor) -> Any:
        return self.body(self.fc, x)


ERRORS: dict[str, tuple[str, Callable[[nn.Linear, Tensor], Any], str]] = {
    "op": ("SP1001", lambda fc, x: fc(x).erfinv(), "erfinv"),
    "line": ("SP1001", lambda fc, x: fc(x).erfinv(), "(tests/frontends/test_torch_program.py:"),
    "random": ("SP1001", lambda fc, x: torch.poisson(fc(x).exp()), "draws random numbers (aten.poisson) (tests/f"),
    "unused": ("SP1001", lambda fc, x: unpooled(fc(x)), "what aten.adaptive_max_pool2d computes beside"),
    "one_number": ("SP1016", lambda fc, x: fc(x).sum(), "one number"),
    "argument": ("SP1001", lambda fc, x: F.avg_pool2d(fc(x)[None], 2, None, 0, True, True, 3), "divisor_override"),
    "tuple": ("SP1015", lambda fc, x: (fc(x), x), "2 tensors"),
    "nothing": ("SP1015", lambda fc, x: None, "no"),
    "selection": (
        "SP1014",
        lambda fc, x: fc(x)[x[:, 0] > 0],
        "returns them (tests/frontends/test_torch_program.py:",
    ),
    "branch": ("SP1014", lambda fc, x: fc(x) if x.sum() > 0 else fc(2 * x), "data"),
    "loop": ("SP1014", lambda fc, x: halved(fc(x)), "data (tests/frontends/test_torch_program.py:"),
    "size": (
        "SP1014",
        lambda fc, x: sum(fc(x) for _ in range(int(x.sum()))),
        "a range is made of numbers of data (tests/frontends/test_torch_program.py:",
    ),
    "cond": ("SP1014", lambda fc, x: torch.cond(x.sum() > 0, fc, lambda y: fc(y) * 2, (x,)), "torch.cond"),
    "complex": ("SP1017", lambda fc, x: torch.fft.fft(fc(x)).sigmoid().abs(), "complex numbers (tests/frontends"),
    "hook": ("SP1024", lambda fc, x: hooked(fc(x)), "(tests/frontends/test_torch_program.py:"),
    "parameter": ("SP1020", lambda fc, x: normed(fc)(x), "parameter 'fc.weight'"),
    "input": ("SP1020", lambda fc, x: fc(x.add_(1)), "'x'"),
    "broken": ("SP1013", lambda fc, x: fc(x.T), "reduction dim"),
    "no such key": ("SP1013", lambda fc, x: {"y": fc(x)}["z"], "KeyError: 'z'"),
    "half": ("SP1001", lambda fc, x: fc(x).half(), "float16 (tests/f"),
    "autocast": ("SP1001", lambda fc, x: lower(fc, x), "--precision bf16"),
}


def hooked(y: Tensor) -> Tensor:
    y.register_hook(lambda gradient: 2 * gradient)
    return y


def lower(fc: nn.Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return fc(x)


def halved(y: Tensor) -> Tensor:
    while y.abs().max() > 1:
        y = y / 2
    return y


def normed(fc: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        fc.weight.div_(fc.weight.norm())
    return fc


def unpooled(y: Tensor) -> Tensor:
    values, places = F.adaptive_max_pool2d(y[None], 2, return_indices=True)
    return F.max_unpool2d(values, places, 2)


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    code, forward, text = ERRORS[name]
    with pytest.raises(UserError, match=code) as caught:
        capture_module(Forward(forward), torch.randn(4, 5))
    message = str(caught.value)
    assert text in message
    assert not any(place in message for place in (os.getcwd(), sys.prefix, "site-packages"))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_to_use_instead() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    for inputs in (packed, (packed,), {"x": [packed]}):
        with pytest.raises(UserError, match=r"(?s)SP1013: a packed sequence.*pack them in forward"):
            capture_module(nn.LSTM(5, 4), inputs)
    with pytest.raises(UserError, match=r"(?s)SP1013.*pass the module itself"):
        capture_module(torch.jit.script(nn.Linear(5, 3)), torch.randn(4, 5))


class Cumulative(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        self.momentum = None
        self.num_batches_tracked.copy_(x.sum().long())
        return super().forward(x)


def test_numbers_that_a_layer_asks_for_are_refused_at_the_line_that_calls_it() -> None:
    with pytest.raises(
        UserError, match=r"SP1014: float\(\) is made of numbers of data \(tests/.*test_torch_program.py:"
    ):
        capture_module(nn.Sequential(nn.Linear(5, 3), Cumulative(3)), torch.randn(4, 5))


def test_statistics_of_all_batches_name_their_layer() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None))
    with pytest.raises(UserError, match=r"(?s)SP1020.*module '1' has momentum=None"):
        capture_module(module, (torch.randn(4, 5),))
    module[1].eval()  # as they are
    capture_module(module, (torch.randn(4, 5),))


def test_hooks_on_gradients_are_refused() -> None:
    module = nn.Linear(5, 3)
    module.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(UserError, match=r"SP1024.*'weight'"):
        capture_module(module, torch.randn(4, 5))
    module = nn.Linear(5, 3)
    module.register_full_backward_hook(lambda *given: None)
    with pytest.raises(UserError, match=r"SP1024.*backward hook"):
        capture_module(module, torch.randn(4, 5))


def test_every_unsupported_op_is_counted_and_listed() -> None:
    def forward(fc: nn.Linear, x: Tensor) -> Tensor:
        y = fc(x).erfinv().relu()
        return y.i0() * y.erfinv()

    with pytest.raises(UserError, match=r"aten.erfinv', and 2 more operators.*\n.*--explain"):
        capture_module(Forward(forward), torch.randn(4, 5))
    uses = explain_module(Forward(forward), torch.randn(4, 5))
    missing = [u for u in uses if u.kind == "unsupported"]
    assert [u.operator for u in missing] == ["aten.erfinv", "aten.i0", "aten.erfinv"]
    assert all(u.where.startswith("tests/frontends/test_torch_program.py:") and "nearest" in u.why for u in missing)
    text = coverage_text(uses)
    assert text.splitlines()[1].split()[:3] == ["unsupported", "1", "aten.erfinv"]
    assert text.splitlines()[-1] == "6 operators: 3 unsupported, 1 library, 2 native"


def test_what_becomes_of_supported_ops() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    found = {u.operator: u for u in explain_module(module, torch.randn(2, 3, 5, 5))}
    kinds = {name.removeprefix("aten."): use.kind for name, use in found.items()}
    assert kinds["conv2d"] == kinds["linear"] == "library" and "oneDNN" in found["aten.conv2d"].why
    assert kinds["relu"] == "folded" and "merged" in found["aten.relu"].why


def test_unsupported_ops_name_node_op_line_and_nearest() -> None:
    with pytest.raises(UserError) as caught:
        capture_module(Forward(lambda fc, x: fc(x).erfinv()), torch.randn(4, 5))
    assert caught.value.code == "SP1001"
    assert "'erfinv'" in caught.value.problem and "aten.erfinv" in caught.value.problem
    assert "nearest supported op is aten." in caught.value.fix
    options = CaptureOptions(loss=lambda y, labels: (y * labels).erfinv().mean(), labels=torch.ones(1))
    with pytest.raises(UserError, match=r"SP1001: node 'erfinv' \(the loss\)"):  # not a line of stepplan's
        capture_module(nn.Linear(5, 3), torch.randn(4, 5), options)
