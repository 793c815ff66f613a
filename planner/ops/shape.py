"""Ops that move or make data without arithmetic: reshape, layout conversion, fills."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.errors import UserError
from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, Node, TensorType
from planner.ops.base import EVERY, Access, Array, Facts, Mode, Op, Sample, Signature, register, split, writes

LEAST_LINES = 16
"""Lines that are worth a slice: as many as are turned at once."""


class ConvertLayoutAttrs(Attrs):
    layout: Layout


class ReshapeAttrs(Attrs):
    shape: tuple[int, ...]


class FillAttrs(Attrs):
    shape: tuple[int, ...]
    value: float = 1.0


@register
class ConvertLayout(Op):
    """The same logical tensor with its elements in another memory order. Sliced over the batch, or over lines: rows of
    the matrices that images are, as the result has them (pixels of channels, or channels of pixels)."""

    name = "convert_layout"
    family = "shape"
    low_precision = EVERY
    any_dtype = True
    attrs_type = ConvertLayoutAttrs

    def infer(self, attrs: ConvertLayoutAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs[0].shape) != 4:
            raise UserError("SP1002", f"only rank 4 has layouts, not {inputs[0].text()}", "leave the layout alone")
        return (inputs[0].model_copy(update={"layout": attrs.layout}),)

    def gradient(self, context: GradientContext) -> None:
        source = context.type(context.node.inputs[0]).layout
        (dx,) = context.emit("convert_layout", [context.grad], ConvertLayoutAttrs(layout=source))
        context.give(0, dx)

    def flops(self, signature: Signature) -> int:
        return 0

    def alias(self, signature: Signature) -> tuple[int, int] | None:
        """One channel or one position: both layouts are the same bytes."""
        _, c, h, w = signature.inputs[0].shape
        return (0, 0) if c == 1 or h * w == 1 else None

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        if self.alias(signature):
            return {("alias", "whole"): 1}
        images = signature.inputs[0].shape[0]
        found = {("loops", "batch"): images}
        if (most := images * self._lines(signature) // LEAST_LINES) > 1:
            found["loops", "lines"] = most
        return found

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        return mode.dim == "lines" and signature.inputs[0].shape[0] % mode.slices == 0

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        if self.alias(signature):
            return ()
        x, lines = signature.inputs[0], self._lines(signature)
        image = x.elements // x.shape[0]
        if mode.dim == "lines":
            lo, hi = split(x.shape[0] * lines, mode.slices, index)
        else:
            lo, hi = (b * lines for b in split(x.shape[0], mode.slices, index))
        line = image // lines
        read = (lo // lines * image, -(-hi // lines) * image)  # of every image that it has lines of, some of each line
        return (Access("in0", False, read), writes("out0", lo * line, hi * line))

    def _lines(self, signature: Signature) -> int:
        """Of one image, in the result's memory."""
        _, c, h, w = signature.inputs[0].shape
        return h * w if signature.outputs[0].layout is Layout.CHANNELS_LAST else c

    def reference(self, attrs: ConvertLayoutAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        return tuple(
            Sample(ConvertLayoutAttrs(layout=to), (TensorType(shape=shape, layout=source),))
            for shape in ((5, 7, 4, 6), (5, 7, 1, 1))
            for source, to in (
                (Layout.ROW_MAJOR, Layout.CHANNELS_LAST),
                (Layout.CHANNELS_LAST, Layout.ROW_MAJOR),
            )
        )


class _View(Op):
    """The same bytes under another name; nothing runs."""

    family = "shape"
    any_dtype = True

    def flops(self, signature: Signature) -> int:
        return 0

    def alias(self, signature: Signature) -> tuple[int, int] | None:
        return (0, 0)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("alias", "whole"): 1}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        return ()


@register
class Reshape(_View):
    """Another view of the same row-major bytes; nothing runs."""

    name = "reshape"
    low_precision = EVERY
    attrs_type = ReshapeAttrs
    input_layout = Layout.ROW_MAJOR

    def infer(self, attrs: ReshapeAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        result = TensorType(shape=attrs.shape, dtype=inputs[0].dtype)
        if result.elements != inputs[0].elements:
            raise UserError("SP1002", f"cannot view {inputs[0].text()} as {result.text()}", "keep the element count")
        return (result,)

    def gradient(self, context: GradientContext) -> None:
        shape = context.type(context.node.inputs[0]).shape
        (dx,) = context.emit("reshape", [context.grad], ReshapeAttrs(shape=shape))
        context.give(0, dx)

    def reference(self, attrs: ReshapeAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(attrs.shape),)

    def samples(self) -> Sequence[Sample]:
        return (Sample(ReshapeAttrs(shape=(6, 20)), (TensorType(shape=(6, 4, 5)),)),)


@register
class Detach(_View):
    """The same bytes, to which no gradient flows: torch's detach. Nothing runs."""

    name = "detach"
    differentiable = False

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def evaluation(self, node: Node, inputs: list[str]) -> None:
        return None

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        return (Sample(Attrs(), (TensorType(shape=(6, 4, 5)),)),)


@register
class OwnGradient(Detach):
    """The same bytes, whose gradient is given (planner/graph/own_gradients.py): a custom autograd function's result."""

    name = "own_gradient"
    low_precision = EVERY
    differentiable = True


@register
class Ones(Op):
    """A constant-filled tensor, for instance the gradient of the loss w.r.t. itself. No inputs."""

    name = "ones"
    family = "shape"
    input_counts = (0,)
    attrs_type = FillAttrs

    def infer(self, attrs: FillAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(shape=attrs.shape),)

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.outputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.outputs[0].elements, mode.slices, index)
        return (writes("out0", lo, hi),)

    def reference(self, attrs: FillAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.full(attrs.shape, attrs.value),)

    def samples(self) -> Sequence[Sample]:
        return (Sample(FillAttrs(shape=(3, 4)), ()), Sample(FillAttrs(shape=(40,), value=0.5), ()))
