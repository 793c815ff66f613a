"""Executors clip gradients by their norm: on processors and, on the null device, on a GPU."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.executor import Executor
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import op_named
from planner.solve.options import PlanOptions
from tests.codegen.cuda.plans import NULL, plan_for
from tests.codegen.cuda.plans import make as make_cuda
from tests.codegen.following import batch, reference_state
from tests.codegen.plans import make
from tests.graphs import deep_net, small_net
from tests.interpreter import run_program

NORM = 0.3
CO_RUN = {"policy": "liu", "strategies": (1, 2, 3)}


def expected(graph: Graph, executor: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """A step of the references, from the executor's state, in double."""
    given = dict(zip(graph.program["train_step"].inputs, inputs, strict=True))
    given = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in given.items()}
    return run_program(graph, "train_step", reference_state(executor, graph) | given)


def apart(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    return [n for n, a in got.items() if n in want and not np.allclose(a, want[n], rtol=2e-5, atol=2e-6)]


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    options = PlanOptions.model_validate({**CO_RUN, "keep": ("clip.norm", "clip.factor")})
    return make(small_net(clip_norm=NORM), tmp_path_factory.mktemp("clipped"), lanes=3, options=options)


def test_updates_are_those_of_clipped_gradients(clipped: type[Executor]) -> None:
    """The norm can be kept; `gradients` are those before they are clipped."""
    graph = small_net(clip_norm=NORM)
    with clipped(seed=1, pin=False, poison=True) as executor:
        for number in range(3):
            executor._native.delays(executor._handle, random.randrange(1, 2**31))
            inputs = batch(graph, number)
            _, gradients = executor.gradients(*inputs)
            want = expected(graph, executor, inputs)
            executor.step(*inputs)
            whole = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
            assert whole > NORM
            assert executor.value("clip.norm") == pytest.approx(whole, rel=1e-6)
            assert executor.value("clip.factor") == pytest.approx(NORM / whole, rel=1e-5)
            assert apart(executor.state_dict(), want) == []


def test_numbers_that_are_none_stay_visible(clipped: type[Executor]) -> None:
    """As in PyTorch: a factor that is not a number makes parameters that are none."""
    with clipped(seed=1, pin=False) as executor:
        images, labels = batch(small_net())
        images[0, 0, 0, 0] = np.nan
        executor.step(images, labels)
        assert np.isnan(executor.state_dict()["fc.bias"]).all()


@pytest.mark.parametrize(("lanes", "norm"), [(1, 1e6), (3, NORM)])
def test_on_a_gpu(lanes: int, norm: float, tmp_path: Path) -> None:
    graph = small_net(clip_norm=norm)
    with make_cuda(plan_for(graph, lanes), graph, tmp_path)(seed=1, poison=True, null_device=NULL) as executor:
        executor.delays(random.randrange(1, 2**31))
        for number in range(3):
            inputs = batch(graph, number)
            want = expected(graph, executor, inputs)
            float(executor.step(*inputs))
            assert apart(executor.state_dict(), want) == []


def test_more_parameters_than_one_launch_takes(tmp_path: Path) -> None:
    graph = deep_net(30, Optimizer(kind="adamw", lr=0.01, weight_decay=0.1), clip_norm=0.1)
    updates = [n for n in graph.program["train_step"].nodes if n.op == "adam_update"]
    assert len(updates) == 60 > op_named("adam_update").joint_launch
    inputs = tuple(np.random.default_rng().standard_normal((3, 6)).astype(np.float32) for _ in range(2))
    with make_cuda(plan_for(graph), graph, tmp_path)(seed=4, poison=True, null_device=NULL) as executor:
        want = expected(graph, executor, inputs)
        float(executor.step(*inputs))
        assert apart(executor.state_dict(), want) == []
