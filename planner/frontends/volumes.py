"""Layers over volumes (N, C, D, H, W), as layers over images, in the words of the emitter: for PyTorch's and ONNX's.

Between layers a volume is a view of a channels-last image (N, C, D, H W), whose bytes are those of all depths' images:
nothing is turned. Pooling goes dimension by dimension: first every depth's image, then depths against pixels. A
convolution whose kernel has one depth is one over images; others are ops of their own (ops/conv3d.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

from planner.frontends.emitter import Emitter
from planner.ops.conv import ConvAttrs
from planner.ops.conv3d import Conv3dAttrs, Conv3dTransposeAttrs

Sides = Sequence[tuple[int, int]]
"""Padding before and behind, by dimension."""


# -- pixels ----------------------------------------------------------------------------------------------------
def pixels_of(e: Emitter, x: str) -> str:
    """(N, C, D, H, W) -> (N, D, H, W, C)."""
    n, channels, depth, height, width = e.shape(x)
    image = e.reshape(x, (n, channels, depth, height * width))
    return e.reshape(e.permute(image, (0, 2, 3, 1)), (n, depth, height, width, channels))


def images_of(e: Emitter, pixels: str) -> str:
    """(N, D, H, W, C) -> (N D, C, H, W), channels-last."""
    n, depth, *image = e.shape(pixels)
    return e.permute(e.reshape(pixels, (n * depth, *image)), (0, 3, 1, 2))


def volume_of(e: Emitter, images: str, n: int) -> str:
    """(N D, C, H, W) -> (N, C, D, H, W)."""
    total, channels, height, width = e.shape(images)
    depth = total // n
    y = e.reshape(e.permute(images, (0, 2, 3, 1)), (n, depth, height * width, channels))
    return e.reshape(e.permute(y, (0, 3, 1, 2)), (n, channels, depth, height, width))


# -- convolution -----------------------------------------------------------------------------------------------
def _flat(e: Emitter, w: str) -> str:
    """Weights (O, I, KD, KH, KW) with a kernel's depths below each other, (O, I, KD KH, KW)."""
    outputs, inputs, *_, width = e.shape(w)
    return e.reshape(w, (outputs, inputs, -1, width))


def _deep(depth: int, kernel: int, stride: int, sides: tuple[int, int], dilation: int) -> dict[str, Any]:
    """How a kernel goes through the depths of volumes that are convolved."""
    steps = {"depth_stride": stride, "depth_padding": sides, "depth_dilation": dilation}
    return {"depth": depth, "kernel_depth": kernel, **steps}


def convolve(
    e: Emitter,
    x: str,
    w: str,
    bias: str | None,
    stride: Sequence[int],
    sides: Sides,
    dilation: Sequence[int],
    groups: int,
) -> str:
    """Of (N, C, D, H, W) and weights (O, I / groups, KD, KH, KW). SP1002: the kernel is larger than the padded data."""
    n, _, depth = e.shape(x)[:3]
    pixels, kernel = pixels_of(e, x), e.shape(w)[2]
    images = {
        "stride": tuple(stride[1:]),
        "padding": (*sides[1], *sides[2]),
        "dilation": tuple(dilation[1:]),
        "groups": groups,
    }
    more = [] if bias is None else [bias]
    if kernel == 1 and sides[0] == (0, 0):
        taken = pixels if stride[0] == 1 else e.slice(pixels, 1, 0, depth, stride[0])
        y = e.op("conv2d", images_of(e, taken), _flat(e, w), *more, attrs=ConvAttrs.model_validate(images))
    else:
        attrs = Conv3dAttrs.model_validate(images | _deep(depth, kernel, stride[0], sides[0], dilation[0]))
        y = e.op("conv3d", images_of(e, pixels), _flat(e, w), *more, attrs=attrs)
    return volume_of(e, y, n)


def transpose(
    e: Emitter,
    x: str,
    w: str,
    stride: Sequence[int],
    sides: Sides,
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
) -> str:
    """A transposed convolution, as images (N D, C, H, W). The result's depths are those that a convolution by the same
    kernel would make the data's of. SP1002: all is padded away."""
    before, kernel = e.shape(x)[2], e.shape(w)[2]
    depth = (before - 1) * stride[0] + dilation[0] * (kernel - 1) + 1 + output_padding[0] - sum(sides[0])
    attrs = Conv3dTransposeAttrs(
        stride=(stride[1], stride[2]),
        padding=(*sides[1], *sides[2]),
        dilation=(dilation[1], dilation[2]),
        groups=groups,
        output_padding=(output_padding[1], output_padding[2]),
        **_deep(depth, kernel, stride[0], sides[0], dilation[0]),
    )
    return e.op("conv_transpose3d", images_of(e, pixels_of(e, x)), _flat(e, w), attrs=attrs)


# -- pooling ---------------------------------------------------------------------------------------------------
def by_dimension(e: Emitter, x: str, pool: Callable[[str, bool], str]) -> str:
    """`pool(images, deep)` on the images of all depths, then, `deep`, on (depth, pixels) with windows of one pixel."""
    n = e.shape(x)[0]
    y = volume_of(e, pool(images_of(e, pixels_of(e, x)), False), n)
    *lead, depth, height, width = e.shape(y)
    y = pool(e.reshape(y, (*lead, depth, height * width)), True)
    return e.reshape(y, (*lead, e.shape(y)[2], height, width))
