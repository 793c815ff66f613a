"""How warm a node's operands are in its place in the step.

A cost entry has two ends: all operands in cache, none in cache. Which of them holds follows from how many bytes
the step touches between two uses of a value (its reuse distance) against the size of the shared cache.
"""

from collections.abc import Sequence

from planner.costs.table import CostEntry
from planner.graph.model import Graph, Node, Role
from planner.ops.base import Mode, op_named
from planner.ops.signature import signature_of


def cold_fractions(graph: Graph, order: Sequence[Node], cache_bytes: int) -> dict[str, float]:
    """node id -> share of its operands' bytes that have left the cache when the node starts, 0..1.

    The order is walked twice: a training loop repeats it, so what a step starts with is what the last one left. Of an
    operand from which indices pick rows only those rows count. The next step picks others: for the first node that
    uses them, the whole table would have to be in the cache.
    """
    touches = {node.id: _touched(graph, node) for node in order}
    touched = 0
    last: dict[str, int] = {}
    found: dict[str, float] = {}
    for _ in range(2):
        used: set[str] = set()
        for node in order:
            sizes = touches[node.id]
            cold = 0.0
            for value, size in sizes.items():
                reach = size if value in used else graph.value[value].type.bytes
                cold += size * _missing(touched - last.get(value, -(10**15)), reach, cache_bytes)
            found[node.id] = cold / max(1, sum(sizes.values()))
            touched += sum(sizes.values())
            last.update(dict.fromkeys(sizes, touched))
            used.update(sizes)
    return found


def gone_before_read(graph: Graph, order: Sequence[Node], cache_bytes: int) -> frozenset[str]:
    """Ids of the nodes whose results have all left the cache when somebody reads them, in this step or the next, and
    which cannot overwrite an operand that dies with them: their results may as well bypass the cache."""
    readers = {v: place for place, node in enumerate(order) for v in node.reads}
    sizes = [sum(_touched(graph, node).values()) for node in order]
    outputs = {v for p in graph.programs for v in p.outputs}
    found = set()
    for place, node in enumerate(order):
        signature = signature_of(graph, node)
        plain = Mode("", "", 1)
        dying = {
            v
            for _, i in op_named(node.op).inplace(signature, plain)
            if readers[v := node.inputs[i]] == place and graph.value[v].role is Role.ACTIVATION and v not in outputs
        }
        if not dying and all(_read_cold(graph, order, sizes, place, v, cache_bytes) for v in node.outputs):
            found.add(node.id)
    return frozenset(found)


def _read_cold(
    graph: Graph, order: Sequence[Node], sizes: Sequence[int], place: int, value: str, cache_bytes: int
) -> bool:
    """Whether a value that the node at `place` writes is out of the cache when the next node reads it, if any does."""
    reach = int(graph.value[value].type.bytes)
    for later in range(place + 1, len(order)):
        if value in order[later].reads or reach >= cache_bytes:
            break
        reach += sizes[later]
    return reach >= cache_bytes


def _touched(graph: Graph, node: Node) -> dict[str, int]:
    """value -> bytes of it that the node reads or writes."""
    sizes = {v: int(graph.value[v].type.bytes) for v in (*node.reads, *node.writes)}
    operands = {f"in{i}": v for i, v in enumerate(node.inputs)} | {f"up{i}": v for i, v in enumerate(node.updates)}
    picked = op_named(node.op).picked(signature_of(graph, node))
    return sizes | {operands[name]: size for name, size in picked.items()}


def _missing(distance: int, size: int, cache_bytes: int) -> float:
    """Part of a value that was evicted after `distance` other bytes; linear over the second half of the cache,
    because replacement is not perfectly least-recently-used."""
    reach = distance + size
    return min(1.0, max(0.0, 2 * reach / cache_bytes - 1)) if cache_bytes else 1.0


def stage_times(entry: CostEntry, cold: float) -> tuple[int, ...]:
    """Predicted ns of each stage with the fraction `cold` of the operands out of cache."""
    return tuple(
        max(1, round(warm + (max(cool, warm) - warm) * cold))
        for warm, cool in zip(entry.warm_ns, entry.cold_ns, strict=True)
    )
