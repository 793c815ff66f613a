"""What a planned module is called with beside tensors: what it was captured with, or a clear error. Without an
executor: these are questions to graph.json and the module."""

import json
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

from codegen.planned_arguments import PlannedArguments
from planner.capturing import capture
from planner.errors import UserError
from planner.graph.model import Program
from planner.graph.text import graph_text, parse_graph


class Way(Enum):
    SUM = 1
    MEAN = 2


class Model(nn.Module):
    """As transformers' models are called: switches, sizes, nested options, and keywords that nobody lists."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(
        self,
        x: torch.Tensor,
        return_dict: bool = False,
        labels: torch.Tensor | None = None,
        *,
        use_cache: bool | None = None,
        sizes: tuple[int, ...] = (1, 2),
        options: dict[str, Any] | None = None,
        **further: Any,
    ) -> Any:
        y = self.out(x) * (options["scale"] if options else 1.0)
        return {"loss": nn.functional.cross_entropy(y, labels), "y": y} if labels is not None and return_dict else y


X, LABELS = torch.randn(2, 4), torch.tensor([1, 2])
OPTIONS: dict[str, Any] = {"scale": 2.0, "more": [None, inf]}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def program(model: Model, **arguments: Any) -> Program:
    graph = capture(model, {"x": X, **arguments}, loss="caller").graph
    return parse_graph(json.loads(graph_text(graph))).program["train_step"]


@pytest.fixture(scope="module")
def given(model: Model) -> PlannedArguments:
    told = program(model, return_dict=True, labels=LABELS, use_cache=False, options=OPTIONS, way=Way.SUM)
    assert told.arguments == {
        **{"return_dict": True, "use_cache": False, "options.scale": 2.0, "options.more.0": None},
        **{"options.more.1": {"text": "inf"}, "way": {"text": "<Way.SUM: 1>"}},
    }
    return PlannedArguments(model, told, ("x", "labels"), ("x", "labels"))


SAME: list[Callable[..., Any]] = [
    lambda call: call(X, labels=LABELS),
    lambda call: call(X, True, LABELS),
    lambda call: call(x=X, labels=LABELS, return_dict=True, use_cache=False, way=Way.SUM),
    lambda call: call(X, labels=LABELS, options={"scale": 2.0, "more": [None, inf]}, sizes=(1, 2), mask=None),
]


@pytest.mark.parametrize("use", SAME)
def test_the_same_as_captured(given: PlannedArguments, use: Any) -> None:
    found = use(lambda *inputs, **named: given.tensors(inputs, named))
    assert list(found) == ["x", "labels"] and found["x"] is X and found["labels"] is LABELS


OTHERS: list[tuple[Callable[..., Any], str]] = [
    (lambda call: call(X, False, LABELS), "argument return_dict is False, in the plan it is True"),
    (lambda call: call(X, 1, LABELS), "argument return_dict is 1, in the plan it is True"),
    (lambda call: call(X, None, LABELS), "argument return_dict is None, in the plan it is True"),
    (lambda call: call(X, labels=LABELS, use_cache=True), "argument use_cache is True, in the plan it is False"),
    (
        lambda call: call(X, labels=LABELS, way=Way.MEAN),
        "argument way is <Way.MEAN: 2>, in the plan it is <Way.SUM: 1>",
    ),
    (lambda call: call(X, labels=LABELS, sizes=(1, 3)), r"argument sizes\.1 is 3, in the plan it is 2"),
    (
        lambda call: call(X, labels=LABELS, sizes=(1, 2, 3)),
        r"argument sizes\.2 is 3, the module was captured without it",
    ),
    (lambda call: call(X, labels=LABELS, options={"scale": 2.5}), r"argument options\.scale is 2\.5, in the plan"),
    (lambda call: call(X, labels=LABELS, options={"scale": 2.0}), r"argument options\.more\.1 is missing"),
    (
        lambda call: call(X, labels=LABELS, options=None),
        r"argument options\.more\.1 is missing, in the plan it is inf",
    ),
    (lambda call: call(X, labels=LABELS, hidden=True), "argument hidden is True, the module was captured without it"),
    (lambda call: call(X, labels=LABELS, count=X), "argument count is a tensor, the module was captured without it"),
    (lambda call: call(X, labels=3), "input labels is of type int, in the plan it is a tensor"),
    (lambda call: call(X.numpy(), labels=LABELS), "input x is of type ndarray, in the plan it is a tensor"),
    (lambda call: call(X, True, LABELS, "more"), "the module takes other arguments: too many positional arguments"),
    (lambda call: call(X, True), "the module takes the inputs x, labels, and was given 1 in order"),
]


@pytest.mark.parametrize(("use", "told"), OTHERS)
def test_others_are_told(given: PlannedArguments, use: Any, told: str) -> None:
    with pytest.raises(UserError, match=f"SP1601: {told}"):
        use(lambda *inputs, **named: given.tensors(inputs, named))


def test_defaults_are_what_the_module_was_captured_with(model: Model) -> None:
    given = PlannedArguments(model, program(model), ("x",), ("x",))
    found = given.tensors((X,), {"return_dict": False, "labels": None, "use_cache": None, "sizes": (1, 2)})
    assert list(found) == ["x"]
    with pytest.raises(UserError, match="SP1601: argument use_cache is True, in the plan it is None"):
        given.tensors((X,), {"use_cache": True})
    with pytest.raises(UserError, match=r"SP1601: argument options\.scale is 2\.0, the module was captured without it"):
        given.tensors((X,), {"options": {"scale": 2.0}})


def test_plans_that_do_not_tell(model: Model) -> None:
    """Those that were captured before plans did: nothing is taken for the same."""
    old = program(model, return_dict=False).model_copy(update={"arguments": None})
    given = PlannedArguments(model, old, ("x",), ("x",))
    assert list(given.tensors((X,), {})) == ["x"]
    with pytest.raises(UserError, match="SP1601: argument return_dict is no tensor, of which this plan does not tell"):
        given.tensors((X, False), {})


def test_evaluation_mode_with_others(model: Model) -> None:
    """Without labels, and with a switch of its own; not what training has is told, but what this mode has."""
    graph = capture(
        model,
        {"x": X, "labels": LABELS, "return_dict": True},
        loss="caller",
        evaluation={"x": X, "use_cache": True},
    ).graph
    predict = graph.program["predict"]
    assert predict.inputs == ("x",) and predict.arguments == {"labels": None, "use_cache": True}
    given = PlannedArguments(model, predict, ("x", "labels"), predict.inputs)
    for named in ({}, {"use_cache": True, "labels": None, "return_dict": False}):
        assert list(given.tensors((X,), named)) == ["x"]
    for named, told in (
        ({"labels": LABELS}, "labels is a tensor, in the plan of evaluation mode it is None"),
        ({"use_cache": False}, "use_cache is False, in the plan of evaluation mode it is True"),
        ({"return_dict": True}, "return_dict is True, in the plan of evaluation mode it is False"),
    ):
        with pytest.raises(UserError, match=f"SP1601: argument {told}") as raised:
            given.tensors((X,), named)
        assert "capture it with evaluation=" in raised.value.fix
