"""Where rounding decides discretely: relu's kink at zero, and the maximum of a pooling window.

An activation that lies within float32 rounding of zero falls on either side, and its whole gradient comes or goes with
it: one such element among n changes a gradient by about 1 / sqrt(n), far more than rounding, in any correct float32
program, and in each at other places. (ResNet-34, batch 2: one unit of 50 000 put 99.999 % of the squared error of a
gradient into one channel of 512.)

`Kinks` first watches a float32 twin, then makes a float64 twin take the other side wherever a kink is within reach of
float32. How far that moves a tensor is how far float32 determines it at all. Forward values change by less than
rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from codegen.torch_ops import TORCH
from codegen.torch_twin import Call
from planner.graph.model import Node

Tensor = torch.Tensor

REACH = 4.0
"""How many root mean squares of a tensor's float32 error count as near."""


class Kinks:
    """Calls for two twins, in this order: `watching` in float32, `beyond` in float64 from the same state and inputs."""

    def __init__(self) -> None:
        self._rough: dict[str, list[Tensor]] = {}
        """Node id -> what went into its kink, step by step."""

    def watching(self) -> dict[str, Call]:
        """PyTorch's own ops that remember what goes into their kinks."""
        return {op: partial(self._watch, before, after) for op, (before, after) in _OPS.items()}

    def beyond(self) -> dict[str, Call]:
        """Ops that take the other side of every kink within reach."""
        return {op: partial(self._cross, before, after) for op, (before, after) in _OPS.items()}

    def _watch(self, before: Call, after: "After", node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        x = before(node, inputs, updates)
        self._rough.setdefault(node.id, []).append(x.detach().clone())
        return after(node, x, 0.0)

    def _cross(self, before: Call, after: "After", node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        x = before(node, inputs, updates)
        error = self._rough[node.id].pop(0).to(x.dtype) - x.detach()
        return after(node, x, REACH * float(error.square().mean().sqrt()))


After = Callable[[Node, Tensor, float], Tensor]
"""(node, tensor before the kink, absolute reach) -> the op's output."""


def _input(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    return inputs[0]


def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    """Without its activation."""
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    return y + inputs[3] if a.residual else y


def _rectify(node: Node, x: Tensor, reach: float) -> Tensor:
    """relu, leaky relu, or the activation of a fused batch norm."""
    if getattr(node.attrs, "activation", "relu") != "relu":
        return x
    held = x.detach()
    return torch.where((held > 0) ^ (held.abs() < reach), x, getattr(node.attrs, "slope", 0.0) * x)


def _max_pool(node: Node, x: Tensor, reach: float) -> Tensor:
    """The second largest of a window where the largest is not much more."""
    a: Any = node.attrs
    y = TORCH["max_pool2d"](a, [x])
    if not reach:
        return y
    n, c, high, wide = y.shape
    top, _, left, _ = a.padding
    axes = zip(a.kernel, a.dilation, a.stride, (high, wide), strict=True)
    needed = [(k - 1) * d + 1 + s * (size - 1) for k, d, s, size in axes]
    more = (needed[1] - x.shape[3] - left, needed[0] - x.shape[2] - top)
    padded = F.pad(x, (left, more[0], top, more[1]), value=float("-inf"))
    windows = F.unfold(padded.reshape(n * c, 1, *padded.shape[2:]), a.kernel, a.dilation, 0, a.stride)
    first, second = (t.reshape(n, c, high, wide) for t in windows.topk(2, dim=1).values.unbind(1))
    return torch.where((first - second).detach() < reach, second, first)


_OPS: dict[str, tuple[Call, After]] = {
    "batch_norm": (_batch_norm, _rectify),
    "leaky_relu": (_input, _rectify),
    "max_pool2d": (_input, _max_pool),
    "relu": (_input, _rectify),
}
