"""Convolutions sliced over rows: of all images together, so that a slice may end within one image and begin within
another. The same rule as runtime/onednn/conv_pieces.hpp.

Sliced over the batch, a convolution of 16 images runs on 16 cores, and 20 images take as long as 32. Rows of a
channels-last image lie next to each other, so that some of them are an image, with less padding. Where images have one
row (sequences), its pixels are what others' rows are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from planner.graph.model import TensorType
from planner.ops.base import split
from planner.ops.image_rows import sliced_axis

Range = tuple[int, int]


class RowSteps(NamedTuple):
    """The rows of one image's result in steps at which slices may begin: step j begins at row j step - offset."""

    rows: int
    step: int = 1
    offset: int = 0

    @property
    def per_image(self) -> int:
        return -(-(self.rows + self.offset) // self.step)

    def part(self, images: int, slices: int, index: int) -> Range:
        """A slice's rows, those of all images counted through."""
        lo, hi = split(images * self.per_image, slices, index)
        return self._row(lo), self._row(hi)

    def _row(self, at: int) -> int:
        image, step = divmod(at, self.per_image)
        return image * self.rows + max(0, step * self.step - self.offset)


class Windows(NamedTuple):
    """How a convolution's windows go through the rows of an image. `reach`: rows from the first tap to the last."""

    source: int
    results: int
    stride: int
    pad: int
    reach: int

    @property
    def inside(self) -> bool:
        """Whether no window lies wholly in the padding, nor begins behind the rows that it would be computed from."""
        return self.pad <= self.reach and (self.results - 1) * self.stride - self.pad < self.source

    def steps(self, by_source: bool) -> RowSteps:
        """Of what is computed: the results, or (the gradient of the data) the source, where a window begins."""
        return RowSteps(self.source, self.stride, self.pad % self.stride) if by_source else RowSteps(self.results)

    def read(self, results: Range) -> Range:
        """The rows of all images from the first to the last that the windows of these results touch."""
        (first, top), (last, bottom) = divmod(results[0], self.results), divmod(results[1] - 1, self.results)
        return (
            first * self.source + max(0, top * self.stride - self.pad),
            last * self.source + min(self.source, bottom * self.stride - self.pad + self.reach + 1),
        )

    def touching(self, rows: Range) -> Range:
        """The results of all images from the first to the last whose windows touch these rows of the source."""
        (first, top), (last, bottom) = divmod(rows[0], self.source), divmod(rows[1] - 1, self.source)
        begin = first * self.results + max(0, -((self.reach - top - self.pad) // self.stride))
        return begin, max(begin, last * self.results + min(self.results, (bottom + self.pad) // self.stride + 1))


def windows_of(source: TensorType, weight: Sequence[int], result: TensorType, attrs: Any) -> Windows:
    """Of images (N, C, H, W), weights (O, I, KH, KW) and a convolution's attributes."""
    axis = sliced_axis(source, result)
    reach = (weight[2 + axis] - 1) * attrs.dilation[axis]
    return Windows(source.shape[2 + axis], result.shape[2 + axis], attrs.stride[axis], attrs.padding[2 * axis], reach)


def elements_of(images: TensorType, count: int, rows: Range) -> Range:
    """Some of the `count` rows of all images -> elements."""
    row = images.elements // count
    return rows[0] * row, rows[1] * row
