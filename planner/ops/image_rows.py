"""Loops over images (N, C, H, W), channels-last, that are sliced over the result's rows, those of all images counted
through. Images of one row (sequences) would leave a slice per image: their pixels are counted instead, which lie one
behind the other as rows do. The same rule as runtime/image_rows.hpp.
"""

from collections.abc import Mapping, Sequence

from planner.graph.model import Layout, TensorType
from planner.ops.base import Access, Facts, Mode, Op, Signature, reads, split, writes


def sliced_axis(source: TensorType, result: TensorType) -> int:
    """0: rows, 1: pixels of the only row."""
    return int(source.shape[2] == result.shape[2] == 1)


class ImageRows(Op):
    """An op that makes images of images. The word for what is counted is rows, whichever axis it is."""

    input_layout = Layout.CHANNELS_LAST

    def touched(self, signature: Signature, axis: int, place: int) -> Sequence[int]:
        """The rows of an image, from the first to behind the last, that row `place` of its result is made from."""
        raise NotImplementedError

    def row_count(self, signature: Signature) -> int:
        y = signature.outputs[0]
        return y.shape[0] * y.shape[2 + sliced_axis(signature.inputs[0], y)]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): self.row_count(signature)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, y = signature.inputs[0], signature.outputs[0]
        axis = sliced_axis(x, y)
        sources, results = x.shape[2 + axis], y.shape[2 + axis]
        lo, hi = split(y.shape[0] * results, mode.slices, index)
        first = lo // results * sources + self.touched(signature, axis, lo % results)[0]
        last = (hi - 1) // results * sources + self.touched(signature, axis, (hi - 1) % results)[1]
        line, out_line = x.elements // (x.shape[0] * sources), y.elements // (y.shape[0] * results)
        span = (first * line, max(first, last) * line)
        return (
            *(reads(f"in{i}", *span) for i in range(len(signature.inputs))),
            *(writes(f"out{i}", lo * out_line, hi * out_line) for i in range(len(signature.outputs))),
        )
