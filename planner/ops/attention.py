"""Attention as one op: dropout(softmax(scale q k' + mask)) v, and its gradients, without a matrix of scores in memory.

What a slice needs of the scores is in its scratch, block by block, and the backward pass computes them again (Dao et
al., "FlashAttention", 2022, algorithms 1 and 4). Here whole rows of scores are at hand in the forward pass, so nothing
is rescaled; and two numbers per query are saved, not the logarithm of its sum, in which the sum is lost beside scores
as low as a mask may leave them. What dropout leaves of weights is drawn again, too: by counters, as `dropout` draws it
of the matrix of them all.
"""

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Node, TensorType
from planner.ops.attention_base import Attention, AttentionAttrs, numbers_of_a_word
from planner.ops.base import Array, Facts, Mode, Sample, Signature, misfit, register
from planner.ops.dropout import REFERENCE_SEED, REFERENCE_STEP, factors, settled
from planner.ops.head_views import HeadView, fill, seen, shown

KEYS, QUERIES, GAP = 256, 60, 16
"""As runtime/attention.hpp: keys and queries of a block in the gradient, floats between rows of scores."""


def padded(count: int) -> int:
    """Room for so many floats in whole cache lines."""
    return -(-count // 16) * 16


def queries_at_once(keys: int) -> int:
    """As runtime/attention.hpp."""
    return min(96, max(24, 65536 // padded(keys) // 6 * 6))


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


def in_other_orders(masked: bool = False) -> Sequence[Sample]:
    """Samples of the forward op whose operands are as linear layers write and read them; all, or those with a mask."""

    def sample(
        like: Sample,
        sources: tuple[int, int, int],
        tensors: Sequence[tuple[int, ...]],
        result: tuple[int, ...],
        **views: HeadView,
    ) -> Sample:
        attrs = like.attrs.model_copy(update={"sources": sources, "result": result, **views})
        return Sample(attrs, (*(TensorType(shape=s) for s in tensors), *like.inputs[3:]))

    def view(shape: tuple[int, ...], first: int, batch: int, head: int, row: int) -> HeadView:
        return HeadView(shape, first, batch, head, row)

    packed, first, apart, mixed = (2, 3, 70, 16), (3, 2, 9, 5), (1, 2, 2, 65, 8), (2, 4, 6, 4)
    with_masks = (
        # sequences first, each head's q, k and v side by side, [9, 3, 2, 3, 5] -> [27, 10]
        sample(
            case(first, 9, mask=(3, 1, 1, 9), dropout=0.3),
            (0, 0, 0),
            [(9, 3, 30)],
            (27, 10),
            **{n: view(first, 5 * i, 30, 15, 90) for i, n in enumerate("qkv")},
            y=view(first, 0, 10, 5, 30),
        ),
        # q and y in the order of rows, k and v by themselves
        sample(
            case(mixed, 7, values=3, mask=(6, 7)),
            (0, 1, 2),
            [(12, 16), (2, 4, 7, 4), (2, 4, 7, 3)],
            (2, 6, 4, 3),
            q=view(mixed, 0, 96, 4, 16),
            y=view((2, 4, 6, 3), 0, 72, 3, 12),
        ),
    )
    without = (
        # [2, 70, 3, 3, 16] -> [2, 70, 48]
        sample(
            case(packed, 70, causal=True),
            (0, 0, 0),
            [(2, 70, 144)],
            (2, 70, 48),
            **{n: view(packed, 48 * i, 10080, 16, 144) for i, n in enumerate("qkv")},
            y=view(packed, 0, 3360, 16, 48),
        ),
        # k and v of one projection, and of fewer heads, q of another; y as the op has it by itself
        sample(
            case(apart, 65, groups=1),
            (0, 1, 1),
            [(1, 2, 65, 16), (2, 65, 16)],
            (),
            q=view(apart, 0, 1040, 8, 16),
            **{n: view((1, 2, 1, 65, 8), 8 * i, 1040, 8, 16) for i, n in enumerate("kv")},
        ),
    )
    return with_masks if masked else with_masks + without


@register
class AttentionForward(Attention):
    """y = dropout(softmax(scale q k' + mask)) v; 0 for a query that sees nothing.

    Inputs: q [..., heads, queries, width], k [..., groups, keys, width], v [..., groups, keys, value width], [mask].
    Outputs: y and, per query, the largest score and inv_sum = 1 / sum exp(scores - largest). Heads are a multiple of
    groups: neighbouring ones share keys and values.
    """

    name = "attention"
    input_counts = (1, 2, 3, 4)
    low_precision = (0, 1, 2)
    output_names = ("y", "largest", "inv_sum")
    saved_outputs = frozenset({"largest", "inv_sum"})

    def outputs_of(self, attrs: AttentionAttrs) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.output_names)}

    def low_inputs(self, attrs: AttentionAttrs) -> Container[int]:
        return range(attrs.tensors)

    def settle(self, attrs: AttentionAttrs, node: str, inputs: Sequence[TensorType]) -> AttentionAttrs:
        return attrs.model_copy(update={"stream": settled(attrs.stream, node)}) if attrs.dropout else attrs

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(attrs, inputs)
        q, _, v, _ = self.operands(attrs, inputs)
        y = TensorType(shape=(*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        of_queries = TensorType(shape=q.shape[:-1])
        if attrs.y is not None:
            whole = TensorType(shape=attrs.result, dtype=q.dtype)
            if attrs.y.shape != y.shape or not fill([attrs.y], whole):
                raise misfit(f"{y.text()} of attention does not fill {whole.text()}", "use a view of all of it")
            y = whole
        return (y, of_queries, of_queries)

    def evaluation(self, node: Node, inputs: list[str]) -> tuple[str, Attrs, list[str]]:
        return (node.op, node.attrs.model_copy(update={"dropout": 0.0, "stream": -1}), inputs)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, AttentionAttrs)
        tensors, mask = context.node.inputs[: attrs.tensors], context.node.inputs[attrs.tensors :]
        inputs = [context.grad, *tensors, *context.node.outputs, *mask]
        op = "attention_mask_backward" if mask and context.needs(attrs.tensors) else "attention_backward"
        for index, gradient in enumerate(context.emit(op, inputs, attrs)):
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
        q, k, v = self.matrices(attrs, inputs)
        units_q, units_k, units_v, masks = _grouped(q, k, v, inputs[attrs.tensors :])
        scores = _scores(attrs, units_q, units_k, masks)
        largest = scores.max(-1, keepdims=True)
        largest = np.where(np.isneginf(largest), 0, largest)
        weights = np.exp(scores - largest)
        sums = weights.sum(-1, keepdims=True)
        inv_sum = np.where(sums == 0, 0, 1 / np.where(sums == 0, 1, sums))
        y = np.empty(attrs.result if attrs.y else (*q.shape[:-1], v.shape[-1]), q.dtype)
        matrices = shown(attrs.y, y)
        matrices[...] = ((weights * inv_sum * _dropped(attrs, weights.shape)) @ units_v[:, None]).reshape(
            matrices.shape
        )
        return (y, largest.reshape(q.shape[:-1]), inv_sum.reshape(q.shape[:-1]))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Of a mask half is shut; of several queries' the last sees nothing."""
        assert isinstance(sample.attrs, AttentionAttrs)
        drawn = super().draw(sample, rng)
        for m in drawn[sample.attrs.tensors :]:
            m[m < np.sort(m, -1)[..., m.shape[-1] // 2, None]] = -1e30
            if m.ndim > 1 and m.shape[-2] > 1:
                m[..., -1, :] = -np.inf
        return drawn

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
            *in_other_orders(),
        )


@register
class AttentionBackward(Attention):
    """dv = (m p)' dy; ds = p (m dy v' - dy y'); dq = scale ds k; dk = scale ds' q, with p = exp(scores - largest)
    inv_sum and what dropout multiplies by, m.

    Inputs: dy, q, k, v, y, largest, inv_sum, [mask]. Outputs: dq, dk, dv.
    """

    name = "attention_backward"
    input_counts: ClassVar[tuple[int, ...]] = (5, 6, 7, 8)
    low_precision = (0, 1, 2, 3, 4)
    before = ("dy",)
    behind = ("y", "largest", "inv_sum")

    def outputs_of(self, attrs: AttentionAttrs) -> Mapping[str, int]:
        return {f"d{name}": source for name, source in zip("qkv", attrs.sources, strict=True)}

    def names(self, attrs: AttentionAttrs) -> tuple[str, ...]:
        at = self.outputs_of(attrs)
        return tuple("d" + "".join(n[1:] for n, place in at.items() if place == i) for i in range(max(at.values()) + 1))

    def low_inputs(self, attrs: AttentionAttrs) -> Container[int]:
        return range(attrs.tensors + 2)

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if mode.dim == "queries" else 1

    def stage_of(self, result: str) -> int:
        return 1 if result == "dq" else 0

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(attrs, inputs)
        q, _, v, _ = self.operands(attrs, inputs)
        dy, *tensors = inputs[: 1 + attrs.tensors]
        y, *saved = inputs[1 + attrs.tensors :][:3]
        rows = q.shape[:-1]
        matrices = seen(attrs.y, y)
        if dy.shape != y.shape or matrices.shape != (*rows, v.shape[-1]) or any(s.shape != rows for s in saved):
            raise misfit(f"gradient {dy.text()} does not fit {y.text()}", "use what the forward node saved")
        if attrs.y is not None and not fill([attrs.y], y):
            raise misfit(f"{matrices.text()} of attention does not fill {y.text()}", "use a view of all of it")
        return tuple(tensors)

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
        dy, y, largest, inv_sum = inputs[0], *inputs[1 + attrs.tensors :][:3]
        units_q, units_k, units_v, masks = _grouped(*self.matrices(attrs, inputs), inputs[4 + attrs.tensors :])
        rows = units_q.shape[:-1]
        units_dy, units_y = (shown(attrs.y, np.ascontiguousarray(x)).reshape(*rows, -1) for x in (dy, y))
        shifted = _scores(attrs, units_q, units_k, masks) - largest.reshape(*rows, 1)
        weights = np.exp(shifted) * inv_sum.reshape(*rows, 1)
        dots = (units_dy * units_y).sum(-1, keepdims=True)
        dropped = _dropped(attrs, weights.shape)
        return weights * dropped, weights * (dropped * (units_dy @ units_v[:, None].swapaxes(-1, -2)) - dots)

    def reference(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        units_q, units_k, _, _ = _grouped(*self.matrices(attrs, inputs), ())
        weights, ds = self.score_gradients(attrs, inputs)
        dy = shown(attrs.y, np.ascontiguousarray(inputs[0])).reshape(*units_q.shape[:-1], -1)
        dq = attrs.scale * (ds @ units_k[:, None])
        dk = attrs.scale * (ds.swapaxes(-1, -2) @ units_q).sum(1)
        dv = (weights.swapaxes(-1, -2) @ dy).sum(1)
        found = [np.empty(x.shape, dy.dtype) for x in inputs[1 : 1 + attrs.tensors]]
        for source, name, gradient in zip(attrs.sources, "qkv", (dq, dk, dv), strict=True):
            matrices = shown(attrs.view(name), found[source])
            matrices[...] = gradient.reshape(matrices.shape)
        return tuple(found)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, *_ = super().draw(sample, rng)
        assert isinstance(sample.attrs, AttentionAttrs)
        forward, tensors = AttentionForward(), sample.attrs.tensors
        types = (*sample.inputs[1 : 1 + tensors], *sample.inputs[4 + tensors :])
        drawn = forward.draw(Sample(sample.attrs, types), rng)
        return (dy, *drawn[:tensors], *forward.reference(sample.attrs, drawn), *drawn[tensors:])

    def samples(self) -> Sequence[Sample]:
        return tuple(self.sample_of(s) for s in AttentionForward().samples())

    def sample_of(self, forward: Sample) -> Sample:
        """The sample of a forward node's backward node."""
        assert isinstance(forward.attrs, AttentionAttrs)
        y, *saved = AttentionForward().infer(forward.attrs, forward.inputs)
        tensors = forward.inputs[: forward.attrs.tensors]
        return Sample(forward.attrs, (y, *tensors, y, *saved, *forward.inputs[forward.attrs.tensors :]))
