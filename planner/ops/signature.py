"""From a graph's node to its signature."""

from collections.abc import Iterable

from planner.graph.model import Graph, Node
from planner.ops.base import Signature, op_named


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


def signatures_of(graphs: Iterable[Graph]) -> list[Signature]:
    """Every signature that runs, each once, in order of appearance."""
    found: dict[str, Signature] = {}
    for graph in graphs:
        for program in graph.programs:
            for node in program.nodes:
                signature = signature_of(graph, node)
                if op_named(node.op).alias(signature) is None:
                    found.setdefault(signature.text, signature)
    return list(found.values())
