"""2-D average pooling over fixed windows and over adaptive ones; global pooling is adaptive pooling to 1 x 1."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Layout, TensorType
from planner.ops.base import Array, Sample, misfit, register
from planner.ops.pool import (
    AdaptivePoolAttrs,
    AdaptivePoolGradAttrs,
    AvgPoolAttrs,
    AvgPoolGradAttrs,
    PoolBackward,
    PoolForward,
    Windows,
    gather,
    scatter,
)


@register
class AvgPool2d(PoolForward):
    """y = mean of each window; the divisor counts padding if `count_include_pad`, but never what lies behind it."""

    name = "avg_pool2d"
    attrs_type = AvgPoolAttrs

    def check_windows(self, attrs: AvgPoolAttrs) -> None:
        super().check_windows(attrs)
        if attrs.count_include_pad and attrs.padding[::2] != attrs.padding[1::2]:
            raise misfit(f"padding {attrs.padding} differs between the sides", "pad with zeros first")

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, AvgPoolAttrs)
        full = AvgPoolGradAttrs(**attrs.model_dump(), shape=context.type(context.node.inputs[0]).shape)
        context.give(0, context.emit("avg_pool2d_backward", [context.grad], full)[0])

    def reference(self, attrs: AvgPoolAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        high, wide = self.windows(attrs, x.shape)
        return (gather(x, attrs, high, wide, 0.0).sum((-1, -2)) / _divisors(attrs, high, wide),)

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], **attrs: Any) -> Sample:
            return Sample(AvgPoolAttrs(**attrs), (TensorType(shape=shape, layout=Layout.CHANNELS_LAST),))

        return (
            case((2, 3, 9, 11), kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1)),
            case((3, 70, 8, 8), kernel=(2, 2), stride=(2, 2)),
            case((1, 5, 10, 7), kernel=(3, 2), stride=(2, 3), padding=(1, 1, 1, 1), ceil_mode=True),
            case((1, 5, 10, 7), kernel=(3, 2), stride=(2, 3), padding=(1, 0, 0, 1), count_include_pad=False),
            case((3, 5, 2, 1), kernel=(3, 2), stride=(2, 2), ceil_mode=True),
            case((1, 5, 1, 19), kernel=(1, 3), stride=(1, 2), padding=(0, 0, 1, 1)),
            case((2, 66, 1, 19), kernel=(1, 3), stride=(1, 4), padding=(0, 0, 0, 1), count_include_pad=False),
        )


@register
class AvgPool2dBackward(PoolBackward):
    """dx[i] = sum over the windows that hold i of dy / divisor. Input: dy."""

    name = "avg_pool2d_backward"
    forward = AvgPool2d
    attrs_type = AvgPoolGradAttrs

    def reference(self, attrs: AvgPoolGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        windows = self.windows(attrs, attrs.shape)
        each = (inputs[0] / _divisors(attrs, *windows))[..., None]
        spread = np.broadcast_to(each, (*each.shape[:4], attrs.kernel[0] * attrs.kernel[1]))
        return (scatter(spread, attrs, windows, attrs.shape),)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in AvgPool2d().samples():
            attrs = AvgPoolGradAttrs(**s.attrs.model_dump(), shape=s.inputs[0].shape)
            found.append(Sample(attrs, AvgPool2d().infer(attrs, s.inputs)))
        return tuple(found)


@register
class AdaptiveAvgPool2d(PoolForward):
    """y = mean of each adaptive window; `output` (1, 1) is global average pooling."""

    name = "adaptive_avg_pool2d"
    attrs_type = AdaptivePoolAttrs

    def check_windows(self, attrs: AdaptivePoolAttrs) -> None:
        if min(attrs.output) < 1:
            raise misfit(f"{self.name} cannot make {attrs.output} rows and columns", "ask for at least one of each")

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, AdaptivePoolAttrs)
        full = AdaptivePoolGradAttrs(output=attrs.output, shape=context.type(context.node.inputs[0]).shape)
        context.give(0, context.emit("adaptive_avg_pool2d_backward", [context.grad], full)[0])

    def reference(self, attrs: AdaptivePoolAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        high, wide = self.windows(attrs, inputs[0].shape)
        rows, columns = _means(high, inputs[0].dtype), _means(wide, inputs[0].dtype)
        return (np.einsum("ph,nchw,qw->ncpq", rows, inputs[0], columns),)

    def samples(self) -> Sequence[Sample]:
        x = TensorType(shape=(2, 70, 7, 9), layout=Layout.CHANNELS_LAST)
        small = TensorType(shape=(3, 5, 2, 3), layout=Layout.CHANNELS_LAST)
        line = TensorType(shape=(2, 5, 1, 19), layout=Layout.CHANNELS_LAST)
        cases = ((x, (1, 1)), (x, (3, 4)), (small, (5, 3)), (line, (1, 7)), (line, (1, 1)))
        return tuple(Sample(AdaptivePoolAttrs(output=output), (t,)) for t, output in cases)


@register
class AdaptiveAvgPool2dBackward(PoolBackward):
    """dx[i] = sum over the windows that hold i of dy / size. Input: dy."""

    name = "adaptive_avg_pool2d_backward"
    forward = AdaptiveAvgPool2d
    attrs_type = AdaptivePoolGradAttrs

    def reference(self, attrs: AdaptivePoolGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        high, wide = self.windows(attrs, attrs.shape)
        rows, columns = _means(high, inputs[0].dtype), _means(wide, inputs[0].dtype)
        return (np.einsum("ph,ncpq,qw->nchw", rows, inputs[0], columns),)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in AdaptiveAvgPool2d().samples():
            assert isinstance(s.attrs, AdaptivePoolAttrs)
            attrs = AdaptivePoolGradAttrs(output=s.attrs.output, shape=s.inputs[0].shape)
            found.append(Sample(attrs, AdaptiveAvgPool2d().infer(attrs, s.inputs)))
        return tuple(found)


def _means(windows: Windows, dtype: Any) -> Array:
    """(out, in) matrix whose rows average the windows."""
    matrix = np.zeros((windows.out, windows.extent), dtype)
    for o in range(windows.out):
        first, last = windows.inputs(o)
        matrix[o, first:last] = 1 / (last - first)
    return matrix


def _divisors(attrs: AvgPoolAttrs, high: Windows, wide: Windows) -> Array:
    """(out height, out width) numbers of counted elements."""
    counts = []
    for windows in (high, wide):
        axis = []
        for o in range(windows.out):
            first, last = windows.inputs(o)
            begin = o * windows.stride - windows.pad
            padded = min(begin + windows.reach, windows.extent + windows.pad) - begin
            axis.append(padded if attrs.count_include_pad else last - first)
        counts.append(np.array(axis))
    divisors: Array = np.multiply.outer(counts[0], counts[1])
    return divisors
