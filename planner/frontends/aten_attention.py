"""ATen's attention: one op (ops/attention.py), or, with a learned mask, its parts."""

from typing import Any

import numpy as np

from planner.frontends.aten import Context, lowers
from planner.graph.differentiate import changing_with, trainable_parameters
from planner.ops.attention import AttentionAttrs
from planner.ops.base import Array
from planner.ops.dropout import DropoutAttrs
from planner.ops.heads import is_causal, mismatch

_MASKED_OUT = -1e30
"""Added to a score, nothing is left of it; unlike minus infinity it makes no NaN of a row that is masked out whole."""


@lowers("scaled_dot_product_attention")
def _attention(c: Context, q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> str:
    """A boolean mask says what takes part. Where nothing does the result is 0, as PyTorch has it."""
    q, k, v = c.val(q), c.val(k), c.val(v)
    factor = c.shape(q)[-1] ** -0.5 if scale is None else float(scale)
    if c.is_constant(mask) and mask.dim() > 1 and mask.shape[-2] == c.shape(q)[-2] and is_causal(_as_added(mask)):
        mask, causal = None, True
    mask, alive = _added(c, mask)
    if _fits(c, q, k, v, mask):
        attrs = AttentionAttrs(scale=factor, causal=causal, dropout=float(p))
        y = c.op("attention", q, k, v, *([mask] if mask else []), attrs=attrs)
    else:
        if gqa:
            k, v = (_repeated_heads(c, part, c.shape(q)[-3]) for part in (k, v))
        y = _in_parts(c, q, k, v, mask, float(p), causal, factor)
    return y if alive is None else c.op("mul", y, c.val(alive))


def _as_added(mask: Any) -> Array:
    """A constant mask as it is added to scores."""
    if mask.dtype.is_floating_point:
        return np.asarray(mask.detach().float())
    return np.where(mask.numpy(force=True), 0.0, -np.inf)


def _added(c: Context, mask: Any) -> tuple[str | None, Any]:
    """What is added to the scores, and, where some query may see nothing, 0 and 1 for the results."""
    torch = c.torch
    alive: Any = None
    if c.is_constant(mask) and mask.dtype == torch.bool:
        alive = None if bool(mask.any(-1).all()) else mask.any(-1, keepdim=True)
        mask = torch.zeros(mask.shape).masked_fill(~mask, _MASKED_OUT)
    elif mask is not None and not c.is_constant(mask) and c.dtype(3) is torch.bool:
        kept = c.floating(mask)
        alive = c.compare("gt", c.reduce("reduce_sum", kept, [-1], True), 0)
        mask = c.where(kept, c.fill((), 0.0), c.fill((), _MASKED_OUT))
    return (None if mask is None else c.val(mask)), alive


def _fits(c: Context, q: str, k: str, v: str, mask: str | None) -> bool:
    """Whether the op takes these operands, and the mask wants no gradient."""
    sources = trainable_parameters(c.b) | set(c.b.inputs if c.gradients_of_inputs else ())
    if mask and mask in changing_with(c.b, c.b.nodes, sources):
        return False
    return mismatch(c.b.type(q), c.b.type(k), c.b.type(v), c.b.type(mask) if mask else None) is None


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
