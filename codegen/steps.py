"""Steps and their times: random batches for a graph, calls in turn, medians, and what a step cannot beat."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from codegen.indices import index_inputs
from planner.costs.table import CostTable
from planner.graph.model import DType, Graph, Layout
from planner.ops.base import op_named
from planner.ops.signature import signature_of

Step = Callable[[], object]

LIBRARY_KERNELS = frozenset({"onednn", "cudnn", "cublaslt"})


SETTLED_S, LONG_S = 0.05, 0.3
"""A step that follows another program's finds that one's idle threads still spinning, for some milliseconds: much of a
small step, little of a long one. In training its own step came before it."""


def paired(step: Step, contender: Step, repetitions: int) -> dict[str, float]:
    """Steps of both in turn, each settled: ms of each, and the median of the pairs' ratios."""
    return in_turn(partial(settled, step), partial(settled, contender), repetitions)


def in_turn(ours: Callable[[], float], theirs: Callable[[], float], repetitions: int) -> dict[str, float]:
    """The same of two that return the ns of a step of theirs, wherever it runs."""
    pairs = [(ours(), theirs()) for _ in range(repetitions)]
    return {
        "ms": median(b for _, b in pairs) / 1e6,
        "stepplan_ms": median(a for a, _ in pairs) / 1e6,
        "ratio": median(a / b for a, b in pairs),
    }


def settled(step: Step) -> float:
    """ns of a call that begins `SETTLED_S` after others of its own, or that takes `LONG_S`."""
    spent = 0.0
    while True:
        took = next(timed(step, 1))
        if spent >= SETTLED_S * 1e9 or took >= LONG_S * 1e9:
            return took
        spent += took


def fastest(against: dict[str, dict[str, float]]) -> dict[str, Any]:
    """`fastest`: the contender to beat and the ratio to it; nothing without contenders."""
    if not against:
        return {}
    name = min(against, key=lambda n: against[n]["ms"])
    return {"fastest": {"name": name, "ratio": against[name]["ratio"]}}


def random_inputs(graph: Graph, seed: int | None = None) -> list[np.ndarray]:
    """Inputs of the training step: normal numbers (channels-last memory where the graph wants it), uniform labels and
    indices, and 0 or 1 where a binary cross entropy compares with them. Lengths of sequences are what their ops are
    measured with."""
    rng = np.random.default_rng(seed)
    indices = index_inputs(graph)
    program = graph.program["train_step"]
    binary = {n.inputs[1] for n in program.nodes if n.op == "bce_with_logits"}
    lengths: dict[str, np.ndarray[Any, Any]] = {}
    for node in program.nodes:
        known = op_named(node.op).measured_with(signature_of(graph, node))
        lengths |= {node.inputs[position]: numbers for position, numbers in known.items()}
    found: list[np.ndarray[Any, Any]] = []
    for name in program.inputs:
        type_ = graph.value[name].type
        if type_.dtype is DType.INT64:
            if name in lengths:
                found.append(lengths[name].astype(np.int64))
                continue
            ends = indices[name].ends if name in indices else 2
            found.append(rng.integers(0, ends, type_.shape, dtype=np.int64))
            continue
        values = rng.standard_normal(type_.physical_shape, dtype=np.float32)
        values = (values > 0).astype(np.float32) if name in binary else values
        found.append(values.transpose(0, 3, 1, 2) if type_.layout is Layout.CHANNELS_LAST else values)
    return found


def timed(step: Step, repetitions: int) -> Iterator[float]:
    """ns of each call."""
    for _ in range(repetitions):
        start = time.perf_counter_ns()
        step()
        yield float(time.perf_counter_ns() - start)


def spread(times: list[float]) -> float:
    """Interquartile range / median."""
    ordered = sorted(times)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)


def floor_ns(graph: Graph, costs: CostTable, lanes: int) -> float:
    """What a step of these kernels one after the other does not beat: convolutions and matrix products at their best
    measured time, everything else at that or, where that is less, at its bytes over the measured bandwidth."""
    total = 0.0
    for node in graph.program["train_step"].nodes:
        signature = signature_of(graph, node)
        op = op_named(node.op)
        if op.alias(signature) is not None:
            continue
        entries = [e for e in costs.modes(signature.text) if e.slices <= lanes]
        times = [float(sum(e.warm_ns)) for e in entries]
        if costs.bandwidth and not any(e.kernel in LIBRARY_KERNELS for e in entries):
            times.append(op.bytes_moved(signature) / costs.bandwidth * 1e9)
        total += min(times, default=0.0)
    return total
