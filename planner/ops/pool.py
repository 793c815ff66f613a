"""2-D pooling, channels-last: maximum, average over fixed windows, average over adaptive windows (global pooling is
adaptive pooling to 1 x 1), and their gradients.

Forward slices cut the (image, output row) pairs, backward slices the (image, input row) pairs: the gradient of an
input element is gathered from the windows that hold it, so slices never race. A slice reads the rows that its
windows touch, as one contiguous span.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, Node, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes

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
    """Number of windows along an axis. In ceil mode a window that would begin in the padding behind is dropped."""
    free = extent + sum(pads) - dilation * (kernel - 1) - 1
    if free < 0:
        return 0
    out = (free + (stride - 1 if ceil_mode else 0)) // stride + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= extent + pads[0] else out


class _Pool(Op):
    family = "pool"
    input_layout = Layout.CHANNELS_LAST

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


class _Forward(_Pool):
    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if len(x.shape) != 4:
            raise misfit(f"{self.name} needs images (N, C, H, W), not {x.text()}", "reshape the data to rank 4")
        self.check(attrs)
        high, wide = self.windows(attrs, x.shape)
        if high.out < 1 or wide.out < 1:
            raise misfit(f"the window {attrs.text()} is larger than the padded data {x.text()}", "pad more")
        y = TensorType(shape=(*x.shape[:2], high.out, wide.out), dtype=x.dtype, layout=Layout.CHANNELS_LAST)
        return (y, y.model_copy(update={"dtype": DType.UINT8}))[: len(self.output_names)]

    def check(self, attrs: Any) -> None:
        if min((*attrs.kernel, *attrs.stride, *attrs.dilation)) < 1 or min(attrs.padding) < 0:
            raise misfit(f"{self.name} has sizes below 1: {attrs.text()}", "use positive kernel, stride and dilation")
        if any(2 * p > attrs.kernel[i // 2] for i, p in enumerate(attrs.padding)):
            raise misfit(f"padding {attrs.padding} exceeds half of the window {attrs.kernel}", "pad less")

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        y = signature.outputs[0]
        return {("loops", "rows"): y.shape[0] * y.shape[2]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, y = signature.inputs[0], signature.outputs[0]
        high, _ = self.windows(signature.attrs, x.shape)
        lo, hi = split(y.shape[0] * y.shape[2], mode.slices, index)
        first = lo // high.out * high.extent + high.inputs(lo % high.out)[0]
        last = (hi - 1) // high.out * high.extent + high.inputs((hi - 1) % high.out)[1]
        line, out_line = x.shape[1] * x.shape[3], y.shape[1] * y.shape[3]
        results = (writes(f"out{i}", lo * out_line, hi * out_line) for i in range(len(signature.outputs)))
        return (reads("in0", first * line, max(first, last) * line), *results)


class _Backward(_Pool):
    output_names = ("dx",)

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy = inputs[0]
        high, wide = self.windows(attrs, attrs.shape) if len(attrs.shape) == 4 else (None, None)
        if high is None or wide is None or dy.shape != (*attrs.shape[:2], high.out, wide.out):
            raise misfit(f"gradient {dy.text()} does not fit data of shape {attrs.shape}", "keep the pooled shape")
        return (TensorType(shape=attrs.shape, dtype=dy.dtype, layout=Layout.CHANNELS_LAST),)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        dx = signature.outputs[0]
        return {("loops", "rows"): dx.shape[0] * dx.shape[2]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        dy, dx = signature.inputs[0], signature.outputs[0]
        high, _ = self.windows(signature.attrs, dx.shape)
        lo, hi = split(dx.shape[0] * dx.shape[2], mode.slices, index)
        first = lo // high.extent * high.out + high.outputs(lo % high.extent)[0]
        last = (hi - 1) // high.extent * high.out + high.outputs((hi - 1) % high.extent)[1]
        line, out_line = dy.shape[1] * dy.shape[3], dx.shape[1] * dx.shape[3]
        span = (first * line, max(first, last) * line)
        sources = (reads(f"in{i}", *span) for i in range(len(signature.inputs)))
        return (*sources, writes("out0", lo * out_line, hi * out_line))


@register
class MaxPool2d(_Forward):
    """y = maximum of each window. Outputs: y, argmax (which element of its window, kh * kernel width + kw, the
    first of equals)."""

    name = "max_pool2d"
    attrs_type = MaxPoolAttrs
    output_names: ClassVar[tuple[str, ...]] = ("y", "argmax")
    saved_outputs = frozenset({"argmax"})

    def check(self, attrs: MaxPoolAttrs) -> None:
        super().check(attrs)
        if attrs.kernel[0] * attrs.kernel[1] > 255:
            raise misfit(f"a window of {attrs.kernel} has more than 255 elements", "pool in two steps")

    def evaluation(self, node: Node, inputs: list[str]) -> tuple[str, Attrs, list[str]]:
        return ("max_pool2d_inference", node.attrs, inputs)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, MaxPoolAttrs)
        full = MaxPoolGradAttrs(**attrs.model_dump(), shape=context.type(context.node.inputs[0]).shape)
        (dx,) = context.emit("max_pool2d_backward", [context.grad, context.node.outputs[1]], full)
        context.give(0, dx)

    def reference(self, attrs: MaxPoolAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        high, wide = self.windows(attrs, x.shape)
        windows = _gather(x, attrs, high, wide, -np.inf)
        flat = windows.reshape(*windows.shape[:4], -1)
        chosen = flat.argmax(-1)
        return (np.take_along_axis(flat, chosen[..., None], -1)[..., 0], chosen.astype(np.uint8))

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], **attrs: Any) -> Sample:
            return Sample(MaxPoolAttrs(**attrs), (TensorType(shape=shape, layout=Layout.CHANNELS_LAST),))

        return (
            case((2, 3, 9, 11), kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
            case((3, 70, 8, 8), kernel=(2, 2), stride=(2, 2)),
            case((1, 5, 10, 7), kernel=(3, 2), stride=(2, 3), padding=(1, 0, 0, 1), ceil_mode=True),
            case((2, 4, 12, 9), kernel=(3, 3), stride=(1, 2), padding=(1, 1, 1, 1), dilation=(2, 1)),
            case((2, 4, 9, 9), kernel=(2, 2), stride=(3, 3)),
        )


@register
class MaxPool2dInference(MaxPool2d):
    """Evaluation mode: no argmax."""

    name = "max_pool2d_inference"
    output_names = ("y",)
    saved_outputs = frozenset()

    def gradient(self, context: GradientContext) -> None:
        raise NotImplementedError

    def reference(self, attrs: MaxPoolAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return super().reference(attrs, inputs)[:1]


@register
class MaxPool2dBackward(_Backward):
    """dx from dy and argmax."""

    name = "max_pool2d_backward"
    attrs_type = MaxPoolGradAttrs

    def reference(self, attrs: MaxPoolGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, argmax = inputs
        chosen = np.arange(attrs.kernel[0] * attrs.kernel[1]) == argmax[..., None]
        return (_scatter(dy[..., None] * chosen, attrs, self.windows(attrs, attrs.shape), attrs.shape),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        attrs = sample.attrs
        assert isinstance(attrs, MaxPoolGradAttrs)
        x = rng.standard_normal(attrs.shape)
        return (rng.standard_normal(sample.inputs[0].shape), MaxPool2d().reference(attrs, (x,))[1])

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in MaxPool2d().samples():
            attrs = MaxPoolGradAttrs(**s.attrs.model_dump(), shape=s.inputs[0].shape)
            found.append(Sample(attrs, MaxPool2d().infer(attrs, s.inputs)))
        return tuple(found)


@register
class AvgPool2d(_Forward):
    """y = mean of each window; the divisor counts padding if `count_include_pad`, but never what lies behind it."""

    name = "avg_pool2d"
    attrs_type = AvgPoolAttrs

    def check(self, attrs: AvgPoolAttrs) -> None:
        super().check(attrs)
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
        return (_gather(x, attrs, high, wide, 0.0).sum((-1, -2)) / _divisors(attrs, high, wide),)

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], **attrs: Any) -> Sample:
            return Sample(AvgPoolAttrs(**attrs), (TensorType(shape=shape, layout=Layout.CHANNELS_LAST),))

        return (
            case((2, 3, 9, 11), kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1)),
            case((3, 70, 8, 8), kernel=(2, 2), stride=(2, 2)),
            case((1, 5, 10, 7), kernel=(3, 2), stride=(2, 3), padding=(1, 1, 1, 1), ceil_mode=True),
            case((1, 5, 10, 7), kernel=(3, 2), stride=(2, 3), padding=(1, 0, 0, 1), count_include_pad=False),
        )


@register
class AvgPool2dBackward(_Backward):
    """dx[i] = sum over the windows that hold i of dy / divisor. Input: dy."""

    name = "avg_pool2d_backward"
    attrs_type = AvgPoolGradAttrs

    def reference(self, attrs: AvgPoolGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        windows = self.windows(attrs, attrs.shape)
        each = (inputs[0] / _divisors(attrs, *windows))[..., None]
        spread = np.broadcast_to(each, (*each.shape[:4], attrs.kernel[0] * attrs.kernel[1]))
        return (_scatter(spread, attrs, windows, attrs.shape),)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in AvgPool2d().samples():
            attrs = AvgPoolGradAttrs(**s.attrs.model_dump(), shape=s.inputs[0].shape)
            found.append(Sample(attrs, AvgPool2d().infer(attrs, s.inputs)))
        return tuple(found)


@register
class AdaptiveAvgPool2d(_Forward):
    """y = mean of each adaptive window; `output` (1, 1) is global average pooling."""

    name = "adaptive_avg_pool2d"
    attrs_type = AdaptivePoolAttrs

    def check(self, attrs: AdaptivePoolAttrs) -> None:
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
        cases = ((x, (1, 1)), (x, (3, 4)), (small, (5, 3)))
        return tuple(Sample(AdaptivePoolAttrs(output=output), (t,)) for t, output in cases)


@register
class AdaptiveAvgPool2dBackward(_Backward):
    """dx[i] = sum over the windows that hold i of dy / size. Input: dy."""

    name = "adaptive_avg_pool2d_backward"
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


def _padded(attrs: Any, windows: tuple[Windows, Windows]) -> tuple[Pair, Pair]:
    """Padding that every window fits into."""
    pads = ((w.pad, max(0, (w.out - 1) * w.stride + w.reach - w.extent - w.pad)) for w in windows)
    first, second = pads
    return first, second


def _gather(x: Array, attrs: Any, high: Windows, wide: Windows, fill: float) -> Array:
    """x (n, c, h, w) -> its windows (n, c, oh, ow, kh, kw)."""
    padded = np.pad(x, ((0, 0), (0, 0), *_padded(attrs, (high, wide))), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, (high.reach, wide.reach), axis=(2, 3))
    view = view[:, :, :: high.stride, :: wide.stride, :: attrs.dilation[0], :: attrs.dilation[1]]
    return view[:, :, : high.out, : wide.out]


def _scatter(each: Array, attrs: Any, windows: tuple[Windows, Windows], shape: Sequence[int]) -> Array:
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
