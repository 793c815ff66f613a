"""Runs graph programs with the ops' NumPy references: what an executor must compute."""

from collections.abc import Mapping

import numpy as np

from planner.graph.model import DType, Graph, Value
from planner.ops import op_named
from planner.ops.base import Array


def run_program(graph: Graph, program: str, values: Mapping[str, Array]) -> dict[str, Array]:
    """All values after the program has run; `values` holds the inputs, parameters and states."""
    held = dict(values)
    for node in graph.program[program].nodes:
        results = op_named(node.op).reference(node.attrs, [held[v] for v in node.reads])
        for name, array in zip((*node.outputs, *node.updates), results, strict=True):
            assert array.shape == graph.value[name].type.shape, (node.id, name, array.shape)
            held[name] = array
    return held


def draw_values(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Random parameters, states and float inputs in float64; integer inputs are the caller's."""

    def draw(value: Value) -> Array:
        kind = value.init.kind if value.init else "normal"
        if kind in ("zeros", "ones"):
            return np.full(value.type.shape, float(kind == "ones"))
        return rng.standard_normal(value.type.shape)

    wanted = {v for p in graph.programs for v in p.inputs}
    return {v.id: draw(v) for v in graph.values if (v.name or v.id in wanted) and v.type.dtype is not DType.INT64}
