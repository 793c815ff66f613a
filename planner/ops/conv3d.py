"""3-D convolution, its gradients and its transpose, over volumes whose depths are images.

A volume (N, C, D, H, W) is held as the channels-last images of its depths, (N D, C, H, W): the bytes of
(N, D, H, W, C), so that layers before and behind need not turn it. Weights (O, I / groups, KD, KH, KW) are held with a
kernel's depths below each other, (O, I / groups, KD KH, KW), which are the same bytes too. What 2-D convolutions slice
over rows these slice over depths.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.graph.model import Attrs, TensorType
from planner.ops.base import Array, Sample, Signature, misfit, register
from planner.ops.conv import (
    Conv2d,
    Conv2dBackwardData,
    Conv2dBackwardWeights,
    ConvAttrs,
    ConvGradAttrs,
    Convolution,
    Pair,
    backward_samples,
    output_size,
)
from planner.ops.conv_rows import Windows
from planner.ops.conv_transpose import ConvTranspose2d, ConvTransposeAttrs


class Conv3dAttrs(ConvAttrs):
    """`depth`: images of a volume of the convolution's data, of which `kernel_depth` go into one of its result. Depths
    are padded in front and behind."""

    depth: int
    kernel_depth: int
    depth_stride: int = 1
    depth_padding: Pair = (0, 0)
    depth_dilation: int = 1

    @property
    def reach(self) -> int:
        """Depths from a kernel's first to its last."""
        return (self.kernel_depth - 1) * self.depth_dilation

    @property
    def results(self) -> int:
        """Depths of a result."""
        return output_size(
            self.depth, self.kernel_depth, self.depth_stride, self.depth_dilation, sum(self.depth_padding)
        )


class Conv3dGradAttrs(Conv3dAttrs, ConvGradAttrs):
    """The same of a gradient."""


class Conv3dTransposeAttrs(Conv3dAttrs, ConvTransposeAttrs):
    """`depth`: of the result. What would be output padding along the depth follows from it."""

    def forward(self) -> Conv3dAttrs:
        return Conv3dAttrs(**self.model_dump(exclude={"output_padding"}))


# -- shapes ----------------------------------------------------------------------------------------------------
def _plane(w: TensorType, attrs: Conv3dAttrs) -> TensorType:
    """The weights of one of a kernel's depths."""
    o, i, rows, columns = w.shape
    return w.model_copy(update={"shape": (o, i, rows // attrs.kernel_depth, columns)})


def _require_possible(attrs: Conv3dAttrs, x: TensorType, w: TensorType) -> None:
    """SP1002: sizes and steps that no kernel has."""
    steps = (attrs.depth, attrs.kernel_depth, attrs.depth_stride, attrs.depth_dilation)
    if min(steps) < 1 or min(attrs.depth_padding) < 0:
        raise misfit(f"a 3-D convolution has impossible attributes {attrs.text()}", "depths and steps count from 1")
    if len(x.shape) != 4 or len(w.shape) != 4 or w.shape[2] % attrs.kernel_depth:
        problem = f"{x.text()} and weights {w.text()} are no volumes and kernels of {attrs.kernel_depth} depths"
        raise misfit(problem, "data are (volumes x depths, channels, height, width)")
    if attrs.results < 1:
        problem = f"a kernel of {attrs.kernel_depth} depths is larger than {attrs.depth} padded ones"
        raise UserError("SP1002", problem, "pad more")


def _result(attrs: Conv3dAttrs, x: TensorType, w: TensorType, *bias: TensorType) -> TensorType:
    _require_possible(attrs, x, w)
    if x.shape[0] % attrs.depth:
        raise misfit(f"{x.text()} is not whole volumes of {attrs.depth} depths", "they lie one behind the other")
    (y,) = Conv2d().infer(attrs, (x, _plane(w, attrs), *bias))
    return y.model_copy(update={"shape": (x.shape[0] // attrs.depth * attrs.results, *y.shape[1:])})


# -- arrays ----------------------------------------------------------------------------------------------------
class _Taps(NamedTuple):
    """How one of a kernel's depths lies over the padded depths of volumes: on every `step`-th from `first` on."""

    attrs: Conv3dAttrs
    tap: int

    @property
    def depths(self) -> slice:
        first, step = self.tap * self.attrs.depth_dilation, self.attrs.depth_stride
        return slice(first, first + (self.attrs.results - 1) * step + 1, step)

    def images(self, padded: Array) -> Array:
        """(N, D + padding, C, H, W) -> the images below it, (N OD, C, H, W)."""
        return padded[:, self.depths].reshape(-1, *padded.shape[2:])

    def weights(self, w: Array) -> Array:
        rows = w.shape[2] // self.attrs.kernel_depth
        return w[:, :, self.tap * rows : (self.tap + 1) * rows]


def _taps(attrs: Conv3dAttrs) -> list[_Taps]:
    return [_Taps(attrs, tap) for tap in range(attrs.kernel_depth)]


def _padded(x: Array, attrs: Conv3dAttrs) -> Array:
    volumes = x.reshape(-1, attrs.depth, *x.shape[1:])
    return np.pad(volumes, ((0, 0), attrs.depth_padding, (0, 0), (0, 0), (0, 0)))


def _backward_data(attrs: Conv3dAttrs, dy: Array, w: Array, shape: tuple[int, ...]) -> Array:
    front, behind = attrs.depth_padding
    dx = np.zeros((shape[0] // attrs.depth, front + attrs.depth + behind, *shape[1:]), dy.dtype)
    for taps in _taps(attrs):
        plane_attrs = ConvGradAttrs(**_plane_attrs(attrs), shape=(len(dy), *shape[1:]))
        (part,) = Conv2dBackwardData().reference(plane_attrs, (dy, taps.weights(w)))
        dx[:, taps.depths] += part.reshape(len(dx), -1, *shape[1:])
    return dx[:, front : front + attrs.depth].reshape(shape)


def _plane_attrs(attrs: ConvAttrs) -> dict[str, Any]:
    return {name: getattr(attrs, name) for name in ConvAttrs.model_fields}


# -- ops -------------------------------------------------------------------------------------------------------
class _Volumes(Convolution):
    """What is otherwise of volumes than of images, in all directions."""

    def count(self, signature: Signature) -> int:
        return self.forward_input(signature).shape[0] // _attrs(signature).depth

    def windows(self, signature: Signature) -> Windows:
        attrs = _attrs(signature)
        return Windows(attrs.depth, attrs.results, attrs.depth_stride, attrs.depth_padding[0], attrs.reach)

    def result_of(self, attrs: Any, x: TensorType, w: TensorType) -> TensorType:
        return _result(attrs, x, w)


def _attrs(signature: Signature) -> Conv3dAttrs:
    assert isinstance(signature.attrs, Conv3dAttrs)
    return signature.attrs


@register
class Conv3d(_Volumes, Conv2d):
    """y[n,d,o,...] = b[o] + sum over i,t,r,s of w[o,i,t,r,s] x[n,d*stride+t*dilation-front,i,...].

    Inputs: x, w, [b]."""

    name = "conv3d"
    attrs_type: ClassVar[type[Attrs]] = Conv3dAttrs
    grad_attrs: ClassVar[type[ConvGradAttrs]] = Conv3dGradAttrs

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_result(attrs, *inputs),)

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, w = _padded(inputs[0], attrs), inputs[1]
        y = sum(super(Conv3d, self).reference(attrs, (t.images(x), t.weights(w)))[0] for t in _taps(attrs))
        return (y + inputs[2][:, None, None] if len(inputs) > 2 else np.asarray(y),)

    def samples(self) -> Sequence[Sample]:
        def case(depth: int, x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, **more: Any) -> Sample:
            flat = (w[0], w[1], w[2] * w[3], w[4])
            (plain, *_) = Conv2d().samples()
            data = plain.inputs[0].model_copy(update={"shape": x})
            types = (data, TensorType(shape=flat), *((TensorType(shape=w[:1]),) if bias else ()))
            return Sample(Conv3dAttrs(depth=depth, kernel_depth=w[2], **more), types)

        same: dict[str, Any] = {"padding": (1, 1, 1, 1), "depth_padding": (1, 1)}
        return (
            case(5, (10, 3, 6, 7), (8, 3, 3, 3, 3), True, **same),
            case(6, (6, 16, 7, 6), (16, 16, 3, 3, 3), True, **same),
            case(5, (15, 16, 4, 5), (32, 16, 2, 3, 3), depth_padding=(0, 1), padding=(1, 0, 2, 1)),
            case(7, (7, 16, 6, 6), (16, 16, 3, 3, 3), dilation=(2, 1), depth_dilation=2, depth_padding=(2, 2)),
            case(4, (8, 8, 6, 6), (12, 8, 2, 2, 2), stride=(2, 2), depth_stride=2),
            case(6, (12, 8, 5, 6), (12, 4, 3, 3, 2), groups=2, depth_stride=2, depth_padding=(1, 0)),
            case(4, (4, 6, 5, 5), (6, 1, 3, 3, 3), True, groups=6, **same),
            case(4, (8, 16, 5, 6), (16, 16, 3, 1, 1), depth_padding=(1, 1)),
        )


@register
class Conv3dBackwardData(_Volumes, Conv2dBackwardData):
    """dx from dy and w. Inputs: dy, w. Output: dx with the forward input's shape."""

    name = "conv3d_backward_data"
    attrs_type: ClassVar[type[Attrs]] = Conv3dGradAttrs

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (_backward_data(attrs, inputs[0], inputs[1], attrs.shape),)

    def samples(self) -> Sequence[Sample]:
        return backward_samples(Conv3d(), Conv3dGradAttrs, data=True)


@register
class Conv3dBackwardWeights(_Volumes, Conv2dBackwardWeights):
    """dw (and db) from x and dy; slices as those of 2-D convolutions."""

    name = "conv3d_backward_weights"
    attrs_type: ClassVar[type[Attrs]] = Conv3dGradAttrs

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, dy = _padded(inputs[0], attrs), inputs[1]
        o, i, rows, columns = attrs.shape
        plane = ConvGradAttrs(**_plane_attrs(attrs), shape=(o, i, rows // attrs.kernel_depth, columns))
        parts = [super(Conv3dBackwardWeights, self).reference(plane, (t.images(x), dy))[0] for t in _taps(attrs)]
        dw = np.concatenate(parts, axis=2)
        return (dw, dy.sum((0, 2, 3))) if attrs.bias else (dw,)

    def samples(self) -> Sequence[Sample]:
        return backward_samples(Conv3d(), Conv3dGradAttrs, data=False)


@register
class ConvTranspose3d(_Volumes, ConvTranspose2d):
    """y[n,d*stride+t*dilation-front,o,...] += w[i,o,t,r,s] x[n,d,i,...]. Inputs: x, w (in, out / groups, KD KH, KW)."""

    name = "conv_transpose3d"
    attrs_type: ClassVar[type[Attrs]] = Conv3dTransposeAttrs
    convolution: ClassVar[type[Conv2d]] = Conv3d

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        assert isinstance(attrs, Conv3dTransposeAttrs)
        x, w = inputs
        _require_possible(attrs, x, w)
        if x.shape[0] % attrs.results:
            problem = (
                f"volumes of {attrs.depth} depths are convolved into {attrs.results}, of which {x.text()} has no whole"
            )
            raise misfit(problem, "`depth` is the result's")
        (plane,) = ConvTranspose2d().infer(attrs, (x, _plane(w, attrs)))
        y = plane.model_copy(update={"shape": (x.shape[0] // attrs.results * attrs.depth, *plane.shape[1:])})
        self.check_forward(attrs.forward(), y, w, x)
        return (y,)

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (y,) = self.infer(attrs, [TensorType(shape=a.shape) for a in inputs])
        return (_backward_data(attrs, inputs[0], inputs[1], y.shape),)

    def samples(self) -> Sequence[Sample]:
        def case(depth: int, x: tuple[int, ...], w: tuple[int, ...], **more: Any) -> Sample:
            (plain, *_) = ConvTranspose2d().samples()
            data = plain.inputs[0].model_copy(update={"shape": x})
            types = (data, TensorType(shape=(w[0], w[1], w[2] * w[3], w[4])))
            return Sample(Conv3dTransposeAttrs(depth=depth, kernel_depth=w[2], **more), types)

        halved: dict[str, Any] = {"depth_stride": 2, "depth_padding": (1, 1)}
        return (
            case(6, (6, 16, 4, 5), (16, 8, 2, 2, 2), stride=(2, 2), depth_stride=2),
            case(5, (10, 16, 4, 5), (16, 16, 3, 3, 3), padding=(1, 1, 1, 1), depth_padding=(1, 1)),
            case(8, (4, 6, 3, 3), (6, 4, 4, 4, 4), stride=(2, 2), padding=(1, 1, 1, 1), **halved),
            case(4, (6, 6, 4, 4), (6, 3, 2, 2, 2), groups=2, output_padding=(0, 0), **halved),
        )
