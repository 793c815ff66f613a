"""ATen's attention: one op (ops/attention.py), or, with a learned mask with which nothing would be saved, its parts."""

from typing import Any

import numpy as np

from planner.frontends.aten import Context, lowers
from planner.graph.differentiate import changing_with, trainable_parameters
from planner.ops.attention_base import AttentionAttrs
from planner.ops.attention_mask import AttentionMaskBackward
from planner.ops.base import Array
from planner.ops.dropout import DropoutAttrs
from planner.ops.heads import is_causal, mismatch

_MASKED_OUT = -1e30
"""Added to a score, nothing is left of it; unlike minus infinity, which the op takes, it makes no NaN of a row of
softmax that is masked out whole."""


@lowers("scaled_dot_product_attention")
def _attention(c: Context, q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> str:
    """A boolean mask says what takes part. Where nothing does the result is 0, as PyTorch has it."""
    q, k, v = c.val(q), c.val(k), c.val(v)
    factor = c.shape(q)[-1] ** -0.5 if scale is None else float(scale)
    if c.is_constant(mask) and mask.dim() > 1 and mask.shape[-2] == c.shape(q)[-2] and is_causal(_as_added(mask)):
        mask, causal = None, True
    added = _added(c, mask, -np.inf)
    if _fits(c, q, k, v, added, factor):
        attrs = AttentionAttrs(scale=factor, causal=causal, dropout=float(p))
        return c.op("attention", q, k, v, *([added] if added else []), attrs=attrs)
    if gqa:
        k, v = (_repeated_heads(c, part, c.shape(q)[-3]) for part in (k, v))
    y, seeing = _in_parts(c, q, k, v, _added(c, mask, _MASKED_OUT), float(p), causal, factor), _seeing(c, mask)
    return y if seeing is None else c.op("mul", y, c.val(seeing))


def _as_added(mask: Any) -> Array:
    """A constant mask as it is added to scores."""
    if mask.dtype.is_floating_point:
        return np.asarray(mask.detach().float())
    return np.where(mask.numpy(force=True), 0.0, -np.inf)


def _added(c: Context, mask: Any, shut: float) -> str | None:
    """What is added to the scores."""
    if _is_boolean(c, mask):
        if c.is_constant(mask):
            return c.val(c.torch.zeros(mask.shape).masked_fill(~mask, shut))
        return c.where(c.floating(mask), c.fill((), 0.0), c.val(c.torch.tensor(shut)))
    return None if mask is None else c.val(mask)


def _seeing(c: Context, mask: Any) -> Any:
    """1 for a query that sees something, else 0; None where all do, or nobody can tell."""
    if not _is_boolean(c, mask):
        return None
    if c.is_constant(mask):
        return None if bool(mask.any(-1).all()) else mask.any(-1, keepdim=True)
    return c.compare("gt", c.reduce("reduce_sum", c.floating(mask), [-1], True), 0)


def _is_boolean(c: Context, mask: Any) -> bool:
    return mask is not None and (mask.dtype if c.is_constant(mask) else c.dtype(3)) is c.torch.bool


def _fits(c: Context, q: str, k: str, v: str, mask: str | None, factor: float) -> bool:
    """Whether the op takes these operands, and a mask that wants a gradient is worth it."""
    sources = trainable_parameters(c.b) | set(c.b.inputs if c.gradients_of_inputs else ())
    queries, keys, values = (c.b.type(x) for x in (q, k, v))
    added = c.b.type(mask) if mask else None
    learned = mask in changing_with(c.b, c.b.nodes, sources)
    if added and learned and not AttentionMaskBackward.gains(added, queries, keys, factor):
        return False
    return mismatch(queries, keys, values, added) is None


def _in_parts(c: Context, q: str, k: str, v: str, mask: str | None, dropout: float, causal: bool, factor: float) -> str:
    scores = c.matmul(c.scale(q, factor), c.transpose(k, c.rank(k) - 2, c.rank(k) - 1))
    if causal:
        seen = c.torch.ones(c.shape(scores)[-2:], dtype=c.torch.bool).tril()
        scores = c.op("add", scores, c.val(c.torch.zeros(seen.shape).masked_fill(~seen, _MASKED_OUT)))
    weights = c.op("softmax", c.op("add", scores, mask) if mask else scores)
    weights = c.op("dropout", weights, attrs=DropoutAttrs(p=dropout)) if dropout else weights
    return c.matmul(weights, v)


def _repeated_heads(c: Context, x: str, heads: int) -> str:
    """(N, groups, L, E) -> (N, heads, L, E): neighbouring heads of queries share keys and values."""
    *lead, groups, length, width = c.shape(x)
    spread = c.expand(c.unsqueeze(x, len(lead) + 1), (*lead, groups, heads // groups, length, width))
    return c.reshape(spread, (*lead, heads, length, width))
