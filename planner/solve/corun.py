"""Pass *corun*: which nodes run side by side, and on which lanes (Liu et al., strategy 3; strategy 4 in smt.py).

List scheduling by simulated time. Whenever lanes are idle, the three best modes of every ready node are considered,
as far as their count is within 2 of what strategies 1 and 2 chose. One that fits the idle lanes, and does not outlast
what runs, may start; the one with the fewest lanes is preferred, because it leaves lanes for more. Where none fits,
the most time-consuming ready node runs. What would lose throughput by interference does not start (interference.py).

Example, 68 lanes, 48 of them busy for 1.9 s; a ready node takes 1.5 s on 18 lanes, 1.3 s on 20 and 2.1 s on 16: it
starts on 18.

Beyond the paper (`SEARCHED`): other priorities (longest remaining path first, since gradients w.r.t. weights are off
the critical path; the memory-saving order), and *packing*, which hands the idle lanes to all ready nodes at once, each
further lane where it adds most: several gradients w.r.t. weights with few threads each may beat one with many.
scheduling.py takes whichever ends first by simulation.
"""

from typing import NamedTuple

from planner.errors import InternalError
from planner.solve.corunning.interference import LEAST_GAIN
from planner.solve.corunning.packing_rule import pack_ready
from planner.solve.corunning.simulated_step import Rules, SimulatedStep, Work
from planner.solve.schedule import Schedule
from planner.solve.smt import fill_siblings
from planner.solve.threads import Choice

LOOK = 32
"""Ready nodes that are considered at a time; the paper seldom saw more than five."""

PUBLISHED = Rules("published")
SEARCHED = (
    PUBLISHED,
    Rules("critical path", "path"),
    Rules("memory", "memory"),
    Rules("packed", "path", packed=True),
    Rules("packed, critical path", "path", packed=True, weigh_paths=True),
)


class Ended(NamedTuple):
    """A whole step that was simulated."""

    schedule: Schedule
    rules: Rules
    end_ns: float


def run_by(work: Work, rules: Rules) -> Ended:
    """Schedule by one set of rules."""
    loop = SimulatedStep(work, rules)
    loop.begin()
    while loop.ready or loop.running:
        if loop.rules.packed:
            pack_ready(loop)
        else:
            while loop.ready and loop.places.idle and _start_one(loop):
                pass
        if loop.threads is not None:
            fill_siblings(loop)
        if not loop.running:
            raise InternalError(f"no ready node of {loop.work.program.name} fits {len(loop.work.lanes)} lanes")
        loop.advance()
    return Ended(loop.recorded(), rules, loop.now)


def _start_one(loop: SimulatedStep) -> bool:
    """Start one ready node by the published rule; False when nothing may start before something ends."""
    _, first = loop.ready[0]
    if not loop.running:
        return _try(loop, first, loop.work.base[first], must=True)
    horizon = max(r.remaining for r in loop.running)
    fitting = [
        (choice.mode.slices, key, node, choice)
        for key, node in loop.ready[:LOOK]
        for choice in loop.candidates[node]
        if choice.mode.slices <= loop.places.idle and choice.total_ns <= horizon
    ]
    tried: set[str] = set()
    for _, _, node, choice in sorted(fitting, key=lambda f: f[:2]):
        if node not in tried and _try(loop, node, choice, horizon=horizon):
            return True
        tried.add(node)  # a neighbour that is in the way is so with one slice more or less, too
    base = loop.work.base[first]
    return base.mode.slices <= loop.places.idle and first not in tried and _try(loop, first, base)


def _try(loop: SimulatedStep, node: str, choice: Choice, horizon: float = float("inf"), must: bool = False) -> bool:
    """Start the node unless what runs, slowed down by it, would get less done, or it outlasts `horizon` ns."""
    run = loop.work.interference.run(node, choice, loop.best_ns[node])
    if loop.running and not must:
        runs = [r.run for r in loop.running]
        together = [*runs, run]
        factors = loop.work.interference.factors(together)
        if choice.total_ns * factors[-1] > horizon:
            return False
        gain = sum(r.worth / f for r, f in zip(together, factors, strict=True))
        if gain < loop.work.interference.throughput(runs) + LEAST_GAIN:
            loop.refuse(run, runs)
            return False
    loop.start(run, choice, loop.places)
    return True
