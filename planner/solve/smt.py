"""Pass *smt*: small nodes on the second threads of busy cores (Liu et al., strategy 4).

Some nodes scale so well that they take all cores, and nothing can co-run. Beside such a node, the ready nodes with
the shortest serial time start on the cores' second threads, with as few slices as let them end before it does, as
long as both together get more done than the large one alone.
"""

from planner.plan.contention import smt_factor
from planner.solve.corunning.interference import LEAST_GAIN
from planner.solve.corunning.simulated_step import SimulatedStep

SMALLEST = 8
"""Ready nodes that are tried at a time."""


def serial_ns(loop: SimulatedStep, node: str) -> int:
    """The node's time with the fewest slices there are."""
    return min((c.mode.slices, c.total_ns) for c in loop.work.options[node])[1]


def fill_siblings(loop: SimulatedStep) -> None:
    """Start what fits beside the node that holds all cores; nothing where no node does."""
    threads, cores = loop.threads, len(loop.work.lanes)
    holder = next((r for r in loop.running if len(r.lanes) == cores), None)
    if threads is None or holder is None or not threads.idle or not loop.ready:
        return
    interference = loop.work.interference
    for node in sorted((n for _, n in loop.ready), key=lambda n: (serial_ns(loop, n), n))[:SMALLEST]:
        for choice in loop.frontier[node]:
            if choice.mode.slices > threads.idle:
                break
            run = interference.run(node, choice, loop.best_ns[node])
            runs = [r.run for r in loop.running]
            factors = interference.factors([*runs, run])
            slow = smt_factor(run.load.bound, holder.run.load.bound, loop.work.sharing)
            slowed = smt_factor(holder.run.load.bound, run.load.bound, loop.work.sharing)
            if choice.total_ns * factors[-1] * slow > holder.left * slowed:
                continue
            if run.worth / (factors[-1] * slow) < _lost(loop, factors, slowed) + LEAST_GAIN:
                loop.refuse(run, runs)
                break
            loop.start(run, choice, threads)
            break


def _lost(loop: SimulatedStep, factors: list[float], slowed: float) -> float:
    """Sequential work per time that what runs would get less done."""
    lost = 0.0
    for running, factor in zip(loop.running, factors, strict=False):
        shared = max(loop.sibling_factor(running), slowed if len(running.lanes) == len(loop.work.lanes) else 1.0)
        lost += running.run.worth * (1 / running.factor - 1 / (factor * shared))
    return lost
