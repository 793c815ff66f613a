"""`check` on placements, shares, and values that take turns on the same bytes."""

import pytest

from planner.graph.builder import GraphBuilder
from planner.graph.model import TensorType
from planner.plan.check import check
from tests.plan.mutations import (
    edit_lanes,
    edit_node,
    edit_pool,
    edit_value,
    lanes_of,
)
from tests.plan.plans import GRAPH, PLAN, ROOMY, STEP, bare, codes
from tests.plan.reference import Choices, make


# -- memory ----------------------------------------------------------------------------------------------------------
def test_placements() -> None:
    missing = PLAN.model_copy(update={"placements": tuple(p for p in PLAN.placements if p.value != "bn1.y")})
    twice = PLAN.model_copy(update={"placements": (*PLAN.placements, PLAN.placements[0])})
    stranger = PLAN.placements[0].model_copy(update={"value": "stranger"})
    kept = PLAN.model_copy(update={"keep": ("stranger",)})
    for plan in (missing, twice, kept, PLAN.model_copy(update={"placements": (*PLAN.placements, stranger)})):
        assert codes(check(GRAPH, plan)) == {"SP1417"}


def test_alignment_and_size() -> None:
    at = ROOMY.placement["bn1.y"]
    assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", offset=at.offset + 4))) == {"SP1418"}
    for wrong in (at.bytes - 4, at.bytes + 4):  # an executor takes all that is placed for the value
        assert codes(check(GRAPH, edit_value(ROOMY, "bn1.y", bytes=wrong))) == {"SP1418"}
    for offset in (-64, -4096):  # aligned, but in front of the arena
        assert "SP1418" in codes(check(GRAPH, edit_value(ROOMY, "bn1.y", offset=offset)))
        assert "SP1418" in codes(check(GRAPH, edit_node(ROOMY, STEP, "bn1", scratch_offset=offset)))
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


def test_parameters_do_not_lie_over_each_other() -> None:
    weight, bias = (ROOMY.placement[name] for name in ("fc.weight", "fc.bias"))
    assert weight.bytes > bias.bytes
    for above, below in ((weight, bias), (bias, weight)):
        found = check(GRAPH, edit_value(ROOMY, above.value, offset=below.offset))
        assert any(f.code == "SP1422" and above.value in f.message and below.value in f.message for f in found)
    # And what lies over the longer one's end is found as well.
    assert weight.bytes > 64
    plan = edit_value(ROOMY, "fc.bias", offset=weight.offset)
    plan = edit_value(plan, "predict.fc.y", offset=weight.offset + 64)
    told = [f.message for f in check(GRAPH, plan) if f.code == "SP1422"]
    assert any("predict.fc.y lies over value fc.weight" in message for message in told)


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
    pooled = ROOMY.placement["maxpool.y"].offset
    assert check(GRAPH, edit_value(ROOMY, "loss.loss", offset=pooled)) == [], "what is dead before may lie there"


def test_in_place_over_a_value_that_others_read() -> None:
    """y = relu(x) over x, while another node still reads x."""
    b = GraphBuilder("fork")
    x = b.input("x", TensorType(shape=(64,)))
    (h,) = b.op("relu", [x], name="h")
    (left,) = b.op("relu", [h], name="left")
    (right,) = b.op("relu", [h], name="right")
    (y,) = b.op("add", [left, right], name="y")
    graph = b.finish_inference(y, fuse=False)
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
    assert "in place of value predict.h.y although lane 0 runs it before predict.left/0#0" in found[0].message


def test_slices_may_take_turns_one_by_one() -> None:
    """Slice 0 of a later value follows slice 0 of an earlier one; slice 1 of that may still be busy."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(64,)))
    for name in "abc":
        (x,) = b.op("relu", [x], name=name)
    graph = b.finish_inference(x, fuse=False)
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
