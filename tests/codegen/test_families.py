"""Built executors of captured modules, one for every group of ops that only they use: loss, gradients, parameters and
statistics of three steps against PyTorch in float64."""

from pathlib import Path

import pytest
import torch

from codegen.branches import decisive_values
from codegen.facts import modelled_by
from codegen.truth import truth
from planner.capturing import capture
from planner.solve.options import PlanOptions
from tests.codegen.plans import make, target_of
from tests.models import FAMILIES

BUILT = {
    "bert_classifier": "",  # masks
    "forces": "",  # second derivatives
    "efficientnet": "depthwise",  # silu behind batch norms
    "graph_attention": "",  # products of sparse matrices
    "mixture": "",  # products by groups
    "gru_both": "",  # GRU cells in both directions
    "mobilenet_v3_small": "depthwise",  # hard swish and dropout in place
    "unet_bilinear": "",  # interpolation
}
"""And an implementation that convolutions run by wherever it computes them."""


@pytest.mark.parametrize("name", BUILT)
def test_three_steps(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs, settings = FAMILIES[name]()
    captured = capture(module, inputs, **settings)
    folder = tmp_path / name
    options = PlanOptions(policy="sequential", keep=decisive_values(captured.graph))
    costs = modelled_by(BUILT[name], captured.graph, target_of(2)) if BUILT[name] else None
    executor = make(captured.graph, folder, options=options, costs=costs)
    assert any(n.implementation == BUILT[name] for n in executor.plan.program["train_step"].nodes)
    captured.write_weights(folder / "weights.npz")
    with executor(pin=False) as made:
        verdict = truth(captured.graph, made, steps=3, seed=1)["executor"]
    assert verdict.rows and not verdict.wrong
