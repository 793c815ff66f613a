"""Whole steps under a capacity: bytes by an independent count, SuperNeurons' published sizes under 12 GB."""

import random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.solve.superneurons.out_of_core import Pools, StepPlan, placed, prepare, solve
from planner.solve.superneurons.recompute import Strategy, original
from planner.solve.superneurons.tensor_cache import POLICIES, Policy, residencies
from planner.target.text import load_target
from planner.units import align
from tests.graphs import random_net
from tests.solve.packings import validate

STRATEGIES: tuple[Strategy, ...] = ("none", "speed", "memory", "cost")


def k40c() -> Pools:
    return Pools.of(load_target("k40c"))


def overwritten(graph: Graph, plan: StepPlan) -> list[str]:
    """Reads that find something else than they mean, by running the steps on blocks that remember what they hold."""
    program = graph.program["train_step"]
    holds: dict[str, set[str]] = {}
    wrong = []
    for step in plan.prepared.steps:
        node = program.node[step.task]
        own = {original(v) for v in step.writes}
        wrong += [
            f"{step.task} reads {v}"
            for v in step.reads
            if graph.value[original(v)].role not in PERSISTENT
            and v not in program.inputs
            and v not in holds.get(plan.prepared.blocks.block[v], set())
        ]
        assert [original(v) for v in step.reads] == list(node.reads) and own <= set(node.outputs)
        view = op_named(node.op).alias(signature_of(graph, node)) is not None
        for value in step.writes:
            block = plan.prepared.blocks.block[value]
            holds[block] = {*holds.get(block, set()), value} if view else {value}
    return wrong


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**9),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["resident", "cached"]),
    st.sampled_from(POLICIES),
    st.integers(0, 9),
)
def test_the_peak_is_within_the_capacity(
    seed: int, strategy: Strategy, persistent: Literal["resident", "cached"], policy: Policy, extra: int
) -> None:
    graph = random_net(random.Random(seed))
    task = prepare(graph, graph.program["train_step"], strategy, persistent)
    plan = solve(task, Pools(task.smallest + extra * 1000, 10**9, 10**9), policy)
    assert plan.peak <= task.smallest + extra * 1000
    assert overwritten(graph, plan) == []
    with pytest.raises(UserError, match="SP1301"):
        solve(task, Pools(task.smallest - 1, 10**9, 10**9))
    if plan.schedule.slow:
        with pytest.raises(UserError, match=r"SP1301.*slow pool"):
            solve(task, Pools(task.smallest + extra * 1000, plan.schedule.slow - 1, 10**9), policy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_everything_is_counted(strategy: Strategy) -> None:
    """Where everything fits, a step's bytes are the persistent ones and the blocks between first and last touch."""
    graph = zoo.build("alexnet_lrn", 4, fuse=False)
    task = prepare(graph, graph.program["train_step"], strategy)
    assert task.resident == sum(align(v.type.bytes) for v in graph.values if v.role in PERSISTENT)
    plan = solve(task, Pools(10**12, 10**12, 10**9))
    assert plan.moved == 0
    alive: dict[str, list[int]] = {}
    for position, step in enumerate(plan.prepared.steps):
        for value in (*step.reads, *step.writes):
            alive.setdefault(plan.prepared.blocks.block[value], []).append(position)
    for position in range(len(plan.prepared.steps)):
        live = [b for b, at in alive.items() if at[0] <= position <= at[-1]]
        bytes_ = sum(
            align(graph.value[original(b)].type.bytes) for b in live if b not in plan.prepared.blocks.persistent
        )
        # The batch may arrive early.
        early = sum(plan.prepared.blocks.sizes[b] for b in plan.prepared.blocks.inputs if position < alive[b][0])
        assert bytes_ <= plan.schedule.resident[position] <= bytes_ + early


@pytest.mark.parametrize(
    ("network", "batch"),
    [
        ("alexnet_lrn", 1792),
        ("vgg16", 224),
        ("inception_v4", 240),
        ("resnet50", 384),
        ("resnet101", 256),
        ("resnet152", 176),
    ],
)
def test_table_5(network: str, batch: int) -> None:
    graph = zoo.build(network, batch, fuse=False)
    plan = solve(prepare(graph, graph.program["train_step"]), k40c())
    assert plan.peak <= 12 * 2**30
    assert overwritten(graph, plan) == []


def test_table_4() -> None:
    """Depth 3 (6 + 32 + 596 + 6) + 2 = 1922 at batch 16, the published 1920 rounded up to whole blocks."""
    graph = zoo.build("resnet_6_32_596_6", 16, fuse=False)
    task = prepare(graph, graph.program["train_step"])
    plan, packing = placed(task, k40c(), "lru")
    assert plan.peak <= task.resident + packing.height <= 12 * 2**30


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 5), st.sampled_from(POLICIES))
def test_offsets_fit_the_pool(seed: int, extra: int, policy: Policy) -> None:
    graph = random_net(random.Random(seed))
    task = prepare(graph, graph.program["train_step"])
    pools = Pools(task.smallest + extra * 1000, 10**9, 10**9)
    try:
        plan, packing = placed(task, pools, policy)
    except UserError as error:
        assert error.code == "SP1301"
        return
    assert task.resident + packing.height <= pools.fast
    stays = residencies(task.accesses, plan.schedule.transfers, task.blocks.sizes)
    validate(stays, packing.offsets, packing.height, 64)


def test_a_target_without_a_gpu_has_nowhere_to_offload_to() -> None:
    with pytest.raises(UserError, match="SP1351"):
        Pools.of(load_target("cpu2"))
