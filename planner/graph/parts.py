"""Slices that fill an axis together are the parts of one split.

    x[:, t] for every t            steps of a recurrence that is written as a loop
    x[..., :half], x[..., half:]   rotary embeddings
    p[0], p[1], p[2]               queries, keys and values of one projection

The gradient of a slice is as large as the whole and zero almost everywhere, and all of these are added up; that of a
split is its parts, joined in one pass. Slices that nothing is trained through stay: they are read when they are needed.
"""

from collections.abc import Collection, Mapping, Sequence

from planner.graph.model import Node, Value
from planner.ops.copy import SliceAttrs
from planner.ops.split import MOST_PARTS, SplitAttrs


def split_slices(
    nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str], changing: Collection[str]
) -> list[Node]:
    """The forward nodes with such slices as splits, which stand where the first slice did, and slices that are there
    twice once. `wanted`: values that must stay; `changing`: those that have a gradient."""
    slices: dict[tuple[str, int], dict[tuple[int, int], Node]] = {}
    same: dict[str, str] = {}
    """A value -> the one that it is, of an earlier slice."""
    gone: set[str] = set()
    for node in nodes:
        attrs = node.attrs
        if not isinstance(attrs, SliceAttrs) or node.op != "slice" or attrs.step != 1 or node.inputs[0] not in changing:
            continue
        found = slices.setdefault((node.inputs[0], attrs.axis), {})
        first = found.setdefault((attrs.start, attrs.stop), node)
        if first is not node and node.outputs[0] not in wanted:
            same[node.outputs[0]] = first.outputs[0]
            gone.add(node.id)
    splits: dict[str, Node] = {}
    for (x, axis), found in slices.items():
        spans = sorted(found)
        ends = [0, *(stop for _, stop in spans)]
        fill = ends[-1] == values[x].type.shape[axis] and [start for start, _ in spans] == ends[:-1]
        if not fill or not 2 <= len(spans) <= MOST_PARTS:
            continue
        first = next(iter(found.values()))
        gone |= {n.id for n in found.values()}
        sizes = tuple(stop - start for start, stop in spans)
        outputs = tuple(found[span].outputs[0] for span in spans)
        update = {"op": "split", "attrs": SplitAttrs(axis=axis, sizes=sizes), "outputs": outputs}
        splits[first.id] = first.model_copy(update=update)
    kept = (splits.get(n.id) or (None if n.id in gone else n) for n in nodes)
    return [with_inputs(n, same) for n in kept if n is not None]


def with_inputs(node: Node, same: Mapping[str, str]) -> Node:
    """The node with what each value is that is gone."""
    if not any(v in same for v in node.inputs):
        return node
    return node.model_copy(update={"inputs": tuple(same.get(v, v) for v in node.inputs)})
