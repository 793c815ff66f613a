"""Optimizers by name and from PyTorch: the hyper-parameters that the graph's updates get."""

from typing import Any

import pytest
import torch

from planner.errors import UserError
from planner.frontends.optimizers import optimizer_from
from planner.graph.optimizer import Optimizer

WEIGHTS = [torch.nn.Parameter(torch.zeros(3))]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        (Optimizer(lr=0.3), Optimizer(lr=0.3)),
        ("adam", Optimizer(kind="adam", lr=1e-3)),
        (
            torch.optim.SGD(WEIGHTS, lr=0.2, momentum=0.9, weight_decay=1e-4, nesterov=True),
            Optimizer(lr=0.2, momentum=0.9, weight_decay=1e-4, nesterov=True),
        ),
        ("rmsprop", optimizer_from(torch.optim.RMSprop(WEIGHTS))),
        ("adagrad", optimizer_from(torch.optim.Adagrad(WEIGHTS))),
        (
            torch.optim.RMSprop(WEIGHTS, 2e-3, alpha=0.9, eps=1e-3, weight_decay=0.1, momentum=0.8, centered=True),
            Optimizer(
                **{"kind": "rmsprop", "lr": 2e-3, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.8},
                centered=True,
            ),
        ),
        (
            torch.optim.Adagrad(WEIGHTS, 2e-3, lr_decay=0.1, initial_accumulator_value=0.3),
            Optimizer(kind="adagrad", lr=2e-3, eps=1e-10, lr_decay=0.1, initial_accumulator_value=0.3),
        ),
        (
            torch.optim.Adagrad([{"params": WEIGHTS, "initial_accumulator_value": 0.3}], initial_accumulator_value=0.2),
            Optimizer(kind="adagrad", lr=1e-2, eps=1e-10, initial_accumulator_value=0.2),
        ),
        (
            torch.optim.AdamW(WEIGHTS, lr=2e-3, betas=(0.5, 0.99), eps=1e-6),
            Optimizer(kind="adamw", lr=2e-3, beta1=0.5, beta2=0.99, eps=1e-6, weight_decay=1e-2),
        ),
        (
            torch.optim.Adam(WEIGHTS, weight_decay=0.1, decoupled_weight_decay=True),
            Optimizer(kind="adamw", lr=1e-3, weight_decay=0.1),
        ),
    ],
)
def test_known(given: Any, wanted: Optimizer | None) -> None:
    assert optimizer_from(given) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lion", "'lion' is no optimizer"),
        (3, "int is no optimizer"),
        (torch.optim.Adadelta(WEIGHTS), "(?s)Adadelta is no optimizer.*loss='caller'"),
        (torch.optim.SGD(WEIGHTS, lr=0.1, maximize=True), "(?s)maximize.*negate the loss"),
        (torch.optim.AdamW([{"params": WEIGHTS}, {"params": [torch.nn.Parameter(torch.ones(2))],
         "decoupled_weight_decay": False}]), "some of its groups"),
        (torch.optim.SGD([{"params": WEIGHTS}, {"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1}], lr=0.1),
         "groups differ"),
    ],
)  # fmt: skip
def test_others_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        optimizer_from(given)
    assert raised.value.code == "SP1023"


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_state_is_told_of(kind: type[torch.optim.Optimizer]) -> None:
    """Adagrad's is there from the beginning; plain SGD has none."""
    weight = torch.nn.Parameter(torch.ones(2))
    plain, optimizer = torch.optim.SGD([weight], lr=0.1), kind([weight])
    optimizer_from(optimizer)
    weight.square().sum().backward()
    plain.step()
    optimizer.step()
    optimizer_from(plain)
    with pytest.warns(RuntimeWarning, match=r"SP1023: the optimizer has made steps"):
        optimizer_from(optimizer)


def test_dampening_of_nothing() -> None:
    assert optimizer_from(torch.optim.SGD(WEIGHTS, lr=0.1, dampening=0.5)) == optimizer_from(
        torch.optim.SGD(WEIGHTS, lr=0.1)
    )


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(UserError, match="SP1023"):
        Optimizer(nesterov=True)
    assert Optimizer(nesterov=True, momentum=0.9).nesterov


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lr", float("nan")), ("lr", -0.1), ("lr", "x"), ("momentum", -1), ("beta2", 1.0), ("kind", "lion"), ("rate", 1)],
)
def test_numbers_that_no_hyper_parameter_has(setting: str, value: Any) -> None:
    for given in ({setting: value}, {"groups": ({"parameters": ("w",), setting: value},)}):
        with pytest.raises(UserError, match=f"SP1023: .*{setting}"):
            Optimizer(**given)


def test_a_scheduler_of_the_momentum_is_refused() -> None:
    """A plan follows a rate that changes, but has the momentum as a constant."""
    optimizer = torch.optim.SGD(WEIGHTS, lr=0.1, momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.25, total_steps=9, cycle_momentum=False)
    assert optimizer_from(optimizer) == Optimizer(lr=optimizer.param_groups[0]["lr"], momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.25, total_steps=9)
    with pytest.raises(UserError, match=r"(?s)SP1023.*momentum.*cycle_momentum=False"):
        optimizer_from(optimizer)
