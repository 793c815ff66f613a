"""Nodes side by side, executed: right by the reference, the same bits under any timing, free of races."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from planner.costs.model import modelled_costs
from planner.plan.simulate import replay
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.cli import fails, succeeds
from tests.codegen.following import assert_follows_reference, batch
from tests.codegen.plans import plan_for, runnable
from tests.codegen.quick import quick
from tests.codegen.test_lanes import no_races, sanitizer
from tests.graphs import random_net, small_net
from tests.solve.test_smt import with_siblings

__all__ = ["sanitizer"]

CORUN = PlanOptions(policy="liu", strategies=(1, 3), search=True)


@pytest.mark.parametrize("seed", [3, 4])
def test_co_running_nets_are_right_and_repeatable(tmp_path: Path, seed: int) -> None:
    graph = random_net(random.Random(seed))
    plan, target = plan_for(graph, 4, CORUN)
    rows = replay(plan, plan.program["train_step"]).rows()
    nodes = {r[0].rpartition("/")[0] for r in rows}
    ends = {n: max(e for s, _, _, e in rows if s.startswith(f"{n}/")) for n in nodes}
    starts = {n: min(b for s, _, b, _ in rows if s.startswith(f"{n}/")) for n in nodes}
    assert any(starts[a] < starts[b] < ends[a] for a in nodes for b in nodes), "nothing co-runs in this test"
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=quick(target))
    make = executor_class(tmp_path)
    with make(pin=False, poison=True) as executor:
        executor.delays(seed)
        assert_follows_reference(executor, graph, steps=2)
    states = []
    for delay in (0, 1, 2, 3):
        with make(seed=5, pin=False, poison=bool(delay)) as executor:
            executor.delays(delay)
            for number in range(3):
                executor.step(*batch(graph, number))
            states.append(executor.state_dict())
    for other in states[1:]:
        assert all(np.array_equal(states[0][k], other[k]) for k in states[0])


def test_no_races_under_thread_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    plan, target = plan_for(small_net(), 3, CORUN)
    emit(plan, small_net(), target, tmp_path)
    no_races(tmp_path, sanitizer)


def test_events_of_a_traced_run_beside_the_plan_s(tmp_path: Path) -> None:
    """Figure 4 of the paper from a replay and from a real run: `show --events --run`."""
    plan, target = plan_for(small_net(), 3, CORUN)
    emit(plan, small_net(), target, tmp_path)
    build(tmp_path, flags=quick(target))
    trace, table, picture = (tmp_path / name for name in ("run.json", "events.csv", "events.svg"))
    with executor_class(tmp_path)(pin=False) as executor:
        executor.trace(trace)
        for number in range(2):
            executor.step(*batch(small_net(), number))
    found = json.loads(succeeds("show", tmp_path, "--events", table, "--run", trace, "--json"))["events"]
    nodes = sum(bool(n.stage_ns) for n in plan.programs[0].nodes)
    for name in ("planned", "measured"):
        assert found[name]["events"] == 2 * nodes and found[name]["nodes"] == nodes
    assert found["planned"]["most"] > 1, "nothing co-runs in this test"
    counts = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert [c[0] for c in counts] == ["planned"] * 2 * nodes + ["measured"] * 2 * nodes
    assert all(int(c[3]) <= len(plan.lanes) for c in counts)
    assert "measured: " in succeeds("show", tmp_path, "--events", picture, "--run", trace)
    assert "</svg>" in picture.read_text()
    fails("SP1704", "show", tmp_path, "--run", tmp_path / "plan.json")


def test_second_threads_run_where_they_are_planned(tmp_path: Path) -> None:
    """On a target whose second threads are mapped onto the same core: correct, whatever the hardware makes of it."""
    graph, target = small_net(), runnable(with_siblings(2))
    costs = modelled_costs(graph, target, facts)
    plan = make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=(1, 3, 4)))
    assert len(plan.lanes) > 2 and all(lane.cpu in (2, 3) for lane in plan.lanes[2:])
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=quick(target))
    with executor_class(tmp_path)(pin=False, poison=True) as executor:
        executor.delays(7)
        assert_follows_reference(executor, graph, steps=2)
