"""Executors of rewritten plans: the bits of the unbudgeted run, under any timing."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.load import executor_class
from planner.errors import UserError
from planner.graph.model import Graph
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve.budget import within_budget
from planner.solve.memory.frontier import frontier
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.following import batch
from tests.codegen.quick import quick
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter


def made(plan: Plan, graph: Graph, rewriter: Rewriter, folder: Path) -> type[Executor]:
    emit(plan, graph, rewriter.target, folder)
    build(folder, flags=quick(rewriter.target))
    return executor_class(folder)


def run(executor_type: type[Executor], graph: Graph, delays: int = 0, **options: Any) -> list[Any]:
    """Losses, gradients and states of some steps."""
    found: list[Any] = []
    with executor_type(seed=3, pin=False, poison=True, **options) as executor:
        executor.delays(delays)
        for number in range(3):
            found.append(executor.gradients(*batch(graph, number)))
            found.append(executor.step(*batch(graph, number)))
        found.append(executor.state_dict())
        found.append(executor.predict(batch(graph)[0]))
    return found


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert np.array_equal(a[key], b[key]), key
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert np.array_equal(a, b)


@pytest.mark.parametrize("way", ["share", "fresh", "move"])
def test_everything_dropped_gives_the_same_bits(tmp_path: Path, way: Any) -> None:
    graph, rewriter = small_net(), Rewriter(small_net(), 3)
    plain, dropped = rewriter.plan({}), rewriter.plan(rewriter.everything(way))
    assert check(graph, dropped, rewriter.target) == []
    expected = run(made(plain, graph, rewriter, tmp_path / "plain"), graph)
    executor = made(dropped, graph, rewriter, tmp_path / "dropped")
    for seed in (0, 1, 2):
        assert_same(run(executor, graph, seed), expected)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_decisions_give_the_same_bits(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    graph = random_net(rng)
    rewriter = Rewriter(graph, 2, kind=rng.choice(["dram", "disk"]))
    expected = run(made(rewriter.plan({}), graph, rewriter, tmp_path / "plain"), graph)
    plan = rewriter.plan(rewriter.draw(rng), overlap=rng.random() < 0.5)
    assert check(graph, plan, rewriter.target) == []
    executor = made(plan, graph, rewriter, tmp_path / "dropped")
    assert_same(run(executor, graph, seed, spill=tmp_path), expected)
    assert not list(tmp_path.glob("stepplan.*")), "the file on the disk has no name"


@pytest.mark.parametrize(("seed", "share"), [(11, 0.0), (12, 0.4)])
def test_budgets_give_the_same_bits(tmp_path: Path, seed: int, share: float) -> None:
    """Between the smallest budget and what the plan would like."""
    graph = random_net(random.Random(seed), 14)
    rewriter = Rewriter(graph, 2)
    plain = rewriter.plan({})
    choice = frontier(rewriter.setting, rewriter.schedules)
    least = choice.states[-1].peak
    budget = round(1.03 * least + share * (plain.pools[0].arena - least))
    setting = replace(rewriter.setting, options=PlanOptions(policy="sequential", memory_budget=budget))
    plan = within_budget(setting, rewriter.schedules, choice=choice)
    assert plan.pools[0].arena <= budget < plain.pools[0].arena and plan.program["train_step"].rewrite
    expected = run(made(plain, graph, rewriter, tmp_path / "plain"), graph)
    assert_same(run(made(plan, graph, rewriter, tmp_path / "small"), graph, seed), expected)


def test_co_running_within_a_budget_gives_the_same_bits(tmp_path: Path) -> None:
    """Nodes that start out of turn, beside recomputations, in the modes of the co-running plan without a budget."""
    graph = random_net(random.Random(2), 16)
    rewriter = Rewriter(graph, 3)
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True, lanes=3)
    target, costs = rewriter.target, rewriter.setting.costs
    plain = make_plan(graph, target, costs, options)
    budget = round(0.75 * plain.pools[0].arena)
    plan = make_plan(graph, target, costs, options.model_copy(update={"memory_budget": budget}))
    assert plan.pools[0].arena <= budget and plan.program["train_step"].rewrite
    assert check(graph, plan, target) == []
    expected = run(made(plain, graph, rewriter, tmp_path / "plain"), graph)
    executor = made(plan, graph, rewriter, tmp_path / "small")
    for seed in (0, 1, 2):
        assert_same(run(executor, graph, seed), expected)


def test_a_disk_pool_needs_a_folder(tmp_path: Path) -> None:
    graph = small_net()
    rewriter = Rewriter(graph, 1, kind="disk")
    executor = made(rewriter.plan({"conv1.y": "move"}), graph, rewriter, tmp_path / "net")
    with pytest.raises(UserError, match="SP1615"):
        executor(pin=False)
    with pytest.raises(UserError, match="SP1616"):
        executor(pin=False, spill=tmp_path / "nowhere")
