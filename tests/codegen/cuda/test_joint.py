"""Neighbours that one launch computes: what the plan's order says, never more, and the same numbers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from codegen.build import build
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.joint import launches
from codegen.cuda.tables import TouchView
from codegen.load import executor_class
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.ops.base import op_named
from planner.plan.schema import Entry, Plan, parse_slice
from planner.zoo import build as build_zoo
from tests.codegen.cuda.plans import NULL, asks_the_null_device, flags, make, plan_for
from tests.codegen.cuda.test_null_device import assert_steps_agree, batch
from tests.graphs import classifier, conv, images

RUNTIME = Path(__file__).parents[3] / "templates" / "runtime" / "cuda"


def lane(*entries: str) -> list[Entry]:
    """`node` or `node<node that it waits for`."""
    found = []
    for text in entries:
        node, *waits = text.split("<")
        found.append(Entry(run=f"{node}/0#0", wait=tuple(f"{w}/0#0" for w in waits)))
    return found


def touch(offset: int, write: bool = True) -> TouchView:
    return TouchView(0, 0, offset, 10, write)


def launched(
    entries: Sequence[str], touches: Mapping[str, Sequence[TouchView]] | None = None, waited: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """`u...` are updates by SGD, `a...` by Adam, everything else is relu."""
    names = [e.split("<")[0] for e in entries]
    ops = {n: {"u": "sgd_update", "a": "adam_update"}.get(n[0], "relu") for n in names}
    apart = {n: [touch(100 * i)] for i, n in enumerate(names)}
    return launches(lane(*entries), ops, {**apart, **(touches or {})}, waited)


def test_neighbours_of_one_op_are_one_launch() -> None:
    assert launched(["x", "u1", "u2", "a1", "a2", "u3", "x2", "x3"]) == [
        *(("x",), ("u1", "u2"), ("a1", "a2"), ("u3",), ("x2",), ("x3",))
    ]


def test_a_wait_between_two_ends_a_launch_on_either_side() -> None:
    assert launched(["u1<x", "u2", "u3<y", "u4"]) == [("u1", "u2"), ("u3", "u4")]
    assert launched(["u1", "u2", "u3", "u4"], waited=["u2", "u4"]) == [("u1", "u2"), ("u3", "u4")]


def test_what_touches_what_another_writes_comes_after_it() -> None:
    touches = {"u1": [touch(0)], "u2": [touch(20)], "u3": [touch(5, write=False)]}
    assert launched(["u1", "u2", "u3"], touches) == [("u1", "u2"), ("u3",)]
    reading = {f"u{i}": [touch(0, write=False), touch(100 * i)] for i in (1, 2)}
    assert launched(["u1", "u2"], reading) == [("u1", "u2")]


def test_no_more_than_one_launch_takes() -> None:
    assert [len(nodes) for nodes in launched([f"u{i}" for i in range(70)])] == [56, 14]
    assert [len(nodes) for nodes in launched([f"a{i}" for i in range(70)])] == [43, 27]


@pytest.mark.parametrize(
    ("op", "tensor"),
    [
        *(("gradient_sum", "Sum"), ("sgd_update", "Sgd"), ("adam_update", "Adam")),
        *(("rmsprop_update", "Rmsprop"), ("adagrad_update", "Adagrad"), ("round_weights", "Rounded")),
    ],
)
def test_plans_count_as_the_runtime_does(op: str, tensor: str) -> None:
    text = (RUNTIME / "joint.hpp").read_text()
    found = re.search(rf"struct {tensor}Tensor {{\s*static constexpr int kMost = (\d+);", text)
    assert found and int(found[1]) == op_named(op).joint_launch


def launch_sizes(executor: CudaExecutor) -> list[int]:
    """Of a step's joint launches, in order."""
    executor._native.log(executor._handle, True)
    executor.step(*batch(executor._graph, 0)).wait()
    lines = executor._native.lines(executor._handle)
    executor._native.log(executor._handle, False)
    return [int(line.rsplit(" ", 1)[1]) for line in lines if re.search(r"joint \d+$", line)]


def planned_sizes(plan: Plan, graph: Graph) -> list[int]:
    """What the lane's program says: runs of neighbouring updates, at most so many at a time."""
    ops = {n.id: n.op for n in graph.program["train_step"].nodes}
    entries = plan.program["train_step"].lanes[0]
    kinds = [ops[parse_slice(e.run)[0]] for e in entries]
    found, run = [], 0
    for kind, after in zip(kinds, [*kinds[1:], ""], strict=True):
        most = op_named(kind).joint_launch
        run += bool(most)
        if run and (after != kind or run == most):
            found, run = [*found, run], 0
    return [size for size in found if size > 1]


@asks_the_null_device
def test_a_network_launches_what_its_plan_lists(tmp_path: Path) -> None:
    """On the null device, which verifies that nobody writes what an update still reads."""
    graph = build_zoo("digits_cnn", batch=2)
    plan = plan_for(graph)
    with make(plan, graph, tmp_path)(seed=1, poison=True, null_device=NULL) as executor:
        assert_steps_agree(executor, 2)
        sizes = launch_sizes(executor)
        assert sizes == planned_sizes(plan, graph) and sizes
        count = sum(n.op == "sgd_update" for n in graph.program["train_step"].nodes)
        assert count > 4 * len(sizes)
        order = [parse_slice(e.run)[0] for e in plan.program["train_step"].lanes[0]]
        assert list(executor.node_times(repetitions=1)) == order  # every node by its own name, nothing reordered


def many(optimizer: Optimizer) -> Graph:
    """22 parameters, most of them tiny."""
    b = GraphBuilder("many")
    x = images(b, batch=2, size=4)
    for i in range(10):
        x = conv(b, x, 8, f"c{i}", kernel=1 if i > 1 else 3, bias=True)
    return classifier(b, x, optimizer=optimizer)


@pytest.mark.parametrize(
    "graph",
    [
        many(Optimizer(lr=0.01)),
        mixed_precision(many(Optimizer(lr=0.01, momentum=0.8, nesterov=True))),
        many(Optimizer(kind="adam", lr=1e-3, weight_decay=0.1)),
        many(Optimizer(kind="adamw", lr=1e-3, weight_decay=0.1)),
        mixed_precision(many(Optimizer(kind="rmsprop", lr=1e-3, momentum=0.9, weight_decay=0.1))),
        many(Optimizer(kind="rmsprop", lr=1e-3, centered=True)),
        many(Optimizer(kind="adagrad", lr=1e-2, lr_decay=0.1)),
    ],
    ids=["plain", "momentum and bfloat16", "adam", "adamw", "rmsprop and bfloat16", "centered", "adagrad"],
)
def test_a_joint_launch_computes_what_single_ones_do(graph: Graph, tmp_path: Path) -> None:
    """To the bit: against the same plan with its launches taken apart; and gradients alone change nothing."""
    plan = plan_for(graph)
    states = []
    for joint in (True, False):
        made = make(plan, graph, tmp_path / str(joint))
        if not joint:
            tables = tmp_path / str(joint) / "lanes.cpp"
            tables.write_text(re.sub(r"\}, true\},$", "}},", tables.read_text(), flags=re.MULTILINE))
            made = remade(tmp_path / str(joint))
        with made(seed=1, poison=True, null_device=NULL) as executor:
            if NULL:
                sizes = launch_sizes(executor)
                assert sum(sizes) > 18 if joint else set(sizes) <= {1}
            before = executor.state_dict()
            gradients = executor.gradients(*batch(graph, 1))[1]
            after = executor.state_dict()
            assert all(np.array_equal(before[k], after[k]) for k in before) and gradients
            executor.step(*batch(graph, 1)).wait()
            states.append({**executor.state_dict(), **{f"{k} gradient": g for k, g in gradients.items()}})
    assert [k for k in states[0] if not np.array_equal(states[0][k], states[1][k])] == []


def remade(folder: Path) -> type[CudaExecutor]:
    """The sources of a folder as they are."""
    build(folder, flags=flags(), null_device=NULL)
    found = executor_class(folder)
    assert issubclass(found, CudaExecutor)
    return found


def test_streams_side_by_side(tmp_path: Path) -> None:
    """On several streams what stands together by itself is one launch, and events come where they belong."""
    graph = many(Optimizer(lr=0.01, momentum=0.8))
    with make(plan_for(graph, lanes=2), graph, tmp_path)(seed=1, poison=True, null_device=NULL) as executor:
        for seed in range(1, 6):
            executor._native.shuffle(executor._handle, seed)
            assert_steps_agree(executor, 1)
