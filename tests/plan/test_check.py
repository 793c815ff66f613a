"""`check` accepts sound plans and names what is wrong with others: one test per code and per rule."""

from pathlib import Path

import pytest

from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Init, Program, TensorType
from planner.graph.text import graph_hash
from planner.ops import op_named
from planner.ops.activation import Relu
from planner.ops.base import Access, Mode, Signature, reads, writes
from planner.ops.conv import Conv2d
from planner.ops.optimizer import SgdAttrs
from planner.ops.shape import ReshapeAttrs
from planner.plan.check import check, require_safe
from planner.plan.findings import FIXES, Finding
from planner.plan.schema import Entry, Lane, Plan, PoolUse
from planner.target.text import load_target, target_hash
from tests.graphs import batch_norm, small_net
from tests.plan.mutations import (
    edit_lanes,
    edit_node,
    edit_pool,
    edit_program,
    edit_value,
    find,
    lanes_of,
)
from tests.plan.reference import Choices, make, signature_of

STEP = "train_step"
GRAPH = small_net()
PLAN = make(GRAPH)
ROOMY = make(GRAPH, Choices(reuse=False, inplace=False))
"""Every value has bytes of its own."""


def codes(found: list[Finding]) -> set[str]:
    return {f.code for f in found}


def rewait(plan: Plan, run: str, wait: tuple[str, ...]) -> Plan:
    lanes = lanes_of(plan, STEP)
    i, j = find(lanes, run)
    lanes[i][j] = Entry(run=run, wait=wait)
    return edit_lanes(plan, STEP, lanes)


def without(plan: Plan, run: str, waits: str) -> Plan:
    """Drop those of a slice's waits that begin like this."""
    lanes = lanes_of(plan, STEP)
    i, j = find(lanes, run)
    return rewait(plan, run, tuple(w for w in lanes[i][j].wait if not w.startswith(waits)))


# -- sound plans -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
def test_sound_plans_pass(lanes: int, barrier: bool, reuse: bool) -> None:
    plan = make(GRAPH, Choices(lanes=lanes, barrier=barrier, reuse=reuse, inplace=reuse))
    assert check(GRAPH, plan) == []
    require_safe(GRAPH, plan)


def on_target(plan: Plan) -> Plan:
    target = load_target("cpu2")
    return plan.model_copy(update={"target": target.name, "target_hash": target_hash(target)})


def test_sound_plan_passes_on_its_target() -> None:
    assert check(GRAPH, on_target(PLAN), load_target("cpu2")) == []


def test_a_wait_for_an_earlier_slice_of_the_same_lane_is_harmless() -> None:
    lanes = lanes_of(PLAN, STEP)
    last = lanes[0][-1]
    assert check(GRAPH, rewait(PLAN, last.run, (*last.wait, lanes[0][0].run))) == []


def test_independent_nodes_may_run_in_another_order() -> None:
    """The order of updates is free: the plan's order of nodes need not be the graph's."""
    plan = make(
        GRAPH, order=lambda p: sorted(p.nodes, key=lambda n: (n.phase == "update", n.id if n.phase == "update" else ""))
    )
    assert [n.node for n in plan.program[STEP].nodes] != [n.id for n in GRAPH.program[STEP].nodes]
    assert check(GRAPH, plan) == []


# -- identity --------------------------------------------------------------------------------------------------------
def test_another_graph() -> None:
    (found,) = check(GRAPH, PLAN.model_copy(update={"graph_hash": "0" * 16}))
    assert found.code == "SP1403"
    assert graph_hash(GRAPH) in found.message


def test_an_invalid_graph_is_reported_not_raised() -> None:
    program = GRAPH.program[STEP]
    broken = program.model_copy(update={"nodes": program.nodes[::-1]})
    graph = Graph(name="g", values=GRAPH.values, programs=(broken,))
    assert codes(check(graph, PLAN)) == {"SP1403"}
    no_inputs = program.nodes[0].model_copy(update={"inputs": ()})
    graph = Graph(name="g", values=GRAPH.values, programs=(program.model_copy(update={"nodes": (no_inputs,)}),))
    assert codes(check(graph, PLAN)) == {"SP1403"}


def test_two_programs_of_one_name_in_the_graph() -> None:
    graph = Graph(name="g", values=GRAPH.values, programs=(GRAPH.programs[0],) * 2)
    assert codes(check(graph, PLAN)) == {"SP1403"}


def test_another_target() -> None:
    assert codes(check(GRAPH, PLAN, load_target("cpu2"))) == {"SP1404"}
    other_hash = on_target(PLAN).model_copy(update={"target_hash": "0" * 16})
    assert codes(check(GRAPH, other_hash, load_target("cpu2"))) == {"SP1404"}


# -- completeness ----------------------------------------------------------------------------------------------------
def test_programs() -> None:
    missing = PLAN.model_copy(update={"programs": PLAN.programs[:1]})
    twice = PLAN.model_copy(update={"programs": (*PLAN.programs, PLAN.programs[0])})
    renamed = edit_program(PLAN, STEP, name="other")
    assert codes(check(GRAPH, missing)) == {"SP1405"}
    assert codes(check(GRAPH, twice)) == {"SP1405"}
    assert len(check(GRAPH, renamed)) == 2
    assert codes(check(GRAPH, renamed)) == {"SP1405"}


def test_nodes() -> None:
    nodes = PLAN.program[STEP].nodes
    for damaged in (nodes[1:], (*nodes, nodes[0]), (*nodes, nodes[0].model_copy(update={"node": "stranger"}))):
        assert codes(check(GRAPH, edit_program(PLAN, STEP, nodes=damaged))) == {"SP1406"}


@pytest.mark.parametrize("change", [{"kernel": "magic"}, {"dim": "moon"}, {"slices": 5}, {"slices": 10**40}])
def test_modes(change: dict[str, object]) -> None:
    (found,) = check(GRAPH, edit_node(PLAN, STEP, "conv1", **change))
    assert found.code == "SP1407"
    assert "onednn/batch in up to 4" in found.message


def test_stages() -> None:
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "conv1", stage_ns=(5,)))) == {"SP1408"}
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "flat", stage_ns=(5,)))) == {"SP1408"}
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "conv1", stage_ns=(-5, 5)))) == {"SP1430"}


def test_scratch_size() -> None:
    size = PLAN.program[STEP].node["conv1"].scratch_bytes
    (found,) = check(GRAPH, edit_node(PLAN, STEP, "conv1", scratch_bytes=size - 64))
    assert found.code == "SP1409"
    assert f"needs {size} bytes" in found.message


def test_a_missing_slice() -> None:
    lanes = lanes_of(PLAN, STEP)
    gone = lanes[1].pop()
    found = check(GRAPH, edit_lanes(PLAN, STEP, lanes))
    assert [(f.code, f.program) for f in found] == [("SP1410", STEP)]
    assert gone.run in found[0].message


def test_more_slices_than_can_be_listed() -> None:
    b = GraphBuilder("large")
    x = b.input("x", TensorType(shape=(2**28,)))
    (y,) = b.op("relu", [x])
    graph = b.finish_inference(y)
    plan = make(graph)
    plan = edit_node(plan, "predict", "predict.relu", slices=2**24)
    (found,) = check(graph, plan)
    assert found.code == "SP1410"
    assert str(2**24) in found.message


def test_a_slice_twice() -> None:
    lanes = lanes_of(PLAN, STEP)
    lanes[1].append(lanes[0][0])
    assert codes(check(GRAPH, edit_lanes(PLAN, STEP, lanes))) == {"SP1411"}


def test_unknown_slices() -> None:
    lanes = lanes_of(PLAN, STEP)
    lanes[0].append(Entry(run="conv1/7#0"))
    assert codes(check(GRAPH, edit_lanes(PLAN, STEP, lanes))) == {"SP1412"}
    assert codes(check(GRAPH, rewait(PLAN, lanes[0][0].run, ("predict.conv1/0#0",)))) == {"SP1412"}
    assert codes(check(GRAPH, rewait(PLAN, lanes[0][0].run, ("conv1/0#00",)))) == {"SP1412"}


# -- order -----------------------------------------------------------------------------------------------------------
def test_deadlock_names_the_cycle() -> None:
    lanes = lanes_of(PLAN, STEP)
    first, other = lanes[0][0].run, lanes[1][3].run
    (found,) = check(GRAPH, rewait(PLAN, first, (other,)))
    assert found.code == "SP1413"
    assert first in found.message
    assert found.message.count("waits for") + found.message.count("comes in lane") >= 2
    start = found.message.removeprefix("deadlock: ").split()[0]
    assert found.message.endswith(start)


def test_a_slice_that_waits_for_itself_or_a_later_one_of_its_lane() -> None:
    lanes = lanes_of(PLAN, STEP)
    for late in (lanes[0][0].run, lanes[0][9].run):
        assert codes(check(GRAPH, rewait(PLAN, lanes[0][0].run, (late,)))) == {"SP1413"}


def test_reading_before_it_is_written() -> None:
    lanes = lanes_of(ROOMY, STEP)
    i, j = find(lanes, "maxpool/0#1")
    lanes[0].insert(0, lanes[i].pop(j).model_copy(update={"wait": ()}))
    found = check(GRAPH, edit_lanes(ROOMY, STEP, lanes))
    assert "SP1414" in codes(found)
    assert any("maxpool/0#1 reads value bn2.y without waiting for bn2/1#" in f.message for f in found)


def test_updating_a_parameter_that_is_still_read() -> None:
    """conv2.backward_data packs conv2.weight; the update must come after."""
    lanes = lanes_of(ROOMY, STEP)
    i, j = find(lanes, "conv2.weight.update/0#0")
    update = lanes[i].pop(j)
    i, j = find(lanes, "conv2.backward_data/0#0")
    lanes[i].insert(j, update.model_copy(update={"wait": ("conv2.backward_weights/1#1",)}))
    found = check(GRAPH, edit_lanes(ROOMY, STEP, lanes))
    assert codes(found) == {"SP1415"}
    message = "changes value conv2.weight in place without waiting for conv2.backward_data/0#0, which reads it before"
    assert any(message in f.message for f in found)


def test_stages_of_one_node_meet() -> None:
    run = "bn1/1#0"
    found = check(GRAPH, without(ROOMY, run, "bn1/0"))
    assert codes(found) == {"SP1416"}
    assert "scratch part partial of node bn1" in found[0].message


# -- memory ----------------------------------------------------------------------------------------------------------
def test_placements() -> None:
    missing = PLAN.model_copy(update={"placements": tuple(p for p in PLAN.placements if p.value != "bn1.y")})
    twice = PLAN.model_copy(update={"placements": (*PLAN.placements, PLAN.placements[0])})
    stranger = PLAN.placements[0].model_copy(update={"value": "stranger"})
    for plan in (missing, twice, PLAN.model_copy(update={"placements": (*PLAN.placements, stranger)})):
        assert codes(check(GRAPH, plan)) == {"SP1417"}


def test_alignment_and_size() -> None:
    at = ROOMY.placement["bn1.y"]
    assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", offset=at.offset + 4))) == {"SP1418"}
    assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", bytes=at.bytes - 4))) == {"SP1418"}
    scratch = ROOMY.program[STEP].node["bn1"].scratch_offset
    assert codes(check(GRAPH, edit_node(ROOMY, STEP, "bn1", scratch_offset=scratch + 8))) == {"SP1418"}


def test_outside_the_arena() -> None:
    arena = ROOMY.pools[0].arena
    assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", offset=arena - 64))) == {"SP1419"}
    assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", pool="moon"))) == {"SP1419"}
    assert codes(check(GRAPH, edit_node(ROOMY, STEP, "bn1", scratch_offset=arena))) == {"SP1419"}


def test_capacity() -> None:
    (found,) = check(GRAPH, edit_pool(PLAN, capacity=PLAN.pools[0].arena - 1))
    assert found.code == "SP1420"


def test_a_share_that_the_op_does_not_offer() -> None:
    """conv2 cannot write over its input, whoever reads it later."""
    below = ROOMY.placement["bn1.y"]
    plan = edit_value(ROOMY, "conv2.y", offset=below.offset, shares="bn1.y")
    assert "SP1421" in codes(check(GRAPH, plan))


def test_a_view_must_lie_on_its_source() -> None:
    assert codes(check(GRAPH, edit_value(ROOMY, "flat.y", shares=""))) == {"SP1421"}
    spot = ROOMY.placement["bn2.y"].offset
    assert "SP1421" in codes(check(GRAPH, edit_value(ROOMY, "flat.y", offset=spot)))


def test_an_input_shares_nothing() -> None:
    assert "SP1421" in codes(check(GRAPH, edit_value(PLAN, "images", shares="bn1.y")))


def test_declared_in_place_but_elsewhere() -> None:
    above = next(p for p in PLAN.placements if p.shares == "maxpool.backward.dx")
    assert "SP1421" in codes(check(GRAPH, edit_value(PLAN, above.value, offset=0)))


@pytest.mark.parametrize("over", ["conv1.weight", "bn1.running_mean", "images", "labels"])
def test_parameters_states_and_inputs_keep_their_bytes(over: str) -> None:
    """Even where nothing reads them any more, and in a program that does not use them."""
    spot = ROOMY.placement[over].offset
    (found,) = check(GRAPH, edit_value(ROOMY, "predict.fc.y", offset=spot))
    assert found.code == "SP1422"
    assert over in found.message
    found_scratch = check(GRAPH, edit_node(ROOMY, STEP, "bn1", scratch_offset=spot))
    assert "SP1422" in codes(found_scratch)


def test_two_values_alive_together() -> None:
    spot = ROOMY.placement["bn1.y"].offset
    found = check(GRAPH, edit_value(ROOMY, "bn2.y", offset=spot))
    assert codes(found) == {"SP1423"}
    assert "bn1.y" in found[0].message
    assert "bn2.y" in found[0].message


def test_scratch_over_a_value_alive() -> None:
    spot = ROOMY.placement["bn1.y"].offset
    assert codes(check(GRAPH, edit_node(ROOMY, STEP, "conv2", scratch_offset=spot))) == {"SP1423"}


def test_one_slice_may_not_use_two_values_on_the_same_bytes() -> None:
    """In place without saying so: bn2.backward could write dresidual over dy, but the plan has to declare it."""
    spot = ROOMY.placement["maxpool.backward.dx"].offset
    undeclared = edit_value(ROOMY, "bn2.backward.dresidual", offset=spot)
    assert codes(check(GRAPH, undeclared)) == {"SP1423"}
    declared = edit_value(undeclared, "bn2.backward.dresidual", shares="maxpool.backward.dx")
    assert check(GRAPH, declared) == []


def test_an_output_survives() -> None:
    spot = ROOMY.placement["loss.loss"].offset
    found = check(GRAPH, edit_value(ROOMY, "fc.backward_weights.db", offset=spot))
    assert codes(found) == {"SP1424"}
    assert "loss.loss" in found[0].message
    logits = ROOMY.placement["fc.y"].offset
    assert check(GRAPH, edit_value(ROOMY, "loss.loss", offset=logits)) == [], "what is dead before may lie there"


def test_in_place_over_a_value_that_others_read() -> None:
    """y = relu(x) over x, while another node still reads x."""
    b = GraphBuilder("fork")
    x = b.input("x", TensorType(shape=(64,)))
    (h,) = b.op("relu", [x], name="h")
    (left,) = b.op("relu", [h], name="left")
    (right,) = b.op("relu", [h], name="right")
    (y,) = b.op("add", [left, right], name="y")
    graph = b.finish_inference(y)
    plan = make(graph, Choices(reuse=False, inplace=False))
    spot = plan.placement["predict.h.y"].offset
    plan = edit_value(plan, "predict.right.y", offset=spot, shares="predict.h.y")
    assert check(graph, plan) == [], "left is certain to be done: both slices run on their lanes"
    lanes = lanes_of(plan, "predict")
    swapped = [
        [e for n in ("h", "right", "left", "y") for e in lane if e.run.startswith(f"predict.{n}/")] for lane in lanes
    ]
    found = check(graph, edit_lanes(plan, "predict", swapped))
    assert codes(found) == {"SP1425"}
    assert "in place of value predict.h.y without waiting for predict.left/0#0" in found[0].message


def test_slices_may_take_turns_one_by_one() -> None:
    """Slice 0 of a later value follows slice 0 of an earlier one; slice 1 of that may still be busy."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(64,)))
    for name in "abc":
        (x,) = b.op("relu", [x], name=name)
    graph = b.finish_inference(x)
    plan = make(graph, Choices(reuse=False, inplace=False))
    assert all(not e.wait for lane in plan.program["predict"].lanes for e in lane)
    spot = plan.placement["predict.a.y"].offset
    assert codes(check(graph, edit_value(plan, "predict.b.y", offset=spot))) == {"SP1423"}
    assert check(graph, edit_value(plan, "predict.c.y", offset=spot)) == []
    # Half a value further, slice 0 of c writes where slice 1 of a does.
    plan = edit_pool(plan, arena=plan.pools[0].arena + 512, capacity=plan.pools[0].capacity + 512)
    end = plan.pools[0].arena
    plan = edit_value(edit_value(plan, "predict.a.y", offset=end - 512), "predict.c.y", offset=end - 384)
    assert codes(check(graph, plan)) == {"SP1423"}


def test_no_waits_at_all() -> None:
    found = check(GRAPH, bare(PLAN))
    assert {"SP1414", "SP1416", "SP1423"} <= codes(found)


def bare(plan: Plan) -> Plan:
    """The plan without a single wait."""
    lanes = tuple(tuple(Entry(run=e.run) for e in lane) for lane in plan.program[STEP].lanes)
    return edit_program(plan, STEP, lanes=lanes)


# -- lanes, pools, numbers -------------------------------------------------------------------------------------------
def test_lanes() -> None:
    shifted = PLAN.model_copy(update={"lanes": (Lane(id=1, cpu=0), Lane(id=2, cpu=1))})
    fewer = PLAN.model_copy(update={"lanes": PLAN.lanes[:1]})
    assert codes(check(GRAPH, shifted)) == {"SP1426"}
    assert codes(check(GRAPH, fewer)) == {"SP1426"}


def test_processors() -> None:
    together = PLAN.model_copy(update={"lanes": (Lane(id=0, cpu=1), Lane(id=1, cpu=1))})
    assert codes(check(GRAPH, together)) == {"SP1427"}
    absent = on_target(PLAN.model_copy(update={"lanes": (Lane(id=0, cpu=0), Lane(id=1, cpu=7))}))
    assert codes(check(GRAPH, absent)) == set()
    assert codes(check(GRAPH, absent, load_target("cpu2"))) == {"SP1427"}


def test_pools() -> None:
    pool = PLAN.pools[0]
    twice = PLAN.model_copy(update={"pools": (pool, pool)})
    assert codes(check(GRAPH, twice)) == {"SP1428"}
    assert "SP1428" in codes(check(GRAPH, PLAN.model_copy(update={"pools": ()})))
    large = on_target(edit_pool(PLAN, capacity=2**50))
    assert codes(check(GRAPH, large)) == set()
    assert codes(check(GRAPH, large, load_target("cpu2"))) == {"SP1428"}
    other = on_target(PLAN.model_copy(update={"pools": (pool, PoolUse(name="moon", capacity=1, arena=0))}))
    assert codes(check(GRAPH, other, load_target("cpu2"))) == {"SP1428"}


def test_stated_peak() -> None:
    arena = PLAN.pools[0].arena
    assert codes(check(GRAPH, edit_program(PLAN, STEP, peak_bytes=arena + 1))) == {"SP1429"}
    assert codes(check(GRAPH, edit_program(PLAN, STEP, peak_bytes=0))) == {"SP1429"}
    persistent = sum(v.type.bytes for v in GRAPH.values if v.name)
    found = check(GRAPH, edit_program(PLAN, "predict", peak_bytes=persistent))
    assert codes(found) == {"SP1429"}
    alive = int(found[0].message.split(": ")[1].split()[0])
    assert persistent < alive <= arena
    assert check(GRAPH, edit_program(PLAN, "predict", peak_bytes=alive)) == []


@pytest.mark.parametrize("number", [2**60, 2**63, 2**64, 10**400])
def test_numbers_too_large_to_compute_with(number: int) -> None:
    assert "SP1431" in codes(check(GRAPH, edit_pool(PLAN, arena=number, capacity=number)))
    assert "SP1431" in codes(check(GRAPH, edit_node(PLAN, STEP, "conv1", facts={"packed_bytes": number})))
    assert "SP1419" in codes(check(GRAPH, edit_value(PLAN, "bn1.y", offset=number)))
    assert "SP1429" in codes(check(GRAPH, edit_program(PLAN, STEP, peak_bytes=number)))


def test_values_too_large_to_compute_with() -> None:
    b = GraphBuilder("vast")
    (y,) = b.op("relu", [b.input("x", TensorType(shape=(2**40, 2**40)))])
    graph = b.finish_inference(y)
    plan = PLAN.model_copy(update={"graph_hash": graph_hash(graph)})
    assert codes(check(graph, plan)) == {"SP1431"}


def test_facts_that_an_op_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    for method in ("dims", "stage_count", "scratch", "accesses"):
        with monkeypatch.context() as patch:
            patch.setattr(Conv2d, method, refuse)
            assert codes(check(GRAPH, PLAN)) == {"SP1432"}


def test_an_op_that_reaches_beyond_its_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    def beyond(*_: object) -> tuple[Access, ...]:
        return (reads("in0", 0, 10**9),)

    monkeypatch.setattr(Conv2d, "accesses", beyond)
    assert codes(check(GRAPH, PLAN)) == {"SP1432"}


def test_too_many_lanes() -> None:
    lanes = tuple(Lane(id=i, cpu=i) for i in range(5000))
    assert "SP1433" in codes(check(GRAPH, PLAN.model_copy(update={"lanes": lanes})))
    many = edit_program(PLAN, STEP, lanes=(*PLAN.program[STEP].lanes, *((),) * 5000))
    assert "SP1433" in codes(check(GRAPH, many))


# -- reports ---------------------------------------------------------------------------------------------------------
def test_many_findings_of_a_kind_are_counted() -> None:
    found = check(GRAPH, bare(PLAN))
    for code in codes(found):
        assert sum(f.code == code for f in found) <= 9
    assert any("more like these" in f.message for f in found)


def test_messages_are_short_and_printable() -> None:
    hostile = "\x1b[31m\n" + "a" * 10_000
    plan = edit_value(edit_program(PLAN, STEP, name=hostile), "bn1.y", value=hostile)
    for finding in check(GRAPH, plan):
        assert len(finding.text()) < 1000
        assert finding.text().replace("\n  fix", "").isprintable()


def test_require_safe_raises_the_first_findings() -> None:
    with pytest.raises(UserError, match="SP1413") as caught:
        require_safe(GRAPH, rewait(PLAN, "conv1/0#0", ("conv1/1#0",)))
    assert caught.value.code == "SP1413"
    nodes = tuple(n for n in PLAN.program[STEP].nodes if not n.node.startswith("bn"))
    with pytest.raises(UserError, match=r"SP1406(.|\n)*and \d+ more"):
        require_safe(GRAPH, edit_program(PLAN, STEP, nodes=nodes))


def test_every_code_is_documented() -> None:
    pages = "".join(p.read_text() for p in Path("docs").glob("errors*.md"))
    for code in FIXES:
        assert f"## {code}" in pages


# -- tensors that come in an order of their own ------------------------------------------------------------------------
def patchwork(a_waits: tuple[str, ...]) -> tuple[Graph, Plan]:
    """z's second half lies where first x and then a lie, and z's first half is written before a is.

    lane 0: x, x2 (reads x)        lane 1: z#0, a, a2 (reads a)        lane 2: z#1 after x2 and a2
    """
    b = GraphBuilder("patchwork")
    made = {}
    for name, size in (("x", 32), ("z", 64), ("a", 32)):
        source = b.input(f"{name}_in", TensorType(shape=(size,)))
        (made[name],) = b.op("relu", [source], name=name)
    ends = [b.op("relu", [made[name]], name=f"{name}2")[0] for name in ("x", "a")]
    program = Program(name="run", nodes=tuple(b.nodes), inputs=tuple(b.inputs), outputs=(*ends, made["z"]))
    graph = Graph(name="patchwork", values=tuple(b.values.values()), programs=(program,))
    plan = make(graph, Choices(lanes=3, reuse=False, inplace=False, slices=1))
    plan = edit_node(plan, "run", "z", slices=2)
    lanes = [
        [Entry(run="x/0#0"), Entry(run="x2/0#0")],
        [Entry(run="z/0#0"), Entry(run="a/0#0", wait=a_waits), Entry(run="a2/0#0")],
        [Entry(run="z/0#1", wait=("x2/0#0", "a2/0#0"))],
    ]
    plan = edit_lanes(plan, "run", lanes)
    half = plan.placement["z.y"].offset + 128
    return graph, edit_value(edit_value(plan, "x.y", offset=half), "a.y", offset=half)


def test_a_tensor_may_come_before_one_that_began_earlier() -> None:
    assert check(*patchwork(("x2/0#0",))) == []


def test_but_not_unordered_to_those_before_that() -> None:
    found = check(*patchwork(()))
    assert codes(found) == {"SP1423"}
    assert "value x.y" in found[0].message
    assert "value a.y" in found[0].message


def test_a_tensor_that_is_not_written_completely_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """x, then z around both x and a, then a: z writes only before and behind the bytes that x and a have in common."""

    def around(_: Relu, signature: Signature, mode: Mode, stage: int, index: int, facts: object) -> tuple[Access, ...]:
        size = signature.outputs[0].elements
        edges = (writes("out0", 0, 16), writes("out0", 48, 64)) if size == 64 else (writes("out0", 0, size),)
        return (reads("in0", 0, size), *edges)

    monkeypatch.setattr(Relu, "accesses", around)
    graph, plan = patchwork(())
    middle = plan.placement["z.y"].offset + 64
    plan = edit_value(edit_value(edit_node(plan, "run", "z", slices=1), "x.y", offset=middle), "a.y", offset=middle)
    x, z, a, x2, a2 = (Entry(run=f"{n}/0#0") for n in ("x", "z", "a", "x2", "a2"))
    lanes = [[x, x2], [z], [a, a2]]
    (found,) = check(graph, edit_lanes(plan, "run", lanes))
    assert found.code == "SP1423"
    assert "x.y" in found.message and "a.y" in found.message
    lanes[2][0] = a.model_copy(update={"wait": (x2.run,)})
    assert check(graph, edit_lanes(plan, "run", lanes)) == []


def test_writes_of_different_widths_to_one_value() -> None:
    """A first update in one slice, a second in four: all four must wait for the one."""
    b = GraphBuilder("twice")
    gradient = b.input("g", TensorType(shape=(64,)))
    w = b.parameter("w", (64,), Init(kind="zeros"))
    for name in ("first", "second"):
        b.op("sgd_update", [gradient], SgdAttrs(lr=0.1), name=name, updates=[w], phase="update")
    program = Program(name="run", nodes=tuple(b.nodes), inputs=("g",), outputs=())
    graph = Graph(name="twice", values=tuple(b.values.values()), programs=(program,))
    plan = make(graph, Choices(lanes=4))
    plan = edit_node(plan, "run", "first", slices=1)
    for careless in range(4):
        lanes = [[Entry(run="first/0#0")], [], [], []]
        for i in range(4):
            wait = () if i == careless else ("first/0#0",)
            lanes[(i + 1) % 3 + 1].append(Entry(run=f"second/0#{i}", wait=wait))
        # On one lane with others, the careless slice must come first to learn nothing from them.
        lanes = [sorted(lane, key=lambda e: e.wait != ()) for lane in lanes]
        found = check(graph, edit_lanes(plan, "run", lanes))
        assert [f.code for f in found] == ["SP1415"]
        assert f"second/0#{careless} " in found[0].message


def test_columns_of_a_matrix_are_apart() -> None:
    """Slices that own columns meet in no byte, although their hulls do."""
    b = GraphBuilder("columns")
    x = b.input("x", TensorType(shape=(4, 8)))
    w = b.parameter("w", (32, 8), Init(kind="zeros"))
    (y,) = b.op("linear", [x, w], name="y")
    (dw,) = b.op("linear_backward_weights", [x, y], name="dw", phase="backward")
    program = Program(name="run", nodes=tuple(b.nodes), inputs=("x",), outputs=(dw,))
    graph = Graph(name="columns", values=tuple(b.values.values()), programs=(program,))
    plan = make(graph)
    for node in ("y", "dw"):
        assert ("onednn", "columns") in op_named(graph.program["run"].node[node].op).dims(
            signature_of(graph, graph.program["run"].node[node])
        )
    plan = edit_node(plan, "run", "y", kernel="onednn", dim="columns", slices=2, facts={}, stage_ns=(1,))
    plan = edit_node(plan, "run", "dw", kernel="onednn", dim="columns", slices=2, stage_ns=(1,))
    lanes = [[Entry(run=f"y/0#{i}"), Entry(run=f"dw/0#{i}")] for i in range(2)]
    assert check(graph, edit_lanes(plan, "run", lanes)) == []
    lanes = [[Entry(run=f"y/0#{i}"), Entry(run=f"dw/0#{1 - i}")] for i in range(2)]
    assert codes(check(graph, edit_lanes(plan, "run", lanes))) == {"SP1414"}


def test_in_place_goes_through_the_operand_that_the_op_names() -> None:
    """bn(x) + x may overwrite the residual, but here that is also what it normalises."""
    b = GraphBuilder("self")
    (h,) = b.op("relu", [b.input("x", TensorType(shape=(4, 8)))], name="h")
    y = batch_norm(b, h, "bn", "relu", residual=h)
    program = Program(name="run", nodes=tuple(b.nodes), inputs=("x",), outputs=(y,))
    graph = Graph(name="self", values=tuple(b.values.values()), programs=(program,))
    plan = make(graph, Choices(lanes=1, reuse=False, inplace=False))
    plan = edit_value(plan, y, offset=plan.placement[h].offset, shares=h)
    assert codes(check(graph, plan)) == {"SP1425"}


def test_readers_of_a_view_and_of_its_source_need_no_order() -> None:
    b = GraphBuilder("views")
    (h,) = b.op("relu", [b.input("x", TensorType(shape=(4, 32)))], name="h")
    (view,) = b.op("reshape", [h], ReshapeAttrs(shape=(128,)), name="view")
    ends = [b.op("relu", [v], name=n)[0] for n, v in (("left", h), ("right", view))]
    program = Program(name="run", nodes=tuple(b.nodes), inputs=("x",), outputs=tuple(ends))
    graph = Graph(name="views", values=tuple(b.values.values()), programs=(program,))
    plan = make(graph, Choices(reuse=False, inplace=False, slices=1))
    h_, left, right = (Entry(run=f"{n}/0#0") for n in ("h", "left", "right"))
    together = edit_lanes(plan, "run", [[h_, left], [right.model_copy(update={"wait": (h_.run,)})]])
    assert check(graph, together) == []
    assert codes(check(graph, edit_lanes(plan, "run", [[h_, left], [right]]))) == {"SP1414"}


def test_a_value_is_the_same_view_in_every_program() -> None:
    """Else what one program protects, another could overwrite under the same name."""
    b = GraphBuilder("two")
    x = b.input("x", TensorType(shape=(4,)))
    w = b.parameter("w", (4,), Init(kind="zeros"))
    (y,) = b.op("reshape", [w], ReshapeAttrs(shape=(2, 2)), name="y")
    view = Program(name="view", nodes=tuple(b.nodes), inputs=(), outputs=(y,))
    (z,) = b.op("reshape", [x], ReshapeAttrs(shape=(2, 2)), name="z")
    other = b.nodes[-1].model_copy(update={"outputs": (y,)})
    write = Program(name="write", nodes=(other,), inputs=("x",), outputs=(y,))
    graph = Graph(name="two", values=tuple(v for v in b.values.values() if v.id != z), programs=(view, write))
    (found,) = check(graph, PLAN.model_copy(update={"graph_hash": graph_hash(graph)}))
    assert found.code == "SP1403"
    assert "y.y is a view of w" in found.message
