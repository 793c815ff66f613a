"""`check` accepts sound plans and names what is wrong with others: identity, completeness, numbers, reports."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, TensorType
from planner.graph.text import graph_hash
from planner.ops.base import Access, op_named, reads
from planner.ops.conv import Conv2d
from planner.ops.normalization import BatchNorm
from planner.ops.streaming import STREAMED_FAMILIES, STREAMS
from planner.plan.check import check, require_safe
from planner.plan.findings import FIXES
from planner.plan.schema import Crossed, Entry, Lane, PoolUse
from planner.target.text import load_target
from tests.plan.mutations import (
    edit_lanes,
    edit_node,
    edit_pool,
    edit_program,
    edit_value,
    lanes_of,
)
from tests.plan.plans import GRAPH, PLAN, STEP, bare, codes, on_target, rewait, without
from tests.plan.reference import Choices, make


# -- sound plans -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
def test_sound_plans_pass(lanes: int, barrier: bool, reuse: bool) -> None:
    plan = make(GRAPH, Choices(lanes=lanes, barrier=barrier, reuse=reuse, inplace=reuse))
    assert check(GRAPH, plan) == []
    require_safe(GRAPH, plan)


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
    (found,) = check(GRAPH, PLAN, load_target("cpu2"))
    assert "not cpu2" in found.message
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


@pytest.mark.parametrize(
    "change", [{"kernel": "magic"}, {"dim": "moon"}, {"dim": "moon", "slices": 1}, {"slices": 5}, {"slices": 10**40}]
)
def test_modes(change: dict[str, object]) -> None:
    (found,) = check(GRAPH, edit_node(PLAN, STEP, "conv1", **change))
    assert found.code == "SP1407"
    assert "onednn/batch in up to 4" in found.message


def test_schedules_of_loops() -> None:
    """One that the op has is as good as the plain one."""
    loop = next(n.id for n in GRAPH.program[STEP].nodes if op_named(n.op).family in STREAMED_FAMILIES)
    assert not check(GRAPH, edit_node(PLAN, STEP, loop, implementation=STREAMS[0]))
    (found,) = check(GRAPH, edit_node(PLAN, STEP, loop, implementation="stream:7"))
    assert found.code == "SP1407"
    assert "stream:128" in found.message


def test_stages() -> None:
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "conv1", stage_ns=(5,)))) == {"SP1408"}
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "flat", stage_ns=(5,)))) == {"SP1408"}
    crossed = (Crossed(fetched=64, reclaimed=0),) * 5
    assert codes(check(GRAPH, edit_node(PLAN, STEP, "conv1", crossed=crossed))) == {"SP1408"}
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


def test_one_mistake_hides_no_other() -> None:
    """Values on each other's bytes are found in a plan whose lanes share a processor."""
    overlap = edit_value(PLAN, "bn1.y", offset=PLAN.placement["conv1.y"].offset, shares="")
    lanes = (Lane(id=0, cpu=1), Lane(id=1, cpu=1))
    alone = codes(check(GRAPH, overlap))
    assert "SP1423" in alone
    assert codes(check(GRAPH, overlap.model_copy(update={"lanes": lanes}))) == alone | {"SP1427"}


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


def test_scratch_that_a_slice_only_reads_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shares of a part lie is the op's business: what a slice reads there, another may not be done with."""
    declared = BatchNorm.accesses

    def read_alone(self: BatchNorm, signature: Any, mode: Any, stage: int, index: int, facts: Any) -> Any:
        found = declared(self, signature, mode, stage, index, facts)
        return tuple(a._replace(write=a.write and not (index and a.operand == "partial")) for a in found)

    early = without(PLAN, "bn2/0#1", "conv2/1#0")  # which uses scratch on the same bytes
    for accesses in (declared, read_alone):
        monkeypatch.setattr(BatchNorm, "accesses", accesses)
        assert codes(check(GRAPH, PLAN)) == set()
        assert codes(check(GRAPH, early)) == {"SP1414", "SP1423"}


def test_too_many_lanes() -> None:
    lanes = tuple(Lane(id=i, cpu=i) for i in range(5000))
    assert "SP1433" in codes(check(GRAPH, PLAN.model_copy(update={"lanes": lanes})))
    many = edit_program(PLAN, STEP, lanes=(*PLAN.program[STEP].lanes, *((),) * 5000))
    assert "SP1433" in codes(check(GRAPH, many))


def test_too_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of the larger program have as many entries as it has slices times lanes."""
    slices = max(sum(n.slices * n.stages for n in p.nodes) for p in PLAN.programs)
    monkeypatch.setattr("planner.plan.check_order.CLOCK_ENTRIES", slices * len(PLAN.lanes))
    assert check(GRAPH, PLAN) == []
    monkeypatch.setattr("planner.plan.check_order.CLOCK_ENTRIES", slices * len(PLAN.lanes) - 1)
    (found,) = check(GRAPH, PLAN)
    assert found.code == "SP1433" and f"{slices} slices on {len(PLAN.lanes)} lanes" in found.message


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
