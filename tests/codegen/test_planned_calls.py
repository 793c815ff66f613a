"""What a planned module takes and returns: its inputs by name and in structures, its results as the module's."""

import copy
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
        share = (y > 0).float().mean().item()
        return {"latent": latent, "aux": [self.aux(y), None], "share": share} if self.training else latent


if __name__ == "__main__":
    from codegen.autograd import Planned
    from codegen.load import executor_class

    module, plain, x = Encoder(), Encoder(), torch.randn(3, 6)
    with executor_class(sys.argv[1])(pin=False) as executor:
        planned = Planned(module, executor)
        gradients, shares = [], []
        for call in (planned, plain):
            found = call(x)
            latent = found["latent"]
            assert type(found) is dict and type(latent) is Latent and latent.name == "latent"
            assert latent.wide.dtype is torch.bool and found["aux"][1] is None
            (latent.mean[latent.wide].sum() + latent.sample.square().sum() + found["aux"][0].sum()).backward()
            gradients.append({n: p.grad for n, p in call.named_parameters()})
            shares.append(found["share"])
        assert type(shares[0]) is float and shares[0] == shares[1]
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
        with pytest.raises(UserError, match=r"SP1601: .* given 1 in order\n.*capture it with evaluation="):
            planned(x)
        with pytest.raises(UserError, match=r"SP1601: .* given 2 in order"):
            planned(x, None, torch.randn(4, 5))
        with pytest.raises(UserError, match=r"SP1601: .* too many positional arguments"):
            planned(x, None, *torch.randn(2, 4, 5))


class OwnLoss(nn.Module):
    """As transformers' models: a loss where there are labels, switches, statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, *, use_cache: bool = True) -> Any:
        found = {"logits": self.out(self.norm(x))}
        if labels is not None:
            found = {"loss": nn.functional.cross_entropy(found["logits"], labels), **found}
        return {**found, "cache": found["logits"].exp()} if use_cache else found


def test_trained_saved_and_resumed_as_a_framework_does(tmp_path: Path) -> None:
    """Accumulated and clipped gradients, a scheduler, evaluation without labels in between; on from a checkpoint of the
    module in another executor, with the same bits."""
    torch.manual_seed(1)
    batches = [{"x": torch.randn(4, 6), "labels": torch.randint(0, 3, (4,))} for _ in range(8)]
    alone = {"x": batches[0]["x"]}
    captured = capture(OwnLoss(), {**batches[0], "use_cache": False}, loss="caller", evaluation=alone)
    made = make(captured.graph, tmp_path / "own")
    captured.write_weights(tmp_path / "own" / "weights.npz")

    def train(model: Any, rounds: list[int], state: Any = None) -> tuple[list[float], Any]:
        optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
        if state is not None:
            for part, held in zip((model, optimizer, scheduler), state, strict=True):
                part.load_state_dict(held)
        found = []
        for number in rounds:
            for batch in batches[2 * number : 2 * number + 2]:
                loss = model(**batch, use_cache=False)["loss"] / 2
                loss.backward()
                found.append(loss.item())
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            model.eval()
            evaluated = model(**alone)
            found.append((evaluated["cache"] + evaluated["logits"]).sum().item())
            model.train()
        return found, copy.deepcopy([part.state_dict() for part in (model, optimizer, scheduler)])

    expected, expected_state = train(OwnLoss(), [0, 1, 2, 3])
    with made(pin=False) as executor, made(pin=False) as other:
        planned = Planned(OwnLoss(), executor)
        first, held = train(planned, [0, 1])
        torch.save(held, tmp_path / "checkpoint.pt")
        on, state = train(planned, [2, 3], held)
        resumed = train(Planned(OwnLoss(), other), [2, 3], torch.load(tmp_path / "checkpoint.pt"))
        assert on == resumed[0] and all(torch.equal(x, resumed[1][0][n]) for n, x in state[0].items())
    assert [*first, *on] == pytest.approx(expected, rel=1e-4)
    assert state[1]["param_groups"] == expected_state[1]["param_groups"] and list(state[0]) == list(expected_state[0])
    torch.testing.assert_close(state[0], expected_state[0], rtol=1e-3, atol=1e-5)
