"""Base of element-wise ops whose operands are broadcast by NumPy's rules.

Rank-4 operands take the layout of the largest one. Slices cut the elements of the result, in its memory order; a
broadcast operand is read where the slice needs it (`strides.broadcast_strides`).
"""

from collections.abc import Sequence

import numpy as np

from planner.graph.model import DType, Layout, TensorType
from planner.ops.base import Access, Facts, Mode, Signature, misfit, reads, split, writes
from planner.ops.elementwise import Elementwise
from planner.ops.strides import broadcast_strides, check_rank, merge, span


class Broadcast(Elementwise):
    def broadcast(self, inputs: Sequence[TensorType], dtype: DType) -> TensorType:
        """The result's type; SP1002 where the shapes do not fit each other."""
        try:
            shape = np.broadcast_shapes(*(t.shape for t in inputs))
        except ValueError:
            raise misfit(
                f"{self.name} cannot broadcast {', '.join(t.text() for t in inputs)} to one shape",
                "aligned to the right, dimensions must be equal or 1",
            ) from None
        check_rank(self.name, shape)
        layout = next((t.layout for t in inputs if len(t.shape) == 4), Layout.ROW_MAJOR)
        return TensorType(shape=shape, dtype=dtype, layout=layout if len(shape) == 4 else Layout.ROW_MAJOR)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        y = signature.outputs[0]
        lo, hi = split(y.elements, mode.slices, index)
        found = []
        for position, type_ in enumerate(signature.inputs):
            if type_.shape == y.shape:
                found.append(reads(f"in{position}", lo, hi))
            else:
                shape, (walk,) = merge(y.physical_shape, broadcast_strides(type_, y))
                found.append(reads(f"in{position}", *span(shape, walk, lo, hi)))
        return (*found, *(writes(f"out{i}", lo, hi) for i in range(len(signature.outputs))))
