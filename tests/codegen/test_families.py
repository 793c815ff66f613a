"""Built executors of captured modules, one for every group of ops that only they use: loss, gradients, parameters and
statistics of three steps against PyTorch in float64."""

from pathlib import Path

import pytest
import torch

from codegen.branches import decisive_values
from codegen.truth import truth
from planner.capturing import capture
from planner.solve.options import PlanOptions
from tests.codegen.plans import make
from tests.models import FAMILIES

BUILT = ("bert_classifier", "gru_both", "mobilenet_v3_small", "unet_bilinear")
"""Masks; GRU cells in both directions; hard swish and dropout in place; interpolation."""


@pytest.mark.parametrize("name", BUILT)
def test_three_steps(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs, options = FAMILIES[name]()
    captured = capture(module, inputs, **options)
    folder = tmp_path / name
    keep = decisive_values(captured.graph)
    executor = make(captured.graph, folder, options=PlanOptions(policy="sequential", keep=keep))
    captured.write_weights(folder / "weights.npz")
    with executor(pin=False) as made:
        verdict = truth(captured.graph, made, steps=3, seed=1)["executor"]
    assert verdict.rows and not verdict.wrong
