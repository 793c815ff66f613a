"""Recomputation: every backward task finds what it needs, whatever the graph; the published counts and their order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.solve.superneurons.paper_layers import layers, work_of_layers
from planner.solve.superneurons.recompute import Strategy, Task, Work, expand, plan, plan_segments, segments, work_of
from tests.graphs import random_net
from tests.solve.works import Replay, random_work

STRATEGIES: tuple[Strategy, ...] = ("speed", "memory", "cost")


def chain() -> Work:
    """conv1 a b c conv2, all backward steps as the paper's AlexNet: a activation, b LRN, c pool."""
    forward = tuple(
        Task(t, (r,), (t,)) for r, t in (("x", "conv1"), ("conv1", "a"), ("a", "b"), ("b", "c"), ("c", "conv2"))
    )
    needs = {"conv2": ("c",), "c": ("b", "c"), "b": ("a", "b"), "a": ("conv1", "a"), "conv1": ("x",)}
    backward = tuple(Task(f"{t}'", needs[t], ()) for t in needs)
    return Work(forward, backward, frozenset({"conv1", "conv2"}), dict.fromkeys(("x", *needs), 10))


def test_example_by_hand() -> None:
    work = chain()
    (segment,) = segments(work)
    assert segment.tasks == ("a", "b", "c") and segment.bytes == 60
    (speed,) = plan(work, "speed")
    assert (speed.before, speed.tasks) == ("conv2'", ("a", "b", "c"))
    assert speed.kept_until == {"a": "a'", "b": "b'", "c": "c'"}
    memory = plan(work, "memory")
    assert [(r.before, r.tasks) for r in memory] == [("conv2'", ("a", "b", "c")), ("c'", ("a", "b")), ("b'", ("a",))]
    assert [dict(r.kept_until) for r in memory] == [{"c": "c'"}, {"b": "b'"}, {"a": "a'"}]
    # A segment of exactly the largest layer's bytes is still speed-centric.
    assert plan(work, "cost", 60) == plan(work, "speed")
    assert plan(work, "cost", 59) == memory


def test_copies_are_told_apart() -> None:
    work = chain()
    steps = [s for s in expand(work, plan(work, "memory")) if s.before or s.task.endswith("'")]
    assert [(s.task, s.reads, s.writes) for s in steps[:4]] == [
        ("a", ("conv1",), ("a@1",)),
        ("b", ("a@1",), ("b@1",)),
        ("c", ("b@1",), ("c@1",)),
        ("conv2'", ("c@1",), ()),
    ]
    assert [s.reads for s in steps if s.task == "b'"] == [("a@3", "b@2")]


@given(st.integers(0, 10**9), st.integers(1, 25), st.booleans(), st.sampled_from(STRATEGIES))
def test_every_need_is_there_and_right(seed: int, tasks: int, linear: bool, strategy: Strategy) -> None:
    work = random_work(random.Random(seed), tasks, chain=linear)
    found = plan(work, strategy, random.Random(seed).randint(0, 400))
    replay = Replay(work, found).run()
    assert sum(replay.runs.values()) == sum(len(r.tasks) for r in found)
    assert not set(replay.runs) & work.checkpoints


@given(st.integers(0, 10**9), st.integers(1, 25), st.booleans())
def test_speed_centric_runs_nothing_twice_and_least(seed: int, tasks: int, linear: bool) -> None:
    work = random_work(random.Random(seed), tasks, chain=linear)
    speed, memory = Replay(work, plan(work, "speed")).run(), Replay(work, plan(work, "memory")).run()
    assert set(speed.runs.values()) <= {1}
    assert set(speed.runs) == set(memory.runs)


@given(st.integers(0, 10**9), st.integers(1, 25))
def test_memory_centric_needs_no_more_memory_on_chains(seed: int, tasks: int) -> None:
    work = random_work(random.Random(seed), tasks, chain=True)
    assert Replay(work, plan(work, "memory")).run().peak <= Replay(work, plan(work, "speed")).run().peak


@given(st.integers(0, 10**9), st.integers(1, 25))
def test_segments_may_choose_for_themselves(seed: int, tasks: int) -> None:
    rng = random.Random(seed)
    work = random_work(rng, tasks, chain=False)
    found = segments(work)
    assert sorted(t for s in found for t in s.tasks) == sorted({t.id for t in work.forward} - work.checkpoints)
    Replay(work, plan_segments(work, {s: rng.random() < 0.5 for s in found})).run()


@given(st.integers(0, 10**9), st.sampled_from(STRATEGIES))
def test_real_graphs(seed: int, strategy: Strategy) -> None:
    """Every copy that a node of a real graph reads was made before, and nothing reads a dropped value."""
    graph = random_net(random.Random(seed))
    program = graph.program["train_step"]
    work = work_of(graph, program)
    there = {v.id for v in graph.values} - set(work.producer)
    for position, step in enumerate(expand(work, plan(work, strategy, 5000))):
        if position == len(work.forward):
            there -= work.droppable
        assert there >= set(step.reads)
        there.update(step.writes)


@pytest.mark.parametrize(
    ("network", "counts"),
    [("alexnet_lrn", (14, 23, 17)), ("resnet50", (84, 118, 85)), ("resnet101", (169, 237, 170))],
)
def test_table_1(network: str, counts: tuple[int, ...]) -> None:
    graph = zoo.build(network, 32, fuse=False)
    found = layers(graph, graph.program["train_step"])
    work = work_of_layers(found)
    assert tuple(sum(len(r.tasks) for r in plan(work, s, found.largest()[1])) for s in STRATEGIES) == counts
