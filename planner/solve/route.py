"""Pass *route*: the order in which nodes start (SuperNeurons, algorithm 1).

A depth-first order that passes a join only when all its inputs are done; updates run as soon as their gradient is
there and nobody needs the old parameter any more, so that gradients die early. The program's own order is the
other candidate; the one with the lower peak of live bytes wins, the program's order on a tie.
"""

import heapq
from collections.abc import Sequence

from planner.graph.dependencies import dependencies
from planner.graph.model import PERSISTENT, Graph, Node, Program


def route(graph: Graph, program: Program) -> tuple[Node, ...]:
    """All nodes of the program in a valid order."""
    needs = dependencies(graph, program)
    candidates = (_early_updates(program, needs), _depth_first(program, needs))
    return min(candidates, key=lambda order: live_peak(graph, program, order))


def _early_updates(program: Program, needs: dict[str, tuple[str, ...]]) -> tuple[Node, ...]:
    """Program order, except that an update runs as soon as it may."""
    position = {n.id: i for i, n in enumerate(program.nodes)}
    rank = {n.id: (max((position[d] for d in needs[n.id]), default=-1), position[n.id]) for n in program.nodes}
    return tuple(
        sorted(
            program.nodes,
            key=lambda n: (rank[n.id][0], 1, position[n.id]) if n.phase == "update" else (position[n.id], 0, 0),
        )
    )


def _depth_first(program: Program, needs: dict[str, tuple[str, ...]]) -> tuple[Node, ...]:
    """Follow one branch as deep as it goes; a node starts when the last of its dependencies is done."""
    position = {n.id: i for i, n in enumerate(program.nodes)}
    waiting = {n.id: len(needs[n.id]) for n in program.nodes}
    followers: dict[str, list[str]] = {n.id: [] for n in program.nodes}
    for follower, needed in needs.items():
        for other in needed:
            followers[other].append(follower)
    # Newly ready nodes go first (depth), and among them those listed first; updates before everything else.
    ready: list[tuple[int, int, str]] = []
    started = 0

    def push(node_id: str) -> None:
        update = program.node[node_id].phase == "update"
        heapq.heappush(ready, (-(len(program.nodes) + 1) if update else -started, position[node_id], node_id))

    for start in program.nodes:
        if not waiting[start.id]:
            push(start.id)
    order = []
    while ready:
        _, _, node_id = heapq.heappop(ready)
        order.append(program.node[node_id])
        started += 1
        for follower in followers[node_id]:
            waiting[follower] -= 1
            if not waiting[follower]:
                push(follower)
    return tuple(order)


def live_peak(graph: Graph, program: Program, order: Sequence[Node]) -> int:
    """The most bytes of activations, gradients and saved values live at once under this order (no in-place use)."""
    last: dict[str, int] = {}
    for index, node in enumerate(order):
        for value in (*node.reads, *node.writes):
            last[value] = index
    for value in program.outputs:
        last[value] = len(order)
    dying: dict[int, int] = {}
    for value, index in last.items():
        dying[index] = dying.get(index, 0) + (graph.value[value].type.bytes if _counted(graph, program, value) else 0)
    live = peak = 0
    for index, node in enumerate(order):
        live += sum(graph.value[v].type.bytes for v in node.outputs)
        peak = max(peak, live)
        live -= dying.get(index, 0)
    return peak


def _counted(graph: Graph, program: Program, value: str) -> bool:
    return graph.value[value].role not in PERSISTENT and value not in program.inputs
