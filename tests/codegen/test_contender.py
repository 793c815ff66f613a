"""PyTorch's step in a process of its own: timed there, and what becomes of it is told here."""

from typing import Any

import pytest

from codegen.contender import Contender, Failed, Work, require_torch
from codegen.initial import draw
from codegen.steps import random_inputs
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.own_gradients import own_gradient
from tests.graphs import small_net

pytest.importorskip("torch")


def work_of(graph: Graph) -> Work:
    kept = [v for v in graph.values if v.role in (Role.PARAMETER, Role.STATE)]
    return Work(graph, random_inputs(graph), {v.name or v.id: draw(v, 0) for v in kept}, 1)


@pytest.fixture
def work() -> Work:
    return work_of(small_net())


def test_times_steps_where_they_run_and_is_gone_when_it_is_closed(work: Work) -> None:
    with Contender("eager NHWC", work) as made:
        assert made.settled() > 0
        times = made.timed(3)
        assert len(times) == 3 and min(times) > 0
        process = made._process
    assert process.poll() == 0


def test_tells_how_its_process_ended(work: Work) -> None:
    with Contender("eager NCHW", work) as made:
        made._process.kill()
        with pytest.raises(Failed, match="its process ended with SIGKILL"):
            made.settled()


def test_tells_what_pytorch_says(work: Work) -> None:
    with pytest.raises(Failed, match="size 16"):
        Contender("eager NCHW", work._replace(inputs=[each[:2] for each in work.inputs[:1]] + work.inputs[1:]))


def test_models_without_a_twin() -> None:
    """An error of the other process is one here."""
    b = GraphBuilder("straight_through")
    x, labels = (b.input(name, TensorType(shape=(4, 5))) for name in ("x", "labels"))
    y = layers.linear(b, x, 5, name="fc")
    (arriving,) = b.op("detach", [y])
    (rounded,) = own_gradient(b, b.op("round", [y]), [arriving], [y], [arriving], "rounded")
    with pytest.raises(UserError, match=r"SP1513.*'own_gradient'"):
        Contender("eager NCHW", work_of(b.finish(layers.mse(b, rounded, labels, name="loss"), rounded, Optimizer())))


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(UserError, match="SP1012"):
        require_torch()
