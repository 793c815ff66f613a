"""`check` on deadlocks and dependencies, and on tensors that come in an order of their own."""

import pytest

from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Init, Program, TensorType
from planner.graph.text import graph_hash
from planner.ops import op_named
from planner.ops.activation import Relu
from planner.ops.base import Access, Mode, Signature, reads, writes
from planner.ops.optimizer import SgdAttrs
from planner.ops.shape import ReshapeAttrs
from planner.plan.check import check
from planner.plan.schema import Entry, Plan
from tests.graphs import batch_norm
from tests.plan.mutations import (
    edit_lanes,
    edit_node,
    edit_value,
    find,
    lanes_of,
)
from tests.plan.plans import GRAPH, PLAN, ROOMY, STEP, codes, rewait, without
from tests.plan.reference import Choices, make, signature_of


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


@pytest.mark.parametrize("at", [0, -1])
def test_a_slice_that_waits_for_itself(at: int) -> None:
    """Also where it is the only one that never starts, and where it is the first of all."""
    for lane in lanes_of(PLAN, STEP):
        run = lane[at].run
        (found,) = check(GRAPH, rewait(PLAN, run, (*lane[at].wait, run)))
        assert found.code == "SP1413" and found.message == f"deadlock: {run} waits for {run}"


def test_reading_before_it_is_written() -> None:
    lanes = lanes_of(ROOMY, STEP)
    i, j = find(lanes, "maxpool/0#1")
    lanes[0].insert(0, lanes[i].pop(j).model_copy(update={"wait": ()}))
    found = check(GRAPH, edit_lanes(ROOMY, STEP, lanes))
    assert "SP1414" in codes(found)
    messages = [f.message for f in found]
    assert any(
        "maxpool/0#1 reads value bn2.y although lane order and waits put it before bn2/1#" in m for m in messages
    )


def test_updating_a_parameter_that_is_still_read() -> None:
    """conv2.backward_data packs conv2.weight; the update must come after."""
    lanes = lanes_of(ROOMY, STEP)
    i, j = find(lanes, "conv2.weight.update/0#0")
    update = lanes[i].pop(j)
    i, j = find(lanes, "conv2.backward_data/0#0")
    lanes[i].insert(j, update.model_copy(update={"wait": ("conv2.backward_weights/1#1",)}))
    found = check(GRAPH, edit_lanes(ROOMY, STEP, lanes))
    assert codes(found) == {"SP1415"}
    message = "changes value conv2.weight in place although lane 0 runs it before conv2.backward_data/0#0"
    assert any(f"{message}, which reads it first" in f.message for f in found)


def test_stages_of_one_node_meet() -> None:
    run = "bn1/1#0"
    found = check(GRAPH, without(ROOMY, run, "bn1/0"))
    assert codes(found) == {"SP1416"}
    assert "scratch part partial of node bn1" in found[0].message


def test_waits_for_whole_stages() -> None:
    """As good as waits for what is needed of the stages, of three lanes each; without them something is missed."""
    plan = make(GRAPH, Choices(lanes=3))
    waiting = [e for lane in plan.program[STEP].lanes for e in lane if len({w.split("#")[0] for w in e.wait}) == 1]
    assert len(waiting) > 30
    for entry in waiting[::6]:
        stage = entry.wait[0].split("#")[0]
        assert check(GRAPH, rewait(plan, entry.run, (f"{stage}#*",))) == []
        assert check(GRAPH, rewait(plan, entry.run, ()))
        assert check(GRAPH, rewait(plan, entry.run, ("conv1/0#*",))) or stage == "conv1/0"


def test_whole_stages_that_are_not_there() -> None:
    last = lanes_of(PLAN, STEP)[0][-1]
    for stage in ("conv1/7#*", "nobody/0#*", "flat/0#*"):
        assert codes(check(GRAPH, rewait(PLAN, last.run, (*last.wait, stage)))) == {"SP1412"}


def test_a_deadlock_of_a_whole_stage() -> None:
    (found,) = check(GRAPH, rewait(PLAN, "conv1/0#0", ("conv1/1#*",)))
    assert found.code == "SP1413"
    assert "conv1/0#0 waits for conv1/1#" in found.message


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
