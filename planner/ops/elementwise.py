"""Base of ops that compute every element from the elements at the same place: sliced over elements, one stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.graph.model import Layout, TensorType
from planner.ops.base import Access, Facts, Mode, Op, Signature, common_layout, split
from planner.ops.streaming import STREAMED_FAMILIES, STREAMS

CHUNK = 16
"""Slices of element-wise nodes are whole cache lines of float32, so that no two lanes write one line."""


class Elementwise(Op):
    family = "elementwise"

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.outputs[0].elements // CHUNK)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.outputs[0].elements, mode.slices, index)
        inputs = tuple(Access(f"in{i}", False, (lo, hi)) for i in range(len(signature.inputs)))
        return (*inputs, *(Access(f"out{i}", True, (lo, hi)) for i in range(len(signature.outputs))))

    def schedules(self, signature: Signature) -> Sequence[str]:
        return STREAMS if self.family in STREAMED_FAMILIES else ()

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return tuple((0, i) for i, t in enumerate(signature.inputs) if t == signature.outputs[0])
