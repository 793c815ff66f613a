"""Pairs timed side by side: the arithmetic, which pairs a plan wants, and a real measurement."""

import random

import pytest

from codegen.pairs import PairTime, longest_overlaps, profile_pairs, slowdown, visit_pairs, wanted_pairs
from planner.costs.model import modelled_costs
from planner.costs.table import costs_text, read_costs, write_costs
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.plans import target_of
from tests.graphs import random_net
from tests.rewrites import with_pool


def test_factor_by_hand() -> None:
    # 100 alone; 150 beside another that ran for 100 of them: half of its speed for 100, the other 50 at full speed.
    assert slowdown(100, 150, 100) == pytest.approx(2.0)
    assert slowdown(100, 100, 50) == 1.0
    assert slowdown(100, 90, 50) == 1.0
    assert slowdown(100, 1000, 10) == pytest.approx(20.0)


class ScriptedBench:
    """Pairs whose visits take what the script says."""

    def __init__(self, *pairs: list[PairTime]) -> None:
        self.pairs = pairs

    def visit(self, number: int) -> PairTime:
        return self.pairs[number].pop(0)


def test_a_disturbed_pair_is_visited_again() -> None:
    quiet = PairTime((100.0, 80.0), (120.0, 90.0), 90.0)
    one_core = PairTime((100.0, 80.0), (200.0, 180.0), 180.0)
    slow = PairTime((150.0, 120.0), (150.0, 125.0), 125.0)
    harmless = PairTime((100.0, 100.0), (105.0, 100.0), 100.0)
    bench = ScriptedBench([one_core, harmless], [harmless], [quiet, one_core, one_core, one_core], [quiet, *3 * [slow]])
    said: list[tuple[str, int, int]] = []
    found = visit_pairs(bench, 4, lambda *report: said.append(report))  # type: ignore[arg-type]
    # The last one's other visits have smaller factors, but all of them took longer.
    assert found == [harmless, harmless, quiet, quiet] and slow.factors < quiet.factors
    assert not any(bench.pairs), "each as often as it needed"
    assert said[3:5] == [("timing pairs", 3, 4), ("timing pairs again", 0, 3)] and len(said) == 4 + 3 + 2 + 2


def test_wanted_pairs_are_measured_and_recorded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph, target = random_net(random.Random(1), nodes=4), target_of(2)
    table = modelled_costs(graph, target)
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True)
    wanted = wanted_pairs(graph, make_plan(graph, target, table, options), table)
    assert wanted and all(p.first.mode.slices + p.second.mode.slices <= 2 for p in wanted)
    found = profile_pairs([graph], target, table, options=options, budget_s=0)
    assert {p.key for p in wanted} <= set(found.pairs)
    assert all(1 <= f <= 20 for f in found.pairs.values())
    write_costs(found, tmp_path / "costs.json")
    assert costs_text(read_costs(tmp_path / "costs.json")) == costs_text(found)
    again = make_plan(graph, target, found, options)
    assert {(s.node, s.beside) for s in again.programs[0].slowdowns} or not wanted_pairs(graph, again, found)


def test_pairs_of_a_plan_that_runs_nodes_again_and_moves_values() -> None:
    """Recomputations are timed beside others as what they are; copies between pools have lanes of their own."""
    graph, target = random_net(random.Random(3), nodes=6), with_pool(target_of(2))
    table = modelled_costs(graph, target)
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True)
    budget = make_plan(graph, target, table, options).pools[0].arena * 4 // 5
    options = options.model_copy(update={"memory_budget": budget})
    plan = make_plan(graph, target, table, options)
    names = {n for _, *pair in longest_overlaps(graph, plan, table) for n in pair}
    rewrite = plan.program["train_step"].rewrite
    assert names & {r.node for r in rewrite.recomputes} and rewrite.transfers
    assert not names & {t.node for t in rewrite.transfers}
    wanted = wanted_pairs(graph, plan, table)
    found = profile_pairs([graph], target, table, options=options, budget_s=0)
    assert wanted and {p.key for p in wanted} <= set(found.pairs)
