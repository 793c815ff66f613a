"""2-D convolution: forward, gradient w.r.t. data, gradient w.r.t. weights (and bias).

Activations are channels-last; weights are O, I/groups, KH, KW as in PyTorch. The kernels want weights packed:
stage 0 packs them, stage 1 computes (one stage when the library takes the layout in which the plan stores them, usually
the plain one: ops/stored.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.errors import UserError
from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import (
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    ScratchPart,
    Signature,
    accumulated,
    misfit,
    reads,
    register,
    split,
    split_channels,
    writes,
)
from planner.ops.conv_rows import Windows, elements_of, windows_of
from planner.ops.library import library_access, library_part, packed_part, packs
from planner.ops.stored import PLAIN, stored_as
from planner.units import Bytes

Pair = tuple[int, int]

ROWS = ("onednn", "rows")
MOST_PARTIAL = 4
"""How many times as large as what is read the partial gradients of weights of all slices of rows may be."""


class ConvAttrs(Attrs):
    """Padding is (top, bottom, left, right), so that asymmetric padding needs no pad node."""

    stride: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


class ConvGradAttrs(ConvAttrs):
    """`shape`: the forward input's (data) or the weight's (weights) shape. `bias`: also return db."""

    shape: tuple[int, ...]
    bias: bool = False


def output_size(extent: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    return (extent + pad - dilation * (kernel - 1) - 1) // stride + 1


class Convolution(Op):
    """What the three directions share: packing, slicing over the batch or over rows, FLOPs."""

    family = "conv"
    attrs_type: ClassVar[type[Attrs]] = ConvAttrs

    activations: ClassVar[tuple[int, ...]] = (0,)
    """Inputs that are activations: channels-last. Weights lie as the framework has them, in bfloat16 channels-last."""
    by_source: ClassVar[bool] = False
    """Whether slices divide the convolution's input, not its output."""

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return tuple(
            Layout.CHANNELS_LAST if i in self.activations or t.dtype is DType.BFLOAT16 else Layout.ROW_MAJOR
            for i, t in enumerate(inputs)
        )

    def flops(self, signature: Signature) -> int:
        n, _, oh, ow = self.forward_output(signature).shape
        oc, icg, kh, kw = self.weight_shape(signature)
        return 2 * n * oh * ow * oc * icg * kh * kw

    def forward_input(self, signature: Signature) -> TensorType:
        """The convolution's data."""
        return signature.inputs[0]

    def forward_output(self, signature: Signature) -> TensorType:
        """The convolution's result."""
        raise NotImplementedError

    def weight_shape(self, signature: Signature) -> tuple[int, ...]:
        raise NotImplementedError

    def count(self, signature: Signature) -> int:
        """Images of the batch."""
        return self.forward_input(signature).shape[0]

    def result_of(self, attrs: Any, x: TensorType, w: TensorType) -> TensorType:
        """What a convolution makes of x and w."""
        return Conv2d().infer(attrs, (x, w))[0]

    def check_forward(self, attrs: Any, x: TensorType, w: TensorType, y: TensorType) -> None:
        """SP1002 unless x and w make y."""
        expected = self.result_of(attrs, x, w)
        if expected.shape != y.shape:
            raise misfit(f"the gradient {y.text()} does not fit {x.text()} and {w.text()}", f"use {expected.text()}")

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if packs(facts) else 1

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (*packed_part(facts), *library_part(mode, facts))

    def windows(self, signature: Signature) -> Windows:
        data, result = self.forward_input(signature), self.forward_output(signature)
        return windows_of(data, self.weight_shape(signature), result, signature.attrs)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        images, windows = self.count(signature), self.windows(signature)
        found = {("onednn", "batch"): images}
        steps = windows.steps(self.by_source).per_image
        if steps > 1 and windows.inside:
            found[ROWS] = images * steps
        return found

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        return mode.dim == "rows" and self.count(signature) % mode.slices == 0

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        """Of forward and backward data: every slice maps its images, or rows, of input 0 to those of output 0."""
        plain = reads("in1", 0, signature.inputs[1].elements)
        if packs(facts) and stage == 0:
            return (plain, writes("packed", index, index + 1))
        data, result = self._elements(signature, mode, index)
        read, written = (result, data) if self.by_source else (data, result)
        return (
            reads("in0", *read),
            reads("packed", 0, mode.slices) if packs(facts) else plain,
            *(reads("in2", 0, bias.elements) for bias in signature.inputs[2:]),
            writes("out0", *written),
            *library_access(index, facts),
        )

    def _elements(self, signature: Signature, mode: Mode, index: int) -> tuple[Pair, Pair]:
        """A slice's elements of the forward input and output."""
        images, windows = self.count(signature), self.windows(signature)
        if mode.dim == "rows":
            own = windows.steps(self.by_source).part(images, mode.slices, index)
            data, result = (own, windows.touching(own)) if self.by_source else (windows.read(own), own)
        else:
            lo, hi = split(images, mode.slices, index)
            data, result = (lo * windows.source, hi * windows.source), (lo * windows.results, hi * windows.results)
        return (
            elements_of(self.forward_input(signature), images * windows.source, data),
            elements_of(self.forward_output(signature), images * windows.results, result),
        )


@register
class Conv2d(Convolution):
    """y[n,o,p,q] = b[o] + sum over i,r,s of w[o,i,r,s] x[n,i,p*stride+r*dilation-pad,...]. Inputs: x, w, [b]."""

    low_precision = (0, 1)
    name = "conv2d"
    input_counts = (2, 3)
    grad_attrs: ClassVar[type[ConvGradAttrs]] = ConvGradAttrs

    def infer(self, attrs: ConvAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, w = inputs[0], inputs[1]
        if min((*attrs.stride, *attrs.dilation, attrs.groups)) < 1 or min(attrs.padding) < 0:
            raise misfit(f"conv2d has impossible attributes {attrs.text()}", "strides, dilations, groups count from 1")
        if any(t.shape != w.shape[:1] for t in inputs[2:]):
            raise misfit(f"the bias {inputs[2].text()} does not fit weights {w.text()}", "one number per out channel")
        if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[1] * attrs.groups:
            raise UserError(
                "SP1002",
                f"conv2d cannot combine data {x.text()} with weights {w.text()} in {attrs.groups} groups",
                "weights are (out channels, in channels / groups, height, width)",
            )
        if w.shape[0] % attrs.groups:
            problem = f"{w.shape[0]} output channels do not divide into {attrs.groups} groups"
            raise UserError("SP1002", problem, "fix groups")
        top, bottom, left, right = attrs.padding
        oh = output_size(x.shape[2], w.shape[2], attrs.stride[0], attrs.dilation[0], top + bottom)
        ow = output_size(x.shape[3], w.shape[3], attrs.stride[1], attrs.dilation[1], left + right)
        if oh < 1 or ow < 1:
            raise UserError("SP1002", f"the kernel {w.text()} is larger than the padded data {x.text()}", "pad more")
        return (TensorType(shape=(x.shape[0], w.shape[0], oh, ow), dtype=x.dtype, layout=Layout.CHANNELS_LAST),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, ConvAttrs)
        x, w, *bias = context.node.inputs
        common = attrs.model_dump()
        if context.needs(1) or (bias and context.needs(2)):
            grad_attrs = self.grad_attrs(**common, shape=context.type(w).shape, bias=bool(bias))
            inputs = [x, context.grad]
            results = context.emit(f"{self.name}_backward_weights", inputs, grad_attrs, "backward_weights", of=1)
            for index, gradient in enumerate(results, start=1):
                context.give(index, gradient)
        if context.needs(0):
            data_attrs = self.grad_attrs(**common, shape=context.type(x).shape)
            (dx,) = context.emit(f"{self.name}_backward_data", [context.grad, w], data_attrs, "backward_data", of=0)
            context.give(0, dx)

    def forward_output(self, signature: Signature) -> TensorType:
        return signature.outputs[0]

    def weight_shape(self, signature: Signature) -> tuple[int, ...]:
        return signature.inputs[1].shape

    def reference(self, attrs: ConvAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, w = inputs[0], inputs[1]
        windows = _windows(x, attrs, w.shape)
        n, (oh, ow) = len(x), windows.shape[-2:]
        g, o = attrs.groups, w.shape[0]
        y = (w.reshape(g, o // g, -1) @ windows.reshape(n, g, -1, oh * ow)).reshape(n, o, oh, ow)
        return (y + inputs[2][:, None, None] if len(inputs) > 2 else y,)

    def samples(self) -> Sequence[Sample]:
        def case(x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, **attrs: Any) -> Sample:
            types = [TensorType(shape=x, layout=Layout.CHANNELS_LAST), TensorType(shape=w)]
            return Sample(ConvAttrs(**attrs), (*types, TensorType(shape=w[:1])) if bias else tuple(types))

        return (
            case((4, 3, 12, 13), (16, 3, 3, 3), padding=(1, 1, 1, 1)),
            case((5, 16, 9, 9), (24, 16, 1, 1), True, stride=(2, 2)),
            case((2, 8, 11, 10), (12, 4, 3, 2), groups=2, dilation=(2, 1), padding=(2, 2, 0, 1)),
            case((3, 6, 8, 8), (6, 1, 5, 5), True, groups=6, padding=(2, 2, 2, 2), stride=(2, 1)),
            case((3, 16, 7, 6), (16, 16, 3, 3), True, padding=(1, 1, 0, 1)),
            case((3, 16, 7, 6), (32, 16, 4, 4), True, padding=(1, 1, 1, 1), stride=(2, 2)),
            case((3, 16, 7, 6), (16, 16, 3, 3), padding=(1, 1, 1, 1), stride=(2, 2)),
            case((3, 24, 9, 6), (24, 1, 5, 5), True, groups=24, padding=(2, 1, 2, 2), stride=(2, 1)),
            case((2, 16, 1, 19), (16, 16, 1, 3), True, padding=(0, 0, 4, 0), dilation=(1, 2)),
        )


@register
class Conv2dBackwardData(Convolution):
    """dx from dy and w. Inputs: dy, w. Output: dx with the forward input's shape."""

    low_precision = (0, 1)
    name = "conv2d_backward_data"
    input_counts = (2,)
    attrs_type: ClassVar[type[Attrs]] = ConvGradAttrs
    output_names = ("dx",)
    by_source = True

    def infer(self, attrs: ConvGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, w = inputs
        dx = TensorType(shape=attrs.shape, dtype=dy.dtype, layout=Layout.CHANNELS_LAST)
        self.check_forward(attrs, dx, w, dy)
        return (dx,)

    def forward_input(self, signature: Signature) -> TensorType:
        return signature.outputs[0]

    def forward_output(self, signature: Signature) -> TensorType:
        return signature.inputs[0]

    def weight_shape(self, signature: Signature) -> tuple[int, ...]:
        return signature.inputs[1].shape

    def reference(self, attrs: ConvGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, w = inputs
        n, c, h, width = attrs.shape
        g, (o, _, kh, kw) = attrs.groups, w.shape
        top, bottom, left, right = attrs.padding
        dx = np.zeros((n, c, h + top + bottom, width + left + right), dy.dtype)
        oh, ow = dy.shape[2:]
        taps = w.reshape(g, o // g, -1).swapaxes(1, 2)
        contribution = (taps @ dy.reshape(n, g, o // g, -1)).reshape(n, c, kh, kw, oh, ow)
        for r in range(kh):
            for s in range(kw):
                rows = slice(r * attrs.dilation[0], r * attrs.dilation[0] + oh * attrs.stride[0], attrs.stride[0])
                cols = slice(s * attrs.dilation[1], s * attrs.dilation[1] + ow * attrs.stride[1], attrs.stride[1])
                dx[:, :, rows, cols] += contribution[:, :, r, s]
        return (dx[:, :, top : top + h, left : left + width],)

    def samples(self) -> Sequence[Sample]:
        return backward_samples(Conv2d(), ConvGradAttrs, data=True)


@register
class Conv2dBackwardWeights(Convolution):
    """dw (and db) from x and dy; of bfloat16 operands dw is rounded, as a GPU's library does.

    `batch` and `rows`: every slice makes partial dw, stage 1 adds them in slice order and unpacks (facts without
    partial_bytes: one slice writes dw itself). `channels`: every slice computes its rows of dw whole."""

    low_precision = (0, 1)
    name = "conv2d_backward_weights"
    input_counts = (2,)
    attrs_type: ClassVar[type[Attrs]] = ConvGradAttrs
    output_names = ("dw", "db")
    activations = (0, 1)

    def infer(self, attrs: ConvGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dw = TensorType(shape=attrs.shape, dtype=inputs[0].dtype)
        self.check_forward(attrs, inputs[0], dw, inputs[1])
        return (dw, TensorType(shape=attrs.shape[:1], dtype=accumulated(dw.dtype))) if attrs.bias else (dw,)

    def forward_output(self, signature: Signature) -> TensorType:
        return signature.inputs[1]

    def weight_shape(self, signature: Signature) -> tuple[int, ...]:
        return signature.outputs[0].shape

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        attrs = signature.attrs
        assert isinstance(attrs, ConvGradAttrs)
        found = dict(super().dims(signature))
        read, dw = sum(t.bytes for t in signature.inputs), signature.outputs[0].bytes
        most = min(found.get(ROWS, 0), MOST_PARTIAL * read // dw)
        if most > found["onednn", "batch"]:
            found[ROWS] = most
        else:
            found.pop(ROWS, None)
        if attrs.groups == 1 and attrs.shape[0] >= 32:
            found["onednn", "channels"] = attrs.shape[0] // 16  # thinner slabs of channels starve the kernels
        return found

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if facts.get("partial_bytes") else 1

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        size = facts.get("partial_bytes")
        partial = (ScratchPart("partial", Bytes(size)),) if size else ()
        return (*partial, *library_part(mode, facts))

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, dy = signature.inputs
        oc = signature.outputs[0].shape[0]
        lo, hi = split_channels(oc, mode.slices, index)
        gradients = (
            _gradient(signature.outputs[0], (lo, hi), mode, index, facts),
            *(writes("out1", lo, hi) for _ in signature.outputs[1:]),
        )
        reduces = bool(facts.get("partial_bytes"))
        if reduces and stage == 1:
            return (reads("partial", 0, mode.slices), *gradients)
        library = library_access(index, facts)
        if mode.dim == "channels":
            columns = Access("in1", False, (0, dy.elements // oc), (lo, hi), oc)
            return (reads("in0", 0, x.elements), columns, *library, *gradients)
        read, own = self._elements(signature, mode, index)
        return (
            reads("in0", *read),
            reads("in1", *own),
            *library,
            *((writes("partial", index, index + 1),) if reduces else gradients),
        )

    def reference(self, attrs: ConvGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, dy = inputs
        o, icg, kh, kw = attrs.shape
        windows = _windows(x, attrs, attrs.shape)
        n, g, (oh, ow) = len(x), attrs.groups, windows.shape[-2:]
        cols = windows.reshape(n, g, -1, oh * ow).swapaxes(2, 3)
        dw = (dy.reshape(n, g, o // g, -1) @ cols).sum(0).reshape(o, icg, kh, kw)
        return (dw, dy.sum((0, 2, 3))) if attrs.bias else (dw,)

    def samples(self) -> Sequence[Sample]:
        return backward_samples(Conv2d(), ConvGradAttrs, data=False)


def _gradient(dw: TensorType, channels: Pair, mode: Mode, index: int, facts: Facts) -> Access:
    """The part of dw that a slice writes last: its output channels, or, where dw is stored in blocks and partial sums
    are added, its blocks."""
    (oc, ic), (lo, hi), stored = dw.shape[:2], channels, stored_as(facts)
    if stored.i_block and mode.dim == "channels":  # a piece of every block, and in it of every tap
        block = stored.i_block
        return Access("out0", True, (0, dw.elements // (oc * block)), (lo * block, hi * block), oc * block)
    parts = oc
    if stored != PLAIN and mode.dim != "channels":
        parts = oc // stored.o_block if stored.o_block else ic // stored.i_block
        lo, hi = split(parts, mode.slices, index)
    return writes("out0", lo * dw.elements // parts, hi * dw.elements // parts)


def _windows(x: Array, attrs: ConvAttrs, weight_shape: Sequence[int]) -> Array:
    """x (n, c, h, w) -> every window, (n, c, kh, kw, oh, ow)."""
    top, bottom, left, right = attrs.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = weight_shape[2:]
    span = ((kh - 1) * attrs.dilation[0] + 1, (kw - 1) * attrs.dilation[1] + 1)
    view = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(2, 3))
    view = view[:, :, :: attrs.stride[0], :: attrs.stride[1], :: attrs.dilation[0], :: attrs.dilation[1]]
    return view.transpose(0, 1, 4, 5, 2, 3)


def backward_samples(forward: Conv2d, grad_attrs: type[ConvGradAttrs], data: bool) -> tuple[Sample, ...]:
    """The forward samples turned around: dy (and w, or x) with the shapes that the gradient rule would pass."""
    found = []
    for sample in forward.samples():
        attrs = sample.attrs
        assert isinstance(attrs, ConvAttrs)
        (dy,) = forward.infer(attrs, sample.inputs)
        x, w = sample.inputs[:2]
        common = attrs.model_dump()
        if data:
            found.append(Sample(grad_attrs(**common, shape=x.shape), (dy, w)))
        else:
            found.append(Sample(grad_attrs(**common, shape=w.shape, bias=len(sample.inputs) > 2), (x, dy)))
    return tuple(found)
