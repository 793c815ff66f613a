"""A graph as the layers of the SuperNeurons paper: forward layer, its backward step, and the paper's needs.

The paper counts differently from what is really allocated, and its published figures come out only with its rules
(DESIGN section 7): layers instead of nodes, forks as layers of their own, one output per layer, and backward needs by
the kind of the layer rather than by its kernel. The network must not be fused (`zoo.build(..., fuse=False)`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from planner.errors import UserError
from planner.graph.model import Graph, Node, Program
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.solve.superneurons.recompute import Task, Work


class Kind(StrEnum):
    DATA = "data"
    CONV = "conv"
    FC = "fc"
    POOL = "pool"
    ACT = "act"
    LRN = "lrn"
    BN = "bn"
    DROPOUT = "dropout"
    JOIN = "join"
    FORK = "fork"
    CONCAT = "concat"
    SOFTMAX = "softmax"


CHECKPOINTS = frozenset({Kind.DATA, Kind.CONV, Kind.FC, Kind.JOIN, Kind.FORK, Kind.CONCAT, Kind.SOFTMAX})
IN_PLACE = frozenset({Kind.ACT, Kind.LRN})
"""Layers whose backward step writes over the gradient that it reads."""
NEEDS_INPUT = frozenset({Kind.CONV, Kind.FC, Kind.POOL, Kind.ACT, Kind.LRN, Kind.BN})
NEEDS_OUTPUT = frozenset({Kind.POOL, Kind.ACT, Kind.LRN})

_KINDS = {
    "conv2d": Kind.CONV,
    "linear": Kind.FC,
    "max_pool2d": Kind.POOL,
    "avg_pool2d": Kind.POOL,
    "adaptive_avg_pool2d": Kind.POOL,
    "relu": Kind.ACT,
    "leaky_relu": Kind.ACT,
    "sigmoid": Kind.ACT,
    "tanh": Kind.ACT,
    "lrn": Kind.LRN,
    "batch_norm": Kind.BN,
    "dropout": Kind.DROPOUT,
    "add": Kind.JOIN,
    "concat": Kind.CONCAT,
    "cross_entropy": Kind.SOFTMAX,
}
_COPIES = frozenset({"convert_layout", "reshape"})


@dataclass(frozen=True)
class Layer:
    id: str
    kind: Kind
    inputs: tuple[str, ...]
    """Ids of the layers before it."""
    bytes: int
    """Of its output."""


@dataclass(frozen=True)
class Layers:
    """In the order of execution (algorithm 1), the data layer first; layer i of L runs at step i, its backward at
    step 2L + 1 - i."""

    all: tuple[Layer, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Layer]:
        return {layer.id: layer for layer in self.all}

    @cached_property
    def steps(self) -> tuple[Layer, ...]:
        """Layers that compute: all but the data layer."""
        return tuple(layer for layer in self.all if layer.kind is not Kind.DATA)

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {layer.id: [] for layer in self.all}
        for layer in self.all:
            for source in layer.inputs:
                found[source].append(layer.id)
        return {layer: tuple(readers) for layer, readers in found.items()}

    def largest(self) -> tuple[str, int]:
        """l_peak: the layer with the largest sum over its inputs, outputs and their gradients, in bytes.

        A join passes its gradient on to all its inputs, a fork its input: those are one tensor each.
        """
        return max(((layer.id, self._size(layer)) for layer in self.steps), key=lambda pair: pair[1])

    def _size(self, layer: Layer) -> int:
        read = sum(self.by_id[i].bytes for i in layer.inputs)
        if layer.kind is Kind.JOIN:
            return read + 2 * layer.bytes
        if layer.kind is Kind.FORK:
            return (1 + len(self.readers[layer.id])) * layer.bytes
        return 2 * (read + layer.bytes)


def layers(graph: Graph, program: Program) -> Layers:
    """The layers of an unfused graph with one batch of images.

    SP1350: the graph has an operation that the paper's networks do not have.
    """
    outputs: dict[str, str] = {}
    """value -> the layer that stands for it"""
    found: list[Layer] = []
    for value in program.inputs:
        if any(value in n.inputs and n.op != "cross_entropy" for n in program.nodes):
            found.append(Layer(value, Kind.DATA, (), graph.value[value].type.bytes))
            outputs[value] = value
    for node in (n for n in program.nodes if n.phase == "forward"):
        if node.op in _COPIES or op_named(node.op).alias(signature_of(graph, node)):
            outputs[node.outputs[0]] = outputs[node.inputs[0]]
            continue
        kind = _kind(node)
        sources = tuple(outputs[v] for v in node.inputs if v in outputs)
        # The softmax is part of the loss node; its output is as large as the logits.
        written = node.inputs[0] if kind is Kind.SOFTMAX else node.outputs[0]
        found.append(Layer(node.id, kind, sources, graph.value[written].type.bytes))
        outputs[node.outputs[0]] = node.id
    return Layers(_routed(_with_forks(found)))


def _kind(node: Node) -> Kind:
    kind = _KINDS.get(node.op)
    if kind is None or (node.op == "batch_norm" and node.attrs.model_dump().get("activation") != "none"):
        raise UserError(
            "SP1350",
            f"node {node.id!r} ({node.op}) is no layer that the paper's accounting knows",
            "use an unfused convolutional network: zoo.build(NAME, fuse=False)",
        )
    return kind


def _with_forks(found: list[Layer]) -> list[Layer]:
    """A fork layer behind every layer that several others read."""
    readers: dict[str, int] = {}
    for layer in found:
        for source in layer.inputs:
            readers[source] = readers.get(source, 0) + 1
    result = []
    for layer in found:
        inputs = tuple(f"{i}.fork" if readers.get(i, 0) > 1 else i for i in layer.inputs)
        result.append(Layer(layer.id, layer.kind, inputs, layer.bytes))
        if readers.get(layer.id, 0) > 1:
            result.append(Layer(f"{layer.id}.fork", Kind.FORK, (layer.id,), layer.bytes))
    return result


def _routed(found: list[Layer]) -> tuple[Layer, ...]:
    """Algorithm 1: depth first, entering a layer only when the last of its inputs is done."""
    readers: dict[str, list[Layer]] = {layer.id: [] for layer in found}
    for layer in found:
        for source in layer.inputs:
            readers[source].append(layer)
    arrived: dict[str, int] = {}
    order: list[Layer] = []
    stack = [layer for layer in reversed(found) if not layer.inputs]
    while stack:
        layer = stack.pop()
        if layer.inputs:
            arrived[layer.id] = arrived.get(layer.id, 0) + 1
            if arrived[layer.id] < len(layer.inputs):
                continue
        order.append(layer)
        stack += reversed(readers[layer.id])
    return tuple(order)


def backward_id(layer: str) -> str:
    return f"{layer}.backward"


def work_of_layers(found: Layers) -> Work:
    """Forward values only: what recomputation decides on. A value has its layer's name."""
    forward = tuple(Task(layer.id, layer.inputs, (layer.id,)) for layer in found.steps)
    backward = tuple(Task(backward_id(layer.id), needs(layer), ()) for layer in reversed(found.steps))
    return Work(
        forward,
        backward,
        frozenset(layer.id for layer in found.steps if layer.kind in CHECKPOINTS),
        {layer.id: layer.bytes for layer in found.all},
    )


def needs(layer: Layer) -> tuple[str, ...]:
    """Forward values that the layer's backward step reads."""
    read = layer.inputs if layer.kind in NEEDS_INPUT else ()
    return (*read, layer.id) if layer.kind in NEEDS_OUTPUT else read
