"""Interpolation of images to another size: every result is a weighted sum of a few taps along each axis.

Both directions gather, over output rows forward and input rows backward, so that slices never share an element. The
taps are computed where they are used, by the same rule here and in runtime/interpolate.hpp.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from functools import lru_cache
from math import floor
from typing import Literal

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Array, Sample, Signature, misfit, register
from planner.ops.image_rows import ImageRows

Method = Literal["nearest", "nearest_exact", "linear", "cubic"]
Tap = tuple[int, float]

_CUBIC = -0.75
"""The coefficient that PyTorch uses."""


class InterpolateAttrs(Attrs):
    """Result of `size` (height, width). `scales`: input elements per output element along each axis, which need not
    be what the sizes say. `corners`: the centres of the outermost elements fall together (linear and cubic)."""

    size: tuple[int, int]
    method: Method = "linear"
    scales: tuple[float, float]
    corners: bool = False


class InterpolateGradAttrs(InterpolateAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


def is_nearest(attrs: InterpolateAttrs) -> bool:
    return attrs.method in ("nearest", "nearest_exact")


@lru_cache(maxsize=256)
def axis_taps(extent: int, out: int, method: Method, scale: float, corners: bool) -> tuple[tuple[Tap, ...], ...]:
    """For every output along an axis the inputs that it reads, in ascending order, and their weights."""
    found: list[tuple[Tap, ...]] = []
    for o in range(out):
        if method in ("nearest", "nearest_exact"):  # in float32, as PyTorch rounds whatever the type of the data
            shift = np.float32(0.5 if method == "nearest_exact" else 0.0)
            place = min(int(np.floor((np.float32(o) + shift) * np.float32(scale))), extent - 1)
            found.append(((place, 1.0),))
            continue
        real = scale * o if corners else scale * (o + 0.5) - 0.5
        if method == "linear":
            real = max(real, 0.0)
            first = min(floor(real), extent - 1)
            share = min(max(real - first, 0.0), 1.0)
            found.append(((first, 1 - share), (min(first + 1, extent - 1), share)))
        else:
            first = floor(real)
            weights = _cubic(real - first)
            found.append(tuple((min(max(first - 1 + k, 0), extent - 1), weight) for k, weight in enumerate(weights)))
    return tuple(found)


def _cubic(t: float) -> tuple[float, float, float, float]:
    a = _CUBIC

    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return (far(t + 1), near(t), near(1 - t), far(2 - t))


def _matrix(taps: Sequence[Sequence[Tap]], extent: int) -> Array:
    """(out, in) weights."""
    matrix = np.zeros((len(taps), extent))
    for o, row in enumerate(taps):
        for place, weight in row:
            matrix[o, place] += weight
    return matrix


class _Interpolate(ImageRows):
    family = "interpolate"

    def taps(self, attrs: InterpolateAttrs, x: Sequence[int], axis: int) -> tuple[tuple[Tap, ...], ...]:
        return axis_taps(x[2 + axis], attrs.size[axis], attrs.method, attrs.scales[axis], attrs.corners)

    def times(self, attrs: InterpolateAttrs, x: Sequence[int], axis: int) -> int:
        """Nearest: by how many outputs each input is read, one behind the other; 0: not by equally many."""
        taps, extent = self.taps(attrs, x, axis), x[2 + axis]
        times, rest = divmod(len(taps), extent)
        return times if is_nearest(attrs) and not rest and all(t[0][0] == o // times for o, t in enumerate(taps)) else 0

    def low_inputs(self, attrs: InterpolateAttrs) -> Container[int] | None:
        """Copies and their sums; weights are for float32."""
        return (0,) if is_nearest(attrs) else None

    def flops(self, signature: Signature) -> int:
        attrs = signature.attrs
        assert isinstance(attrs, InterpolateAttrs)
        each = {"nearest": 1, "nearest_exact": 1, "linear": 8, "cubic": 32}[attrs.method]
        return each * max(signature.inputs[0].elements, signature.outputs[0].elements)

    def matrices(self, attrs: InterpolateAttrs, x: Sequence[int]) -> tuple[Array, Array]:
        rows, columns = (_matrix(self.taps(attrs, x, axis), x[2 + axis]) for axis in (0, 1))
        return rows, columns


@register
class Interpolate(_Interpolate):
    """y[n, c, p, q] = sum of taps of x. Input: x (N, C, H, W)."""

    name = "interpolate"
    attrs_type = InterpolateAttrs

    def infer(self, attrs: InterpolateAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if len(x.shape) != 4 or min(attrs.size) < 1 or min(attrs.scales) < 0:
            raise misfit(f"interpolate cannot make {attrs.size} of {x.text()}", "use images (N, C, H, W)")
        return (TensorType(shape=(*x.shape[:2], *attrs.size), dtype=x.dtype, layout=Layout.CHANNELS_LAST),)

    def gradient(self, context: GradientContext) -> None:
        shape = context.type(context.node.inputs[0]).shape
        attrs = InterpolateGradAttrs(**context.attrs.model_dump(), shape=shape)
        context.give(0, context.emit("interpolate_backward", [context.grad], attrs)[0])

    def touched(self, signature: Signature, axis: int, place: int) -> tuple[int, int]:
        assert isinstance(signature.attrs, InterpolateAttrs)
        taps = self.taps(signature.attrs, signature.inputs[0].shape, axis)[place]
        return (taps[0][0], taps[-1][0] + 1)

    def reference(self, attrs: InterpolateAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        rows, columns = self.matrices(attrs, inputs[0].shape)
        return (np.einsum("ph,nchw,qw->ncpq", rows, inputs[0], columns),)

    def samples(self) -> Sequence[Sample]:
        x = TensorType(shape=(2, 20, 5, 7), layout=Layout.CHANNELS_LAST)
        wide = TensorType(shape=(3, 5, 1, 9), layout=Layout.CHANNELS_LAST)
        line = TensorType(shape=(1, 20, 1, 19), layout=Layout.CHANNELS_LAST)

        def case(type_: TensorType, size: tuple[int, int], method: Method, corners: bool = False) -> Sample:
            extents = type_.shape[2:]
            scales = (
                tuple((e - 1) / (s - 1) if s > 1 else 0.0 for e, s in zip(extents, size, strict=True))
                if corners
                else tuple(e / s for e, s in zip(extents, size, strict=True))
            )
            return Sample(
                InterpolateAttrs(size=size, method=method, scales=(scales[0], scales[1]), corners=corners), (type_,)
            )

        return (
            case(x, (10, 14), "nearest"),
            case(x, (7, 4), "nearest"),
            case(wide, (3, 18), "nearest"),
            case(x, (8, 5), "nearest_exact"),
            case(x, (10, 14), "linear"),
            case(x, (11, 3), "linear", True),
            case(wide, (1, 20), "linear"),
            case(x, (9, 16), "cubic"),
            case(x, (3, 8), "cubic", True),
            case(line, (1, 38), "nearest"),
            case(line, (1, 7), "nearest"),
            case(line, (1, 8), "linear"),
            case(line, (1, 30), "cubic"),
        )


@register
class InterpolateBackward(_Interpolate):
    """dx[i] = sum of the weights with which outputs read i, times dy. Input: dy."""

    name = "interpolate_backward"
    attrs_type = InterpolateGradAttrs
    output_names = ("dx",)

    def infer(self, attrs: InterpolateGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dx = TensorType(shape=attrs.shape, dtype=inputs[0].dtype, layout=Layout.CHANNELS_LAST)
        expected = Interpolate().infer(attrs, (dx,))[0]
        if inputs[0].shape != expected.shape:
            raise misfit(f"gradient {inputs[0].text()} does not fit data {dx.text()}", f"use {expected.text()}")
        return (dx,)

    def touched(self, signature: Signature, axis: int, place: int) -> tuple[int, int]:
        """The outputs from the first whose last tap reaches `place` to the last whose first tap does not pass it."""
        assert isinstance(signature.attrs, InterpolateGradAttrs)
        taps = self.taps(signature.attrs, signature.attrs.shape, axis)
        first = bisect_left(taps, place, key=lambda output: output[-1][0])
        return (first, max(first, bisect_right(taps, place, key=lambda output: output[0][0])))

    def reference(self, attrs: InterpolateGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        rows, columns = self.matrices(attrs, attrs.shape)
        return (np.einsum("ph,ncpq,qw->nchw", rows, inputs[0], columns),)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in Interpolate().samples():
            attrs = InterpolateGradAttrs(**s.attrs.model_dump(), shape=s.inputs[0].shape)
            found.append(Sample(attrs, Interpolate().infer(attrs, s.inputs)))
        return tuple(found)
