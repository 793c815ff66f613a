"""What a planned module takes and returns: its inputs by name and in structures, its results as the module's."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from codegen.autograd import Planned
from planner.capturing import capture
from planner.errors import UserError
from tests.codegen.plans import make

SCRIPT = """
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Latent(NamedTuple):
    sample: Tensor
    mean: Tensor
    wide: Tensor
    name: str


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.aux = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        y = torch.tanh(self.body(x))
        latent = Latent(y.exp(), y, y > 0, "latent")
        return {"latent": latent, "aux": [self.aux(y), None]} if self.training else latent


if __name__ == "__main__":
    from codegen.autograd import Planned
    from codegen.load import executor_class

    module, plain, x = Encoder(), Encoder(), torch.randn(3, 6)
    with executor_class(sys.argv[1])(pin=False) as executor:
        planned = Planned(module, executor)
        gradients = []
        for call in (planned, plain):
            found = call(x)
            latent = found["latent"]
            assert type(found) is dict and type(latent) is Latent and latent.name == "latent"
            assert latent.wide.dtype is torch.bool and found["aux"][1] is None
            (latent.mean[latent.wide].sum() + latent.sample.square().sum() + found["aux"][0].sum()).backward()
            gradients.append({n: p.grad for n, p in call.named_parameters()})
        for name, gradient in gradients[1].items():
            torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-4, atol=1e-5)
        evaluated, expected = planned.eval()(x), plain.eval()(x)
        assert type(evaluated) is Latent and evaluated.name == "latent"
        torch.testing.assert_close(evaluated[:3], expected[:3])
    print("the same")
"""
"""A user's file with a module that returns something else in each mode; as a script it trains."""


def test_results_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "encoder_script.py"
    file.write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    captured = capture(importlib.import_module("encoder_script").Encoder(), torch.randn(3, 6), loss="caller")
    make(captured.graph, tmp_path / "encoder")
    captured.write_weights(tmp_path / "encoder" / "weights.npz")
    ran = subprocess.run([sys.executable, file, tmp_path / "encoder"], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "the same\n", ran.stderr


class Recurrent(nn.Module):
    """Inputs of several tensors, and labels of a loss of its own, which evaluation mode has none of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out = nn.LSTMCell(6, 5), nn.Linear(5, 3)

    def forward(self, X: torch.Tensor, State: dict[str, Any], labels: torch.Tensor | None = None) -> Any:
        h, c = self.cell(X, (State["h"], State["More"][0]))
        logits = self.out(h)
        if not self.training:
            return logits, {"h": h, "More": [c]}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "state": {"h": h, "More": [c]}}


def test_inputs_by_name_and_those_of_training_alone(tmp_path: Path) -> None:
    def state() -> dict[str, Any]:
        return {"h": torch.randn(4, 5), "More": [torch.randn(4, 5)]}

    labels = torch.tensor([2, 0, 1, 2])
    captured = capture(Recurrent(), (torch.randn(4, 6), state(), labels), loss="caller")
    made = make(captured.graph, tmp_path / "recurrent")
    captured.write_weights(tmp_path / "recurrent" / "weights.npz")
    with made(pin=False) as executor:
        planned, plain = Planned(Recurrent(), executor), Recurrent()
        for step in range(3):
            x, given = torch.randn(4, 6), state()
            losses = []
            for call in (planned, plain):
                found = call(x, labels=labels, State=given) if step else call(X=x, State=given, labels=labels)
                found = call(x, found["state"], labels) if step == 2 else found
                (found["loss"] + found["state"]["More"][0].square().mean()).backward()
                losses.append(found["loss"])
            torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(planned.module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        with pytest.raises(UserError, match=r"SP1601: the module takes the inputs x, state_h, state_more_0, labels"):
            planned(x, given)
        planned.eval()
        expected = plain.eval()(x, given)
        for evaluated in (planned(x, given), planned(x, given, labels), planned(State=given, X=x, labels=None)):
            torch.testing.assert_close(evaluated, expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(UserError, match=r"SP1601: .* not 1 \(0\)\n.*needs a plan of its own"):
            planned(x)
        with pytest.raises(UserError, match=r"SP1601: .* not 2 \(0, 1\)"):
            planned(x, None, torch.randn(4, 5))
        with pytest.raises(UserError, match=r"SP1601: .* too many positional arguments"):
            planned(x, None, *torch.randn(2, 4, 5))
