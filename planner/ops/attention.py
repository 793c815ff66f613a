"""Attention as one op: dropout(softmax(scale q k' + mask)) v, and its gradients, without a matrix of scores in memory.

A **unit** is one matrix of keys with its values. The heads of queries that read it lie one behind the other, one head
or, in grouped attention, several. What a slice needs of the scores is in its scratch, block by block, and the backward
pass computes them again (Dao et al., "FlashAttention", 2022, algorithms 1 and 4). Here whole rows of scores are at hand
in the forward pass, so nothing is rescaled; and two numbers per query are saved, not the logarithm of its sum, in which
the sum is lost beside scores as low as a mask may leave them. What dropout leaves of weights is drawn again, too: by
counters, as `dropout` draws it of the matrix of them all.

Slices cut the units (`heads`), or, where there are fewer of them than processors, every unit's queries (`queries`); the
gradient then needs a stage for dk and dv, in which slices cut the keys, and one for dq, which computes the scores once
more.
"""

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, Node, TensorType
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
from planner.ops.dropout import REFERENCE_SEED, REFERENCE_STEP, factors, require_drawable, settled
from planner.ops.heads import Heads, MaskSteps, mask_steps, mismatch
from planner.units import Bytes

Span = tuple[int, int]

LEAST = 32
"""Queries, or keys, of a slice: fewer are not worth the copies that each makes of what all read."""
KEYS, QUERIES, GAP = 256, 60, 16
"""As runtime/attention.hpp: keys and queries of a block in the gradient, floats between rows of scores."""


class AttentionAttrs(Attrs):
    """`scale`: of the scores. `causal`: query i sees the keys up to i. `dropout`: the share of weights that is dropped,
    in training; `stream`: as of DropoutAttrs."""

    costless: ClassVar[frozenset[str]] = frozenset({"stream"})
    scale: float
    causal: bool = False
    dropout: float = 0.0
    stream: int = -1


def padded(count: int) -> int:
    """Room for so many floats in whole cache lines."""
    return -(-count // 16) * 16


def queries_at_once(keys: int) -> int:
    """As runtime/attention.hpp."""
    return min(96, max(24, 65536 // padded(keys) // 6 * 6))


def numbers_of_a_word(signature: Signature) -> int:
    """Operands per 32-bit word of the products."""
    return 2 if signature.inputs[0].dtype is DType.BFLOAT16 else 1


class _Attention(Op):
    family = "attention"
    input_layout = Layout.ROW_MAJOR
    attrs_type = AttentionAttrs
    of_keys: ClassVar[tuple[frozenset[int], frozenset[int]]]
    """Inputs and outputs that are matrices of keys."""

    def operands(self, inputs: Sequence[TensorType]) -> tuple[TensorType, TensorType, TensorType, TensorType | None]:
        """q, k, v and the mask."""
        raise NotImplementedError

    def heads(self, signature: Signature) -> Heads:
        q, k, v, _ = self.operands(signature.inputs)
        units = prod(k.shape[:-2])
        keys, width = k.shape[-2:]
        return Heads(units, prod(q.shape[:-2]) // units, q.shape[-2], keys, width, v.shape[-1])

    def mask(self, signature: Signature) -> MaskSteps:
        q, _, _, mask = self.operands(signature.inputs)
        return (mask_steps(mask, q) if mask else None) or MaskSteps(1, 0, 0, 0)

    def require_fit(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> None:
        if error := mismatch(*self.operands(inputs)):
            raise error
        if attrs.dropout:
            require_drawable(attrs.dropout, attrs.stream)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        heads = self.heads(signature)
        found = {("loops", "heads"): heads.units}
        if min(heads.queries, heads.keys) >= 2 * LEAST:
            found["loops", "queries"] = min(heads.queries, heads.keys) // LEAST
        return found

    def floats(self, signature: Signature) -> int:
        """Scratch of one slice, as runtime/attention.hpp counts it."""
        raise NotImplementedError

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (ScratchPart("blocks", Bytes(4 * self.floats(signature) * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        heads = self.heads(signature)
        *_, mask = self.operands(signature.inputs)
        own = split(heads.units, mode.slices, index) if mode.dim == "heads" else (0, heads.units)
        queries, keys = self.parts(signature, mode, stage, index)
        inputs = signature.inputs[:-1] if mask else signature.inputs

        def part(operand: str, write: bool, type_: TensorType, of_keys: bool) -> Access:
            """Some rows of every matrix of queries, or of keys, of some units."""
            each, matrices, (lo, hi) = (heads.keys, 1, keys) if of_keys else (heads.queries, heads.shared, queries)
            width = type_.elements // (heads.units * matrices * each)
            lines = (own[0] * matrices, own[1] * matrices)
            return Access(operand, write, lines, (lo * width, hi * width), each * width)

        wanted = [i for i in range(3) if mode.dim == "heads" or self.stage_of(i) == stage]
        return (
            *(part(f"in{i}", False, t, i in self.of_keys[0]) for i, t in enumerate(inputs)),
            *((reads(f"in{len(inputs)}", 0, mask.elements),) if mask else ()),
            *(part(f"out{i}", True, signature.outputs[i], i in self.of_keys[1]) for i in wanted),
            writes("blocks", index, index + 1),
        )

    def cuts(self, signature: Signature, slices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where slices of queries, and of keys, begin and end. Of causal attention late queries and early keys have
        more to do: the cuts are at equal parts of the triangle."""
        heads = self.heads(signature)
        assert isinstance(signature.attrs, AttentionAttrs)

        def cut(extent: int, part: int) -> int:
            return isqrt(extent * extent * part // slices) if causal else extent * part // slices

        causal, numbers = signature.attrs.causal, range(slices + 1)
        queries = tuple(cut(heads.queries, i) for i in numbers)
        return queries, tuple(heads.keys - cut(heads.keys, slices - i) for i in numbers)

    def parts(self, signature: Signature, mode: Mode, stage: int, index: int) -> tuple[Span, Span]:
        """The queries and the keys of a slice."""
        heads = self.heads(signature)
        queries, keys = (0, heads.queries), (0, heads.keys)
        if mode.dim == "heads":
            return queries, keys
        of_queries, of_keys = self.cuts(signature, mode.slices)
        if stage < self.stage_count(signature, mode, {}) - 1:
            return queries, (of_keys[index], of_keys[index + 1])
        return (of_queries[index], of_queries[index + 1]), keys

    def stage_of(self, output: int) -> int:
        """The stage that makes an output where slices cut queries."""
        return 0


def _scores(attrs: AttentionAttrs, q: Array, k: Array, mask: Sequence[Array]) -> Array:
    """Of queries [units, shared, queries, width]; minus infinity where a query sees nothing."""
    scores = attrs.scale * (q @ k[:, None].swapaxes(-1, -2))
    if mask:
        scores = scores + mask[0]
    if attrs.causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return scores


def _dropped(attrs: AttentionAttrs, shape: Sequence[int]) -> Array | float:
    """What the weights of queries [units, shared, queries, keys] are multiplied by."""
    if not attrs.dropout:
        return 1.0
    return factors(REFERENCE_SEED, attrs.stream, REFERENCE_STEP, attrs.dropout, shape)


def _grouped(q: Array, k: Array, v: Array, mask: Sequence[Array]) -> tuple[Array, Array, Array, list[Array]]:
    """q [units, shared, queries, width], k and v [units, keys, ...], a mask as the scores are."""
    units = prod(k.shape[:-2])
    each = (units, prod(q.shape[:-2]) // units, q.shape[-2])
    full = (*q.shape[:-1], k.shape[-2])
    masks = [np.broadcast_to(m, full).reshape(*each, k.shape[-2]) for m in mask]
    return q.reshape(*each, q.shape[-1]), k.reshape(units, *k.shape[-2:]), v.reshape(units, *v.shape[-2:]), masks


def case(
    q: tuple[int, ...],
    keys: int,
    *,
    groups: int = 0,
    values: int = 0,
    mask: tuple[int, ...] = (),
    causal: bool = False,
    dropout: float = 0.0,
) -> Sample:
    """A sample of the forward op; `groups` and `values` are by default as the queries have them."""
    *lead, _, width = q
    lead = [*lead[:-1], groups or lead[-1]] if lead else []
    shapes = (q, (*lead, keys, width), (*lead, keys, values or width), *((mask,) if mask else ()))
    stream = 2**31 + keys if dropout else -1
    attrs = AttentionAttrs(scale=width**-0.5, causal=causal, dropout=dropout, stream=stream)
    return Sample(attrs, tuple(TensorType(shape=s) for s in shapes))


@register
class AttentionForward(_Attention):
    """y = dropout(softmax(scale q k' + mask)) v; 0 for a query that sees nothing.

    Inputs: q [..., heads, queries, width], k [..., groups, keys, width], v [..., groups, keys, value width], [mask].
    Outputs: y and, per query, the largest score and inv_sum = 1 / sum exp(scores - largest). Heads are a multiple of
    groups: neighbouring ones share keys and values.
    """

    name = "attention"
    input_counts = (3, 4)
    low_precision = (0, 1, 2)
    output_names = ("y", "largest", "inv_sum")
    saved_outputs = frozenset({"largest", "inv_sum"})
    of_keys = (frozenset({1, 2}), frozenset[int]())

    def operands(self, inputs: Sequence[TensorType]) -> tuple[TensorType, TensorType, TensorType, TensorType | None]:
        q, k, v, *mask = inputs
        return q, k, v, mask[0] if mask else None

    def settle(self, attrs: AttentionAttrs, node: str, inputs: Sequence[TensorType]) -> AttentionAttrs:
        return attrs.model_copy(update={"stream": settled(attrs.stream, node)}) if attrs.dropout else attrs

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(attrs, inputs)
        q, _, v = inputs[:3]
        y = TensorType(shape=(*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        of_queries = TensorType(shape=q.shape[:-1])
        return (y, of_queries, of_queries)

    def evaluation(self, node: Node, inputs: list[str]) -> tuple[str, Attrs, list[str]]:
        return (node.op, node.attrs.model_copy(update={"dropout": 0.0, "stream": -1}), inputs)

    def gradient(self, context: GradientContext) -> None:
        q, k, v, *mask = context.node.inputs
        inputs = [context.grad, q, k, v, *context.node.outputs, *mask]
        op = "attention_mask_backward" if mask and context.needs(3) else "attention_backward"
        gradients = context.emit(op, inputs, context.attrs)
        for index, gradient in enumerate(gradients):
            context.give(index, gradient)

    def flops(self, signature: Signature) -> int:
        heads = self.heads(signature)
        assert isinstance(signature.attrs, AttentionAttrs)
        return heads.pairs(signature.attrs.causal) * (2 * (heads.width + heads.value_width) + 5)

    def floats(self, signature: Signature) -> int:
        heads, numbers = self.heads(signature), numbers_of_a_word(signature)
        rows, keys, values = queries_at_once(heads.keys), padded(heads.keys), padded(heads.value_width)
        width, scores = -(-heads.width // numbers), rows * (keys + GAP)
        operands = keys * width + -(-heads.keys // numbers) * values + padded(rows * width) + rows * values
        return operands + scores + (scores // 2 if numbers > 1 else 0)

    def reference(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        q, k, v, *mask = inputs
        units_q, units_k, units_v, masks = _grouped(q, k, v, mask)
        scores = _scores(attrs, units_q, units_k, masks)
        largest = scores.max(-1, keepdims=True)
        largest = np.where(np.isneginf(largest), 0, largest)
        weights = np.exp(scores - largest)
        sums = weights.sum(-1, keepdims=True)
        inv_sum = np.where(sums == 0, 0, 1 / np.where(sums == 0, 1, sums))
        y = (weights * inv_sum * _dropped(attrs, weights.shape)) @ units_v[:, None]
        return (y.reshape(*q.shape[:-1], v.shape[-1]), largest.reshape(q.shape[:-1]), inv_sum.reshape(q.shape[:-1]))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Of a mask half is shut; of several queries' the last sees nothing."""
        q, k, v, *mask = super().draw(sample, rng)
        for m in mask:
            m[m < np.sort(m, -1)[..., m.shape[-1] // 2, None]] = -1e30
            if m.ndim > 1 and m.shape[-2] > 1:
                m[..., -1, :] = -np.inf
        return (q, k, v, *mask)

    def samples(self) -> Sequence[Sample]:
        return (
            case((2, 3, 70, 16), 70, causal=True),
            case((2, 4, 9, 20), 300, groups=2, mask=(2, 1, 1, 300)),
            case((3, 5, 8), 7, values=21, mask=(5, 7)),
            case((2, 3, 5, 4), 6, mask=(3, 5, 6)),
            case((1, 6, 130, 8), 261, groups=2, values=70, causal=True),
            case((9, 33), 40),
            case((2, 3, 2, 9, 5), 7, mask=(1, 3, 2, 9, 7)),
            case((2, 2, 2, 65, 3), 2, mask=(2, 2, 1, 65, 2)),
            case((2, 3, 70, 8), 70, causal=True, dropout=0.1),
            case((2, 4, 9, 5), 299, groups=2, mask=(2, 1, 1, 299), dropout=0.5),
        )


@register
class AttentionBackward(_Attention):
    """dv = (m p)' dy; ds = p (m dy v' - dy y'); dq = scale ds k; dk = scale ds' q, with p = exp(scores - largest)
    inv_sum and what dropout multiplies by, m.

    Inputs: dy, q, k, v, y, largest, inv_sum, [mask]. Outputs: dq, dk, dv.
    """

    name = "attention_backward"
    input_counts: ClassVar[tuple[int, ...]] = (7, 8)
    low_precision = (0, 1, 2, 3, 4)
    output_names: ClassVar[tuple[str, ...]] = ("dq", "dk", "dv")
    of_keys = (frozenset({2, 3}), frozenset({1, 2}))

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if mode.dim == "queries" else 1

    def stage_of(self, output: int) -> int:
        return 1 if output == 0 else 0

    def operands(self, inputs: Sequence[TensorType]) -> tuple[TensorType, TensorType, TensorType, TensorType | None]:
        _, q, k, v, _, _, _, *mask = inputs
        return q, k, v, mask[0] if mask else None

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(attrs, inputs)
        dy, q, k, v, y, *saved = inputs[:7]
        rows = q.shape[:-1]
        if dy.shape != y.shape or y.shape != (*rows, v.shape[-1]) or any(s.shape != rows for s in saved):
            raise misfit(f"gradient {dy.text()} does not fit {y.text()}", "use what the forward node saved")
        return (q, k, v)

    def flops(self, signature: Signature) -> int:
        heads = self.heads(signature)
        assert isinstance(signature.attrs, AttentionAttrs)
        return heads.pairs(signature.attrs.causal) * (2 * (3 * heads.width + 2 * heads.value_width) + 6)

    def floats(self, signature: Signature) -> int:
        heads, numbers = self.heads(signature), numbers_of_a_word(signature)
        few, width, values = min(KEYS, heads.keys), padded(heads.width), padded(heads.value_width)
        both = -(-heads.width // numbers) + -(-heads.value_width // numbers)
        keys, scores = padded(few), QUERIES * (padded(few) + GAP)
        of_unit = heads.rows * width + padded(heads.rows)
        of_keys = keys * both + -(-few // numbers) * width + keys * (width + values)
        of_queries = padded(QUERIES * both) + 32 + QUERIES // numbers * (width + values)
        return of_unit + of_keys + of_queries + 2 * (scores + (scores // 2 if numbers > 1 else 0))

    def score_gradients(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, Array]:
        """m p and ds, [units, shared, queries, keys]."""
        dy, q, k, v, y, largest, inv_sum, *mask = inputs
        units_q, units_k, units_v, masks = _grouped(q, k, v, mask)
        rows = units_q.shape[:-1]
        units_dy, units_y = dy.reshape(*rows, -1), y.reshape(*rows, -1)
        shifted = _scores(attrs, units_q, units_k, masks) - largest.reshape(*rows, 1)
        weights = np.exp(shifted) * inv_sum.reshape(*rows, 1)
        dots = (units_dy * units_y).sum(-1, keepdims=True)
        dropped = _dropped(attrs, weights.shape)
        return weights * dropped, weights * (dropped * (units_dy @ units_v[:, None].swapaxes(-1, -2)) - dots)

    def reference(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, q, k, v = inputs[:4]
        units_q, units_k, _, _ = _grouped(q, k, v, ())
        weights, ds = self.score_gradients(attrs, inputs)
        dq = attrs.scale * (ds @ units_k[:, None])
        dk = attrs.scale * (ds.swapaxes(-1, -2) @ units_q).sum(1)
        dv = (weights.swapaxes(-1, -2) @ dy.reshape(*units_q.shape[:-1], -1)).sum(1)
        return (dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, *_ = super().draw(sample, rng)
        forward = AttentionForward()
        drawn = forward.draw(Sample(sample.attrs, (*sample.inputs[1:4], *sample.inputs[7:])), rng)
        assert isinstance(sample.attrs, AttentionAttrs)
        return (dy, *drawn[:3], *forward.reference(sample.attrs, drawn), *drawn[3:])

    def samples(self) -> Sequence[Sample]:
        return tuple(self.sample_of(s) for s in AttentionForward().samples())

    def sample_of(self, forward: Sample) -> Sample:
        """The sample of a forward node's backward node."""
        assert isinstance(forward.attrs, AttentionAttrs)
        y, *saved = AttentionForward().infer(forward.attrs, forward.inputs)
        q, k, v, *mask = forward.inputs
        return Sample(forward.attrs, (y, q, k, v, y, *saved, *mask))
