"""Dropout with a counter-based generator: an element's draw depends on seed, step, node and position only, so that
slices, recomputation and repeated runs give the same mask.

Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (i / 4 as 64 bits, stream, step); element i, counted in
memory order, takes word i % 4. Mirrors runtime/dropout.hpp bit for bit.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, Node, TensorType
from planner.ops.base import EVERY, Array, Sample, misfit, register
from planner.ops.elementwise import Elementwise

REFERENCE_SEED, REFERENCE_STEP = 0, 1
"""What `reference` draws with: the first step of an executor with seed 0."""


class DropoutAttrs(Attrs):
    """`p`: the share that is dropped. `stream` tells the dropouts of a graph apart; the builder derives it, and the
    memory order of the data, from the node."""

    costless: ClassVar[frozenset[str]] = frozenset({"stream"})
    p: float = 0.5
    stream: int = -1
    layout: Layout = Layout.ROW_MAJOR


class DropoutGradAttrs(Attrs):
    p: float


@register
class Dropout(Elementwise):
    """y = x / (1 - p) where mask is 1, else 0. Outputs: y, mask (uint8). Nothing in evaluation mode."""

    name = "dropout"
    low_precision = EVERY
    family = "dropout"
    attrs_type = DropoutAttrs
    output_names = ("y", "mask")
    saved_outputs = frozenset({"mask"})

    def settle(self, attrs: DropoutAttrs, node: str, inputs: Sequence[TensorType]) -> DropoutAttrs:
        return attrs.model_copy(update={"stream": settled(attrs.stream, node), "layout": inputs[0].layout})

    def infer(self, attrs: DropoutAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        require_drawable(attrs.p, attrs.stream)
        if attrs.layout is not x.layout:
            raise misfit(f"dropout counts {attrs.layout.value} elements of {x.text()}", "let the builder choose it")
        return (x, x.model_copy(update={"dtype": DType.UINT8}))

    def evaluation(self, node: Node, inputs: list[str]) -> None:
        return None

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, DropoutAttrs)
        mask = context.node.outputs[1]
        context.give(0, context.emit("dropout_backward", [context.grad, mask], DropoutGradAttrs(p=attrs.p))[0])

    def reference(self, attrs: DropoutAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        drawn = dropout_mask(REFERENCE_SEED, attrs.stream, REFERENCE_STEP, attrs.p, x.size)
        if attrs.layout is Layout.CHANNELS_LAST:
            n, c, h, w = x.shape
            mask = drawn.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        else:
            mask = drawn.reshape(x.shape)
        return (_apply(x, mask, attrs.p), mask)

    def samples(self) -> Sequence[Sample]:
        cl = Layout.CHANNELS_LAST
        return (
            Sample(DropoutAttrs(stream=7), (TensorType(shape=(33,)),)),
            Sample(DropoutAttrs(stream=2**31, p=0.1, layout=cl), (TensorType(shape=(3, 8, 5, 7), layout=cl),)),
            Sample(DropoutAttrs(stream=1, p=1.0), (TensorType(shape=(6, 10)),)),
        )


@register
class DropoutBackward(Elementwise):
    """dx = dy / (1 - p) where mask is 1, else 0. Inputs: dy, mask."""

    name = "dropout_backward"
    input_counts = (2,)
    integers: ClassVar[Mapping[int, DType]] = {1: DType.UINT8}
    low_precision = EVERY
    family = "dropout"
    attrs_type = DropoutGradAttrs
    output_names = ("dx",)

    def infer(self, attrs: DropoutGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, mask = inputs
        if dy.shape != mask.shape or dy.layout is not mask.layout:
            raise misfit(f"the mask {mask.text()} does not fit {dy.text()}", "use the mask of the forward node")
        return (dy,)

    def reference(self, attrs: DropoutGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (_apply(inputs[0], inputs[1], attrs.p),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        shape = sample.inputs[0].shape
        return (rng.standard_normal(shape), rng.integers(0, 2, shape).astype(np.uint8))

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in Dropout().samples():
            assert isinstance(s.attrs, DropoutAttrs)
            types = Dropout().infer(s.attrs, s.inputs)
            found.append(Sample(DropoutGradAttrs(p=s.attrs.p), types))
        return tuple(found)


def settled(stream: int, node: str) -> int:
    """The stream of a node that was given one, or (-1) not."""
    return crc32(node.encode()) if stream < 0 else stream


def require_drawable(p: float, stream: int) -> None:
    """SP1002 unless this share can be dropped with this stream."""
    if not 0 <= p <= 1 or not 0 <= stream < 2**32:
        raise misfit(f"dropout cannot drop a share of {p} with stream {stream}", "use p from 0 to 1")


def factors(seed: int, stream: int, step: int, p: float, shape: Sequence[int]) -> Array:
    """What dropout multiplies row-major elements by: 0 or 1 / (1 - p)."""
    return _apply(np.ones(shape), dropout_mask(seed, stream, step, p, prod(shape)).reshape(shape), p)


def _apply(x: Array, mask: Array, p: float) -> Array:
    kept: Array = x * mask * (1 / (1 - p) if p < 1 else 0.0)
    return kept


def philox(seed: int, stream: int, step: int, groups: int, first: int = 0) -> Array:
    """(groups, 4) random 32-bit words of the counters from `first` on."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    index = np.arange(groups, dtype=np.uint64) + np.uint64(first)
    counter: list[Any] = [index & low, index >> half]
    counter += [np.full(groups, word, np.uint64) for word in (stream, step & 0xFFFFFFFF)]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            (second >> half) ^ counter[1] ^ np.uint64(key[0]),
            second & low,
            (first >> half) ^ counter[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter, 1).astype(np.uint32)


def dropout_mask(seed: int, stream: int, step: int, p: float, elements: int) -> Array:
    """1 where an element stays, in memory order. `p` is rounded to float32 as in the kernel."""
    words = philox(seed, stream, step, -(-elements // 4)).reshape(-1)[:elements]
    threshold = int(float(np.float32(p)) * 4294967296.0)
    mask: Array = (words.astype(np.uint64) >= np.uint64(threshold)).astype(np.uint8)
    return mask
