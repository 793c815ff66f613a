"""Transposed convolution: the gradient of a convolution by its data, run forwards by the same kernels.

y of a transposed convolution with weights w (in, out / groups, KH, KW) is what a convolution with those weights, from
`out` to `in` channels, would pass back to its input. Its own gradients are that convolution and its weight gradient.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Array, Sample, misfit, register
from planner.ops.conv import Conv2d, Conv2dBackwardData, ConvAttrs, ConvGradAttrs, Pair


class ConvTransposeAttrs(ConvAttrs):
    """`output_padding`: rows and columns to add at the bottom and right; less than the stride or the dilation."""

    output_padding: Pair = (0, 0)

    def forward(self) -> ConvAttrs:
        """The attributes of the convolution that this one transposes."""
        return ConvAttrs(**self.model_dump(exclude={"output_padding"}))


@register
class ConvTranspose2d(Conv2dBackwardData):
    """y[n,o,p*stride+r*dilation-pad,...] += w[i,o,r,s] x[n,i,p,q]. Inputs: x, w (in, out / groups, KH, KW)."""

    name = "conv_transpose2d"
    attrs_type: ClassVar[type[Attrs]] = ConvTransposeAttrs
    output_names = ("y",)
    convolution: ClassVar[type[Conv2d]] = Conv2d
    """What this one transposes."""

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        assert isinstance(attrs, ConvTransposeAttrs)
        x, w = inputs
        if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[0]:
            raise misfit(
                f"conv_transpose2d cannot combine data {x.text()} with weights {w.text()}",
                "weights are (in channels, out channels / groups, height, width)",
            )
        if any(
            not 0 <= o < max(s, d) for o, s, d in zip(attrs.output_padding, attrs.stride, attrs.dilation, strict=True)
        ):
            raise misfit(
                f"output padding {attrs.output_padding} is not below stride {attrs.stride} or dilation", "pad less"
            )
        shape = (x.shape[0], w.shape[1] * attrs.groups, *(self._extent(attrs, x, w, axis) for axis in (0, 1)))
        if min(shape) < 1:
            raise misfit(f"conv_transpose2d pads all of {x.text()} away", "pad less")
        y = TensorType(shape=shape, dtype=x.dtype, layout=Layout.CHANNELS_LAST)
        self.check_forward(attrs.forward(), y, w, x)
        return (y,)

    @staticmethod
    def _extent(attrs: ConvTransposeAttrs, x: TensorType, w: TensorType, axis: int) -> int:
        """Rows (axis 0) or columns (axis 1) of the result."""
        padding = attrs.padding[2 * axis] + attrs.padding[2 * axis + 1]
        reach = attrs.dilation[axis] * (w.shape[2 + axis] - 1) + 1
        return (x.shape[2 + axis] - 1) * attrs.stride[axis] + reach + attrs.output_padding[axis] - padding

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, ConvTransposeAttrs)
        x, w = context.node.inputs
        common, convolution = attrs.forward(), self.convolution
        if context.needs(1):
            grad_attrs = convolution.grad_attrs(**common.model_dump(), shape=context.type(w).shape)
            op, inputs = f"{convolution.name}_backward_weights", [context.grad, x]
            context.give(1, context.emit(op, inputs, grad_attrs, "backward_weights", of=1)[0])
        if context.needs(0):
            context.give(0, context.emit(convolution.name, [context.grad, w], common, "backward_data")[0])

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        assert isinstance(attrs, ConvTransposeAttrs)
        types = [TensorType(shape=a.shape) for a in inputs]
        (y,) = self.infer(attrs, types)
        return super().reference(ConvGradAttrs(**attrs.forward().model_dump(), shape=y.shape), inputs)

    def samples(self) -> Sequence[Sample]:
        def case(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Sample:
            types = (TensorType(shape=x, layout=Layout.CHANNELS_LAST), TensorType(shape=w))
            return Sample(ConvTransposeAttrs(**attrs), types)

        return (
            case((4, 16, 5, 6), (16, 16, 4, 4), stride=(2, 2), padding=(1, 1, 1, 1)),
            case((3, 20, 1, 1), (20, 16, 4, 4)),
            case((2, 8, 5, 4), (8, 3, 3, 2), groups=2, stride=(2, 3), output_padding=(1, 2), padding=(1, 1, 0, 1)),
            case((2, 6, 6, 5), (6, 4, 3, 3), dilation=(2, 1), padding=(2, 2, 1, 1)),
        )
