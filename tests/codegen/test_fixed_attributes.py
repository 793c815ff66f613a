"""Attributes that are constants of a plan: whatever changes them is told of, once; nothing else is."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from codegen.fixed_attributes import FixedAttributes


def module() -> nn.Module:
    made = nn.BatchNorm1d(3)
    made.register_buffer("factor", torch.tensor([1.0, float("nan")]))
    made.register_buffer("short", torch.ones(2, dtype=torch.bfloat16))
    made.register_buffer("mask", torch.tensor([True, False]), persistent=False)
    made.register_buffer("edges", torch.eye(3).to_sparse())
    made.plain, made.turned = torch.arange(3), torch.tensor([1 + 2j]).conj()
    made.short_floats = torch.ones(2).to(torch.float8_e4m3fn)
    made.rate, made.way, made.drop = 0.5, "up", nn.Dropout(0.25)
    return made


SHARED = {"running_mean", "running_var", "num_batches_tracked"}


def looked_at(of: nn.Module) -> FixedAttributes:
    captured = {"factor": of.factor.numpy().copy(), "short": of.short.float().numpy()}
    return FixedAttributes(of, SHARED, captured)


def look(fixed: FixedAttributes, of: nn.Module) -> None:
    fixed.look(dict(of.named_buffers()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("factor", lambda m: m.factor.add_(1)),
        ("short", lambda m: setattr(m, "short", torch.zeros(2, dtype=torch.bfloat16))),
        ("mask", lambda m: m.mask.logical_not_()),
        ("edges", lambda m: setattr(m, "edges", m.edges * 2)),
        ("plain", lambda m: m.plain.mul_(2)),
        ("plain", lambda m: setattr(m, "plain", None)),
        ("turned", lambda m: setattr(m, "turned", m.turned.conj())),
        ("rate", lambda m: setattr(m, "rate", m.rate / 2)),
        ("way", lambda m: setattr(m, "way", None)),
        ("the hooks of drop", lambda m: m.drop.register_forward_hook(lambda *_: None)),
        ("the hooks of the module", lambda m: m.register_full_backward_hook(lambda *_: None)),
        ("drop.p", lambda m: setattr(m.drop, "p", m.drop.p / 2)),
        ("factor", lambda m: m.load_state_dict({**m.state_dict(), "factor": torch.tensor([2.0, 2.0])})),
    ],
)
def test_changes_are_told_of_once(name: str, change: Callable[[nn.Module], object]) -> None:
    of = module()
    fixed = looked_at(of)
    change(of)
    with pytest.warns(RuntimeWarning, match=f"SP1014: {name} changed") as told:
        look(fixed, of)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change(of)
        look(fixed, of)


def test_what_stays_the_same_is_not_told_of() -> None:
    of = module()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = looked_at(of)
        of(torch.randn(4, 3))
        of.load_state_dict(of.state_dict())
        of.mask, of.plain, of.edges = of.mask.clone(), of.plain.clone(), of.edges.clone()
        of.rate, of.new = 0.25 * 2, 1
        of.eval()
        look(fixed, of)


def test_contents_that_are_not_those_of_the_capture() -> None:
    of = module()
    with pytest.warns(RuntimeWarning, match="SP1014: factor changed"):
        FixedAttributes(of, SHARED, {"factor": torch.zeros(2).numpy()})
