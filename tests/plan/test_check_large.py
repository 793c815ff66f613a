"""Large plans: the time grows with the plan, not with its square."""

import time

from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, TensorType
from planner.graph.text import graph_hash
from planner.plan.check import check
from planner.plan.schema import Entry, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan, slice_name
from tests.plan.mutations import edit_lanes, lanes_of
from tests.plan.reference import BOUNDS

LANES = 8


def chain(length: int) -> tuple[Graph, Plan]:
    """A chain of relus in slices that stay on their lanes, so that no lane ever waits; values take turns on three
    buffers, slice by slice."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(16 * LANES,)))
    for index in range(length):
        (x,) = b.op("relu", [x], name=f"n{index}")
    graph = b.finish_inference(x, fuse=False)
    (program,) = graph.programs
    size = graph.value[program.outputs[0]].type.bytes
    place = {"x": 0} | {n.outputs[0]: size * (1 + i % 3) for i, n in enumerate(program.nodes)}
    planned = ProgramPlan(
        name=program.name,
        nodes=tuple(
            NodePlan(node=n.id, kernel="loops", dim="elements", slices=LANES, stage_ns=(1,)) for n in program.nodes
        ),
        lanes=tuple(tuple(Entry(run=slice_name(n.id, 0, i)) for n in program.nodes) for i in range(LANES)),
        predicted_ns=0,
        peak_bytes=4 * size,
        bounds=BOUNDS,
    )
    plan = Plan(
        name="chain",
        policy="test",
        target="",
        graph_hash=graph_hash(graph),
        target_hash="",
        costs_hash="",
        pools=(PoolUse(name="dram", capacity=4 * size, arena=4 * size),),
        lanes=tuple(Lane(id=i, cpu=i) for i in range(LANES)),
        placements=tuple(Placement(value=v, pool="dram", offset=o, bytes=size) for v, o in place.items()),
        programs=(planned,),
    )
    return graph, plan


def test_sixteen_thousand_nodes() -> None:
    """About 4 s of one core; the limit only tells linear from quadratic."""
    graph, plan = chain(16_000)
    start = time.perf_counter()
    assert check(graph, plan) == []
    assert time.perf_counter() - start < 45


def test_one_mistake_among_many() -> None:
    graph, plan = chain(3_000)
    lanes = lanes_of(plan, "predict")
    lanes[3][1500], lanes[3][1501] = lanes[3][1501], lanes[3][1500]
    found = check(graph, edit_lanes(plan, "predict", lanes))
    assert {"SP1414"} <= {f.code for f in found} <= {"SP1414", "SP1423"}
    assert all("n1500" in f.message or "n1501" in f.message for f in found)
