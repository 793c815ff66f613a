"""Keys and values that a model repeats, one copy for each head of queries, are read where they lie once.

    k [n, groups, keys, width] -> [n, groups, 1, ...] -> expand [n, groups, shared, ...] -> [n, groups * shared, ...]

Grouped attention is spelled like this where a library's attention takes no groups; `attention` does (ops/attention.py).
"""

from collections.abc import Mapping, Sequence

from planner.graph.model import Node, Value


def share_heads(nodes: Sequence[Node], values: Mapping[str, Value]) -> list[Node]:
    """The forward nodes with every attention on its own keys and values. Who made the copies stays, for others that may
    read them."""
    maker = {v: n for n in nodes for v in n.outputs}

    def repeated(value: str) -> str | None:
        """What the value repeats for neighbouring heads."""
        chain = [value]
        for op in ("reshape", "expand", "reshape"):
            node = maker.get(chain[-1])
            if node is None or node.op != op:
                return None
            chain.append(node.inputs[0])
        merged, spread, apart, own = (values[v].type.shape for v in chain)
        if len(own) < 3 or len(spread) < 3:
            return None
        *lead, groups, length, width = own
        shared = spread[-3]
        expected = tuple(
            (*lead, *heads, length, width) for heads in ((groups * shared,), (groups, shared), (groups, 1))
        )
        return chain[-1] if (merged, spread, apart) == expected else None

    found = []
    for node in nodes:
        if node.op == "attention":
            k, v = repeated(node.inputs[1]), repeated(node.inputs[2])
            if k and v and values[k].type.shape[-3] == values[v].type.shape[-3]:
                node = node.model_copy(update={"inputs": (node.inputs[0], k, v, *node.inputs[3:])})
        found.append(node)
    return found
