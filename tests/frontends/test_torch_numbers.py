"""What forward does with Python's own numbers is told, and where it would draw the same again and again."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import CaptureOptions, capture_module


class Numbers(nn.Module):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.fc, self.source = nn.Linear(5, 3), source
        self.calls, self.rate, self.scale, self.is_new = 0, float("nan"), torch.tensor(2.0), True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        if self.source == "random":
            y = y * random.random()
        if self.source == "numpy.random":
            y = y + float(np.random.standard_normal())
        if self.source == "calls":
            self.calls += 1
            y = y * 0.9**self.calls
        if self.source == "flag" and self.is_new:
            self.kept, self.is_new = y.detach(), False
            y = y * self.kept
        if self.source == "torch":
            y = y * torch.rand(())
        if self.source == "seed":
            torch.manual_seed(0)
            y = y * torch.rand(())
        if self.source == "generator":
            y = y * torch.rand((), generator=torch.Generator().manual_seed(0))
        return y


def capture(source: str) -> None:
    module = Numbers(source)
    capture_module(module, (torch.randn(4, 5),), CaptureOptions(loss="mse"))


@pytest.mark.parametrize(("source", "told"), [("random", "from random:"), ("numpy.random", "from numpy.random:")])
def test_draws(source: str, told: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"SP1014[\s\S]*draws numbers {told}[\s\S]*torch\.rand"):
        capture(source)


@pytest.mark.parametrize(
    ("source", "told"), [("seed", "seeds PyTorch's generator"), ("generator", "draws from a generator of its own")]
)
def test_seeds(source: str, told: str) -> None:
    """The caller's own draws go on as if nothing had been captured."""
    torch.manual_seed(5)
    module = Numbers(source)
    state = torch.get_rng_state()
    inputs = torch.zeros(4, 5)
    with pytest.warns(RuntimeWarning, match=rf"SP1014[\s\S]*{told}") as found:
        capture_module(module, (inputs,), CaptureOptions(loss="mse"))
    assert len({str(w.message) for w in found}) == 1, "in both modes"
    assert torch.equal(torch.get_rng_state(), state)


def test_counters() -> None:
    with pytest.warns(RuntimeWarning, match=r"SP1014[\s\S]*its attribute 'calls'[\s\S]*buffer"):
        capture("calls")


def test_flags() -> None:
    with pytest.warns(RuntimeWarning, match=r"SP1014[\s\S]*flag in its attribute 'is_new'[\s\S]*call the module once"):
        capture("flag")


@pytest.mark.parametrize("source", ["nothing", "torch"])
def test_nothing_to_tell(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(source)


def test_forward_of_an_object_stays() -> None:
    module = Numbers("nothing")
    module.forward = lambda x: module.fc(x) * 2  # type: ignore[method-assign]
    own = module.forward
    graph, _ = capture_module(module, (torch.randn(4, 5),), CaptureOptions(loss="mse"))
    assert module.forward is own
    assert "scale" in {node.op for node in graph.program["predict"].nodes}
