"""What a module is called with beside tensors, as a capture tells it."""

from enum import Enum
from inspect import signature
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

from planner.capturing import capture
from planner.frontends.torch_arguments import by_parameter, constants, leaves


class Way(Enum):
    SUM = 1


class Several(nn.Module):
    def forward(self, x: torch.Tensor, *rest: Any, **further: Any) -> torch.Tensor:
        return x.relu()


def test_by_the_names_of_parameters() -> None:
    x = torch.zeros(1)
    found = by_parameter(signature(Several().forward), (x, 2, [x, None]), {"more": {"way": Way.SUM, "far": (inf, 0.5)}})
    assert [".".join(path) for path, _ in leaves(torch, found)] == [
        *("x", "rest.0", "rest.1.0", "rest.1.1", "more.way", "more.far.0", "more.far.1")
    ]
    told = constants(torch, found)
    assert told.pop("more.way") == {"text": "<Way.SUM: 1>"} and told.pop("more.far.0") == {"text": "inf"}
    assert told == {"rest.0": 2, "rest.1.1": None, "more.far.1": 0.5}
    with pytest.raises(TypeError, match="too many"):
        by_parameter(signature(nn.ReLU().forward), (x, x), {})


def test_only_where_the_loss_is_the_callers() -> None:
    """Others are called by executors alone, which take tensors."""
    module = nn.Sequential(nn.Linear(3, 2))
    for loss, told in (("cross_entropy", None), ("caller", {})):
        graph = capture(module, torch.randn(4, 3), loss=loss).graph
        assert [p.arguments for p in graph.programs] == [told, told]
