"""How the elements of a value lie in memory: strides per logical dimension, merged dimensions, spans.

The kernels of runtime/strides.hpp walk up to six dimensions, so templates merge neighbouring ones here first.
"""

from collections.abc import Sequence

from planner.graph.model import Layout, TensorType
from planner.ops.base import misfit

Strides = tuple[int, ...]

MAX_RANK = 6
"""Dimensions that the strided kernels walk, after merging."""


def check_rank(name: str, shape: Sequence[int]) -> None:
    """SP1002 where a strided kernel would have to walk too many dimensions."""
    if sum(d > 1 for d in shape) > MAX_RANK:
        raise misfit(f"{name} walks {len(shape)} dimensions, more than {MAX_RANK}", "join neighbouring dimensions")


def memory_order(type_: TensorType) -> tuple[int, ...]:
    """The logical dimensions in memory order, outermost first."""
    return (0, 2, 3, 1) if type_.layout is Layout.CHANNELS_LAST else tuple(range(len(type_.shape)))


def strides(type_: TensorType) -> Strides:
    """Elements between neighbours along every logical dimension."""
    found, step = [0] * len(type_.shape), 1
    for axis in reversed(memory_order(type_)):
        found[axis] = step
        step *= type_.shape[axis]
    return tuple(found)


def broadcast_strides(type_: TensorType, target: TensorType) -> Strides:
    """Strides of an operand over the dimensions of `target` in target's memory order; 0 where it is repeated."""
    missing = len(target.shape) - len(type_.shape)
    own = (0,) * missing + tuple(s if d > 1 else 0 for s, d in zip(strides(type_), type_.shape, strict=True))
    return tuple(own[axis] for axis in memory_order(target))


def merge(shape: Sequence[int], *operands: Strides) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """Drop dimensions of 1 and join neighbours that every operand walks like one; at least one dimension stays.

    >>> merge((2, 3, 4), (12, 4, 1), (0, 4, 1))
    ((2, 12), ((12, 1), (0, 1)))
    """
    extents: list[int] = []
    walks: list[list[int]] = [[] for _ in operands]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if extents and all(w[-1] == o[axis] * extent for w, o in zip(walks, operands, strict=True)):
            extents[-1] *= extent
            for walk, operand in zip(walks, operands, strict=True):
                walk[-1] = operand[axis]
        else:
            extents.append(extent)
            for walk, operand in zip(walks, operands, strict=True):
                walk.append(operand[axis])
    if not extents:
        return (1,), tuple((1,) for _ in operands)
    return tuple(extents), tuple(tuple(w) for w in walks)


def span(shape: Sequence[int], walk: Strides, lo: int, hi: int) -> tuple[int, int]:
    """A contiguous span that holds the elements at row-major positions [lo, hi) of a strided view; tight where the
    range lies within one index of the outer dimensions."""
    if lo >= hi:
        return (0, 0)
    base, inner = 0, 1
    for extent in shape:
        inner *= extent
    for axis, extent in enumerate(shape):
        inner //= extent
        first, last = lo // inner, (hi - 1) // inner
        if first != last:
            reach = sum((d - 1) * s for d, s in zip(shape[axis + 1 :], walk[axis + 1 :], strict=True))
            return (base + first * walk[axis], base + last * walk[axis] + reach + 1)
        base, lo, hi = base + first * walk[axis], lo - first * inner, hi - first * inner
    return (base, base + 1)
