"""Group normalisation (Wu, He 2018) of channels-last images, fused with the activation behind it, and its gradient.

Statistics are per image and group of neighbouring channels. Slices cut the images, each of which is summed and then
normalised while it is near; or, where images are fewer than processors, the rows (pixels of all images): then the parts
of an image meet between two stages, added up in slice order. So the order of additions is fixed by the plan.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
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
from planner.ops.normalization import Activation, activate, behind
from planner.units import Bytes, align


class GroupNormAttrs(Attrs):
    """`groups`: of how many neighbouring channels each are `channels / groups`; as many as channels: instance
    normalisation."""

    groups: int
    eps: float = 1e-5
    activation: Activation = "none"


class _GroupNorm(Op):
    family = "group_norm"
    input_layout = Layout.CHANNELS_LAST
    attrs_type = GroupNormAttrs
    data: ClassVar[int] = 0
    """Position of x."""
    parameters: ClassVar[tuple[int, int]] = (1, 2)
    """Positions of scale and shift."""

    def image(self, signature: Signature) -> tuple[int, int, int]:
        """(images, rows of an image, channels)."""
        n, c, h, w = signature.inputs[self.data].shape
        return n, h * w, c

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        images, rows, _ = self.image(signature)
        return {("loops", "images"): images, ("loops", "rows"): images * rows}

    def most_images(self, signature: Signature, mode: Mode) -> int:
        """The most images of which a slice keeps sums at once."""
        if mode.dim == "images":
            return 1
        return max(len(self._touched(signature, mode, i)) for i in range(mode.slices))

    def _touched(self, signature: Signature, mode: Mode, index: int) -> range:
        """The images of which a slice has rows."""
        images, rows, _ = self.image(signature)
        if mode.dim == "images":
            return range(*split(images, mode.slices, index))
        lo, hi = split(images * rows, mode.slices, index)
        return range(lo // rows, -(-hi // rows))

    def _own_images(self, signature: Signature, mode: Mode, index: int) -> range:
        """Whose statistics a slice of the last stage writes: of rows, those images whose first row is its own."""
        touched = self._touched(signature, mode, index)
        images, rows, _ = self.image(signature)
        if mode.dim == "images" or split(images * rows, mode.slices, index)[0] % rows == 0:
            return touched
        return touched[1:]

    def _own_rows(self, operand: str, write: bool, signature: Signature, mode: Mode, index: int) -> Access:
        images, rows, channels = self.image(signature)
        lo, hi = split(images if mode.dim == "images" else images * rows, mode.slices, index)
        each = rows * channels if mode.dim == "images" else channels
        return Access(operand, write, (lo * each, hi * each))

    def _parts_read(self, signature: Signature, mode: Mode, index: int) -> tuple[Access, ...]:
        """The partial sums of all slices that share an image with this one."""
        own = self._touched(signature, mode, index)
        parts = [self._touched(signature, mode, i) for i in range(mode.slices)]
        sharing = [i for i, t in enumerate(parts) if t[0] <= own[-1] and own[0] <= t[-1]]
        return (reads("partial", sharing[0], sharing[-1] + 1),)

    def check(self, attrs: GroupNormAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        x = inputs[self.data]
        if len(x.shape) != 4 or attrs.groups < 1 or x.shape[1] % attrs.groups:
            raise misfit(
                f"{self.name} cannot make {attrs.groups} groups of {x.text()}",
                "use images (N, C, H, W) and a number of groups that divides C",
            )
        channels = [inputs[i] for i in self.parameters]
        if any(t.shape != x.shape[1:2] for t in channels):
            raise misfit(f"{self.name} cannot normalise {x.text()}", "give it C scales and C shifts")


@register
class GroupNorm(_GroupNorm):
    """y = activation(gamma (x - mean) inv_std + beta). Inputs: x, gamma, beta; outputs: y, mean and inv_std
    (N, groups)."""

    name = "group_norm"
    input_counts = (3,)
    low_precision = (0,)
    output_names = ("y", "mean", "inv_std")
    saved_outputs = frozenset({"mean", "inv_std"})

    def infer(self, attrs: GroupNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        stats = TensorType(shape=(x.shape[0], attrs.groups))
        return (x, stats, stats)

    def gradient(self, context: GradientContext) -> None:
        x, gamma, beta = context.node.inputs
        _, mean, inv_std = context.node.outputs
        inputs = [context.grad, x, gamma, beta, mean, inv_std]
        for index, gradient in enumerate(context.emit("group_norm_backward", inputs, context.attrs)):
            context.give(index, gradient)

    def flops(self, signature: Signature) -> int:
        return 7 * signature.inputs[0].elements

    def bytes_moved(self, signature: Signature) -> Bytes:
        return Bytes(3 * signature.inputs[0].bytes)  # read twice, written

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 1 if mode.dim == "images" else 2

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """Mean and squares of every group, in double: of rows for each image that the slice touches."""
        each = 2 * signature.outputs[1].shape[1] * 8 * self.most_images(signature, mode)
        return (ScratchPart("partial", Bytes(mode.slices * align(each))),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        _, _, channels = self.image(signature)
        x = self._own_rows("in0", False, signature, mode, index)
        if mode.dim == "rows" and stage == 0:
            return (x, writes("partial", index, index + 1))
        groups, own = signature.outputs[1].shape[1], self._own_images(signature, mode, index)
        by_images = mode.dim == "images"
        return (
            x,
            *((writes("partial", index, index + 1),) if by_images else self._parts_read(signature, mode, index)),
            reads("in1", 0, channels),
            reads("in2", 0, channels),
            self._own_rows("out0", True, signature, mode, index),
            writes("out1", own.start * groups, own.stop * groups),
            writes("out2", own.start * groups, own.stop * groups),
        )

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def reference(self, attrs: GroupNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, gamma, beta = inputs
        n, c, h, w = x.shape
        grouped = x.reshape(n, attrs.groups, -1)
        mean = grouped.mean(2)
        inv_std = 1 / np.sqrt(grouped.var(2) + attrs.eps)
        normal = ((grouped - mean[:, :, None]) * inv_std[:, :, None]).reshape(n, c, h, w)
        y = normal * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
        return (activate(attrs.activation, y), mean, inv_std)

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, int, int, int], groups: int, **attrs: Any) -> Sample:
            x, c = TensorType(shape=shape, layout=Layout.CHANNELS_LAST), TensorType(shape=shape[1:2])
            return Sample(GroupNormAttrs(groups=groups, **attrs), (x, c, c))

        return (
            case((4, 16, 7, 5), 4),
            case((3, 10, 6, 6), 1, activation="relu"),
            case((2, 33, 5, 4), 33, activation="silu", eps=1e-3),
            case((1, 12, 9, 7), 3, activation="relu6"),
            case((5, 21, 1, 6), 7, activation="hard_swish"),
            case((2, 1100, 3, 2), 4),
        )


@register
class GroupNormBackward(_GroupNorm):
    """Inputs: dy, x, gamma, beta, mean, inv_std; outputs: dx, dgamma, dbeta. What went into the activation is computed
    from x again.

    Two stages: with slices of images each leaves dgamma's and dbeta's sums of its images, with slices of rows those of
    dy and dy (x - mean) for each image that it touches, from which the second stage makes dx, too. Some channels' sums
    over all images are each slice's in the second stage.
    """

    name = "group_norm_backward"
    input_counts = (6,)
    low_precision = (0, 1)
    leads = (1,)
    output_names = ("dx", "dgamma", "dbeta")
    stages = 2
    data = 1
    parameters = (2, 3)

    def infer(self, attrs: GroupNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, x, gamma, _, *saved = inputs
        if dy.shape != x.shape or any(t.shape != (x.shape[0], attrs.groups) for t in saved):
            raise misfit(f"gradient {dy.text()} does not fit {x.text()}", "use what the forward node saved")
        return (x, gamma, gamma)

    def flops(self, signature: Signature) -> int:
        return 12 * signature.inputs[1].elements

    def bytes_moved(self, signature: Signature) -> Bytes:
        return Bytes(5 * signature.inputs[1].bytes)  # dy and x read twice, dx written

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """Two sums per channel, in double: of all images of the slice and of the one at hand, or of each of which it
        has rows."""
        each = 2 if mode.dim == "images" else self.most_images(signature, mode)
        size = align(2 * signature.inputs[1].shape[1] * 8 * each)
        return (ScratchPart("partial", Bytes(mode.slices * size)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        images, _, channels = self.image(signature)
        groups = signature.inputs[4].shape[1]
        dy, x = (self._own_rows(f"in{i}", False, signature, mode, index) for i in (0, 1))
        dx = self._own_rows("out0", True, signature, mode, index)
        parameters = (reads("in2", 0, channels), reads("in3", 0, channels))
        by_images = mode.dim == "images"
        own = self._touched(signature, mode, index)
        saved = tuple(reads(f"in{i}", own.start * groups, own.stop * groups) for i in (4, 5))
        if stage == 0:
            sums = writes("partial", index, index + 1)
            return (dy, x, *parameters, *saved, sums, *((dx,) if by_images else ()))
        columns = split(channels, mode.slices, index)
        totals = (reads("partial", 0, mode.slices), *(writes(f"out{i}", *columns) for i in (1, 2)))
        if by_images:
            return totals
        # A channel's sums of dy (x - mean) are multiplied by every image's own inv_std.
        return (dy, x, *parameters, reads("in4", 0, images * groups), reads("in5", 0, images * groups), dx, *totals)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def reference(self, attrs: GroupNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x, gamma, beta, mean, inv_std = inputs
        n, c = x.shape[:2]

        def per_group(values: Array) -> Array:
            return np.repeat(values, c // attrs.groups, 1).reshape(n, c, 1, 1)

        def group_mean(values: Array) -> Array:
            return per_group(values.reshape(n, attrs.groups, -1).mean(2))

        scale, shift = gamma.reshape(-1, 1, 1), beta.reshape(-1, 1, 1)
        normal = (x - per_group(mean)) * per_group(inv_std)
        dy = behind(attrs.activation, dy, normal * scale + shift)
        g = dy * scale
        dx = (g - group_mean(g) - normal * group_mean(g * normal)) * per_group(inv_std)
        return (dx, (dy * normal).sum((0, 2, 3)), dy.sum((0, 2, 3)))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        attrs = sample.attrs
        assert isinstance(attrs, GroupNormAttrs)
        dy, x, gamma, beta, *_ = super().draw(sample, rng)
        _, mean, inv_std = GroupNorm().reference(attrs, (x, gamma, beta))
        return (dy, x, gamma, beta, mean, inv_std)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in GroupNorm().samples():
            attrs, (x, c, _) = s.attrs, s.inputs
            assert isinstance(attrs, GroupNormAttrs)
            stats = GroupNorm().infer(attrs, s.inputs)[1]
            found.append(Sample(attrs, (x, x, c, c, stats, stats)))
        return tuple(found)
