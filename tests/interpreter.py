"""Runs graph programs with the ops' NumPy references: what an executor must compute.

bfloat16 values are rounded when they are written."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.graph.model import DType, Graph, Node, Value
from planner.ops import op_named
from planner.ops.base import Array, round_bfloat16


def run_program(graph: Graph, program: str, values: Mapping[str, Array]) -> dict[str, Array]:
    """All values after the program has run; `values` holds the inputs, parameters and states."""
    return run_nodes(graph.program[program].nodes, graph.value, values)


def run_nodes(nodes: Sequence[Node], types: Mapping[str, Value], values: Mapping[str, Array]) -> dict[str, Array]:
    held = dict(values)
    for node in nodes:
        op, low = op_named(node.op), [v for v in node.inputs if types[v].type.dtype is DType.BFLOAT16]
        results = op.reference(node.attrs, [held[v] for v in node.reads])
        for name, array in zip((*node.outputs, *node.updates), results, strict=True):
            assert array.shape == types[name].type.shape, (node.id, name, array.shape)
            # A library's weight gradients are bfloat16 before they become float32.
            rounds = types[name].type.dtype is DType.BFLOAT16 or (low and node.op == "conv2d_backward_weights")
            held[name] = round_bfloat16(array) if rounds else array
    return held


def draw_values(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Parameters and states as they start (uniform and normal ones at random), float inputs at random, in float64.
    Integer inputs are the caller's."""

    def draw(value: Value) -> Array:
        shape, init = value.type.shape, value.init
        if init and init.kind in ("zeros", "ones", "constant"):
            return np.full(shape, {"zeros": 0.0, "ones": 1.0}.get(init.kind, init.value))
        if init and init.kind == "uniform":
            return rng.uniform(-init.value, init.value, shape)
        return rng.standard_normal(shape) * (init.value if init else 1.0)

    wanted = {v for p in graph.programs for v in p.inputs}
    held = [v for v in graph.values if v.name or v.id in wanted]
    return {v.id: draw(v) for v in held if v.type.dtype is not DType.INT64}
