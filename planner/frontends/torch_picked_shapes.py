"""Other shapes of rows that a mask of data picks: their axis stays, or rows become several, or one again of several."""

from math import prod
from typing import TYPE_CHECKING, Any

from planner.frontends.torch_picked_masks import Count

if TYPE_CHECKING:
    from planner.frontends.torch_picked import Picked


def reshaped(p: "Picked", to: Any, name: str) -> "Picked":
    shape, own, axis = tuple(p.rows.shape), tuple(p.shape), p.axis
    to = tuple(to[0]) if len(to) == 1 and isinstance(to[0], tuple | list) else tuple(to)
    if name == "ravel":
        to = (-1,)
    if name == "flatten":
        first, last = ((*to, 0, -1)[:2] if len(to) < 2 else to) if to[:1] else (0, -1)
        first, last = first % len(shape), last % len(shape)
        merged = -1 if first <= axis <= last else prod(shape[first : last + 1])
        to = (*own[:first], merged, *own[last + 1 :])
    before, behind = shape[:axis], shape[axis + 1 :]
    for place, size in enumerate(to):
        rest = to[place + 1 :]
        if not (size == -1 if type(size) is int else isinstance(size, Count)):
            continue
        if any(type(d) is not int or d < 0 for d in (*to[:place], *rest)) or prod(to[:place]) != prod(before):
            continue
        if place == axis and _joins(p, size, prod(rest), prod(behind)):
            whole, _ = p.mask.of or (p.mask, 1)
            return p.like(p.rows.reshape(*to[:place], -1, *rest), place, whole)
        each, odd = divmod(prod(behind), prod(rest))
        known = type(size) is int or (p.mask.same(size.mask) and size.each == each)
        if odd or not each or not known or (each > 1 and place != axis):
            continue
        made = p.rows.reshape(*to[:place], -1, *rest)
        return p.like(made, place, p.mask.times(each) if each > 1 else p.mask)
    raise p.refuse(f"{name} to {tuple('their number' if isinstance(d, Count) else d for d in to)}")


def _joins(p: "Picked", size: Any, many: int, one: int) -> bool:
    """Whether rows of one element are parts of rows of so many, of which all are wanted."""
    whole, each = p.mask.of or (None, 0)
    named = isinstance(size, Count) and whole is not None and size.each == 1 and whole.same(size.mask)
    return whole is not None and many == each * one and (named or not isinstance(size, Count))
