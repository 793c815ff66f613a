"""Executors clip gradients by their norm: on processors and, on the null device, on a GPU."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.solve.options import PlanOptions
from tests.codegen.cuda.plans import make as make_cuda
from tests.codegen.cuda.plans import plan_for
from tests.codegen.every_op import every_op_net
from tests.codegen.plans import make
from tests.codegen.test_executor import batch, reference_state
from tests.graphs import small_net
from tests.interpreter import run_program

CO_RUN = {"policy": "liu", "strategies": (1, 2, 3)}


def expected(graph: Graph, executor: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """A step of the references, from the executor's state, in double."""
    given = dict(zip(graph.program["train_step"].inputs, inputs, strict=True))
    given = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in given.items()}
    return run_program(graph, "train_step", reference_state(executor, graph) | given)


def apart(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    return [n for n, a in got.items() if n in want and not np.allclose(a, want[n], rtol=2e-5, atol=2e-6)]


@pytest.mark.parametrize("norm", [0.3, 1e6])
def test_updates_are_those_of_clipped_gradients(norm: float, tmp_path: Path) -> None:
    """The norm can be kept; `gradients` are those before they are clipped."""
    graph = small_net(clip_norm=norm)
    options = PlanOptions.model_validate({**CO_RUN, "keep": ("clip.norm", "clip.factor")})
    with make(graph, tmp_path, lanes=3, options=options)(seed=1, pin=False, poison=True) as executor:
        for number in range(3):
            executor._native.delays(executor._handle, random.randrange(1, 2**31))
            inputs = batch(graph, number)
            _, gradients = executor.gradients(*inputs)
            want = expected(graph, executor, inputs)
            executor.step(*inputs)
            whole = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
            assert executor.value("clip.norm") == pytest.approx(whole, rel=1e-6)
            assert executor.value("clip.factor") == pytest.approx(min(1.0, norm / whole), rel=1e-5)
            assert apart(executor.state_dict(), want) == []


def test_numbers_that_are_none_stay_visible(tmp_path: Path) -> None:
    """As in PyTorch: a factor that is not a number makes parameters that are none."""
    graph = small_net(clip_norm=1.0)
    with make(graph, tmp_path)(seed=1, pin=False) as executor:
        images, labels = batch(graph)
        images[0, 0, 0, 0] = np.nan
        executor.step(images, labels)
        assert np.isnan(executor.state_dict()["fc.bias"]).all()


@pytest.mark.parametrize("lanes", [1, 3])
def test_on_a_gpu(lanes: int, tmp_path: Path) -> None:
    graph = small_net(clip_norm=0.3)
    with make_cuda(plan_for(graph, lanes), graph, tmp_path)(seed=1, poison=True, null_device=True) as executor:
        executor.delays(random.randrange(1, 2**31))
        for number in range(3):
            inputs = batch(graph, number)
            want = expected(graph, executor, inputs)
            float(executor.step(*inputs))
            assert apart(executor.state_dict(), want) == []


def test_every_op_with_adam(tmp_path: Path) -> None:
    """More parameters than one launch takes."""
    graph = every_op_net(Optimizer(kind="adamw", lr=0.01, weight_decay=0.1), clip_norm=0.1)
    rng = np.random.default_rng()
    types = [graph.value[i].type for i in graph.program["train_step"].inputs]
    inputs = tuple(
        rng.integers(0, 3, t.shape) if t.dtype == "int64" else rng.standard_normal(t.shape).astype(np.float32)
        for t in types
    )
    states = []
    with (
        make(graph, tmp_path / "cpu")(seed=4, pin=False, poison=True) as one,
        make_cuda(plan_for(graph, 2), graph, tmp_path / "gpu")(seed=4, poison=True, null_device=True) as other,
    ):
        for executor in (one, other):
            for _ in range(2):
                float(executor.step(*inputs))
            states.append(executor.state_dict())
    assert apart(states[0], states[1]) == []
