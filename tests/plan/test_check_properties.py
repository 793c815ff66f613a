"""`check` against two judges: execution in random legal orders, and brute force over all pairs of accesses."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.graph.model import Graph
from planner.plan.check import check
from planner.plan.schema import Plan
from tests.graphs import random_flats, random_net, small_net
from tests.plan.mutations import MEMORY, ORDER, REST, Mutation, edit_lanes, lanes_of
from tests.plan.oracle import fault, unsafe
from tests.plan.reference import Choices, make

SEEDS = st.integers(0, 10**9)

TIMING = {"SP1413", "SP1414", "SP1415", "SP1416", "SP1423", "SP1424", "SP1425"}
"""Codes about what may happen before what; the judges know nothing of the other rules."""


def drawn(seed: int, reduced: bool = True) -> tuple[Graph, Plan, random.Random]:
    """A small random graph with a sound random plan."""
    rng = random.Random(seed)
    if seed % 4 == 3:
        graph = random_flats(rng, objectives=rng.randint(1, 2), nodes=rng.randint(1, 3))
    elif rng.random() < 0.2:
        graph = small_net(batch=2, size=4)
    else:
        graph = random_net(rng, nodes=rng.randint(1, 5), batch=rng.randint(1, 4))
    choices = Choices(
        lanes=rng.randint(1, 4),
        reuse=rng.random() < 0.8,
        inplace=rng.random() < 0.8,
        barrier=not reduced and rng.random() < 0.2,
        reduced=reduced,
        rng=rng if rng.random() < 0.6 else None,
    )
    return graph, make(graph, choices), rng


def damaged(plan: Plan, rng: random.Random, mutations: tuple[Mutation, ...]) -> Plan:
    for _ in range(rng.randint(1, 3)):
        plan = rng.choice(mutations)(plan, rng)
    return plan


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.booleans())
def test_sound_plans_pass_and_execute(seed: int, reduced: bool) -> None:
    graph, plan, rng = drawn(seed, reduced)
    assert check(graph, plan) == []
    assert fault(graph, plan, rng, runs=8) == ""


@settings(max_examples=50, deadline=None)
@given(SEEDS)
@example(10080)  # sound, in an arena of 2^60 bytes
def test_what_passes_never_goes_wrong(seed: int) -> None:
    graph, plan, rng = drawn(seed)
    plan = damaged(plan, rng, rng.choice([ORDER, MEMORY, (*MEMORY, *ORDER), REST]))
    if not check(graph, plan):
        assert fault(graph, plan, rng, runs=25) == ""


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_the_verdict_is_that_of_all_pairs(seed: int) -> None:
    """Necessary conditions byte by byte => findings => sufficient conditions by hulls."""
    graph, plan, rng = drawn(seed)
    plan = damaged(plan, rng, rng.choice([ORDER, MEMORY, (*MEMORY, *ORDER)]))
    found = check(graph, plan)
    if {f.code for f in found} <= TIMING:
        if unsafe(graph, plan, exact=True):
            assert found
        if found:
            assert unsafe(graph, plan, exact=False)


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_every_single_wait_counts(seed: int) -> None:
    """Where the plan has no superfluous wait, leaving out any one of them is found."""
    graph, plan, rng = drawn(seed)
    spots = [
        (p.name, i, j, wait)
        for p in plan.programs
        for i, lane in enumerate(p.lanes)
        for j, entry in enumerate(lane)
        for wait in entry.wait
    ]
    for program, i, j, wait in rng.sample(spots, min(6, len(spots))):
        lanes = lanes_of(plan, program)
        entry = lanes[i][j]
        lanes[i][j] = entry.model_copy(update={"wait": tuple(w for w in entry.wait if w != wait)})
        damaged_plan = edit_lanes(plan, program, lanes)
        assert bool(check(graph, damaged_plan)) >= unsafe(graph, damaged_plan, exact=True)
        assert bool(check(graph, damaged_plan)) <= unsafe(graph, damaged_plan, exact=False)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_nothing_makes_it_stumble(seed: int) -> None:
    graph, plan, rng = drawn(seed)
    plan = damaged(plan, rng, (*REST, *REST, *MEMORY, *ORDER))
    for finding in check(graph, plan):
        assert finding.text()
