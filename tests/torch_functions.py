"""Custom autograd functions in the ways in which they are written."""

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Function: TypeAlias = torch.autograd.Function


class Round(Function):
    """The gradient passes as it is: a straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


rounded = Round.apply
"""As many have it: bound before anything is captured."""


class Spike(Function):
    """A step whose gradient is that of another function (spiking networks), with a number as an argument."""

    @staticmethod
    def forward(x: Tensor, slope: float = 3.0) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return dy / (1 + ctx.slope * x.abs()) ** 2, None


class Scaled(Function):
    """Two results, of which the second may be read by nobody; two gradients, one of them a broadcast one's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, scale)
        return x * scale, x.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dsum: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        wide = 3 * dy * x if ctx.needs_input_grad[1] else None
        return dy * scale + 2 * dsum[:, None], wide


class Reversed(Function):
    """What it returns is its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.neg() * 0.3


class Largest(Function):
    """Its second result has no gradient, and its first one's is made without what arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.max(1)
        ctx.save_for_backward(x)
        second = x.square().sum(1)
        ctx.mark_non_differentiable(places, second)
        return values, places, second

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *others: Tensor) -> Tensor:
        return torch.tanh(ctx.saved_tensors[0])


class SquaredError(Function):
    """A loss that has computed its gradient already."""

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, labels: Tensor) -> Tensor:
        off = prediction - labels
        ctx.save_for_backward(off)
        return off.square().sum()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * 5 * ctx.saved_tensors[0], None


class Outer(Function):
    """Another function within."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Spike.apply(x, 2.0) * 3

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return Spike.apply(dy, 4.0)
