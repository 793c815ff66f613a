"""From a graph's node to its signature."""

from planner.graph.model import Graph, Node
from planner.ops.base import Signature


def signature_of(graph: Graph, node: Node) -> Signature:
    """The op with its attributes and the types of its operands: what costs and modes are keyed by."""
    return Signature(
        op=node.op,
        attrs=node.attrs,
        inputs=graph.types(node.inputs),
        outputs=graph.types(node.outputs),
        updates=graph.types(node.updates),
    )
