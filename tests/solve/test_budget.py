"""Budgets: what is planned fits, is safe, is never faster with less memory, and the smallest budget is told."""

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.errors import UserError
from planner.graph.model import Graph
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve.assemble import draft, unpacked_ns
from planner.solve.budget import within_budget
from planner.solve.memory.footprints import Footprints
from planner.solve.memory.frontier import Frontier, frontier
from planner.solve.memory.steps import steps
from planner.solve.options import PlanOptions
from tests.arena import difference
from tests.graphs import random_flats, random_losses, random_net, small_net
from tests.rewrites import Rewriter


def at(rewriter: Rewriter, budget: int) -> Plan:
    options = PlanOptions(policy="sequential", memory_budget=budget)
    return within_budget(replace(rewriter.setting, options=options), rewriter.schedules, choice=known(rewriter))


@cache
def known(rewriter: Rewriter) -> Frontier:
    """The chain is the same for every budget."""
    return frontier(rewriter.setting, rewriter.schedules)


def smallest(rewriter: Rewriter) -> int:
    with pytest.raises(UserError, match="SP1301") as error:
        at(rewriter, 1000)
    found = re.search(r"can meet is (\d+) bytes", error.value.fix)
    assert found and "most is alive at node" in error.value.problem
    return int(found[1])


def one_pool(graph: Graph) -> Rewriter:
    rewriter = Rewriter(graph)
    target = rewriter.target.model_copy(update={"pools": rewriter.target.pools[:1]})
    rewriter.setting = replace(rewriter.setting, target=target)
    return rewriter


def test_the_smallest_budget_can_be_met_and_no_smaller_one() -> None:
    for rewriter in (Rewriter(small_net()), one_pool(small_net())):
        least = smallest(rewriter)
        plan = at(rewriter, least)
        assert plan.pools[0].arena <= least == plan.pools[0].capacity
        assert check(rewriter.graph, plan, rewriter.setting.target) == []
        with pytest.raises(UserError, match="SP1301"):
            at(rewriter, least - 64)


def test_the_solver_finds_what_full_recomputation_or_full_offload_reaches() -> None:
    for seed in range(6):
        rewriter = Rewriter(random_net(random.Random(seed)))
        corners = [rewriter.plan(rewriter.everything(way), overlap=False) for way in ("share", "fresh", "move")]
        assert smallest(rewriter) <= min(p.pools[0].arena for p in corners)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), pools=st.integers(1, 2))
def test_random_graphs_under_random_budgets(seed: int, share: float, pools: int) -> None:
    rng = random.Random(seed)
    graph = random_net(rng, nodes=rng.randrange(3, 16))
    rewriter = Rewriter(graph) if pools == 2 else one_pool(graph)
    least, most = smallest(rewriter), rewriter.plan({}).pools[0].arena
    budget = round(least + share * (most - least))
    plan = at(rewriter, budget)
    assert plan.pools[0].arena <= budget
    assert check(graph, plan, rewriter.setting.target) == []
    assert difference(graph, plan, rng, ("train_step", "predict", "train_step")) == ""


@settings(max_examples=1, deadline=None)
@example(seed=10734)  # a longer training step, but more is gained where nothing is trained
@given(seed=st.integers(0, 10**6))
def test_more_memory_is_never_slower(seed: int) -> None:
    """All programs together: that is what plans are compared by."""
    rewriter = Rewriter(random_net(random.Random(seed)))
    least, most = smallest(rewriter), rewriter.plan({}).pools[0].arena
    plans = [at(rewriter, round(least + i * (most - least) / 4)) for i in range(5)]
    times = [sum(p.predicted_ns for p in plan.programs) for plan in plans]
    assert times == sorted(times, reverse=True)


def test_estimates_are_what_plans_need() -> None:
    """The quick footprint and the real liveness agree to the byte."""
    for seed in range(4):
        rewriter = Rewriter(random_net(random.Random(seed)))
        found = frontier(rewriter.setting, rewriter.schedules)
        for state in found.states[:: max(1, len(found.states) // 6)]:
            plan = rewriter.plan(state.decisions, state.held, overlap=False)
            assert plan.program["train_step"].peak_bytes == state.peak


@pytest.mark.parametrize("draw", [random_losses, random_flats])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_with_several_losses_plans_need_what_is_promised(draw: Callable[..., Graph], seed: int) -> None:
    """What runs again stands before updates of what it reads, itself or views of it, and behind those that its original
    stands behind."""
    rng = random.Random(seed)
    rewriter = Rewriter(draw(rng, objectives=rng.randrange(1, 4)))
    states = known(rewriter).states
    for decisions, held in [(s.decisions, s.held) for s in states[:: max(1, len(states) // 3)]] + [
        (rewriter.draw(rng), frozenset()) for _ in range(4)
    ]:
        plan = rewriter.plan(decisions, held, overlap=False)
        promised = known(rewriter).prints.of(steps(rewriter.material, decisions, held))
        assert plan.program["train_step"].peak_bytes == promised.peak
        assert check(rewriter.graph, plan, rewriter.target) == []
        assert difference(rewriter.graph, plan, rng, ("train_step", "train_step")) == ""


def test_kept_values_are_never_dropped() -> None:
    rewriter = one_pool(small_net())
    options = PlanOptions(policy="sequential", keep=("conv1.y", "bn1.y"))
    rewriter.setting = replace(rewriter.setting, options=options)
    states = frontier(rewriter.setting, rewriter.schedules).states
    assert not any({"conv1.y", "bn1.y"} & set(s.decisions) for s in states)


def test_the_same_text_under_every_hash_seed() -> None:
    script = (
        "import random; from tests.graphs import random_net; from planner.costs.model import modelled_costs;"
        "from planner.solve.pipeline import make_plan; from planner.target.text import load_target;"
        "from planner.plan.text import plan_text; from planner.solve.options import PlanOptions;"
        "from tests.rewrites import with_pool;"
        "g = random_net(random.Random(4), 6); t = with_pool(load_target('cpu2')); c = modelled_costs(g, t);"
        "print(plan_text(make_plan(g, t, c, PlanOptions(memory_budget=45344))))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1 and all('"recomputes"' in o and '"transfers"' in o for o in outputs)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_small_instances_are_solved_to_the_optimum(seed: int) -> None:
    """Every combination of decisions, with the exact footprint: none is smaller, and none that fits costs less."""
    rng = random.Random(seed)
    rewriter = one_pool(random_net(rng, nodes=rng.randrange(1, 3)))
    choice, program = known(rewriter), rewriter.graph.program["train_step"]
    made = choice.material
    values = [v for v in made.values if v in made.producer]
    if len(values) > 6:
        return
    exact = Footprints(rewriter.graph, program, rewriter.schedules["train_step"], made, choice.again_ns)
    for chosen in itertools.product(("keep", "share", "own", "fresh"), repeat=len(values)):
        found = exact.of(steps(made, dict(zip(values, chosen, strict=True))))
        assert min(s.extra_ns for s in choice.states if s.peak <= found.peak) <= found.extra_ns


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_no_replay_is_shorter_than_its_busiest_lane(seed: int) -> None:
    rng = random.Random(seed)
    rewriter = Rewriter(
        random_net(rng, rng.randrange(4, 16)), rng.randrange(1, 5), policy=rng.choice(["sequential", "liu"])
    )
    made = draft(rewriter.setting, rewriter.schedules)
    for name, schedule in made.schedules.items():
        assert 0 < schedule.busiest_ns <= unpacked_ns(rewriter.setting, made, name)
