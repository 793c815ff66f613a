"""Every differentiable op in PyTorch: name -> function(attrs, tensors) -> its outputs that others read: one tensor, or
a tuple of them. Needs torch."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F

from codegen.torch_attention import attention
from planner.frontends.torch_versions import closes_at_bounds
from planner.ops.average_pool import AvgPool2d
from planner.ops.expression import parse
from planner.ops.max_pool import MaxPool2d

Tensor: TypeAlias = torch.Tensor
Outputs: TypeAlias = Tensor | tuple[Tensor, ...]
Call = Callable[[Any, Sequence[Tensor]], Outputs]


def conv2d(a: Any, t: Sequence[Tensor]) -> Tensor:
    top, bottom, left, right = a.padding
    padded = F.pad(t[0], (left, right, top, bottom))
    return F.conv2d(padded, *t[1:], stride=a.stride, dilation=a.dilation, groups=a.groups)


def clip(a: Any, t: Sequence[Tensor]) -> Tensor:
    """With a gradient at the bounds, which PyTorch's own has before 2.14."""
    low, high = -inf if a.low is None else a.low, inf if a.high is None else a.high
    if not closes_at_bounds(torch):
        return t[0].clamp(low, high)
    return torch.where((t[0] < low) | (t[0] > high), t[0].detach().clamp(low, high), t[0])


def conv_transpose2d(a: Any, t: Sequence[Tensor]) -> Tensor:
    """PyTorch pads both sides alike: what else is to go is cut off."""
    top, bottom, left, right = a.padding
    more = (a.output_padding[0], a.output_padding[1])
    y = F.conv_transpose2d(*t, stride=a.stride, output_padding=more, dilation=a.dilation, groups=a.groups)
    return y[:, :, top : y.shape[2] - bottom, left : y.shape[3] - right]


def _volumes(images: Tensor, depths: int) -> Tensor:
    """(N D, C, H, W) -> (N, C, D, H, W)."""
    return images.unflatten(0, (-1, depths)).transpose(1, 2)


def _images(volumes: Tensor) -> Tensor:
    return volumes.transpose(1, 2).flatten(0, 1)


def _deep(w: Tensor, a: Any) -> Tensor:
    return w.unflatten(2, (a.kernel_depth, -1))


def conv3d(a: Any, t: Sequence[Tensor]) -> Tensor:
    top, bottom, left, right = a.padding
    x, sides = _volumes(t[0], a.depth), (a.depth_padding, (top, bottom), (left, right))
    padding = tuple(before for before, _ in sides)
    if any(before != behind for before, behind in sides):
        x, padding = F.pad(x, (left, right, top, bottom, *a.depth_padding)), (0, 0, 0)
    steps = {"stride": (a.depth_stride, *a.stride), "dilation": (a.depth_dilation, *a.dilation), "groups": a.groups}
    return _images(F.conv3d(x, _deep(t[1], a), *t[2:], padding=padding, **steps))


def conv_transpose3d(a: Any, t: Sequence[Tensor]) -> Tensor:
    """What PyTorch would pad in front is cut off, and what is missing behind has no weights."""
    top, bottom, left, right = a.padding
    front, _ = a.depth_padding
    steps = {"stride": (a.depth_stride, *a.stride), "dilation": (a.depth_dilation, *a.dilation), "groups": a.groups}
    y = F.conv_transpose3d(_volumes(t[0], a.results), _deep(t[1], a), **steps)
    down, across = a.output_padding
    y = F.pad(y, (0, across, 0, down, 0, max(0, front + a.depth - y.shape[2])))
    return _images(y[:, :, front : front + a.depth, top : y.shape[3] - bottom, left : y.shape[4] - right])


def lstm_cell(a: Any, t: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    i, f, g, o = (t[0] + t[1]).chunk(4, 1)
    c = f.sigmoid() * t[2] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(a: Any, t: Sequence[Tensor]) -> Tensor:
    (ar, az, an), (br, bz, bn) = t[0].chunk(3, 1), t[1].chunk(3, 1)
    z = (az + bz).sigmoid()
    return (1 - z) * (an + (ar + br).sigmoid() * bn).tanh() + z * t[2]


_UPSAMPLE = {
    "nearest": "upsample_nearest2d",
    "nearest_exact": "_upsample_nearest_exact2d",
    "linear": "upsample_bilinear2d",
    "cubic": "upsample_bicubic2d",
}


def interpolate(a: Any, t: Sequence[Tensor]) -> Tensor:
    """By the scales, which need not be what the sizes say; PyTorch takes their inverses."""
    smooth = a.method in ("linear", "cubic")
    scales = [None if a.corners or not s else 1 / s for s in a.scales]
    arguments = (a.corners, *scales) if smooth else scales
    return getattr(torch.ops.aten, _UPSAMPLE[a.method])(t[0], list(a.size), *arguments)


def matmul(a: Any, t: Sequence[Tensor]) -> Tensor:
    x = t[0].transpose(-1, -2) if a.transpose_a else t[0]
    y = t[1].transpose(-1, -2) if a.transpose_b else t[1]
    return x @ y


def grouped_matmul(a: Any, t: Sequence[Tensor]) -> Tensor:
    """Spelled out: PyTorch's own has no gradients on processors in every type. Rows of no group are 0."""
    matrices = t[1].transpose(1, 2) if a.transpose_b else t[1]
    parts = [x @ w for x, w in zip(_groups(t[0], t[2]), matrices, strict=True)]
    done = torch.cat(parts)
    return F.pad(done, (0, 0, 0, len(t[0]) - len(done)))


def grouped_outer(a: Any, t: Sequence[Tensor]) -> Tensor:
    pairs = zip(_groups(t[0], t[2]), _groups(t[1], t[2]), strict=True)
    return torch.stack([x.T @ y for x, y in pairs])


def _groups(rows: Tensor, ends: Tensor) -> list[Tensor]:
    reached = ends.clamp(0, len(rows)).cummax(0).values.tolist()
    return [rows[begin:end] for begin, end in zip([0, *reached[:-1]], reached, strict=True)]


def argsort(a: Any, t: Sequence[Tensor]) -> Tensor:
    return t[0].sort(dim=-1, descending=a.descending, stable=True).indices[..., : a.count]


def segment_max(a: Any, t: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of sources and targets that are no rows, nothing; PyTorch's own would fail."""
    x, sources, targets = t
    counted = (sources >= 0) & (sources < len(x)) & (targets >= 0) & (targets < a.rows)
    rows, targets = x[sources[counted]], targets[counted]
    lowest = x.new_full((a.rows, x.shape[1]), -inf)
    y = lowest.scatter_reduce(0, targets[:, None].expand_as(rows), rows, "amax")
    return y, share_of(y, targets, rows.isclose(y[targets], 0, 0, equal_nan=True))


def share_of(y: Tensor, targets: Tensor, largest: Tensor) -> Tensor:
    """1 / how many rows are the largest of an element; 0: it has none."""
    count = torch.zeros_like(y).index_add(0, targets, largest.to(y.dtype))
    return torch.where(count > 0, 1 / count, 0.0)


def cumsum(a: Any, t: Sequence[Tensor]) -> Tensor:
    return t[0].flip(a.axis).cumsum(a.axis).flip(a.axis) if a.reverse else t[0].cumsum(a.axis)


def straightened(x: Tensor, beta: float, above: Tensor) -> Tensor:
    """softplus, but x itself where it is above. There nothing else is computed: softplus of a large number has no
    gradient, not even one to multiply by 0."""
    return torch.where(above, x, F.softplus(x.masked_fill(above, 0.0), beta, inf))


def ctc_loss(a: Any, t: Sequence[Tensor]) -> Tensor:
    """Frame by frame: PyTorch's own takes labels, and differentiates as if a softmax were in front of it."""
    x, skips, frames, labels = t
    never = -1e30  # has gradients, where infinity has none
    found = []
    for n, (length, states) in enumerate(zip(frames.tolist(), (2 * labels + 1).tolist(), strict=True)):
        paths = torch.where(torch.arange(states) < 2, x[n, 0, :states], never)
        for frame in x[n, 1:length, :states]:
            before, second = (F.pad(paths, (i, 0), value=never)[:states] for i in (1, 2))
            ways = torch.stack([paths, before, torch.where(skips[n, :states] > 0, second, never)])
            paths = frame + ways.logsumexp(0)
        found.append(-paths[-2:].logsumexp(0))
    return torch.stack(found)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": torch.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hard_swish": F.hardswish,
}
"""Of batch and group norms."""


def batch_norm(a: Any, t: Sequence[Tensor]) -> Tensor:
    y = F.batch_norm(t[0], None, None, t[1], t[2], training=True, eps=a.eps)
    y = y + t[3] if a.residual else y
    return ACTIVATIONS[a.activation](y)


def group_norm(a: Any, t: Sequence[Tensor]) -> Tensor:
    return ACTIVATIONS[a.activation](F.group_norm(t[0], a.groups, t[1], t[2], a.eps))


def layer_norm(a: Any, t: Sequence[Tensor]) -> Tensor:
    gamma = t[1] if a.scale else None
    beta = t[-1] if a.shift else None
    return F.layer_norm(t[0], t[0].shape[t[0].ndim - a.dims :], gamma, beta, a.eps)


def max_pool2d(a: Any, t: Sequence[Tensor]) -> Tensor:
    top, bottom, left, right = a.padding
    if a.padding[::2] == a.padding[1::2]:
        return F.max_pool2d(t[0], a.kernel, a.stride, (top, left), a.dilation, a.ceil_mode)
    high, wide = MaxPool2d().windows(a, t[0].shape)
    padded = F.pad(t[0], (left, right + 9, top, bottom + 9), value=float("-inf"))
    return F.max_pool2d(padded, a.kernel, a.stride, 0, a.dilation)[:, :, : high.out, : wide.out]


def avg_pool2d(a: Any, t: Sequence[Tensor]) -> Tensor:
    top, bottom, left, right = a.padding
    if a.padding[::2] == a.padding[1::2]:
        return F.avg_pool2d(t[0], a.kernel, a.stride, (top, left), a.ceil_mode, a.count_include_pad)
    high, wide = AvgPool2d().windows(a, t[0].shape)

    def sums(x: Tensor) -> Tensor:
        padded = F.pad(x, (left, right, top, bottom))
        return F.avg_pool2d(padded, a.kernel, a.stride, divisor_override=1)[:, :, : high.out, : wide.out]

    return sums(t[0]) / sums(torch.ones_like(t[0]))


def reduce_of(function: Callable[..., Tensor]) -> Call:
    return lambda a, t: function(t[0], a.axes, a.keepdims)


def sliced(a: Any, t: Sequence[Tensor]) -> Tensor:
    index = [slice(None)] * t[0].ndim
    index[a.axis] = slice(a.start, a.stop, a.step)
    return t[0][tuple(index)]


def pad(a: Any, t: Sequence[Tensor]) -> Tensor:
    return F.pad(t[0], [p for pair in reversed(a.pads) for p in pair], value=a.value)


def cross_entropy(a: Any, t: Sequence[Tensor]) -> Tensor:
    return F.cross_entropy(
        t[0], t[1], reduction=a.reduction, ignore_index=a.ignore_index, label_smoothing=a.label_smoothing
    )


def cross_entropy_rows(a: Any, t: Sequence[Tensor]) -> Tensor:
    return F.cross_entropy(t[0], t[1], reduction="none", ignore_index=a.ignore_index, label_smoothing=a.label_smoothing)


def embedding(a: Any, t: Sequence[Tensor]) -> Tensor:
    return F.embedding(t[1], t[0], padding_idx=a.padding_index if a.padding_index >= 0 else None)


def embedding_backward(a: Any, t: Sequence[Tensor]) -> Tensor:
    """Of ids that are no rows, nothing; PyTorch's own would fail."""
    rows, ids = t[0].flatten(0, -2), t[1].flatten()
    counted = (ids >= 0) & (ids < a.entries) & (ids != a.padding_index)
    return rows.new_zeros(a.entries, rows.shape[1]).index_add(0, ids[counted], rows[counted])


def spmm(a: Any, t: Sequence[Tensor]) -> Tensor:
    x, sources, targets, *weights = t
    rows = x[sources]
    for w in weights:
        rows = (rows.unflatten(1, (w.shape[1], -1)) * w[..., None]).flatten(1)
    return x.new_zeros(a.rows, x.shape[1]).index_add(0, targets, rows)


def sort_entries(a: Any, t: Sequence[Tensor]) -> tuple[Tensor, ...]:
    places = t[1].clamp(-1, a.target_rows).argsort(stable=True)
    return t[0][places], t[1][places], places, places.argsort()


def sddmm(a: Any, t: Sequence[Tensor]) -> Tensor:
    products = t[0][t[2]] * t[1][t[3]]
    return products.unflatten(1, (a.heads, -1)).sum(2)


def nll_loss(a: Any, t: Sequence[Tensor]) -> Tensor:
    """With label smoothing, cross entropy of unnormalised rows that happen to be log-probabilities."""
    if not a.label_smoothing:
        return F.nll_loss(t[0], t[1], reduction=a.reduction, ignore_index=a.ignore_index)
    counted = t[1] != a.ignore_index
    own = t[0].gather(1, t[1].clamp(min=0)[:, None])[:, 0]
    loss = -((1 - a.label_smoothing) * own + a.label_smoothing * t[0].mean(1))[counted]
    return loss.mean() if a.reduction == "mean" else loss.sum()


def elu(a: Any, t: Sequence[Tensor]) -> Tensor:
    curve = a.alpha * torch.expm1(a.input_scale * t[0].clamp(max=0))
    return a.scale * torch.where(t[0] > 0, t[0], curve)


def log_determinant(a: Any, t: Sequence[Tensor]) -> tuple[Tensor, ...]:
    sign, logarithm = torch.linalg.slogdet(t[0])
    return logarithm, sign.detach()


def chain(a: Any, t: Sequence[Tensor]) -> Tensor:
    """Its steps one after the other, as the model had them."""
    expression, values = parse(a.expression, len(t)), list(t)
    for step in expression.steps:
        value = TORCH[step.op](step.attrs, [values[v] for v in step.operands])
        assert isinstance(value, torch.Tensor)
        values.append(value)
    return values[expression.results[0]]


TORCH: dict[str, Call] = {
    "atan": lambda a, t: t[0].atan(),
    "round": lambda a, t: t[0].round(),
    "floor": lambda a, t: t[0].floor(),
    "trunc": lambda a, t: t[0].trunc(),
    "sign": lambda a, t: t[0].sign(),
    "cos": lambda a, t: t[0].cos(),
    "cholesky": lambda a, t: torch.linalg.cholesky(t[0]),
    "inverse": lambda a, t: torch.linalg.inv(t[0]),
    "log_determinant": log_determinant,
    "lgamma": lambda a, t: t[0].lgamma(),
    "digamma": lambda a, t: t[0].digamma(),
    "trigamma": lambda a, t: torch.polygamma(1, t[0]),
    "sin": lambda a, t: t[0].sin(),
    "elu": elu,
    "erf": lambda a, t: t[0].erf(),
    "abs": lambda a, t: t[0].abs(),
    "adaptive_avg_pool2d": lambda a, t: F.adaptive_avg_pool2d(t[0], a.output),
    "add": lambda a, t: t[0] + t[1],
    "add_scalar": lambda a, t: t[0] + a.value,
    "argsort": argsort,
    "attention": attention,
    "avg_pool2d": avg_pool2d,
    "batch_norm": batch_norm,
    "bce_with_logits": lambda a, t: F.binary_cross_entropy_with_logits(t[0], t[1], reduction=a.reduction),
    "chain": chain,
    "concat": lambda a, t: torch.cat(list(t), a.axis),
    "conv2d": conv2d,
    "conv3d": conv3d,
    "conv_transpose2d": conv_transpose2d,
    "conv_transpose3d": conv_transpose3d,
    "convert_layout": lambda a, t: t[0] * 1,
    "cast": lambda a, t: t[0].to(getattr(torch, a.dtype)),
    "compare": lambda a, t: getattr(torch, a.relation)(*t).to(torch.get_default_dtype()),
    "cross_entropy": cross_entropy,
    "cross_entropy_rows": cross_entropy_rows,
    "ctc_loss": ctc_loss,
    "cumsum": cumsum,
    "detach": lambda a, t: t[0].detach(),
    "distances": lambda a, t: torch.cdist(*t).square(),
    "div": lambda a, t: t[0] / t[1],
    "embedding": embedding,
    "embedding_backward": embedding_backward,
    "exp": lambda a, t: t[0].exp(),
    "expm1": lambda a, t: t[0].expm1(),
    "expand": lambda a, t: t[0].expand(a.shape),
    "fmod": lambda a, t: torch.fmod(*t),
    "gelu": lambda a, t: F.gelu(t[0], approximate=a.approximate),
    "grouped_matmul": grouped_matmul,
    "grouped_outer": grouped_outer,
    "gru_cell": gru_cell,
    "group_norm": group_norm,
    "interpolate": interpolate,
    "layer_norm": layer_norm,
    "clamp": lambda a, t: F.hardtanh(t[0], -inf if a.low is None else a.low, inf if a.high is None else a.high),
    "clip": clip,
    "leaky_relu": lambda a, t: F.leaky_relu(t[0], a.slope),
    "linear": lambda a, t: F.linear(*t),
    "log": lambda a, t: t[0].log(),
    "log1p": lambda a, t: t[0].log1p(),
    "log_softmax": lambda a, t: t[0].log_softmax(-1),
    "lrn": lambda a, t: F.local_response_norm(t[0][..., None], a.size, a.alpha, a.beta, a.k)[..., 0],
    "lstm_cell": lstm_cell,
    "matmul": matmul,
    "max_pool2d": max_pool2d,
    "maximum": lambda a, t: torch.maximum(*t),
    "minimum": lambda a, t: torch.minimum(*t),
    "mse_loss": lambda a, t: F.mse_loss(t[0], t[1], reduction=a.reduction),
    "mul": lambda a, t: t[0] * t[1],
    "neg": lambda a, t: -t[0],
    "nll_loss": nll_loss,
    "ones": lambda a, t: torch.full(a.shape, a.value),
    "pad": pad,
    "permute": lambda a, t: t[0].permute(a.axes),
    "pow": lambda a, t: torch.pow(*t),
    "pow_scalar": lambda a, t: t[0] ** a.value,
    "reciprocal": lambda a, t: 1 / t[0],
    "reduce_mean": reduce_of(torch.mean),
    "reduce_sum": reduce_of(torch.sum),
    "relu": lambda a, t: t[0].relu(),
    "remainder": lambda a, t: torch.remainder(*t),
    "reshape": lambda a, t: t[0].reshape(a.shape),
    "scale": lambda a, t: t[0] * a.value,
    "sddmm": sddmm,
    "segment_max": segment_max,
    "sigmoid": lambda a, t: t[0].sigmoid(),
    "silu": lambda a, t: F.silu(t[0]),
    "slice": sliced,
    "sort_entries": sort_entries,
    "softplus": lambda a, t: straightened(t[0], a.beta, a.beta * t[0] > a.bound),
    "softmax": lambda a, t: t[0].softmax(-1),
    "split": lambda a, t: t[0].split(list(a.sizes), a.axis),
    "spmm": spmm,
    "sqrt": lambda a, t: t[0].sqrt(),
    "square": lambda a, t: t[0] ** 2,
    "sub": lambda a, t: t[0] - t[1],
    "sum_to": lambda a, t: t[0].sum_to_size(a.shape),
    "whole": lambda a, t: getattr(torch, a.function)(*t),
    "where": lambda a, t: torch.where(t[0] != 0, t[1], t[2]),
    "tanh": lambda a, t: t[0].tanh(),
}
