"""Masks of which one is true in every row, whatever the data: one_hot's, or zeros to which ones are written. What they
pick has a fixed size, one of each row: the score of an image's own class, say."""

from typing import Any

from planner.frontends.aten import packet
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_writes import changing

_SAME = frozenset({"to", "_to_copy", "type_as", "detach", "clone", "contiguous", "alias", "lift_fresh"})
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_TRUE = {"eq": 1, "ge": 1, "ne": 0, "gt": 0}
"""By comparison with what ones are true and zeros are not."""


def is_one_hot(torch: Any, mask: Any) -> bool:
    """Whether that follows from how a mask of a program that is being recorded is made; rows are its last axis."""
    node, through = node_of(mask), set[Any]()
    while node is not None and node.op == "call_function" and mask.dim() > 1:
        through.add(node)
        name, args = _name(node), node.args
        if name == "one_hot":
            return not set(changing(through))
        if name in ("scatter", "scatter_", "index_put", "index_put_"):
            made = _of_columns(torch, node) if name.startswith("scatter") else _of_places(torch, node)
            return made and set(changing(through | {args[0]})) <= {node}
        compared = name in _TRUE and len(args) > 1 and args[1] == _TRUE[name]
        node = args[0] if compared or name in _SAME else None
    return False


def chosen(torch: Any, x: Any, mask: Any, axis: int) -> Any:
    """x[..., mask] of such a mask, which lies at `axis`."""
    behind = x.dim() - axis - mask.dim()
    wide, last = mask.reshape(*mask.shape, *(1 for _ in range(behind))), axis + mask.dim() - 1
    own = torch.where(wide, x, torch.zeros((), dtype=x.dtype))
    rows = own.any(last) if x.dtype is torch.bool else own.sum(last, dtype=x.dtype)
    return rows.flatten(axis, last - 1)


def put(torch: Any, x: Any, mask: Any, axis: int, rows: Any) -> None:
    """x[..., mask] = rows, of such a mask: each in its row."""
    behind = x.dim() - axis - mask.dim()
    wide, last = mask.reshape(*mask.shape, *(1 for _ in range(behind))), axis + mask.dim() - 1
    rows = rows.expand(*x.shape[:axis], mask[..., 0].numel(), *x.shape[last + 1 :])
    own = rows.reshape(*x.shape[:last], *x.shape[last + 1 :]).unsqueeze(last)
    x.copy_(torch.where(wide, own.to(x.dtype), x))


def _name(node: Any) -> str:
    return packet(node.target).removeprefix("aten.")


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape) if hasattr(node.meta.get("val"), "shape") else ()


def _of_columns(torch: Any, node: Any) -> bool:
    """zeros.scatter(-1, columns, 1), of one column for each row."""
    if len(node.args) != 4 or node.kwargs:
        return False
    x, axis, index, value = node.args
    shape = _shape(x)
    alone = len(shape) > 1 and axis % len(shape) == len(shape) - 1 and _shape(index) == (*shape[:-1], 1)
    return alone and _is_zeros(x) and not isinstance(value, torch.fx.Node) and value == 1


def _of_places(torch: Any, node: Any) -> bool:
    """zeros[arange(rows), columns] = 1."""
    x, places, value = node.args[:3]
    if len(node.args) > 3 or len(_shape(x)) != 2 or len(places) != 2 or not _is_zeros(x):
        return False
    rows, one = _known(torch, places[0]), _known(torch, value)
    every = rows is not None and rows.dtype is not torch.bool and rows.tolist() == list(range(_shape(x)[0]))
    vector = places[1] is not None and _shape(places[1]) == _shape(x)[:1]
    return every and vector and one is not None and one.numel() == 1 and one.item() == 1


def _is_zeros(node: Any) -> bool:
    while node.op == "call_function" and _name(node) in _SAME:
        node = node.args[0]
    return node.op == "call_function" and _name(node) in _ZEROS


def _known(torch: Any, node: Any) -> Any:
    """The numbers of a constant, or of arange."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils._python_dispatch import _disable_current_modes

    root = get_proxy_mode().tracer.root
    while node is not None and node.op == "call_function" and _name(node) in ("lift_fresh_copy", *_SAME):
        node = node.args[0]
    with _disable_current_modes():
        if node is not None and node.op == "get_attr":
            found = getattr(root, node.target, None)
            return found if torch.is_tensor(found) else None
        whole = node is not None and node.op == "call_function" and _name(node) == "arange"
        if whole and all(type(a) is int for a in node.args):
            return torch.arange(*node.args)
    return None
