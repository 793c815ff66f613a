"""What must run before what."""

from planner.graph.model import Graph, Program
from planner.ops.base import Op, op_named
from planner.ops.signature import signature_of


def view_roots(graph: Graph, program: Program) -> dict[str, str]:
    """value -> the value that it is only another view of (itself when it is none), for all values of a program."""
    roots: dict[str, str] = {v: v for v in (*program.inputs, *program.outputs)}
    for node in program.nodes:
        for value in (*node.reads, *node.writes):
            roots.setdefault(value, value)
        op = op_named(node.op)
        # Making a signature costs, and hardly any op has views.
        alias = op.alias(signature_of(graph, node)) if type(op).alias is not Op.alias else None
        if alias is not None:
            roots[node.outputs[alias[0]]] = roots[node.inputs[alias[1]]]
    return roots


def dependencies(graph: Graph, program: Program) -> dict[str, tuple[str, ...]]:
    """node id -> ids of the nodes that must finish before it, in program order.

    Read after write, write after read and write after write; the last two arise from `updates` only. Who reads a view
    reads the value that it is a view of.
    """
    roots = view_roots(graph, program)
    writer: dict[str, str] = {}
    readers: dict[str, list[str]] = {}
    result: dict[str, tuple[str, ...]] = {}
    for node in program.nodes:
        needed: dict[str, None] = {}
        for value in node.reads:
            for read in (value, roots[value]):
                if read in writer:
                    needed[writer[read]] = None
        for value in node.writes:
            for reader in readers.pop(value, []):
                needed[reader] = None
            if value in writer:
                needed[writer[value]] = None
        for value in node.inputs:
            readers.setdefault(roots[value], []).append(node.id)
        for value in node.writes:
            writer[value] = node.id
        needed.pop(node.id, None)
        result[node.id] = tuple(needed)
    return result
