"""Pictures of a plan's memory: the numbers behind them by looking at every step, and the files they make."""

import numpy as np
import pytest

from planner.costs.model import modelled_costs
from planner.plan.lifetimes import blocks
from planner.plan.schema import Plan
from planner.report.step_pictures import free_and_scratch, memory_stages, room_of, step_pictures
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from planner.units import align
from planner.zoo import build
from tests.report.test_pareto import pixels

GRAPH = build("digits_cnn", 16)


def plan(budget: int | None = None) -> Plan:
    target = load_target("cpu2")
    costs = modelled_costs(GRAPH, target, lanes=2)
    return make_plan(GRAPH, target, costs, PlanOptions(policy="sequential", lanes=2, memory_budget=budget))


@pytest.fixture(scope="module")
def free() -> Plan:
    return plan()


def test_every_stage_needs_no_more_than_the_one_before(free: Plan) -> None:
    program = free.program["train_step"]
    kept, live, planned = memory_stages(GRAPH, free, program).values()
    assert len(kept) == len(live) == len(planned) == len(program.nodes)
    assert (live <= kept).all() and (planned <= live).all()
    found = blocks(GRAPH, free, "train_step")
    for at, size in enumerate(planned):
        assert sum(align(b.bytes) for b in found if b.first <= at <= b.last) == size
    assert planned.max() == program.peak_bytes


def test_scratch_is_within_the_free_bytes(free: Plan) -> None:
    program = free.program["train_step"]
    left, scratch = free_and_scratch(GRAPH, free, program)
    assert (scratch <= left).all() and scratch.any()
    used = memory_stages(GRAPH, free, program)["plan"]
    assert np.array_equal(room_of(free) - left + scratch, used)


def test_a_plan_with_recomputation_is_below_liveness(free: Plan) -> None:
    tight = plan(round(free.pools[0].arena * 0.97))
    program = tight.program["train_step"]
    stages = memory_stages(GRAPH, tight, program)
    assert program.rewrite.recomputes and len(stages["plan"]) == len(program.nodes)
    assert stages["plan"].max() < stages["liveness"].max()
    assert room_of(tight) == round(free.pools[0].arena * 0.97)


def test_files(free: Plan) -> None:
    found = step_pictures(GRAPH, free)
    assert set(found) == {f"{n}_{p}.png" for n in ("memory", "workspaces", "arena") for p in ("train_step", "predict")}
    for png in found.values():
        drawn = pixels(png)
        assert drawn.shape == (760, 1400, 3)
        assert len(np.unique(drawn.astype(int) @ [1 << 16, 1 << 8, 1])) >= 4


def test_the_arena_is_to_scale(free: Plan) -> None:
    # What always lives fills the whole width of the picture from the bottom of the arena on: no white dot in between.
    drawn = pixels(step_pictures(GRAPH, free)["arena_train_step.png"])
    low = next(b for b in blocks(GRAPH, free, "train_step") if b.offset == 0 and b.always)
    rows = np.flatnonzero((drawn[:, 111:1359] != 255).any(2).all(1))
    assert low.bytes > 0 and len(rows)
