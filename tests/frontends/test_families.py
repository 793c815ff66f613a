"""Families of networks, captured, compute what PyTorch computes: loss, every gradient, prediction, in float64."""

import pytest
import torch
from torch import nn

from tests.frontends.torch_agreement import agree
from tests.models import FAMILIES


def without_dropout(module: nn.Module) -> None:
    """Random masks differ: the built executors' tests draw them."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.LSTM):
            part.dropout = 0.0
        elif hasattr(part, "p") and isinstance(part.p, float):
            part.p = 0.0


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    torch.manual_seed(0)
    module, inputs, options = FAMILIES[name]()
    without_dropout(module)
    agree(module, inputs, options.get("loss", "cross_entropy"), options.get("labels"))
