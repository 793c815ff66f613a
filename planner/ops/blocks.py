"""What concat and split have in common: one tensor that consists of parts along an axis.

Seen as [outer, axis, inner] in memory order, the whole is `outer` blocks, each a piece of every part after the other.
Mode `blocks` slices those; where there is only one, mode `elements` slices the elements of each part.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

from planner.graph.model import TensorType
from planner.ops.base import Access, Facts, Mode, Op, Signature, reads, split, writes
from planner.ops.strides import memory_order


class Blocks(Op):
    """Copies between the whole and its parts."""

    parts_are_read: ClassVar[bool]
    """Parts are the inputs and the whole is the output; else the other way round."""

    def blocks(self, signature: Signature) -> tuple[int, tuple[int, ...]]:
        """Number of blocks, and the elements of one block of every part."""
        attrs: Any = signature.attrs
        whole, parts = self._sides(signature)
        outer = prod(whole.physical_shape[: memory_order(whole).index(attrs.axis)])
        return outer, tuple(t.elements // outer for t in parts)

    def _sides(self, signature: Signature) -> tuple[TensorType, Sequence[TensorType]]:
        if self.parts_are_read:
            return signature.outputs[0], signature.inputs
        return signature.inputs[0], signature.outputs

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        outer, lengths = self.blocks(signature)
        return {("loops", "blocks"): outer} if outer > 1 else {("loops", "elements"): max(1, max(lengths) // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        outer, lengths = self.blocks(signature)
        if mode.dim == "blocks":
            lo, hi = split(outer, mode.slices, index)
            parts = [self._part(i, lo * length, hi * length) for i, length in enumerate(lengths)]
            whole = self._whole(lo * sum(lengths), hi * sum(lengths))
            return (*parts, whole) if self.parts_are_read else (whole, *parts)
        found: list[Access] = []
        for i, (length, stop) in enumerate(zip(lengths, accumulate(lengths), strict=True)):
            lo, hi = split(length, mode.slices, index)
            part, whole = self._part(i, lo, hi), self._whole(stop - length + lo, stop - length + hi)
            found += [part, whole] if self.parts_are_read else [whole, part]
        return tuple(found)

    def _part(self, number: int, lo: int, hi: int) -> Access:
        return reads(f"in{number}", lo, hi) if self.parts_are_read else writes(f"out{number}", lo, hi)

    def _whole(self, lo: int, hi: int) -> Access:
        return writes("out0", lo, hi) if self.parts_are_read else reads("in0", lo, hi)
