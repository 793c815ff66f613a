"""Parallel operators: the proposal's three structures, the filters, and whole plans against the independent checker."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.costs.model import modelled_costs
from planner.costs.table import CostEntry, CostTable
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops import all_ops
from planner.plan.check import check
from planner.plan.diff import diff
from planner.plan.diff_text import render
from planner.plan.explain import explain
from planner.plan.schema import ParallelOp, Plan
from planner.plan.text import plan_text
from planner.solve.options import ParallelOps, Pins, PlanOptions
from planner.solve.parallel_op import THREAD_SAFE
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import random_net

TARGET = load_target("cpu2")


def priced(graph: Graph, one_ns: float = 12_000, two_ns: float = 10_000) -> CostTable:
    """Every node takes `one_ns` in one slice and `two_ns` in two, warm or cold."""
    table = modelled_costs(graph, TARGET)
    entries = []
    for entry in table.entries:
        times = tuple((one_ns if entry.slices == 1 else two_ns) / len(entry.warm_ns) for _ in entry.warm_ns)
        entries.append(entry.model_copy(update={"warm_ns": times, "cold_ns": times}))
    return table.model_copy(update={"entries": tuple(entries), "sync_ns": 0.0})


def planned(graph: Graph, costs: CostTable, **rules: object) -> Plan:
    pins = rules.pop("pins", Pins())
    options = PlanOptions(policy="liu", strategies=(1,), parallel_ops=ParallelOps(**rules), pins=pins)
    plan = make_plan(graph, TARGET, costs, options)
    assert check(graph, plan, TARGET) == []
    return plan


def formed(plan: Plan) -> list[tuple[str, int, str, str]]:
    return [(p.op, len(p.nodes), p.source, p.target) for p in plan.program["predict"].parallel]


def net(first: bool, last: bool, count: int = 5, op: str = "tanh", shape: tuple[int, ...] = (64, 32)) -> Graph:
    """`count` nodes of one op that come from one node (`first`), go to one node (`last`), or both."""
    b = GraphBuilder("net")
    type_ = TensorType(shape=shape)
    if first:
        inputs = [layers.relu(b, b.input("x", type_), name="first")] * count
    else:
        inputs = [b.input(f"x{i}", type_) for i in range(count)]
    found = [layers.unary(b, op, x, name=f"branch{i}") for i, x in enumerate(inputs)]
    if last:
        found = [layers.concat(b, found, name="last")]
    else:
        found = [layers.relu(b, x, name=f"after{i}") for i, x in enumerate(found)]
        found = [layers.concat(b, [layers.unary(b, "exp", x, name=f"then{i}") for i, x in enumerate(found)], name="c")]
    return b.finish_inference(found[0], fuse=False)


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        (True, True, ("predict.first", "predict.last")),
        (True, False, ("predict.first", "")),
        (False, True, ("", "predict.last")),
    ],
)
def test_the_three_structures(first: bool, last: bool, wanted: tuple[str, str]) -> None:
    graph = net(first, last)
    plan = planned(graph, priced(graph))
    assert formed(plan)[0] == ("tanh", 5, *wanted)
    program = plan.program["predict"]
    group = program.parallel[0]
    assert all(program.node[n].slices == 1 for n in group.nodes)
    # 5 nodes of 12 us on two lanes: 3 on one of them; one after the other 10 us each.
    assert (group.alone_ns, group.together_ns) == (50_000, 36_000)


def test_what_comes_from_a_parallel_operator_can_be_one() -> None:
    """The relus behind five tanhs come from five nodes, which have become one."""
    plan = planned(net(True, False), priced(net(True, False)))
    assert [(op, n) for op, n, _, _ in formed(plan)] == [("tanh", 5), ("relu", 5)]
    assert formed(plan)[1][2] == plan.program["predict"].parallel[0].nodes[0]


def test_siblings_that_do_not_gain_are_kin_all_the_same() -> None:
    """The tanhs stay in two slices; the relus behind them gain, and come from the first of the tanhs."""
    graph = net(True, False)
    costs = priced(graph)
    entries = [
        e.model_copy(update={"warm_ns": (30_000.0,), "cold_ns": (30_000.0,)})
        if e.signature.startswith("tanh(") and e.slices == 1
        else e
        for e in costs.entries
    ]
    plan = planned(graph, costs.model_copy(update={"entries": tuple(entries)}))
    assert formed(plan)[0] == ("relu", 5, "predict.branch0", "")


def test_siblings_start_together_and_share_no_bytes() -> None:
    graph = net(True, True)
    plan = planned(graph, priced(graph))
    lanes = [[e.run.split("/")[0] for e in lane if "branch" in e.run] for lane in plan.program["predict"].lanes]
    assert sorted(map(len, lanes)) == [2, 3]
    places = [plan.placement[f"predict.branch{i}.y"] for i in range(5)]
    spans = sorted((p.offset, p.offset + p.bytes) for p in places)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    plain = make_plan(graph, TARGET, priced(graph), PlanOptions(policy="liu", strategies=(1,)))
    gained = plain.program["predict"].predicted_ns - plan.program["predict"].predicted_ns
    assert gained == pytest.approx(14_000, abs=10)


def test_the_longest_go_first() -> None:
    """12, 12, 12, 12 and 40 us on two lanes: 40 on one, 4 x 12 on the other."""
    b = GraphBuilder("long")
    inputs = [b.input(f"x{i}", TensorType(shape=(64, 96 if i == 4 else 32))) for i in range(5)]
    parts = [layers.unary(b, "tanh", x, name=f"branch{i}") for i, x in enumerate(inputs)]
    graph = b.finish_inference(layers.concat(b, parts, name="last"), fuse=False)

    def price(entry: CostEntry) -> CostEntry:
        if not entry.signature.startswith("tanh(f32[64,96])"):
            return entry
        times = (40_000.0,) if entry.slices == 1 else (38_000.0,)
        return entry.model_copy(update={"warm_ns": times, "cold_ns": times})

    costs = priced(graph, two_ns=11_500)
    plan = planned(graph, costs.model_copy(update={"entries": tuple(map(price, costs.entries))}))
    (group,) = plan.program["predict"].parallel
    assert group.target == "predict.last" and group.nodes[0] == "predict.branch4" and len(group.nodes) == 5
    assert (group.alone_ns, group.together_ns) == (4 * 11_500 + 38_000, 48_000)


def test_too_few_siblings() -> None:
    graph = net(True, True, 5)
    assert not formed(planned(graph, priced(graph), threshold=6))
    assert formed(planned(graph, priced(graph), threshold=5))


def test_only_ops_that_are_known_to_be_safe() -> None:
    graph = net(True, True, op="silu")
    assert "silu" not in THREAD_SAFE and not formed(planned(graph, priced(graph)))
    assert formed(planned(graph, priced(graph), also=("silu",)))


def test_no_gain_no_parallel_operator() -> None:
    graph = net(True, True, 4)
    assert formed(planned(graph, priced(graph, one_ns=19_000)))
    assert not formed(planned(graph, priced(graph, one_ns=19_900))), "gains less than 2 %"
    assert formed(planned(graph, priced(graph, one_ns=19_900), least_gain=0.0))


def test_memory_bandwidth_counts() -> None:
    """Nodes that use all of the memory's bandwidth alone gain nothing beside each other."""
    shape = (8192, 4096)
    graph = net(True, True, shape=shape)
    costs = priced(graph, one_ns=12e6, two_ns=12e6)
    assert formed(planned(graph, costs.model_copy(update={"bandwidth": 1e15, "thread_bandwidth": 1e15})))
    moved = 2 * 4 * shape[0] * shape[1]
    scarce = {"bandwidth": moved / 12e-3, "thread_bandwidth": moved / 12e-3}
    assert not formed(planned(graph, costs.model_copy(update=scarce)))


def test_pins_go_first() -> None:
    graph = net(True, True)
    plan = planned(graph, priced(graph), pins=Pins(slices={"predict.branch2": 2}))
    assert formed(plan)[0][1] == 4 and plan.program["predict"].node["predict.branch2"].slices == 2


def test_nodes_that_need_each_other_are_no_siblings() -> None:
    """r2 = relu(first + r1 ...): all read `first`, but each needs the one before."""
    b = GraphBuilder("chain")
    x = y = layers.relu(b, b.input("x", TensorType(shape=(64, 32))), name="first")
    for i in range(6):
        y = layers.add(b, x, y, name=f"link{i}")
    graph = b.finish_inference(y, fuse=False)
    assert not formed(planned(graph, priced(graph), threshold=2))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 8), st.integers(2, 4))
def test_every_plan_is_safe(seed: int, lanes: int, threshold: int) -> None:
    graph, target = random_net(random.Random(seed)), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=lanes)
    rules = ParallelOps(threshold=threshold, also=tuple(all_ops()), least_gain=0.0)
    plan = make_plan(graph, target, costs, PlanOptions(policy="liu", lanes=lanes, parallel_ops=rules))
    assert check(graph, plan, target) == []
    for program in plan.programs:
        members = [n for group in program.parallel for n in group.nodes]
        assert len(members) == len(set(members))
        assert program.predicted_ns >= program.bounds.best_ns


def test_wide_and_deep() -> None:
    """26 embeddings, 26 slices of their gradient, 26 updates: three parallel operators of a training step."""
    graph = zoo.build("wide_deep", 32)
    target = load_target("cpu16")
    costs = modelled_costs(graph, target)
    plain = make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=(1,)))
    parallel = make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=(1,), parallel_ops=ParallelOps()))
    assert check(graph, parallel, target) == []
    found = {(p.op, len(p.nodes), p.source, p.target) for p in parallel.program["train_step"].parallel}
    assert found >= {
        ("embedding", 26, "columns", "features"),
        ("slice", 26, "deep.0.backward_data", ""),
        ("embedding_sgd_update", 26, "features.backward_0", ""),
    }
    assert parallel.program["train_step"].predicted_ns < plain.program["train_step"].predicted_ns
    text = render(diff(plain, parallel, graph, graph))
    assert "parallel operators of train_step: 3" in text and "0 -> 26" in text
    back = render(diff(parallel, plain))
    assert "26 -> 0" in back and back.count("parallel operators of") == 2
    member = explain("embeddings.3", graph, parallel, costs).text()
    assert "one of 26 siblings of a parallel embedding" in member
    assert '"parallel"' in plan_text(parallel) and '"parallel"' not in plan_text(plain)


def test_auto_tries_them() -> None:
    said: list[str] = []
    graph = net(True, True)
    make_plan(graph, TARGET, priced(graph), PlanOptions(policy="auto"), said.append)
    assert [s for s in said if "and parallel operators" in s]
    assert [s for s in said if s.startswith("parallel_op: 5 nodes")]


def test_check_reads_what_a_plan_claims() -> None:
    graph = net(True, True)
    plan = planned(graph, priced(graph))
    program = plan.program["predict"]
    (group,) = program.parallel

    def codes(*groups: ParallelOp) -> set[str]:
        edited = program.model_copy(update={"parallel": groups})
        return {f.code for f in check(graph, plan.model_copy(update={"programs": (edited,)}), TARGET)}

    assert codes() == codes(group) == set()
    for wrong in (
        {"nodes": (*group.nodes, "nobody")},
        {"nodes": (*group.nodes, "predict.first")},
        {"nodes": (*group.nodes, group.nodes[0])},
        {"op": "relu"},
    ):
        assert codes(group.model_copy(update=wrong)) == {"SP1440"}
    cut = next(n.node for n in program.nodes if n.slices > 1)
    whole = {"op": graph.program["predict"].node[cut].op, "nodes": (cut,)}
    assert codes(group, group.model_copy(update=whole)) == {"SP1440"}
    with pytest.raises(UserError, match="SP1003"):
        from planner.cli.planning import parallel_options

        parallel_options(True, None, ["embeding"])


def test_training_updates_respect_what_still_reads_a_parameter() -> None:
    """A net whose siblings are updates of parameters that backward nodes read."""
    b = GraphBuilder("towers")
    x = b.input("x", TensorType(shape=(16, 8)))
    towers = [layers.linear(b, x, 8, name=f"tower{i}") for i in range(6)]
    target = b.input("target", TensorType(shape=(16, 48)))
    y = layers.concat(b, towers, name="all")
    graph = b.finish(layers.mse(b, y, target), y, Optimizer(lr=0.1))
    costs = priced(graph)
    plan = planned(graph, costs)
    assert {p.op for p in plan.program["train_step"].parallel} >= {"linear_backward_weights", "sgd_update"}
