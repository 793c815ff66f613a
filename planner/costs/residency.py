"""How warm a node's operands are in its place in the step.

A cost entry has two ends: all operands in cache, none in cache. Which of them holds follows from how many bytes
the step touches between two uses of a value (its reuse distance) against the size of the shared cache.
"""

from collections.abc import Sequence

from planner.costs.table import CostEntry
from planner.graph.model import Graph, Node


def cold_fractions(graph: Graph, order: Sequence[Node], cache_bytes: int) -> dict[str, float]:
    """node id -> share of its operands' bytes that have left the cache when the node starts, 0..1.

    The order is walked twice: a training loop repeats it, so what a step starts with is what the last one left.
    """
    touched = 0
    last: dict[str, int] = {}
    found: dict[str, float] = {}
    for _ in range(2):
        for node in order:
            operands = dict.fromkeys((*node.reads, *node.writes))
            sizes = {v: graph.value[v].type.bytes for v in operands}
            cold = sum(
                size * _missing(touched - last.get(v, -(10**15)), size, cache_bytes) for v, size in sizes.items()
            )
            found[node.id] = cold / max(1, sum(sizes.values()))
            touched += sum(sizes.values())
            last.update(dict.fromkeys(operands, touched))
    return found


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
