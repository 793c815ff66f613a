"""What the 2-D poolings of max_pool.py and average_pool.py share: attributes, windows and slice rules.

Forward slices cut the (image, output row) pairs, backward slices the (image, input row) pairs: the gradient of an
input element is gathered from the windows that hold it, so slices never race. A slice reads the rows that its
windows touch, as one contiguous span.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import EVERY, Array, Signature, misfit
from planner.ops.image_rows import ImageRows

Pair = tuple[int, int]


class MaxPoolAttrs(Attrs):
    """`padding` is (top, bottom, left, right); `ceil_mode` lets the last window begin inside the data and end
    outside (PyTorch's rule)."""

    kernel: Pair
    stride: Pair
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False


class MaxPoolGradAttrs(MaxPoolAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


class AvgPoolAttrs(Attrs):
    """As MaxPoolAttrs. `count_include_pad`: padding counts in the divisor; needs equal padding on both sides."""

    kernel: Pair
    stride: Pair
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True

    @property
    def dilation(self) -> Pair:
        return (1, 1)


class AvgPoolGradAttrs(AvgPoolAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


class AdaptivePoolAttrs(Attrs):
    """`output`: height and width of the result."""

    output: Pair


class AdaptivePoolGradAttrs(AdaptivePoolAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


class Windows(NamedTuple):
    """The windows along one axis. With stride 0 they are adaptive: output o covers [o in / out, (o + 1) in / out),
    rounded outwards."""

    extent: int
    out: int
    stride: int = 0
    pad: int = 0
    reach: int = 0
    """Distance from a window's first element to its last, plus 1."""

    def inputs(self, o: int) -> Pair:
        """The inputs that window o covers."""
        if not self.stride:
            return (o * self.extent // self.out, -(-(o + 1) * self.extent // self.out))
        first = o * self.stride - self.pad
        return (max(first, 0), max(0, min(first + self.reach, self.extent)))

    def outputs(self, i: int) -> Pair:
        """The windows that may hold input i."""
        if not self.stride:
            return (i * self.out // self.extent, -(-(i + 1) * self.out // self.extent))
        past = i + self.pad - self.reach + 1
        return (max(0, -(-past // self.stride)), min((i + self.pad) // self.stride + 1, self.out))


def pooled_size(extent: int, kernel: int, stride: int, pads: Pair, dilation: int, ceil_mode: bool) -> int:
    """Number of windows along an axis. In ceil mode the last one may end behind all padding, also where it is the only
    one; one that would begin in the padding behind is dropped."""
    free = extent + sum(pads) - dilation * (kernel - 1) - 1
    if free < 0 and not ceil_mode:
        return 0
    out = (free + (stride - 1 if ceil_mode else 0)) // stride + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= extent + pads[0] else out


class _Pool(ImageRows):
    family = "pool"

    def windows(self, attrs: Any, x: Sequence[int]) -> tuple[Windows, Windows]:
        """Vertical and horizontal windows over an input of shape x (N, C, H, W)."""
        if isinstance(attrs, AdaptivePoolAttrs):
            return (Windows(x[2], attrs.output[0]), Windows(x[3], attrs.output[1]))
        found = []
        for axis in (0, 1):
            pads = attrs.padding[2 * axis : 2 * axis + 2]
            kernel, stride, dilation = attrs.kernel[axis], attrs.stride[axis], attrs.dilation[axis]
            out = pooled_size(x[2 + axis], kernel, stride, pads, dilation, attrs.ceil_mode)
            found.append(Windows(x[2 + axis], out, stride, pads[0], dilation * (kernel - 1) + 1))
        return (found[0], found[1])

    def flops(self, signature: Signature) -> int:
        attrs = signature.attrs
        small, large = sorted((signature.inputs[0].elements, signature.outputs[0].elements))
        if isinstance(attrs, AdaptivePoolAttrs):
            return large
        assert isinstance(attrs, MaxPoolAttrs | AvgPoolAttrs)
        return min(small, large) * attrs.kernel[0] * attrs.kernel[1]


class PoolForward(_Pool):
    low_precision = EVERY

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if len(x.shape) != 4:
            raise misfit(f"{self.name} needs images (N, C, H, W), not {x.text()}", "reshape the data to rank 4")
        self.check_windows(attrs)
        high, wide = self.windows(attrs, x.shape)
        if high.out < 1 or wide.out < 1:
            raise misfit(f"the window {attrs.text()} is larger than the padded data {x.text()}", "pad more")
        y = TensorType(shape=(*x.shape[:2], high.out, wide.out), dtype=x.dtype, layout=Layout.CHANNELS_LAST)
        return (y, y.model_copy(update={"dtype": DType.UINT8}))[: len(self.output_names)]

    def check_windows(self, attrs: Any) -> None:
        if min((*attrs.kernel, *attrs.stride, *attrs.dilation)) < 1 or min(attrs.padding) < 0:
            raise misfit(f"{self.name} has sizes below 1: {attrs.text()}", "use positive kernel, stride and dilation")
        if any(2 * p > attrs.kernel[i // 2] for i, p in enumerate(attrs.padding)):
            raise misfit(f"padding {attrs.padding} exceeds half of the window {attrs.kernel}", "pad less")

    def touched(self, signature: Signature, axis: int, place: int) -> Pair:
        return self.windows(signature.attrs, signature.inputs[0].shape)[axis].inputs(place)


class PoolBackward(_Pool):
    output_names = ("dx",)
    forward: ClassVar[type[PoolForward]]

    low_precision = EVERY

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dx = TensorType(shape=attrs.shape, dtype=inputs[0].dtype, layout=Layout.CHANNELS_LAST)
        expected = self.forward().infer(attrs, (dx,))[0]
        if any(t.shape != expected.shape for t in inputs):
            raise misfit(f"gradient {inputs[0].text()} does not fit data {dx.text()}", f"use {expected.text()}")
        return (dx,)

    def touched(self, signature: Signature, axis: int, place: int) -> Pair:
        return self.windows(signature.attrs, signature.outputs[0].shape)[axis].outputs(place)


def _padded(attrs: Any, windows: tuple[Windows, Windows]) -> tuple[Pair, Pair]:
    """Padding that every window fits into."""
    pads = ((w.pad, max(0, (w.out - 1) * w.stride + w.reach - w.extent - w.pad)) for w in windows)
    first, second = pads
    return first, second


def gather(x: Array, attrs: Any, high: Windows, wide: Windows, fill: float) -> Array:
    """x (n, c, h, w) -> its windows (n, c, oh, ow, kh, kw)."""
    padded = np.pad(x, ((0, 0), (0, 0), *_padded(attrs, (high, wide))), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, (high.reach, wide.reach), axis=(2, 3))
    view = view[:, :, :: high.stride, :: wide.stride, :: attrs.dilation[0], :: attrs.dilation[1]]
    return view[:, :, : high.out, : wide.out]


def scatter(each: Array, attrs: Any, windows: tuple[Windows, Windows], shape: Sequence[int]) -> Array:
    """Adds (n, c, oh, ow, kh * kw) contributions into an array of `shape`."""
    (high, wide), (rows, columns) = windows, _padded(attrs, windows)
    dx = np.zeros((*shape[:2], shape[2] + sum(rows), shape[3] + sum(columns)), each.dtype)
    for position in range(each.shape[-1]):
        top = position // attrs.kernel[1] * attrs.dilation[0]
        left = position % attrs.kernel[1] * attrs.dilation[1]
        vertical = slice(top, top + (high.out - 1) * high.stride + 1, high.stride)
        horizontal = slice(left, left + (wide.out - 1) * wide.stride + 1, wide.stride)
        dx[:, :, vertical, horizontal] += each[..., position]
    return dx[:, :, high.pad : high.pad + shape[2], wide.pad : wide.pad + shape[3]]
