"""`check` refuses rewritten plans that would not compute what the graph says; each mutation is one careless edit."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from codegen.cuda.facts import facts
from planner.costs.model import modelled_costs
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Init, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.conv import ConvAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.plan.check import check
from planner.plan.check_rewrites import check_meaning
from planner.plan.expand import expanded
from planner.plan.findings import Report
from planner.plan.schema import Entry, Lane, Plan, PoolUse, Read, Rewrite
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import small_net
from tests.plan.mutations import edit_lanes, edit_node, edit_program, edit_value, find, lanes_of
from tests.rewrites import Rewriter

STEP = "train_step"
GRAPH = small_net()
REWRITER = Rewriter(GRAPH, 2)
MOVED = REWRITER.plan({"conv1.y": "move", "bn1.y": "move", "conv2.y": "move"}, overlap=False)
AGAIN = REWRITER.plan(REWRITER.everything("fresh"))


def codes(graph: Graph, plan: Plan) -> set[str]:
    return {f.code for f in check(graph, plan, REWRITER.target)}


def edit_rewrite(plan: Plan, **changes: Any) -> Plan:
    return edit_program(plan, STEP, rewrite=plan.program[STEP].rewrite.model_copy(update=changes))


def rewait(plan: Plan, run: str, wait: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Plan:
    lanes = lanes_of(plan, STEP)
    lane, at = find(lanes, run)
    lanes[lane][at] = Entry(run=run, wait=wait(lanes[lane][at].wait))
    return edit_lanes(plan, STEP, lanes)


def test_rewrites_are_told_with_a_fix_of_their_own() -> None:
    """A recomputation that was left out, with reads of what it made."""
    lost = AGAIN.program[STEP].rewrite.recomputes[0]
    (found,) = check(GRAPH, edit_rewrite(AGAIN, recomputes=AGAIN.program[STEP].rewrite.recomputes[1:]))
    assert found.code == "SP1434" and lost.makes[0] in found.message
    assert found.fix == "recompute or transfer it"


def test_transfers_in_another_order_are_the_same_plan() -> None:
    transfers = tuple(reversed(MOVED.program[STEP].rewrite.transfers))
    assert check(GRAPH, edit_rewrite(MOVED, transfers=transfers), REWRITER.target) == []


def test_rewritten_plans_pass() -> None:
    assert check(GRAPH, MOVED, REWRITER.target) == []
    assert check(GRAPH, AGAIN, REWRITER.target) == []


def without(run: str, waited: str) -> Callable[[Plan], Plan]:
    def drop(waits: tuple[str, ...]) -> tuple[str, ...]:
        left = tuple(w for w in waits if not w.startswith(waited))
        assert left != waits, waits
        return left

    return lambda plan: rewait(plan, run, drop)


def test_a_reader_that_does_not_wait_for_its_prefetch() -> None:
    assert "SP1414" in codes(GRAPH, without("bn1.backward/0#0", "conv1.y.prefetch")(MOVED))
    assert "SP1414" in codes(GRAPH, without("conv2.backward_weights/0#0", "bn1.y.prefetch")(MOVED))


def test_a_prefetch_that_does_not_wait_for_its_offload() -> None:
    one = REWRITER.plan({"conv1.y": "move"}, overlap=False)
    plan = rewait(one, "conv1.y.prefetch/0#0", lambda waits: ())
    assert "SP1414" in codes(GRAPH, plan)


def test_an_offload_that_does_not_wait_for_its_value() -> None:
    assert "SP1414" in codes(GRAPH, without("conv1.y.offload/0#0", "conv1/")(MOVED))


def reads_changed(plan: Plan, node: str, value: str, instance: str) -> Plan:
    reads = [r for r in plan.program[STEP].rewrite.reads if (r.node, r.value) != (node, value)]
    return edit_rewrite(plan, reads=(*reads, Read(node=node, value=value, instance=instance)))


def test_an_instance_of_another_value() -> None:
    """bn2's input and bn1's have the same type, so that only the meaning differs."""
    plan = reads_changed(MOVED, "bn2.backward", "conv2.y", "conv1.y.back")
    assert codes(GRAPH, plan) == {"SP1435"}


def test_a_recomputation_of_other_inputs() -> None:
    wrong = reads_changed(AGAIN, "bn2.recompute", "bn1.y", "conv1.y.recompute")
    assert codes(GRAPH, wrong) == {"SP1435"}


def flat_net() -> Graph:
    """A linear layer whose weights are a view of a view of a parameter."""
    b = GraphBuilder("flat_net")
    x, flat = b.input("x", TensorType(shape=(3, 4))), b.parameter("flat", (16,), Init(kind="ones"))
    weight = layers.reshape(b, layers.reshape(b, flat, (2, 8), name="wide"), (4, 4), name="weight")
    y = layers.linear(b, layers.relu(b, b.op("linear", [x, weight], name="square")[0], name="relu"), 2, name="head")
    return b.finish(layers.mse(b, y, b.input("target", b.type(y))), y, Optimizer(lr=0.1))


@pytest.mark.parametrize(
    ("rewriter", "changed", "again"),
    [(REWRITER, "conv1.weight", "conv1.recompute"), (Rewriter(flat_net()), "flat", "square.recompute")],
)
def test_a_parameter_that_was_updated_before(rewriter: Rewriter, changed: str, again: str) -> None:
    """The graph's own order puts an update between the first run and the second: the copy would read new weights."""
    graph, plan = rewriter.graph, rewriter.plan(rewriter.everything("fresh"))
    larger = expanded(graph, plan)
    nodes = list(larger.program[STEP].nodes)
    update = next(n for n in nodes if n.id == f"{changed}.update")
    nodes.remove(update)
    nodes.insert(next(i for i, n in enumerate(nodes) if n.id == again), update)
    found = meant(graph, edit_graph(larger, nodes=tuple(nodes)), plan)
    assert any("after 1 updates instead of 0" in message for message in found)


def edit_graph(graph: Graph, **changes: Any) -> Graph:
    """Another program STEP."""
    changed = graph.program[STEP].model_copy(update=changes)
    return graph.model_copy(update={"programs": tuple(changed if p.name == STEP else p for p in graph.programs)})


def meant(graph: Graph, larger: Graph, plan: Plan) -> list[str]:
    """What is told of an expanded graph that no plan's rewrite can make, but a mistake in plan/expand.py could."""
    report = Report()
    check_meaning(graph, larger, plan.program[STEP], report)
    assert {f.code for f in report.findings()} <= {"SP1435"}
    return [f.message for f in report.findings()]


@pytest.mark.parametrize(
    ("plan", "node", "change", "told"),
    [
        (AGAIN, "bn1", {"attrs": BatchNormAttrs(eps=0.5)}, "bn1 is not the graph's node"),
        (AGAIN, "conv1.recompute", {"op": "linear"}, "it runs linear for conv2d"),
        (AGAIN, "conv1.recompute", {"attrs": ConvAttrs(stride=(2, 2))}, "is not conv1 once more"),
        (AGAIN, "conv1.recompute", {"inputs": ("images",)}, "reads 1 values instead of 2"),
        (AGAIN, "conv1.recompute", {"id": "stranger"}, "stranger is neither a node of the graph nor one"),
        (MOVED, "conv1.y.prefetch", {"op": "offload"}, "conv1.y.prefetch is neither a node of the graph nor one"),
        (MOVED, "conv2", {}, "node conv2 of the graph does not run"),
    ],
)
def test_a_wrong_expansion(plan: Plan, node: str, change: dict[str, Any], told: str) -> None:
    larger = expanded(GRAPH, plan)
    assert meant(GRAPH, larger, plan) == []
    nodes = larger.program[STEP].nodes
    damaged = [n.model_copy(update=change) if n.id == node else n for n in nodes if change or n.id != node]
    assert any(told in message for message in meant(GRAPH, edit_graph(larger, nodes=tuple(damaged)), plan))


def test_other_outputs() -> None:
    larger = edit_graph(expanded(GRAPH, AGAIN), outputs=())
    assert meant(GRAPH, larger, AGAIN) == ["the program's inputs and outputs changed"]


def test_what_the_graph_itself_reads_after_an_update() -> None:
    """is read after it by the expanded program, too."""
    nodes = list(GRAPH.program[STEP].nodes)
    nodes.insert(0, nodes.pop(next(i for i, n in enumerate(nodes) if n.id == "conv2.weight.update")))
    updated = edit_graph(GRAPH, nodes=tuple(nodes))
    plain = edit_program(AGAIN, STEP, rewrite=Rewrite())
    assert meant(updated, updated, plain) == []
    assert any("after 0 updates instead of 1" in message for message in meant(updated, GRAPH, plain))


def test_a_rewrite_of_no_program() -> None:
    assert "SP1405" in codes(GRAPH, edit_program(AGAIN, STEP, name="other"))


def test_an_op_that_stumbles_over_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> Graph:
        raise IndexError

    monkeypatch.setattr("planner.plan.check.expanded", stumble)
    assert codes(GRAPH, AGAIN) == {"SP1434"}


def test_an_update_that_does_not_wait_for_a_recomputation() -> None:
    """In the schedule, the same mistake: the last reader of the weights is a copy, and the update does not wait."""
    rewrite = AGAIN.program[STEP].rewrite
    assert any(r.of == "conv2" for r in rewrite.recomputes)
    lanes = lanes_of(AGAIN, STEP)
    lane, at = find(lanes, "conv2.weight.update/0#0")
    entry = lanes[lane].pop(at)
    lane, at = find(lanes, "conv2.recompute/0#0")
    lanes[lane].insert(at, Entry(run=entry.run))
    assert {"SP1414", "SP1415"} & codes(GRAPH, edit_lanes(AGAIN, STEP, lanes))


def test_a_recomputation_in_another_mode() -> None:
    plan = edit_node(AGAIN, STEP, "conv2.recompute", implementation="other")
    assert "SP1435" in codes(GRAPH, plan)


def test_a_slower_pool_that_is_too_small() -> None:
    slow = MOVED.pools[1]
    smaller = slow.model_copy(update={"arena": slow.arena - 64})
    assert "SP1419" in codes(GRAPH, MOVED.model_copy(update={"pools": (MOVED.pools[0], smaller)}))
    limited = slow.model_copy(update={"capacity": slow.arena - 64})
    assert "SP1420" in codes(GRAPH, MOVED.model_copy(update={"pools": (MOVED.pools[0], limited)}))


def test_two_values_on_the_same_bytes_of_the_slower_pool() -> None:
    """Overlapping offloads are written over each other before they come back."""
    at = MOVED.placement["conv1.y.away"].offset
    assert "SP1423" in codes(GRAPH, edit_value(MOVED, "bn1.y.away", offset=at))


def test_values_in_the_wrong_pool() -> None:
    assert "SP1436" in codes(GRAPH, edit_value(MOVED, "conv1.y.away", pool=MOVED.pools[0].name))
    larger = MOVED.pools[1].model_copy(update={"arena": 2**20})
    roomy = MOVED.model_copy(update={"pools": (MOVED.pools[0], larger)})
    assert "SP1436" in codes(GRAPH, edit_value(roomy, "conv1.y.back", pool=larger.name))


def test_a_transfer_between_the_wrong_pools() -> None:
    transfers = [
        t.model_copy(update={"to_pool": t.from_pool}) if t.node == "conv1.y.offload" else t
        for t in MOVED.program[STEP].rewrite.transfers
    ]
    assert "SP1436" in codes(GRAPH, edit_rewrite(MOVED, transfers=tuple(transfers)))


def move_entry(plan: Plan, run: str, lane: int) -> Plan:
    lanes = lanes_of(plan, STEP)
    old, at = find(lanes, run)
    entry = lanes[old].pop(at)
    lanes[lane].insert(0, entry)
    return edit_lanes(plan, STEP, lanes)


def test_a_link_carries_one_copy_at_a_time() -> None:
    out, back = ([i for i, lane in enumerate(lanes_of(MOVED, STEP)) if any(kind in e.run for e in lane)]
                 for kind in (".offload/", ".prefetch/"))  # fmt: skip
    assert out != back and len(out) == len(back) == 1
    assert "SP1437" in codes(GRAPH, move_entry(MOVED, "conv1.y.offload/0#0", back[0]))


def test_transfers_do_not_run_on_cores_nor_nodes_on_copy_lanes() -> None:
    assert "SP1437" in codes(GRAPH, move_entry(MOVED, "conv1.y.offload/0#0", 0))
    assert "SP1437" in codes(GRAPH, move_entry(MOVED, "loss.loss.seed/0#0", 2))


def test_copy_lanes_come_last() -> None:
    lanes = tuple(reversed([lane.model_copy(update={"id": 0}) for lane in MOVED.lanes]))
    numbered = tuple(Lane(id=i, cpu=lane.cpu, kind=lane.kind) for i, lane in enumerate(lanes))
    assert "SP1426" in codes(GRAPH, MOVED.model_copy(update={"lanes": numbered}))


def test_a_rewrite_that_makes_no_sense() -> None:
    rewrite = AGAIN.program[STEP].rewrite
    assert codes(GRAPH, edit_rewrite(AGAIN, recomputes=rewrite.recomputes[1:])) == {"SP1434"}
    assert codes(GRAPH, edit_program(AGAIN, "predict", rewrite=rewrite)) == {"SP1434"}


def test_a_node_that_is_left_out() -> None:
    nodes = tuple(n for n in AGAIN.program[STEP].nodes if n.node != "bn1.recompute")
    assert "SP1406" in codes(GRAPH, edit_program(AGAIN, STEP, nodes=nodes))


def test_no_rewrite_for_its_nodes() -> None:
    assert "SP1406" in codes(GRAPH, edit_program(AGAIN, STEP, rewrite=Rewrite()))


@pytest.mark.parametrize("plan", [MOVED, AGAIN])
def test_each_dropped_wait_is_missed(plan: Plan) -> None:
    """Waits are a transitive reduction: whichever is left out, something is no longer safe."""
    lanes = lanes_of(plan, STEP)
    spots = [(i, j, w) for i, lane in enumerate(lanes) for j, e in enumerate(lane) for w in e.wait]
    for i, j, wait in spots[::7]:
        changed = lanes_of(plan, STEP)
        changed[i][j] = Entry(run=changed[i][j].run, wait=tuple(w for w in changed[i][j].wait if w != wait))
        assert check(GRAPH, edit_lanes(plan, STEP, changed)), (changed[i][j].run, wait)


def renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    """The plan with other pools under everything that lies in them."""
    text = re.sub(r'"(\w+)"', lambda found: f'"{names.get(found[1], found[1])}"', plan.model_dump_json())
    return Plan.model_validate_json(text)


def test_nodes_run_in_the_targets_own_memory() -> None:
    """Whose size bounds the arena, whatever the plan calls it."""
    pools = tuple(p.model_copy(update={"capacity": p.arena}) for p in MOVED.pools)
    small = MOVED.model_copy(update={"pools": pools})
    assert codes(GRAPH, small) == set()
    assert codes(GRAPH, renamed(small, {"dram": "slow", "slow": "dram"})) == {"SP1428"}


def test_gpus_copy_to_pinned_memory() -> None:
    graph, target = small_net(), load_target("h200")
    plain = make_plan(graph, target, modelled_costs(graph, target, facts), PlanOptions(policy="sequential"))
    further = tuple(PoolUse(name=name, capacity=64, arena=64) for name in ("pinned", "host"))
    for pool, found in zip(further, (set(), {"SP1428"}), strict=True):
        plan = plain.model_copy(update={"pools": (*plain.pools, pool)})
        assert {f.code for f in check(graph, plan, target)} == found
