"""Views of views are views of what these are of, equal views are one, and what has its own shape again is none.

    reshape(reshape(x))                  reshape(x): x[:, t].unsqueeze(-1)
    reshape(x), reshape(x)               the first of them
    permute(permute(x)), back again      x: sequences between layers that take images

Nothing runs for a view, but each is a node of the graph and a line of the plan, and its gradient another one. Gradients
of what reads equal views are added up once, or within the chain that reads both.
"""

from collections.abc import Collection, Mapping, Sequence

from planner.graph.model import Attrs, Node, Value
from planner.graph.parts import with_inputs
from planner.ops.copy import PermuteAttrs


def join_views(nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The nodes without the views that others stand for; views that nobody reads any more are left. `wanted`: values
    that must stay."""
    changed = {v for n in nodes for v in n.updates}
    views: dict[str, Node] = {}
    """A value -> the view that made it."""
    known: dict[tuple[str, Attrs], str] = {}
    same: dict[str, str] = {}
    """A value that is gone -> the one that it is."""
    found: list[Node] = []
    for given in nodes:
        node = with_inputs(given, same)
        if node.op not in ("reshape", "permute") or node.inputs[0] in changed:
            found.append(node)
            continue
        node = _of_the_source(node, views)
        y = node.outputs[0]
        views[y] = node
        first = _unmoved(node, views, values) or known.get((node.inputs[0], node.attrs))
        if first is not None and y not in wanted:
            same[y] = first
            continue
        if node.op == "reshape":  # a permutation may be a copy, which would have to stay until it is read again
            known.setdefault((node.inputs[0], node.attrs), y)
        found.append(node)
    return found


def _of_the_source(node: Node, views: Mapping[str, Node]) -> Node:
    """A view of a view as one of what that is of."""
    before = views.get(node.inputs[0])
    if before is None or {before.op, node.op} != {"reshape"}:
        return node
    return node.model_copy(update={"inputs": before.inputs})


def _unmoved(node: Node, views: Mapping[str, Node], values: Mapping[str, Value]) -> str | None:
    """The value that the node makes again; None: none."""
    x, y = node.inputs[0], node.outputs[0]
    if isinstance(node.attrs, PermuteAttrs):
        before = views.get(x)
        if before is None or not isinstance(before.attrs, PermuteAttrs):
            return None
        axes, x = before.attrs.axes, before.inputs[0]
        if any(axes[a] != i for i, a in enumerate(node.attrs.axes)):
            return None
    return x if values[x].type == values[y].type else None
