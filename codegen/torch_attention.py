"""Attention in PyTorch, for twins (torch_twin.py) and tests. Needs torch."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor
from torch.nn import functional as F

from planner.ops.attention_base import AttentionAttrs
from planner.ops.head_views import HeadView


def attention(a: AttentionAttrs, t: Sequence[Tensor], left: Tensor | None = None) -> Tensor:
    """A mask beside a causal one is added to it. `left`: what the weights are multiplied by instead of dropout."""
    q, k, v = matrices(a, t)
    given = t[a.tensors :]
    mask = given[0] if given else None
    if a.causal and (mask is not None or left is not None):
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = (q.new_zeros(()) if mask is None else mask).masked_fill(~seen, -inf)
    grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    if left is None:
        options = {"is_causal": a.causal and mask is None, "scale": a.scale, "enable_gqa": grouped}
        return _stored(a, F.scaled_dot_product_attention(q, k, v, mask, a.dropout, **options))
    k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) if grouped else x for x in (k, v))
    scores = a.scale * (q @ k.mT) + (0.0 if mask is None else mask)
    nothing = scores.isneginf().all(-1, keepdim=True)
    return _stored(a, (scores.masked_fill(nothing, 0.0).softmax(-1) * left * ~nothing) @ v)


def matrices(a: AttentionAttrs, t: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """q, k and v of an attention."""

    def shown(view: HeadView | None, x: Tensor) -> Tensor:
        if view is None:
            return x
        steps = (view.batch, view.head, view.row, 1)
        return x.contiguous().flatten()[view.first :].as_strided(view.sizes, steps).reshape(view.shape)

    return tuple(shown(a.view(name), t[source]) for name, source in zip("qkv", a.sources, strict=True))


def _stored(a: AttentionAttrs, y: Tensor) -> Tensor:
    """y as the tensor in which it is a view."""
    if a.y is None:
        return y
    steps = (a.y.batch, a.y.head, a.y.row, 1)
    order = sorted(range(4), key=lambda d: steps[d], reverse=True)
    return y.reshape(a.y.sizes).permute(order).reshape(a.result)
