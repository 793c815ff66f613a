"""What attention and its gradients have in common: operands, slices, and what of the operands a slice touches.

A **unit** is one matrix of keys with its values. The heads of queries that read it lie one behind the other, one head
or, in grouped attention, several. Slices cut the units (`heads`), or, where there are fewer of them than processors,
every unit's queries (`queries`); the gradient then needs a stage for dk and dv, in which slices cut the keys, and one
for dq, which computes the scores once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt, prod
from typing import ClassVar, NamedTuple

import numpy as np

from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, ScratchPart, Signature, misfit, reads, split, writes
from planner.ops.dropout import require_drawable
from planner.ops.head_views import HeadView, Span, fill, hull, rectangles, seen, shown, whole
from planner.ops.heads import Heads, MaskSteps, mask_steps, mismatch
from planner.units import Bytes

SAVED = ("largest", "inv_sum")
"""Of every query, in their order."""
LEAST = 32
"""Queries, or keys, of a slice: fewer are not worth the copies that each makes of what all read."""


class AttentionAttrs(Attrs):
    """`scale`: of the scores. `causal`: query i sees the keys up to i. `dropout`: the share of weights that is dropped,
    in training; `stream`: as of DropoutAttrs.

    `sources`: the tensors, counted from 0, in which q, k and v are. `q`, `k`, `v`, `y`: where they are in them; None:
    they are whole tensors. `result`: the shape of the tensor in which y is."""

    costless: ClassVar[frozenset[str]] = frozenset({"stream"})
    optional: ClassVar[frozenset[str]] = frozenset({"q", "k", "v", "y", "sources", "result"})
    scale: float
    causal: bool = False
    dropout: float = 0.0
    stream: int = -1
    sources: tuple[int, int, int] = (0, 1, 2)
    q: HeadView | None = None
    k: HeadView | None = None
    v: HeadView | None = None
    y: HeadView | None = None
    result: tuple[int, ...] = ()

    @property
    def tensors(self) -> int:
        """How many hold q, k and v."""
        return max(self.sources) + 1

    def view(self, name: str) -> HeadView | None:
        """Of q, k, v and y and their gradients, which lie as they do."""
        found: HeadView | None = getattr(self, name.removeprefix("d"))
        return found


class Operands(NamedTuple):
    q: TensorType
    k: TensorType
    v: TensorType
    mask: TensorType | None


class Attention(Op):
    """Inputs: some, the tensors with q, k and v, others, [mask]."""

    family = "attention"
    input_layout = Layout.ROW_MAJOR
    attrs_type = AttentionAttrs
    before: ClassVar[tuple[str, ...]] = ()
    behind: ClassVar[tuple[str, ...]] = ()
    """Inputs before and behind the tensors."""

    def inputs_of(self, attrs: AttentionAttrs) -> Mapping[str, int]:
        """The place of every operand among the inputs."""
        tensors = {name: len(self.before) + source for name, source in zip("qkv", attrs.sources, strict=True)}
        others = enumerate((*self.behind, "mask"), len(self.before) + attrs.tensors)
        return {**{name: i for i, name in enumerate(self.before)}, **tensors, **{name: i for i, name in others}}

    def outputs_of(self, attrs: AttentionAttrs) -> Mapping[str, int]:
        """The place of every result among the outputs."""
        raise NotImplementedError

    def operands(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> Operands:
        """q, k, v and the mask."""
        at = self.inputs_of(attrs)
        q, k, v = (seen(attrs.view(name), inputs[at[name]]) for name in "qkv")
        return Operands(q, k, v, inputs[at["mask"]] if at["mask"] < len(inputs) else None)

    def matrices(self, attrs: AttentionAttrs, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
        """q, k and v, [..., heads, rows, width]."""
        at = self.inputs_of(attrs)

        def matrix(name: str) -> Array:
            x, view = np.ascontiguousarray(inputs[at[name]]), attrs.view(name)
            return shown(view, x).reshape(view.shape if view else x.shape)

        return matrix("q"), matrix("k"), matrix("v")

    def heads(self, signature: Signature) -> Heads:
        q, k, v, _ = self._operands(signature)
        units = prod(k.shape[:-2])
        keys, width = k.shape[-2:]
        return Heads(units, prod(q.shape[:-2]) // units, q.shape[-2], keys, width, v.shape[-1])

    def mask(self, signature: Signature) -> MaskSteps:
        q, _, _, mask = self._operands(signature)
        return (mask_steps(mask, q) if mask else None) or MaskSteps(1, 0, 0, 0)

    def views(self, signature: Signature) -> Mapping[str, HeadView]:
        """Where q, k, v and y are in their tensors."""
        attrs, types = signature.attrs, self._operands(signature)
        assert isinstance(attrs, AttentionAttrs)
        y = (*types.q.shape[:-1], types.v.shape[-1])
        shapes = {"q": types.q.shape, "k": types.k.shape, "v": types.v.shape, "y": y}
        return {name: attrs.view(name) or whole(shape) for name, shape in shapes.items()}

    def _operands(self, signature: Signature) -> Operands:
        assert isinstance(signature.attrs, AttentionAttrs)
        return self.operands(signature.attrs, signature.inputs)

    def require_fit(self, attrs: AttentionAttrs, inputs: Sequence[TensorType]) -> None:
        """SP1002: views do not fill their tensors, or operands do not fit each other."""
        others = len(inputs) - len(self.before) - attrs.tensors - len(self.behind)
        if set(attrs.sources) != set(range(attrs.tensors)) or others not in (0, 1):
            raise misfit(
                f"attention cannot find q, k and v in tensors {attrs.sources} of {len(inputs)} inputs",
                "count the tensors in which they are from 0, and give a mask behind them or none",
            )
        at = self.inputs_of(attrs)
        for source in range(attrs.tensors):
            names = [name for name, place in zip("qkv", attrs.sources, strict=True) if place == source]
            views, type_ = [attrs.view(name) for name in names], inputs[at[names[0]]]
            if views == [None]:
                continue
            found = [v for v in views if v is not None]
            if len(found) < len(views) or not fill(found, type_):
                raise misfit(
                    f"{', '.join(names)} of attention do not fill {type_.text()}",
                    "views of a tensor lie side by side and are all of it",
                )
        if error := mismatch(*self.operands(attrs, inputs)):
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
        attrs, heads = signature.attrs, self.heads(signature)
        assert isinstance(attrs, AttentionAttrs)
        units = split(heads.units, mode.slices, index) if mode.dim == "heads" else (0, heads.units)
        parts = (units, *self.parts(signature, mode, stage, index))
        found: list[Access] = []
        for i, (type_, names) in enumerate(_by_place(self.inputs_of(attrs), signature.inputs)):
            if names == ["mask"]:
                found.append(reads(f"in{i}", 0, type_.elements))
            else:
                found += _touched(f"in{i}", False, type_, names, attrs, heads, parts)
        for i, (type_, names) in enumerate(_by_place(self.outputs_of(attrs), signature.outputs)):
            wanted = [n for n in names if n != "dmask" and (mode.dim == "heads" or self.stage_of(n) == stage)]
            found += _touched(f"out{i}", True, type_, wanted, attrs, heads, parts)
        return (*found, writes("blocks", index, index + 1))

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

    def stage_of(self, result: str) -> int:
        """The stage that makes a result where slices cut queries."""
        return 0


def _by_place(places: Mapping[str, int], types: Sequence[TensorType]) -> list[tuple[TensorType, list[str]]]:
    """The operands' types, each with the names of what is in it."""
    return [(type_, [name for name, place in places.items() if place == i]) for i, type_ in enumerate(types)]


def _touched(
    operand: str,
    write: bool,
    type_: TensorType,
    names: Sequence[str],
    attrs: AttentionAttrs,
    heads: Heads,
    parts: tuple[Span, Span, Span],
) -> Iterator[Access]:
    """Some rows of every matrix of queries, or of keys, of some units: exactly what is written; of views that are read,
    all between the first and the last element. `parts`: these units, queries and keys."""
    units, queries, keys = parts
    spans, views = [], []
    for name in names:
        of_keys = name.removeprefix("d") in ("k", "v")
        each, matrices, rows = (heads.keys, 1, keys) if of_keys else (heads.queries, heads.shared, queries)
        own, view = (units[0] * matrices, units[1] * matrices), None if name in SAVED else attrs.view(name)
        if view is None:
            width = type_.elements // (heads.units * matrices * each)
            yield Access(operand, write, own, (rows[0] * width, rows[1] * width), each * width)
        else:
            views.append(view)
            spans.append(hull([view], own, rows))
    if views and write:
        yield from rectangles(operand, views, own, rows)
    elif views:
        yield reads(operand, min(lo for lo, _ in spans), max(hi for _, hi in spans))


def numbers_of_a_word(signature: Signature) -> int:
    """Operands per 32-bit word of the products."""
    return 2 if signature.inputs[0].dtype is DType.BFLOAT16 else 1
