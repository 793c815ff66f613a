"""What the frontends share: the compositions that frameworks have as one operator.

An `Emitter` appends nodes under the name of the layer being lowered. Compositions are written so that their
gradients are the framework's: hardtanh, for instance, is a difference of two relus, not a minimum of a maximum.
"""

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from planner.frontends.shaping import Shaping
from planner.ops.activation import ClampAttrs
from planner.ops.masks import CompareAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.pool import MaxPoolAttrs
from planner.ops.reduce import ReduceAttrs
from planner.ops.scalar import ScalarAttrs
from planner.ops.whole import Function, WholeAttrs

LARGEST_WINDOW = 255
"""Of a pooling, which notes the chosen element in a byte."""


class Emitter(Shaping):
    # -- arithmetic --------------------------------------------------------------------------------------------
    def scale(self, x: str, factor: float) -> str:
        return x if factor == 1 else self.op("scale", x, attrs=ScalarAttrs(value=float(factor)))

    def shift(self, x: str, addend: float) -> str:
        return x if addend == 0 else self.op("add_scalar", x, attrs=ScalarAttrs(value=float(addend)))

    def power(self, x: str, exponent: float) -> str:
        simple = {1.0: "", 2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}.get(float(exponent))
        if simple is not None:
            return self.op(simple, x) if simple else x
        return self.op("pow_scalar", x, attrs=ScalarAttrs(value=float(exponent)))

    def reduce(self, op: str, x: str, axes: Sequence[int] | None, keepdims: bool = False) -> str:
        """reduce_sum or reduce_mean; no axes: all of them."""
        rank = self.rank(x)
        chosen = tuple(sorted(a % rank for a in axes)) if axes else tuple(range(rank))
        if x in self._images and chosen == tuple(range(2, rank)):  # images as they lie
            y = self.op(op, self._images[x], attrs=ReduceAttrs(axes=(2, 3)))
            return self.reshape(y, (*self.shape(y), *[1] * (rank - 2) * keepdims))
        shape = self.shape(x)
        left = [1 if axis in chosen else extent for axis, extent in enumerate(shape)]
        runs = self._runs(shape, [extent > 1 for extent in left])
        if len(runs) < rank:
            y = self.reshape(x, (prod(shape[run]) for run in runs))
            y = self.reduce(op, y, [i for i, run in enumerate(runs) if prod(left[run]) == 1])
            return self.reshape(y, left if keepdims else (d for axis, d in enumerate(left) if axis not in chosen))
        return self.op(op, x, attrs=ReduceAttrs(axes=chosen, keepdims=keepdims)) if rank else x

    def matmul(self, a: str, b: str, exact: bool = False) -> str:
        """NumPy's rules: vectors are matrices of one row or column, leading dimensions broadcast."""
        one, other = self.rank(a) == 1, self.rank(b) == 1
        a = self.unsqueeze(a, 0) if one else a
        b = self.unsqueeze(b, 1) if other else b
        lead_a, lead_b = self.shape(a)[:-2], self.shape(b)[:-2]
        if lead_a != lead_b and prod(lead_a) > 1 and prod(lead_b) > 1:
            lead = np.broadcast_shapes(lead_a, lead_b)
            a, b = self.expand(a, (*lead, *self.shape(a)[-2:])), self.expand(b, (*lead, *self.shape(b)[-2:]))
        (a, turned_a), (b, turned_b) = self.turned(a), self.turned(b)
        y = self.op("matmul", a, b, attrs=MatmulAttrs(transpose_a=turned_a, transpose_b=turned_b, exact=exact))
        shape = self.shape(y)
        return self.reshape(
            y, shape[: len(shape) - one - other] if other else shape[:-2] + shape[-1:] if one else shape
        )

    def along_last(self, op: str, x: str, axis: int) -> str:
        """softmax or log_softmax along any axis."""
        rank = self.rank(x)
        axis %= rank
        if axis == 1 < rank - 1 and x in self._images:
            return self._of_pixels(self.op(op, self._pixels(x)))
        axes = (*(a for a in range(rank) if a != axis), axis)
        y = self.op(op, self.permute(x, axes))
        return self.permute(y, (axes.index(a) for a in range(rank)))

    # -- activations that are compositions ---------------------------------------------------------------------
    def clamp(self, x: str, low: float | None, high: float | None) -> str:
        """Its gradient is 1 between the bounds, 0 outside and at them."""
        if low == 0 and high in (None, inf):
            return self.op("relu", x)
        return self._bounded("clamp", x, low, high)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        """Its gradient is 1 between the bounds and at them, 0 outside."""
        return self._bounded("clip", x, low, high)

    def _bounded(self, op: str, x: str, low: float | None, high: float | None) -> str:
        low = None if low == -inf else low
        high = None if high == inf else high
        if low is None and high is None:
            return x
        if low is not None and high is not None and low >= high:
            return self.fill(self.shape(x), high)
        return self.op(op, x, attrs=ClampAttrs(low=low, high=high))

    def prelu(self, x: str, slope: str) -> str:
        """x above 0, slope x below and at 0. As relu(x) + slope (x - relu(x)): so are the gradients."""
        above = self.op("relu", x)
        return self.op("add", above, self.op("mul", self.op("sub", x, above), slope))

    def root(self, x: str) -> str:
        """The square root of a sum of squares, whose gradient at 0 is 0 and not NaN."""
        zero = self.op("compare", x, self.fill((), 0.0), attrs=CompareAttrs(relation="eq"))
        return self.op("sub", self.op("sqrt", self.op("add", x, zero)), zero)

    def equal(self, a: str, b: str) -> str:
        """1 where a = b, else 0, both finite: |a - b| times 1e76 is beyond 1 or 0, whatever its size."""
        distance = self.op("abs", self.op("sub", a, b))
        return self.shift(self.op("neg", self.clamp(self.scale(self.scale(distance, 1e38), 1e38), None, 1.0)), 1)

    def hard_sigmoid(self, x: str) -> str:
        return self.scale(self.clamp(self.shift(x, 3), 0, 6), 1 / 6)

    def variance(self, x: str, axes: Sequence[int] | None, correction: float, keepdims: bool) -> tuple[str, str]:
        """(variance, mean)."""
        mean = self.reduce("reduce_mean", x, axes, True)
        count = prod(self.shape(x)) // max(1, prod(self.shape(mean)))
        square = self.op("square", self.op("sub", x, mean))
        var = self.scale(self.reduce("reduce_sum", square, axes, keepdims), 1 / max(count - correction, 1e-30))
        return var, (mean if keepdims else self.reshape(mean, self.shape(var)))

    def maximum_over(self, x: str, axis: int) -> str:
        """The largest elements along an axis, which stays with one element. Of several, the first has the gradient."""
        shape = self.shape(x)
        axis %= len(shape)
        if len(shape) == 3 and axis == 2 and x in self._images:  # whose channels are neighbours
            return self.reshape(self._largest(self._images[x]), (*shape[:2], 1))
        extent, inner = shape[axis], prod(shape[axis + 1 :])
        y = self.permute(self.reshape(x, (prod(shape[:axis]), extent, 1, inner)), (0, 3, 1, 2))
        return self.reshape(self.permute(self._largest(y), (0, 2, 3, 1)), (*shape[:axis], 1, *shape[axis + 1 :]))

    def _largest(self, images: str) -> str:
        """The largest pixel of every image and channel."""
        while max(extents := self.shape(images)[2:]) > 1:
            wide = min(extents[1], LARGEST_WINDOW)
            window = (min(extents[0], LARGEST_WINDOW // wide), wide)
            images = self.op("max_pool2d", images, attrs=MaxPoolAttrs(kernel=window, stride=window, ceil_mode=True))
        return images

    def whole(self, function: Function, a: str, b: str) -> str:
        """Arithmetic of int64 values."""
        return self.op("whole", a, b, attrs=WholeAttrs(function=function))
