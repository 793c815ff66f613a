"""The sizes of an attention, how its mask is read, and which operands fit each other."""

from math import prod
from typing import NamedTuple

import numpy as np

from planner.errors import UserError
from planner.graph.model import TensorType
from planner.ops.base import Array, misfit

SHUT = -1e9
"""What is added to a score where frameworks mean it to vanish is at most this."""


class Heads(NamedTuple):
    """The sizes of an attention."""

    units: int
    """Matrices of keys."""
    shared: int
    """Heads of queries per unit."""
    queries: int
    keys: int
    width: int
    value_width: int

    @property
    def rows(self) -> int:
        """Queries that read a unit."""
        return self.shared * self.queries

    def pairs(self, causal: bool) -> int:
        """Queries and keys that meet, over all units."""
        seen = min(self.queries, self.keys)
        triangle = seen * (seen + 1) // 2 + (self.queries - seen) * self.keys
        return self.units * self.shared * (triangle if causal else self.queries * self.keys)


class MaskSteps(NamedTuple):
    """Elements from one query's mask to another's; 0 where they share one. As struct AttentionMask."""

    heads: int
    """Of queries in one entry of the batch, or in as many as a mask is for."""
    batch: int
    head: int
    row: int


def mask_steps(mask: TensorType, q: TensorType) -> MaskSteps | None:
    """How a mask is read beside queries [..., heads, queries, width]: its last dimension is that of the keys, the
    others are broadcast, those before the heads all or none of them; or the last of them, if it has heads, too. None:
    another way."""
    full = (1,) * (3 - len(q.shape)) + q.shape[:-1]
    shape = (1,) * (len(full) + 1 - len(mask.shape)) + mask.shape
    if len(shape) != len(full) + 1 or any(found not in (1, whole) for found, whole in zip(shape, full, strict=False)):
        return None
    *lead, heads, queries, keys = shape
    batch, matrix, row = prod(lead), queries * keys, keys if queries > 1 else 0
    if batch not in (1, prod(full[:-2])):
        again = next(i for i, extent in enumerate(lead) if extent > 1)  # and each of those before sees the same
        if heads != full[-2] or tuple(lead[again:]) != full[again:-2]:
            return None
        return MaskSteps(heads=batch * heads, batch=0, head=matrix, row=row)
    return MaskSteps(
        heads=full[-2],
        batch=heads * matrix if batch > 1 else 0,
        head=matrix if heads > 1 else 0,
        row=row,
    )


def is_causal(mask: Array) -> bool:
    """Whether a mask that is added to scores, with a row for each of several queries, lets query i through to the keys
    up to i and to no others."""
    if mask.ndim < 2 or mask.shape[-1] < 2 or not mask.size or (mask[..., 0, 1:] > SHUT).any():
        return False
    seen = np.tril(np.ones(mask.shape[-2:], bool))
    return bool((mask[..., seen] == 0).all() and (mask[..., ~seen] <= SHUT).all())


def mismatch(q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None) -> UserError | None:
    """SP1002 where the op does not take these operands."""
    lead, groups = q.shape[:-2], k.shape[:-2]
    alike = len(lead) == len(groups) and lead[:-1] == groups[:-1] and (not lead or lead[-1] % groups[-1] == 0)
    if len(q.shape) < 2 or not alike or q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1]:
        return misfit(
            f"attention cannot match queries {q.text()} with keys {k.text()} and values {v.text()}",
            "they are [..., heads, queries, width], [..., heads, keys, width] and [..., heads, keys, width of values]; "
            "queries may have a multiple of the others' heads",
        )
    if mask and (mask.shape[-1:] != k.shape[-2:-1] or mask_steps(mask, q) is None):
        return misfit(
            f"attention cannot add a mask {mask.text()} to the scores of {q.text()} and {k.text()}",
            "a mask is [..., heads, queries, keys], with 1 or nothing for dimensions along which it stays the same",
        )
    return None
