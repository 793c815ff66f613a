"""Fusion before differentiation: batch norm + relu, batch norm + add (+ relu), group norm + relu become one node.

Before, so that gradient rules and memory needs are those of the fused node: relu(bn(x)) needs only x for its
gradient, where two nodes would also keep the batch norm's output. The fused node keeps the batch norm's id and
takes the id of the last fused output, so nothing behind it changes.

    bn -> relu              batch_norm(activation=relu)
    bn -> clamp(0, 6)       batch_norm(activation=relu6)
    bn -> silu              batch_norm(activation=silu)
    bn -> x clamp(x + 3, 0, 6) / 6    batch_norm(activation=hard_swish)
    bn -> add(., r) -> relu batch_norm(activation=relu, residual) with r as fourth input

and the first four likewise of group norms.
"""

from collections.abc import Collection, Mapping, Sequence

from planner.graph.model import Node, Value
from planner.ops.activation import ClampAttrs
from planner.ops.group_norm import GroupNormAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.scalar import ScalarAttrs

RELU6 = ClampAttrs(low=0.0, high=6.0)
PLUS_3 = ScalarAttrs(value=3.0)


def fuse(nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The forward nodes with every fusable chain replaced. `wanted`: values that must stay (loss, prediction)."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for value in node.reads:
            readers.setdefault(value, []).append(node)
    replaced: dict[str, Node | None] = {}
    """node id -> the fused node that stands at its place, or None where it disappears"""
    # Of two batch norms that meet in one addition the later one takes it: the other is then computed before it.
    for node in reversed(nodes):
        if node.op not in ("batch_norm", "group_norm") or node.id in replaced:
            continue
        fused, chain = node, [node]
        while step := _next(fused, readers, values, wanted, replaced):
            followers, fused = step
            chain += followers
        if len(chain) > 1 and not _shares_statistics(node, readers):
            replaced.update({n.id: None for n in chain})
            replaced[chain[-1].id] = fused
    found = (replaced.get(n.id, n) for n in nodes)
    return [n for n in found if n is not None]


def _shares_statistics(bn: Node, readers: Mapping[str, list[Node]]) -> bool:
    """Whether the layer runs twice: fusing moves a node, and running statistics must change in order."""
    return any(other.id != bn.id for v in bn.updates for other in readers.get(v, ()))


def _activation(follower: Node, residual: bool) -> str:
    """What the follower is as a norm's activation; empty: nothing."""
    if follower.op == "relu":
        return "relu"
    if residual:
        return ""
    return "silu" if follower.op == "silu" else "relu6" if follower.attrs == RELU6 else ""


def _next(
    norm: Node,
    readers: Mapping[str, list[Node]],
    values: Mapping[str, Value],
    wanted: Collection[str],
    replaced: Mapping[str, Node | None],
) -> tuple[Sequence[Node], Node] | None:
    """All that reads the norm's output, if it can be fused, and the norm with it fused in."""
    attrs, y = norm.attrs, norm.outputs[0]
    assert isinstance(attrs, BatchNormAttrs | GroupNormAttrs)
    residual = isinstance(attrs, BatchNormAttrs) and attrs.residual
    following = readers.get(y, [])
    if y in wanted or attrs.activation != "none" or any(n.id in replaced for n in following):
        return None
    if not residual and (swish := _hard_swish(y, readers, wanted)):
        return swish, _activated(norm, "hard_swish", swish[-1])
    if len(following) != 1:
        return None
    follower = following[0]
    if activation := _activation(follower, residual):
        return [follower], _activated(norm, activation, follower)
    if follower.op == "add" and norm.op == "batch_norm" and not residual:
        others = [v for v in follower.inputs if v != y]
        if len(others) == 1 and values[others[0]].type == values[y].type:
            update = {
                "attrs": attrs.model_copy(update={"residual": True}),
                "inputs": (*norm.inputs, others[0]),
                "outputs": (follower.outputs[0], *norm.outputs[1:]),
            }
            return [follower], norm.model_copy(update=update)
    return None


def _activated(norm: Node, activation: str, last: Node) -> Node:
    """The norm with an activation whose last node is `last`."""
    update = {"attrs": norm.attrs.model_copy(update={"activation": activation})}
    return norm.model_copy(update={**update, "outputs": (last.outputs[0], *norm.outputs[1:])})


def _hard_swish(y: str, readers: Mapping[str, list[Node]], wanted: Collection[str]) -> Sequence[Node]:
    """The four nodes of y clamp(y + 3, 0, 6) / 6 in order, if these are all that reads y; the division may come before
    the product or behind it. Empty: they are not."""
    following = readers.get(y, [])
    found = [n for n in following if n.attrs == PLUS_3]
    if len(following) != 2 or len(found) != 1:
        return []
    while len(found) < 4:
        value = found[-1].outputs[0]
        following = readers.get(value, [])
        if len(following) != 1 or value in wanted:
            return []
        found += following
    product, sixth = sorted(found[2:], key=lambda n: n.op)
    multiplies = product.op == "mul" and y in product.inputs
    divides = sixth.op == "scale" and isinstance(sixth.attrs, ScalarAttrs) and abs(6 * sixth.attrs.value - 1) < 1e-6
    return found if found[0].op == "add_scalar" and found[1].attrs == RELU6 and multiplies and divides else []
