"""Operators of PyTorch's backward passes as operators that have handlers, and gradients of their own: PyTorch's tables,
and what they lack."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

_FORWARD = ("_norm", "log_sigmoid_forward", "nll_loss_forward", "nll_loss2d_forward")
"""Of these operators backward passes use results beside the first."""

_RESIZED = ("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_BORDERS = ("replication_pad1d", "replication_pad2d", "replication_pad3d")


@cache
def backward_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    aten, known = torch.ops.aten, torch._decomp.decomposition_table
    wanted = ("backward", *_FORWARD)
    found = {op: f for op, f in known.items() if any(w in str(op) for w in wanted)}
    own = _Backward(torch)
    return found | {
        aten.convolution_backward.default: own.convolution,
        aten.avg_pool2d_backward.default: own.average,
        aten.max_pool2d_with_indices_backward.default: own.maximum,
        aten.upsample_nearest2d_backward.default: own.nearest,
    }


@cache
def operators_in_parts(torch: Any) -> dict[str, Callable[..., Any]]:
    """Functions in the place of operators with backward passes of which nothing is known: what these are made of."""
    aten, known = torch.ops.aten, torch._decomp.decomposition_table
    images = {name: known[getattr(aten, name).vec] for name in _RESIZED}
    borders = {name: known[getattr(aten, name).default] for name in _BORDERS}

    def distances(a: Any, b: Any, p: float = 2.0, *_: Any) -> Any:
        return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)

    others = {
        "adaptive_avg_pool2d": known[aten._adaptive_avg_pool2d.default],
        "grid_sampler": known[aten.grid_sampler_2d.default],
        "cdist": distances,
        "_cdist_forward": distances,
        "copy": lambda x, source, *_: source.to(x.dtype).expand(x.shape).clone(),
        "view": torch.reshape,  # of what may lie otherwise in memory now
    }
    return {f"aten.{name}": function for name, function in (images | borders | others).items()}


class _Backward:
    """Arguments are ATen's, results are gradients in its order; images may have any number of dimensions."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.aten = torch, torch.ops.aten

    def convolution(
        self,
        dy: Any,
        x: Any,
        w: Any,
        bias_sizes: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        mask: Sequence[bool],
    ) -> tuple[Any, Any, Any]:
        dx = dw = db = None
        none = [0] * len(stride)
        if mask[0]:
            windows = zip(x.shape[2:], dy.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
            short = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in windows]
            rest = (none if transposed else short, groups)
            dx = self.aten.convolution(dy, w, None, stride, padding, dilation, not transposed, *rest)
        if mask[1]:
            image, other = (dy, x) if transposed else (x, dy)
            dw = self._weights(image, other, w, stride, padding, dilation, groups)
        if mask[2]:
            db = dy.sum([0, *range(2, dy.dim())])
        return dx, dw, db

    def _weights(
        self,
        image: Any,
        dy: Any,
        w: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Any:
        """The convolution of the image with dy, batches and channels having changed places, as have strides and
        dilations."""
        n, channels, *extents = image.shape
        each = channels // groups
        turned = image.reshape(n, groups, each, *extents).transpose(0, 2).reshape(each, groups * n, *extents)
        none = [0] * len(stride)
        made = self.aten.convolution(
            turned, dy.transpose(0, 1), None, dilation, padding, stride, False, none, groups
        ).transpose(0, 1)
        for axis, extent in enumerate(w.shape[2:], 2):
            made = made.narrow(axis, 0, extent)  # strides leave a rest of the image out
        return made

    def maximum(self, dy: Any, x: Any, *windows_and_indices: Any) -> Any:
        """Every window's maximum gets its gradient: `indices` count within an image."""
        flat, indices = x.flatten(-2), windows_and_indices[-1].flatten(-2)
        return self.torch.zeros_like(flat).scatter_add(-1, indices, dy.flatten(-2)).view(x.shape)

    def average(
        self,
        dy: Any,
        x: Any,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil: bool,
        padding_counts: bool,
        divisor: int | None,
    ) -> Any:
        """Of windows of equal weights, a transposed convolution by channel."""
        stride = stride or kernel
        if ceil or (any(padding) and not padding_counts and divisor is None):
            return NotImplemented
        rows, columns = kernel if len(kernel) == 2 else (kernel[0],) * 2
        w = dy.new_full((x.shape[-3], 1, rows, columns), 1 / (divisor or rows * columns))
        batch = dy.reshape(-1, *dy.shape[-3:])
        both = [[v[0], v[-1]] for v in (stride, padding)]
        windows = zip(x.shape[-2:], dy.shape[-2:], (rows, columns), *both, strict=True)
        short = [n - ((m - 1) * s - 2 * p + k) for n, m, k, s, p in windows]
        dx = self.aten.convolution(batch, w, None, *both, [1, 1], True, short, x.shape[-3])
        return dx.reshape(x.shape)

    def nearest(self, dy: Any, output: Sequence[int], size: Sequence[int], *scales: float | None) -> Any:
        """Of whole factors: every pixel has the sum of its copies."""
        n, channels, height, width = size
        if output[0] % height or output[1] % width:
            return NotImplemented
        return dy.reshape(n, channels, height, output[0] // height, width, output[1] // width).sum((3, 5))
