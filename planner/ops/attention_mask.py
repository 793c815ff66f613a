"""The gradient of attention whose mask is learned, such as the relative positions of T5, Swin and BEiT."""

from collections.abc import Mapping, Sequence
from math import prod

from planner.graph.model import DType, TensorType
from planner.ops.attention import AttentionBackward, case, in_other_orders
from planner.ops.attention_base import AttentionAttrs
from planner.ops.base import (
    Access,
    Array,
    Facts,
    Mode,
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


@register
class AttentionMaskBackward(AttentionBackward):
    """As attention_backward, and dmask, the sum of ds over all who share a mask.

    Inputs: dy, q, k, v, y, largest, inv_sum, mask. Outputs: dq, dk, dv, dmask.

    Slices that cut keys have columns of dmask for themselves. Those that cut units have rows of it where every head has
    a mask of its own; otherwise each adds up a share, and another stage the shares.
    """

    name = "attention_mask_backward"
    input_counts = (6, 7, 8)

    def outputs_of(self, attrs: AttentionAttrs) -> Mapping[str, int]:
        return {**super().outputs_of(attrs), "dmask": attrs.tensors}

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        gradients = super().infer(attrs, inputs)
        if attrs.scale == 0.0:  # a GPU's kernels divide by it
            raise misfit("attention has no gradient of its mask where scores are multiplied by 0", "leave q and k out")
        if len(inputs) == 4 + attrs.tensors:
            raise misfit(
                "attention has no mask of which there could be a gradient", "give it one, or use attention_backward"
            )
        return (*gradients, TensorType(shape=inputs[-1].shape))

    @staticmethod
    def gains(mask: TensorType, q: TensorType, k: TensorType, scale: float, readers: int = 1) -> bool:
        """Whether attention with this learned mask saves memory: not where the mask is as large as the scores and made
        for them alone. One without a row for each query is left to sums of better order."""
        smaller = mask.elements < prod(q.shape[:-1]) * k.shape[-2] or readers > 1
        return smaller and len(mask.shape) > 1 and mask.shape[-2] == q.shape[-2] and scale != 0.0

    def mask_rows(self, signature: Signature) -> int:
        return prod(signature.outputs[-1].shape[:-1])

    def shares(self, signature: Signature, mode: Mode) -> bool:
        """Whether slices add up shares of dmask."""
        heads = self.heads(signature)
        return mode.dim == "heads" and mode.slices > 1 and self.mask_rows(signature) < heads.units * heads.rows

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if self.shares(signature, mode) else super().stage_count(signature, mode, facts)

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        blocks = super().scratch(signature, mode, facts)
        if not self.shares(signature, mode):
            return blocks
        floats = signature.outputs[-1].elements * mode.slices
        return (*blocks, ScratchPart("shares", Bytes(DType.FLOAT32.itemsize * floats)))

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        dmask = signature.outputs[-1]
        elements, keys, out = dmask.elements, dmask.shape[-1], f"out{len(signature.outputs) - 1}"
        if self.shares(signature, mode):
            if stage == 1:
                return (reads("shares", 0, mode.slices), writes(out, *split(elements, mode.slices, index)))
            return (*super().accesses(signature, mode, stage, index, facts), writes("shares", index, index + 1))
        found = super().accesses(signature, mode, stage, index, facts)
        if mode.dim == "heads":
            units = self.heads(signature).units
            lo, hi = split(units, mode.slices, index)
            return (*found, writes(out, elements * lo // units, elements * hi // units))
        if stage == 0:
            _, columns = self.parts(signature, mode, stage, index)
            return (*found, Access(out, True, (0, self.mask_rows(signature)), columns, keys))
        return found

    def flops(self, signature: Signature) -> int:
        heads = self.heads(signature)
        assert isinstance(signature.attrs, AttentionAttrs)
        return super().flops(signature) + heads.pairs(signature.attrs.causal)

    def reference(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (q, k, _), mask = self.matrices(attrs, inputs), inputs[-1]
        _, ds = self.score_gradients(attrs, inputs)
        ds = ds.reshape(*q.shape[:-1], k.shape[-2])
        ds = ds.sum(tuple(range(ds.ndim - mask.ndim)))
        shared = tuple(axis for axis, extent in enumerate(mask.shape) if extent == 1)
        return (*super().reference(attrs, inputs), ds.sum(shared, keepdims=True))

    def samples(self) -> Sequence[Sample]:
        forward = (
            case((3, 5, 8), 7, values=21, mask=(5, 7)),
            case((2, 3, 5, 4), 6, mask=(3, 5, 6)),
            case((2, 3, 5, 4), 6, mask=(2, 3, 5, 6), causal=True),
            case((2, 2, 2, 65, 3), 2, mask=(2, 2, 1, 65, 2)),
            case((2, 4, 70, 8), 300, groups=2, mask=(1, 4, 70, 300)),
            case((1, 2, 66, 5), 67, mask=(66, 67), causal=True, dropout=0.2),
            case((4, 1, 20), 300, mask=(4, 1, 300)),
            case((2, 3, 4, 9, 5), 7, groups=2, mask=(1, 3, 4, 9, 7)),
            case((2, 3, 9, 4), 5, groups=1, mask=(2, 1, 1, 5)),
            *in_other_orders(masked=True),
        )
        return tuple(self.sample_of(s) for s in forward)
