"""Where rounding decides discretely: relu's kink at zero, and the maximum of a pooling window.

An activation that lies within float32 rounding of zero falls on either side, and its whole gradient comes or goes with
it: one such element among n changes a gradient by about 1 / sqrt(n), far more than rounding, in any correct float32
program, and in each at other places. `NEAR` runs a twin in which every such element takes the other side. How far that
moves a tensor in float64 is how far the tensor is determined at all. Forward values change by less than rounding.
"""

from typing import Any

import torch
from torch.nn import functional as F

from codegen.torch_ops import TORCH
from codegen.torch_twin import Call
from planner.graph.model import Node

Tensor = torch.Tensor

ROUNDING = 1e-5
"""What float32 activations may be off by, relative to the root mean square of their tensor."""


def _near(x: Tensor, like: Tensor) -> Tensor:
    """Where |x| is within rounding of the values of `like`."""
    return x.abs() < ROUNDING * like.square().mean().sqrt()


def _relu(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    return _rectified(inputs[0], 0.0)


def _leaky_relu(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    attrs: Any = node.attrs
    return _rectified(inputs[0], attrs.slope)


def _rectified(x: Tensor, slope: float) -> Tensor:
    held = x.detach()
    return torch.where((held > 0) ^ _near(held, held), x, slope * x)


def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    y = y + inputs[3] if a.residual else y
    return _rectified(y, 0.0) if a.activation == "relu" else y


def _max_pool(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    """The second largest of a window where the largest is not much more."""
    a: Any = node.attrs
    (x,) = inputs
    y = TORCH["max_pool2d"](a, [x])
    n, c, high, wide = y.shape
    top, _, left, _ = a.padding
    reach = [
        (k - 1) * d + 1 + s * (size - 1)
        for k, d, s, size in zip(a.kernel, a.dilation, a.stride, y.shape[2:], strict=True)
    ]
    more = (reach[1] - x.shape[3] - left, reach[0] - x.shape[2] - top)
    padded = F.pad(x, (left, more[0], top, more[1]), value=float("-inf"))
    windows = F.unfold(padded.reshape(n * c, 1, *padded.shape[2:]), a.kernel, a.dilation, 0, a.stride)
    first, second = (t.reshape(n, c, high, wide) for t in windows.topk(2, dim=1).values.unbind(1))
    return torch.where(_near((first - second).detach(), x.detach()), second, first)


NEAR: dict[str, Call] = {"batch_norm": _batch_norm, "leaky_relu": _leaky_relu, "max_pool2d": _max_pool, "relu": _relu}
