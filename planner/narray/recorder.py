"""Networks written with lazy arrays, differentiated and trained by a plan.

    with Recorder("mlp_b32") as r:
        x, y = r.input("x", (32, 64)), r.labels("y", (32,))
        w1, w2 = r.parameter("w1", (64, 100)), r.parameter("w2", (100, 10))
        scores = relu(x @ w1) @ w2
        graph = r.train(cross_entropy(scores, y), scores, Optimizer(lr=0.1))

Nothing has a value before the graph runs: `float(a)`, `bool(a)` and iteration are errors, so that no branch depends on
data by accident.
"""

from collections.abc import Iterable
from math import sqrt
from typing import Any

from planner.errors import UserError
from planner.frontends.emitter import Emitter
from planner.frontends.naming import fresh_id, identifier
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init
from planner.graph.optimizer import Optimizer
from planner.narray.array import NArray
from planner.narray.operations import lower
from planner.narray.record import Number, Record, piece
from planner.ops.base import Array


class Recorder:
    """Collects one network. As a context manager it only marks where the network is written."""

    lazy = "build the graph first, then run its executor"

    def __init__(self, name: str) -> None:
        self.emitter = Emitter(GraphBuilder(identifier(name)))
        self._values: dict[int, str] = {}
        self._records: list[Record] = []

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def input(self, name: str, shape: Iterable[int]) -> NArray:
        """A float32 batch; rank 4 is an image batch (N, C, H, W)."""
        return self._leaf(self.emitter.input(name, tuple(shape)))

    def labels(self, name: str, shape: Iterable[int]) -> NArray:
        """A batch of int64 class numbers."""
        return self._leaf(self.emitter.input(name, tuple(shape), DType.INT64))

    def parameter(self, name: str, shape: Iterable[int], init: Init | None = None) -> NArray:
        """A trained array; matrices start uniform within 1 / sqrt(rows), vectors at zero."""
        shape = tuple(shape)
        bound = 1 / sqrt(shape[0]) if len(shape) > 1 else 0.0
        start = init or (Init(kind="uniform", value=bound) if bound else Init(kind="zeros"))
        return self._leaf(self.emitter.b.parameter(name, shape, start))

    def train(self, loss: NArray, prediction: NArray, optimizer: Optimizer | None = None) -> Graph:
        """The finished training graph; the recorder can't be used afterwards."""
        if any(a._record.owner is not self for a in (loss, prediction)):
            raise UserError("SP1021", "arrays of two recorders meet", "write one network with one recorder")
        ends = [self._values[id(a._record)] for a in (loss, prediction)]
        return self.emitter.b.finish(ends[0], ends[1], optimizer or Optimizer(lr=0.1))

    # -- what arrays ask of their owner ------------------------------------------------------------------------
    def given(self, data: Array, label: str = "") -> Record:
        self.emitter.name = "constant"
        return self._leaf(self.emitter.constant(data))._record

    def record(self, name: str, operands: tuple[Any, ...], label: str = "") -> Record:
        found = piece(name, operands)
        self.emitter.name = fresh_id(label or name, self.emitter.b.values)
        arguments = [
            self._values[id(o)] if isinstance(o, Record) else float(o) if isinstance(o, Number) else o for o in operands
        ]
        value = lower(self.emitter, name, tuple(arguments))
        return self._keep(Record(self, name, operands, found.shape, found.dtype, label), value)

    def run(self) -> None:
        raise UserError("SP1021", "a network that is being written has no values", self.lazy)

    def _leaf(self, value: str) -> NArray:
        type_ = self.emitter.b.type(value)
        return NArray(self._keep(Record(self, "", (), type_.shape, type_.dtype.value, value), value))

    def _keep(self, record: Record, value: str) -> Record:
        self._values[id(record)] = value
        self._records.append(record)
        return record
