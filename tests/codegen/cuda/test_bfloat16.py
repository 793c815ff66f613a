"""Plans in bfloat16 with float32 master weights: executed on the null device, and compiled for a GPU."""

from pathlib import Path

import numpy as np
import pytest

from codegen.autocast import distances
from codegen.build import build
from codegen.emit import emit
from codegen.load import executor_class
from codegen.native import native_module
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.zoo import Sizes, gpt2
from tests.codegen.cuda.plans import NULL, gpu, make, plan_for
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.codegen.cuda.test_null_device import batch
from tests.graphs import gated_net
from tests.interpreter import run_program


def test_a_step_is_that_of_the_reference(tmp_path: Path) -> None:
    graph = mixed_precision(gated_net())
    assert {n.op for n in graph.program["train_step"].nodes} >= {"chain", "cast", "dropout", "batch_norm_backward"}
    made = make(plan_for(graph, 2), graph, tmp_path)
    data = batch(graph)
    with made(seed=3, poison=True, null_device=NULL) as executor:
        executor.delays(1)
        state = executor.state_dict()
        held = {v.id: np.asarray(state[v.name], np.float64) for v in graph.values if v.name}
        given = dict(zip(graph.program["train_step"].inputs, data, strict=True))
        expected = run_program(
            graph,
            "train_step",
            held | {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in given.items()},
        )
        _, gradients = executor.gradients(*data)
        for node in graph.program["train_step"].nodes:
            if node.op == "sgd_update":
                want = expected[node.inputs[0]]
                off = np.linalg.norm(gradients[graph.value[node.updates[0]].name] - want) / np.linalg.norm(want)
                assert off < 0.01, (node.id, off)  # some sums round to the next bfloat16
        losses = [float(executor.step(*data)) for _ in range(3)]
        assert losses[0] == pytest.approx(float(expected[graph.program["train_step"].outputs[0]]), rel=2e-3)
        assert losses[2] < losses[0]
        assert executor.predict(data[0]).dtype == np.float32


def test_distances_are_not_those_of_dropouts(tmp_path: Path) -> None:
    """PyTorch drops what the executor drops, of activations and of attention's weights: what is left is rounding."""
    b = GraphBuilder("small_gpt2")
    ends = gpt2(length=16, depth=1, width=32, heads=2, dropout=0.2)(b, Sizes(2, classes=50))
    graph = b.finish(ends.loss, ends.prediction, Optimizer(lr=1e-3))
    low = mixed_precision(graph)
    with make(plan_for(low), low, tmp_path)(seed=1, null_device=NULL) as executor:
        for found in distances(graph, executor, device="cpu" if NULL else "cuda:0"):
            assert max(found.executor, found.autocast) < 0.05, found


@needs_toolkit
def test_compiles_and_links_for_a_gpu(tmp_path: Path) -> None:
    graph = mixed_precision(gated_net())
    emit(plan_for(graph, 2), graph, gpu(), tmp_path)
    build(tmp_path, flags=("-Wall", "-Wextra"))
    assert not native_module(tmp_path).null_device
    with pytest.raises(UserError, match=r"SP185[1-5]"):
        executor_class(tmp_path)(device=99)  # type: ignore[call-arg]
