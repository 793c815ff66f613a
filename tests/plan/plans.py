"""Plans that tests of `check` damage, and how."""

from planner.plan.findings import Finding
from planner.plan.schema import Entry, Plan
from planner.target.text import load_target, target_hash
from tests.graphs import small_net
from tests.plan.mutations import (
    edit_lanes,
    edit_program,
    find,
    lanes_of,
)
from tests.plan.reference import Choices, make

STEP = "train_step"
GRAPH = small_net()
PLAN = make(GRAPH)
ROOMY = make(GRAPH, Choices(reuse=False, inplace=False))
"""Every value has bytes of its own."""


def codes(found: list[Finding]) -> set[str]:
    return {f.code for f in found}


def rewait(plan: Plan, run: str, wait: tuple[str, ...]) -> Plan:
    lanes = lanes_of(plan, STEP)
    i, j = find(lanes, run)
    lanes[i][j] = Entry(run=run, wait=wait)
    return edit_lanes(plan, STEP, lanes)


def without(plan: Plan, run: str, waits: str) -> Plan:
    """Drop those of a slice's waits that begin like this."""
    lanes = lanes_of(plan, STEP)
    i, j = find(lanes, run)
    return rewait(plan, run, tuple(w for w in lanes[i][j].wait if not w.startswith(waits)))


def on_target(plan: Plan) -> Plan:
    target = load_target("cpu2")
    return plan.model_copy(update={"target": target.name, "target_hash": target_hash(target)})


def bare(plan: Plan) -> Plan:
    """The plan without a single wait."""
    lanes = tuple(tuple(Entry(run=e.run) for e in lane) for lane in plan.program[STEP].lanes)
    return edit_program(plan, STEP, lanes=lanes)
