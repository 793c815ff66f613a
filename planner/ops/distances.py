"""Squared distances of all rows of one matrix from all rows of another, with no value per pair and feature.

Differences are squared as they are: products of the matrices instead, as torch.cdist takes them, round what is left of
numbers that nearly cancel out. Slices cut the rows of the result, so every element has one order of additions.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, TensorType
from planner.ops.base import (
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    ScratchPart,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.units import Bytes

FLOAT = 4
PANEL = 64
"""Rows of the other side that are copied at once, feature by feature (runtime/distances.hpp)."""
OTHERS, FEATURES = 512, 32
"""In the gradient: rows of the other side, and features, that are copied at once."""


class Sizes(NamedTuple):
    """Of `batch` pairs of matrices: the rows of a slice's own side and of the other one, and their features."""

    batch: int
    rows: int
    others: int
    features: int


class _Distances(Op):
    family = "distances"
    own: ClassVar[int] = 0
    """Which input has a row for every row of the result, and the same for the other side."""
    other: ClassVar[int] = 1

    def sizes(self, signature: Signature) -> Sizes:
        own, other = signature.inputs[self.own].shape, signature.inputs[self.other].shape
        return Sizes(prod(own[:-2]), own[-2], other[-2], own[-1])

    def flops(self, signature: Signature) -> int:
        return 3 * prod(self.sizes(signature))

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        sizes = self.sizes(signature)
        return {("loops", "rows"): sizes.batch * sizes.rows}

    def floats(self, signature: Signature) -> int:
        """Scratch of a slice."""
        raise NotImplementedError

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (ScratchPart("side", Bytes(FLOAT * self.floats(signature) * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        s = self.sizes(signature)
        lo, hi = split(s.batch * s.rows, mode.slices, index)
        first, last = lo // s.rows, -(-hi // s.rows)
        each = signature.outputs[0].shape[-1]
        return (
            reads(f"in{self.own}", lo * s.features, hi * s.features),
            reads(f"in{self.other}", first * s.others * s.features, last * s.others * s.features),
            writes("out0", lo * each, hi * each),
            writes("side", index, index + 1),
            *self._weights(s, (lo, hi), (first, last), signature.attrs),
        )

    def _weights(self, s: Sizes, rows: tuple[int, int], batch: tuple[int, int], attrs: Any) -> tuple[Access, ...]:
        return ()

    def _fit(self, *types: TensorType) -> None:
        """SP1002: not matrices, or as many matrices, with as many features each."""
        shapes = [t.shape for t in types]
        if any(len(s) not in (2, 3) or s[:-2] != shapes[0][:-2] or s[-1] != shapes[0][-1] for s in shapes):
            names = " and ".join(t.text() for t in types)
            raise misfit(f"{self.name} takes no {names}", "give it matrices of as many features, or stacks of as many")


@register
class Distances(_Distances):
    """y[.., i, j] = sum over k of (a[.., i, k] - b[.., j, k])^2. Inputs: a [.., n, d], b [.., m, d], single matrices or
    stacks of as many. Output: y [.., n, m]."""

    name = "distances"
    input_counts = (2,)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self._fit(*inputs)
        a, b = inputs
        return (TensorType(shape=(*a.shape[:-1], b.shape[-2]), dtype=a.dtype),)

    def floats(self, signature: Signature) -> int:
        return PANEL * self.sizes(signature).features

    def gradient(self, context: GradientContext) -> None:
        sides = context.node.inputs
        for index, suffix in enumerate("ab"):
            if context.needs(index):
                inputs = [context.grad, sides[index], sides[1 - index]]
                attrs, name = DistancesBackwardAttrs(turned=index == 1), f"backward_{suffix}"
                context.give(index, context.emit("distances_backward", inputs, attrs, name, of=index)[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b = inputs
        return (np.square(a[..., :, None, :] - b[..., None, :, :]).sum(-1),)

    def samples(self) -> Sequence[Sample]:
        shapes = (
            ((7, 5), (9, 5)),
            ((33, 3), (130, 3)),
            ((2, 11, 70), (2, 64, 70)),
            ((1, 600), (3, 600)),
            ((3, 5, 1), (3, 1, 1)),
        )
        return tuple(Sample(Attrs(), tuple(TensorType(shape=s) for s in pair)) for pair in shapes)


class DistancesBackwardAttrs(Attrs):
    """`turned`: dy has a column for every row of x, in place of a row."""

    turned: bool = False


@register
class DistancesBackward(_Distances):
    """dx[.., i, k] = 2 sum over j of dy[.., i, j] (x[.., i, k] - other[.., j, k]), of dy[.., j, i] if `turned`. Inputs:
    dy [.., n, m] (or [.., m, n]), x [.., n, d], other [.., m, d]. Output: dx [.., n, d]."""

    name = "distances_backward"
    attrs_type = DistancesBackwardAttrs
    input_counts = (3,)
    output_names = ("dx",)
    own, other = 1, 2

    def infer(self, attrs: DistancesBackwardAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, x, other = inputs
        self._fit(x, other)
        pair = (other.shape[-2], x.shape[-2]) if attrs.turned else (x.shape[-2], other.shape[-2])
        if dy.shape != (*x.shape[:-2], *pair):
            sides = f"{x.text()} and {other.text()}"
            raise misfit(f"{dy.text()} is no gradient of distances between {sides}", f"use {pair}")
        return (x,)

    def floats(self, signature: Signature) -> int:
        return min(self.sizes(signature).others, OTHERS) * FEATURES

    def _weights(self, s: Sizes, rows: tuple[int, int], batch: tuple[int, int], attrs: Any) -> tuple[Access, ...]:
        (lo, hi), (first, last) = rows, batch
        if not attrs.turned:
            return (reads("in0", lo * s.others, hi * s.others),)
        if last - first > 1:
            return (reads("in0", first * s.others * s.rows, last * s.others * s.rows),)
        columns = (lo - first * s.rows, hi - first * s.rows)
        return (Access("in0", False, (first * s.others, last * s.others), columns, s.rows),)

    def reference(self, attrs: DistancesBackwardAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x, other = inputs
        weights = np.swapaxes(dy, -1, -2) if attrs.turned else dy
        return (2 * (weights[..., None] * (x[..., :, None, :] - other[..., None, :, :])).sum(-2),)

    def samples(self) -> Sequence[Sample]:
        found = []
        for sample in Distances().samples():
            a, b = sample.inputs
            y = TensorType(shape=(*a.shape[:-1], b.shape[-2]))
            found.append(Sample(DistancesBackwardAttrs(), (y, a, b)))
            found.append(Sample(DistancesBackwardAttrs(turned=True), (y, b, a)))
        many = TensorType(shape=(2, 5, 700)), TensorType(shape=(2, 5, 40)), TensorType(shape=(2, 700, 40))
        return (*found, Sample(DistancesBackwardAttrs(), many))
