"""Packing for strategy 3, beyond the paper: idle lanes are shared out among all ready nodes at once.

Every node starts from nothing; the next lanes go to the node and mode with the most sequential work per time that
they add (its *worth*: best time / time in that mode). A node that scales perfectly takes all lanes by itself; nodes
that do not scale get few lanes each. The set that gets the most done, its interference counted, starts.

Example, 2 lanes: two LSTM cells that take 100 ns on one lane and 60 ns on two. One lane adds 0.6, the second 0.4;
so both start on one lane each: 1.2 sequential works per time instead of 1.
"""

from collections.abc import Sequence

from planner.solve.corunning.interference import LEAST_GAIN, Run
from planner.solve.corunning.simulated_step import SimulatedStep
from planner.solve.threads import Choice

MOST_AT_ONCE = 16
"""Ready nodes among which lanes are shared out."""


def pack_ready(loop: SimulatedStep) -> None:
    """Start the set of ready nodes that adds most to what runs; at least one when nothing does."""
    while loop.ready and loop.places.idle:
        running = [r.run for r in loop.running]
        already = loop.work.interference.throughput(running)
        least = already + LEAST_GAIN if running else -1.0
        count = min(len(loop.ready), loop.places.idle, MOST_AT_ONCE)
        best: tuple[float, list[tuple[Run, Choice]]] | None = None
        while count:
            chosen = _share_out(loop, [node for _, node in loop.ready[:count]])
            gain = loop.work.interference.throughput([*running, *(run for run, _ in chosen)])
            margin = LEAST_GAIN if count > 1 else -LEAST_GAIN  # side by side must beat one alone
            if chosen and gain > (best[0] + margin if best else least):
                best = (gain, chosen)
            elif chosen and len(chosen) > 1:
                loop.refuse(chosen[0][0], [run for run, _ in chosen[1:]])
            elif chosen and running:
                loop.refuse(chosen[0][0], running)
            count = min(count - 1, (count + 1) // 2)
        if best is None:
            return
        for run, choice in best[1]:
            loop.start(run, choice, loop.places)


def _share_out(loop: SimulatedStep, nodes: Sequence[str]) -> list[tuple[Run, Choice]]:
    """A mode for each node that gets lanes, in their order."""
    idle = loop.places.idle
    level = dict.fromkeys(nodes, -1)
    weight = dict.fromkeys(nodes, 1.0)
    if loop.rules.weigh_paths:
        longest = max(-loop.keys[n][0] for n in nodes)
        weight = {n: -loop.keys[n][0] / longest if longest else 1.0 for n in nodes}
    worth = {n: [loop.best_ns[n] / max(1, c.total_ns) for c in loop.frontier[n]] for n in nodes}
    while True:
        step: tuple[float, str, int] | None = None
        for node in nodes:
            modes, at = loop.frontier[node], level[node]
            slices, has = (modes[at].mode.slices, worth[node][at]) if at >= 0 else (0, 0.0)
            for further in range(at + 1, len(modes)):
                more = modes[further].mode.slices - slices
                if more > idle:
                    break
                rate = weight[node] * (worth[node][further] - has) / more
                if rate > 0 and (step is None or rate > step[0] * (1 + 1e-9)):
                    step = (rate, node, further)
        if step is None:
            break
        _, node, further = step
        held = loop.frontier[node][level[node]].mode.slices if level[node] >= 0 else 0
        idle -= loop.frontier[node][further].mode.slices - held
        level[node] = further
    return [
        (loop.work.interference.run(n, loop.frontier[n][at], loop.best_ns[n]), loop.frontier[n][at])
        for n, at in level.items()
        if at >= 0
    ]
