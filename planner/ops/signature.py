"""From a graph's node to its signature."""

from planner.graph.model import Graph, Node
from planner.ops.base import Signature


def signature_of(graph: Graph, node: Node) -> Signature:
    """The op with its attributes and the types of its operands: what costs and modes are keyed by."""
    known = graph.memo.get(id(node))
    if known is None:
        found = Signature(
            op=node.op,
            attrs=node.attrs,
            inputs=graph.types(node.inputs),
            outputs=graph.types(node.outputs),
            updates=graph.types(node.updates),
        )
        # With the node itself, so that no other one can get its id.
        known = graph.memo[id(node)] = (node, found)
    signature: Signature = known[1]
    return signature
