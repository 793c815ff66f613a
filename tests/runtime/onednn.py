"""oneDNN's kernels as C functions: shapes, calls, and what PyTorch says in float64."""

import ctypes
from dataclasses import astuple, dataclass, replace

import pytest
import torch

from planner.target.detect import detect

needs_bfloat16 = pytest.mark.skipif(not detect().bfloat16, reason="this processor has no instructions for bfloat16")

BATCH, ROWS, CHANNELS, TILES, DEPTH = 0, 1, 2, 3, 4
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = 0, 1, 2
IMPOSSIBLE, ONEDNN_REFUSED = 1, 2


@dataclass(frozen=True)
class Conv:
    """The fields of ConvShape, in its order."""

    n: int
    ic: int
    ih: int
    iw: int
    oc: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    bias: int = 0
    element: int = 0
    depth_in: int = 1
    depth_out: int = 1
    depth_kernel: int = 1
    depth_stride: int = 1
    depth_pad: int = 0
    depth_dilation: int = 1

    @property
    def of_volumes(self):
        return (self.depth_in, self.depth_out, self.depth_kernel) != (1, 1, 1)

    def extents(self, deep, high, wide):
        """Those that images have, or volumes."""
        return (deep, high, wide) if self.of_volumes else (high, wide)

    @property
    def x(self):
        return (self.n, self.ic, *self.extents(self.depth_in, self.ih, self.iw))

    @property
    def y(self):
        return (self.n, self.oc, *self.extents(self.depth_out, self.oh, self.ow))

    @property
    def w(self):
        return (self.oc, self.ic // self.groups, *self.extents(self.depth_kernel, self.kh, self.kw))

    def in_torch(self, x, w, bias):
        convolve = torch.nn.functional.conv3d if self.of_volumes else torch.nn.functional.conv2d
        return convolve(
            x,
            w,
            bias,
            stride=self.extents(self.depth_stride, self.stride_h, self.stride_w),
            padding=self.extents(self.depth_pad, self.pad_h, self.pad_w),
            dilation=self.extents(self.depth_dilation, self.dilation_h, self.dilation_w),
            groups=self.groups,
        )


def conv(n, ic, size, oc, kernel, stride=1, pad=0, dilation=1, groups=1, bias=0):
    (ih, iw), (kh, kw) = size, kernel
    oh, ow = ((i + 2 * pad - (k - 1) * dilation - 1) // stride + 1 for i, k in ((ih, kh), (iw, kw)))
    return Conv(n, ic, ih, iw, oc, oh, ow, kh, kw, stride, stride, pad, pad, dilation, dilation, groups, bias)


def volume(shape, depth, kernel, stride=1, pad=0, dilation=1):
    """The same convolution of images, over volumes of so many depths."""
    out = (depth + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    return replace(shape, **dict(zip(DEPTHS, (depth, out, kernel, stride, pad, dilation), strict=True)))


DEPTHS = ("depth_in", "depth_out", "depth_kernel", "depth_stride", "depth_pad", "depth_dilation")


class KernelError(Exception):
    pass


def pointer(tensor):
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def integers(values):
    return (ctypes.c_int64 * len(values))(*values)


def run_conv(
    library, kind, shape, dim, slices, implementation, in1, in2, bias, out1, out2=None, repeats=2, blocks=(0, 0)
):
    text, seconds = ctypes.create_string_buffer(4096), (ctypes.c_double * 2)()
    given = (out1, out2)
    (room1, out1), (room2, out2) = (in_the_middle(out) for out in given)
    code = library.harness_conv(
        kind,
        integers(astuple(shape)),
        dim,
        slices,
        implementation.encode(),
        integers(blocks),
        pointer(in1),
        pointer(in2),
        pointer(bias),
        pointer(out1),
        pointer(out2),
        repeats,
        seconds,
        text,
        4096,
    )
    for room, out, to in ((room1, out1, given[0]), (room2, out2, given[1])):
        if to is not None:
            assert (room[:AROUND] == UNTOUCHED).all() and (room[-AROUND:] == UNTOUCHED).all(), "written outside"
            to.copy_(out)
    if code:
        raise KernelError(code, text.value.decode())
    return text.value.decode(), list(seconds)


AROUND, UNTOUCHED = 8192, 0xA5
"""Bytes on either side of a result, and what they hold."""


def in_the_middle(tensor):
    """Some room, and a copy of the tensor in its middle."""
    if tensor is None:
        return None, None
    size = tensor.numel() * tensor.element_size()
    room = torch.full((AROUND + size + AROUND,), UNTOUCHED, dtype=torch.uint8)
    middle = room[AROUND : AROUND + size].view(tensor.dtype).reshape(tensor.shape)
    return room, middle.copy_(tensor)


def implementations(library, kind, shape, dim, slices):
    text = ctypes.create_string_buffer(4096)
    code = library.stepplan_conv_implementations(kind, integers(astuple(shape)), dim, slices, text, 4096)
    if code:
        raise KernelError(code, text.value.decode())
    return [name for name in text.value.decode().split("\n") if "ref" not in name]


def channels_last(tensor, dtype=torch.float32):
    return tensor.to(dtype).movedim(1, -1).contiguous()


def channels_last_nan(shape, dtype=torch.float32):
    return nan(shape[0], *shape[2:], shape[1], dtype=dtype)


def nan(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), dtype=dtype)


def assert_as_good_as_torch(ours, truth, torchs, share=2e-6):
    """Float32 PyTorch's own error, times a factor for other orders of addition, is what we may differ by, and a share
    of what numbers are in the mean."""
    scale = truth.abs().mean().item() + 1e-30
    allowed = 4 * (torchs.double() - truth).abs().max().item() + share * scale
    assert (ours.double() - truth).abs().max().item() <= allowed


def assert_rounded_once(ours, truth, magnitudes):
    """Float32 sums of exact products, rounded to the type of `ours`. `magnitudes`: the sums of the products' sizes."""
    allowed = 2.0**-18 * magnitudes + (2.0**-8 * truth.abs() if ours.dtype == torch.bfloat16 else 0)
    assert ((ours.double() - truth).abs() <= allowed).all()


def check_conv(library, shape, kind, dim, slices, implementation="", seed=0):
    if shape.element:
        return check_low_conv(library, shape, kind, dim, slices, implementation, seed)
    random_numbers = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=random_numbers, dtype=torch.float64).float().double()

    s = shape
    x, w = draw(*s.x), draw(*s.w)
    bias = draw(s.oc) if s.bias else None
    dy = draw(*s.y)

    def expected(dtype):
        xs, ws = x.to(dtype, copy=True).requires_grad_(), w.to(dtype, copy=True).requires_grad_()
        bs = bias.to(dtype, copy=True).requires_grad_() if s.bias else None
        y = s.in_torch(xs, ws, bs)
        y.backward(dy.to(dtype))
        return y.detach(), xs.grad, ws.grad, bs.grad if s.bias else None

    share = 8e-6 if s.of_volumes else 2e-6  # chains of three times as many terms; PyTorch's products add up in blocks
    truth, torchs = expected(torch.float64), expected(torch.float32)
    b32 = bias.float() if s.bias else None
    if kind == FORWARD:
        y = channels_last_nan(s.y)
        run_conv(library, kind, s, dim, slices, implementation, channels_last(x), w.float(), b32, y)
        assert_as_good_as_torch(y.movedim(-1, 1), truth[0], torchs[0], share)
    elif kind == BACKWARD_DATA:
        dx = channels_last_nan(s.x)
        run_conv(library, kind, s, dim, slices, implementation, channels_last(dy), w.float(), None, dx)
        assert_as_good_as_torch(dx.movedim(-1, 1), truth[1], torchs[1], share)
    else:
        dw, db = nan(*w.shape), nan(s.oc)
        run_conv(library, kind, s, dim, slices, implementation, channels_last(x), channels_last(dy), None, dw, db)
        assert_as_good_as_torch(dw, truth[2], torchs[2], share)
        if s.bias:
            assert_as_good_as_torch(db, truth[3], torchs[3], share)


def check_low_conv(library, shape, kind, dim, slices, implementation, seed):
    """In bfloat16, against float64 of the same operands."""
    random_numbers = torch.Generator().manual_seed(seed)

    def draw(*size, dtype=torch.bfloat16):
        return torch.randn(*size, generator=random_numbers).to(dtype).double()

    s, low = shape, torch.bfloat16
    x, w = draw(*s.x), draw(*s.w)
    bias = draw(s.oc, dtype=torch.float32) if s.bias else None
    dy = draw(*s.y)

    def expected(x, w, bias, dy):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = s.in_torch(x, w, bias)
        y.backward(dy)
        return y.detach(), x.grad, w.grad

    truth = expected(x, w, bias, dy)
    magnitudes = expected(x.abs(), w.abs(), bias.abs() if s.bias else None, dy.abs())
    if kind == FORWARD:
        y = channels_last_nan(s.y, dtype=low)
        run_conv(
            library,
            kind,
            s,
            dim,
            slices,
            implementation,
            channels_last(x, low),
            channels_last(w, low),
            None if bias is None else bias.float(),
            y,
        )
        assert_rounded_once(y.movedim(-1, 1), truth[0], magnitudes[0])
    elif kind == BACKWARD_DATA:
        dx = channels_last_nan(s.x, dtype=low)
        run_conv(library, kind, s, dim, slices, implementation, channels_last(dy, low), channels_last(w, low), None, dx)
        assert_rounded_once(dx.movedim(-1, 1), truth[1], magnitudes[1])
    else:
        dw, db = nan(*w.shape, dtype=low), nan(s.oc)
        run_conv(
            library, kind, s, dim, slices, implementation, channels_last(x, low), channels_last(dy, low), None, dw, db
        )
        assert_rounded_once(dw, truth[2], magnitudes[2])
        if s.bias:
            assert_rounded_once(db, dy.transpose(0, 1).flatten(1).sum(1), dy.abs().transpose(0, 1).flatten(1).sum(1))


NAMED = {
    "first": conv(3, 3, (33, 35), 64, (7, 7), 2, 3, bias=1),
    "last": conv(2, 32, (20, 20), 3, (7, 7), bias=1),
    "plain3x3": conv(5, 32, (13, 13), 48, (3, 3), 1, 1),
    "tiles": conv(4, 80, (13, 10), 48, (3, 3), 1, 1, bias=1),
    "unpadded_tiles": conv(3, 16, (9, 12), 64, (3, 3), 1, 0),
    "overpadded_tiles": conv(3, 64, (5, 4), 112, (3, 3), 1, 2, bias=1),
    "strided_tiles": conv(3, 80, (13, 10), 48, (4, 4), 2, 1, bias=1),
    "strided3x3": conv(2, 16, (14, 15), 32, (3, 3), 2, 1, bias=1),
    "leftover": conv(2, 16, (16, 16), 32, (3, 3), 2, 0, bias=1),
    "pointwise": conv(4, 64, (9, 9), 128, (1, 1), bias=1),
    "strided1x1": conv(2, 64, (9, 9), 32, (1, 1), 2),
    "pointwise_portions": conv(3, 80, (19, 23), 112, (1, 1), bias=1),
    "dilated": conv(3, 16, (17, 17), 16, (3, 3), 1, 2, dilation=2, bias=1),
    "odd": conv(4, 5, (11, 10), 7, (3, 2), 1, 1, bias=1),
    "odd_wide": conv(2, 19, (8, 8), 100, (3, 3), 1, 1, bias=1),
    "grouped": conv(3, 32, (10, 10), 64, (3, 3), 1, 1, groups=4, bias=1),
    "depthwise": conv(3, 40, (12, 12), 40, (3, 3), 1, 1, groups=40, bias=1),
    "depthwise_strided": conv(3, 24, (11, 9), 24, (5, 5), 2, 2, groups=24),
    "depthwise_wide": conv(2, 20, (5, 6), 20, (7, 7), 1, 3, groups=20, bias=1),
    "odd_groups": conv(2, 12, (9, 9), 18, (3, 3), 2, 1, groups=3),
    "one_image": conv(1, 16, (28, 28), 32, (5, 5), 1, 2, bias=1),
    "four_stride": conv(1, 8, (40, 40), 16, (4, 4), 4, 0, bias=1),
    "big_stride": conv(2, 8, (23, 23), 16, (2, 2), 3, 1),
    "sequence": replace(conv(2, 32, (1, 38), 48, (1, 3), dilation=2, bias=1), pad_w=2, ow=38),
    "strided_sequence": replace(conv(3, 16, (1, 21), 16, (1, 4), 2), stride_h=1, pad_w=1, ow=10),
    "one_row": conv(2, 16, (1, 12), 32, (3, 3), 1, 1),
    "volume": volume(conv(2, 32, (7, 6), 16, (3, 3), 1, 1, bias=1), 5, 3, pad=1),
    "one_channel_volume": volume(conv(1, 1, (9, 8), 16, (3, 3), 1, 1, bias=1), 6, 3, pad=1),
    "deep_taps": volume(conv(2, 80, (5, 6), 48, (3, 3), 1, 2), 7, 2, pad=1),
    "shallow_volume": volume(conv(3, 16, (6, 5), 32, (3, 3), 1, 1), 1, 3, pad=1),
    "dilated_volume": volume(conv(1, 16, (8, 9), 16, (3, 3), 1, 2, dilation=2, bias=1), 9, 3, pad=2, dilation=2),
    "strided_volume": volume(conv(2, 16, (6, 8), 24, (2, 2), 2), 8, 2, stride=2),
    "strided_depths": volume(conv(1, 16, (6, 7), 16, (3, 3), 1, 1), 9, 3, stride=2, pad=1),
    "deep_columns": volume(conv(2, 32, (5, 4), 16, (1, 1), bias=1), 6, 3, pad=1),
    "long_columns": volume(conv(2, 48, (9, 15), 80, (1, 1), bias=1), 7, 5, pad=3, dilation=2),
    "grouped_volume": volume(conv(2, 12, (5, 6), 24, (3, 3), 1, 1, groups=3, bias=1), 4, 3, pad=1),
    "depthwise_volume": volume(conv(2, 24, (6, 5), 24, (3, 3), 1, 1, groups=24, bias=1), 5, 3, pad=1),
    "depthwise_strided_volume": volume(conv(2, 40, (7, 9), 40, (5, 5), 2, 2, groups=40), 7, 3, stride=2, pad=1),
    "depthwise_dilated_volume": volume(
        conv(1, 20, (9, 8), 20, (3, 3), 1, 2, dilation=2, groups=20), 8, 3, pad=2, dilation=2
    ),
    "depthwise_column": replace(conv(3, 24, (13, 7), 24, (5, 1), groups=24, bias=1), pad_h=2, oh=13),
    "dilated_column": replace(conv(2, 20, (11, 6), 20, (3, 1), dilation=2, groups=20), pad_h=2, oh=11),
    "depthwise_sequence": replace(conv(2, 24, (1, 30), 24, (1, 5), groups=24, bias=1), pad_w=2, ow=30),
}
MODES = [
    (FORWARD, BATCH),
    (FORWARD, ROWS),
    (BACKWARD_DATA, BATCH),
    (BACKWARD_DATA, ROWS),
    (BACKWARD_WEIGHTS, BATCH),
    (BACKWARD_WEIGHTS, ROWS),
    (BACKWARD_WEIGHTS, CHANNELS),
]


def possible(shape, kind, dim, slices):
    if dim == BATCH:
        return slices <= shape.n
    if dim == ROWS:
        s = shape
        if s.of_volumes:
            source, results, kernel, stride, pad, dilation = (getattr(s, name) for name in DEPTHS)
        elif s.ih == s.oh == 1:
            source, results, kernel, stride, pad, dilation = s.iw, s.ow, s.kw, s.stride_w, s.pad_w, s.dilation_w
        else:
            source, results, kernel, stride, pad, dilation = s.ih, s.oh, s.kh, s.stride_h, s.pad_h, s.dilation_h
        reach = (kernel - 1) * dilation
        steps = -(-(source + pad % stride) // stride) if kind == BACKWARD_DATA else results
        inside = kind == BACKWARD_DATA or (results - 1) * stride - pad < source
        return slices <= s.n * steps and pad <= reach and inside
    return shape.groups == 1 and slices <= shape.oc
