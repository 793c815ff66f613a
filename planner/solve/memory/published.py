"""SuperNeurons' three recomputation strategies (recompute.py) as decisions: to compare with, to start from.

    speed-centric     every dropped value is made again once: share
    memory-centric    for every reader: fresh
    cost-aware        fresh in segments whose inputs and outputs are more than the largest layer's inputs, outputs and
                      their gradients, share in the others

Shared values come back when they are first needed, not a segment at a time: never earlier than as published.
"""

from collections.abc import Mapping

from planner.graph.model import Graph, Program
from planner.solve.memory.steps import Decision, Material
from planner.solve.superneurons.recompute import Strategy, segments, work_of

STRATEGIES: tuple[Strategy, ...] = ("speed", "memory", "cost")


def published(graph: Graph, program: Program, made: Material) -> Mapping[Strategy, dict[str, Decision]]:
    """The decisions of every strategy."""
    work = work_of(graph, program, made.order)
    tasks = {t.id: t for t in work.forward}
    largest = 2 * max((sum(work.bytes.get(v, 0) for v in (*t.reads, *t.writes)) for t in work.forward), default=0)
    found: dict[Strategy, dict[str, Decision]] = {s: {} for s in STRATEGIES}
    free = set(made.values) & set(made.producer)
    for segment in segments(work):
        dropped = [v for t in segment.tasks for v in tasks[t].writes if v in work.droppable and v in free]
        careful = segment.bytes > largest
        for strategy in STRATEGIES:
            way: Decision = "fresh" if strategy == "memory" or (strategy == "cost" and careful) else "share"
            found[strategy].update(dict.fromkeys(dropped, way))
    return found
