"""Masks that a module drops where they leave nothing out: `if not mask.any(): mask = None`. Nothing can be chosen of a
mask and None, but the mask alone will do, if what reads it does with one that leaves nothing out as without."""

from typing import Any

from planner.frontends.aten import packet
from planner.frontends.torch_alike import node_of

_SAME = frozenset({
    "alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "reshape", "to", "_to_copy", "view",
})  # fmt: skip
"""Operators of which a truth comes out as it went in."""


def dropped(torch: Any, condition: Any, first: Any, second: Any) -> Any:
    """The mask, where one of two things is it and the other one None, and `condition`, with which the first is
    chosen, says that it is None just where no element of the mask, or every one, is true; else None."""
    mask = second if first is None else first
    if (first is None) is (second is None) or not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
        return None
    node, asked, turned = node_of(mask), node_of(condition), first is not None
    while asked is not None and node is not None and asked.op == "call_function":
        name = packet(asked.target).removeprefix("aten.").removeprefix("stepplan.")
        if name in ("any", "all"):
            none_where = not turned if name == "all" else turned
            return mask if list(asked.args) == [node] and none_where else None
        if name in ("logical_not", "bitwise_not"):
            turned = not turned
        elif name not in _SAME and not (name == "ne" and asked.args[1] == 0):
            return None
        asked = asked.args[0]
    return None
