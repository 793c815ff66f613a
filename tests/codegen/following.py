"""Batches for executors of small nets, and whether these follow the reference."""

from typing import Any

import numpy as np
import pytest

from codegen.executor import Executor
from planner.graph.model import Graph
from tests.interpreter import run_program

Array = np.ndarray[Any, Any]


def batch(graph: Graph, seed: int = 0) -> tuple[Array, Array]:
    """Random images (NCHW in memory) and labels."""
    rng = np.random.default_rng(seed)
    images, labels = (graph.value[i].type.shape for i in graph.program["train_step"].inputs)
    return rng.standard_normal(images).astype(np.float32), rng.integers(0, 5, labels)


def reference_state(executor: Executor, graph: Graph) -> dict[str, Array]:
    """What the interpreter starts from: the executor's own state, in double."""
    state = executor.state_dict()
    return {v.id: state[v.name].astype(np.float64) for v in graph.values if v.name}


def assert_follows_reference(executor: Executor, graph: Graph, steps: int = 4) -> None:
    held = reference_state(executor, graph)
    persistent = set(held)
    for number in range(steps):
        images, labels = batch(graph, number)
        inputs = dict(zip(executor.input_names, (images.astype(np.float64), labels), strict=True))
        after = run_program(graph, "train_step", held | inputs)
        loss = executor.step(images, labels)
        assert loss == pytest.approx(float(after[graph.program["train_step"].outputs[0]]), rel=1e-4)
        held = {k: after[k] for k in persistent}
        state = executor.state_dict()
        for value in (v for v in graph.values if v.name):
            want = held[value.id]
            assert np.abs(state[value.name] - want).max() <= 1e-4 * (np.abs(want).max() + 1e-3), value.id
        predict = graph.program["predict"]
        result = run_program(graph, "predict", held | inputs)[predict.outputs[0]]
        assert np.abs(executor.predict(images) - result).max() <= 1e-3 * np.abs(result).max()
