"""2-D maximum pooling. The forward pass saves which element of its window each output chose, as one byte."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, Node, TensorType
from planner.ops.base import Array, Sample, misfit, register
from planner.ops.pool import (
    MaxPoolAttrs,
    MaxPoolGradAttrs,
    PoolBackward,
    PoolForward,
    gather,
    scatter,
)


@register
class MaxPool2d(PoolForward):
    """y = maximum of each window. Outputs: y, argmax (which element of its window, kh * kernel width + kw, the
    first of equals)."""

    name = "max_pool2d"
    attrs_type = MaxPoolAttrs
    output_names: ClassVar[tuple[str, ...]] = ("y", "argmax")
    saved_outputs = frozenset({"argmax"})

    def check_windows(self, attrs: MaxPoolAttrs) -> None:
        super().check_windows(attrs)
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
        windows = gather(x, attrs, high, wide, -np.inf)
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
            case((2, 5, 1, 23), kernel=(1, 8), stride=(1, 3), ceil_mode=True),
            case((1, 5, 1, 19), kernel=(1, 3), stride=(1, 2), padding=(0, 0, 1, 1)),
            case((2, 66, 1, 19), kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 2)),
            case((6, 1, 90, 1), kernel=(40, 1), stride=(41, 1), ceil_mode=True),
            case((3, 5, 2, 1), kernel=(3, 2), stride=(2, 2), ceil_mode=True),
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
class MaxPool2dBackward(PoolBackward):
    """dx from dy and argmax."""

    name = "max_pool2d_backward"
    forward = MaxPool2d
    input_counts = (2,)
    integers: ClassVar[Mapping[int, DType]] = {1: DType.UINT8}
    attrs_type = MaxPoolGradAttrs

    def reference(self, attrs: MaxPoolGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, argmax = inputs
        chosen = np.arange(attrs.kernel[0] * attrs.kernel[1]) == argmax[..., None]
        return (scatter(np.where(chosen, dy[..., None], 0.0), attrs, self.windows(attrs, attrs.shape), attrs.shape),)

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
