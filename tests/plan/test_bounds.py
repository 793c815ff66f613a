"""Lower bounds: arithmetic by hand, and never above what a valid plan is predicted to take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.table import CostEntry, CostTable
from planner.graph.model import Graph, Init, Layout, Node, Program, Role, TensorType, Value
from planner.ops.conv import ConvAttrs
from planner.ops.optimizer import SgdAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.signature import signature_of
from planner.plan.bounds import bounds, least_traffic
from planner.plan.simulate import simulate
from tests.plan.example import costs, planned, small_graph, target

VECTOR = TensorType(shape=(256,))  # 1024 bytes


def chain(length: int) -> Graph:
    """x -> relu -> relu -> ..., and one update of w by the last value."""
    values = [Value(id="x", type=VECTOR, role=Role.INPUT)]
    values += [Value(id="w", type=VECTOR, role=Role.PARAMETER, name="w", init=Init(kind="ones"))]
    nodes = []
    for number in range(length):
        values.append(Value(id=f"v{number}", type=VECTOR, role=Role.ACTIVATION))
        source = f"v{number - 1}" if number else "x"
        nodes.append(Node(id=f"relu{number}", op="relu", inputs=(source,), outputs=(f"v{number}",)))
    last = f"v{length - 1}"
    nodes.append(
        Node(
            id="update",
            op="sgd_update",
            inputs=(last,),
            outputs=(),
            updates=("w",),
            attrs=SgdAttrs(lr=1),
            phase="update",
        )
    )
    program = Program(name="train_step", nodes=tuple(nodes), inputs=("x",), outputs=(last,))
    return Graph(name="chain", values=tuple(values), programs=(program,))


def table(graph: Graph, times: dict[str, dict[int, float]]) -> CostTable:
    """Times by op and slice count, one stage each."""
    entries = {}
    for node in graph.programs[0].nodes:
        for slices, ns in times[node.op].items():
            text = signature_of(graph, node).text
            entries[text, slices] = CostEntry(
                signature=text, kernel="loops", dim="elements", slices=slices, warm_ns=(ns,), cold_ns=(2 * ns,)
            )
    return CostTable(target="t", fingerprint="f", entries=tuple(entries.values()))


def test_by_hand() -> None:
    graph = chain(3)
    measured = table(graph, {"relu": {1: 100, 2: 60.7, 4: 10}, "sgd_update": {1: 50}})
    found = bounds(graph, "train_step", measured, cores=2, bandwidth=1e9)
    # Critical path: 3 relus at their best on at most 2 cores, 60 each (cut to whole ns), then the update: 3 x 60 + 50.
    assert found.critical_path_ns == 230
    # Work: a relu takes min(1 x 100, 2 x 60) of core time: (3 x 100 + 50) / 2.
    assert found.work_ns == 175
    # Bytes: x read, w read and written, v2 written as the output: 4 x 1024, at one byte per ns.
    assert found.bandwidth_ns == 4096
    assert found.best_ns == 4096


def test_a_cache_may_hold_values_from_step_to_step() -> None:
    graph = chain(3)
    measured = table(graph, {"relu": {1: 100}, "sgd_update": {1: 50}})
    # A cache of 1 KiB can save reading and writing back 1 KiB: 4096 - 2 x 1024.
    assert bounds(graph, "train_step", measured, 2, 1e9, cache_bytes=1024).bandwidth_ns == 2048
    assert bounds(graph, "train_step", measured, 2, 1e9, cache_bytes=4096).bandwidth_ns == 0
    assert bounds(graph, "train_step", measured, 2, 0.0).bandwidth_ns == 0


def test_what_was_never_measured_counts_no_time() -> None:
    graph = chain(3)
    found = bounds(graph, "train_step", table(graph, {"relu": {1: 100}, "sgd_update": {}}), 2, 0)
    assert (found.critical_path_ns, found.work_ns) == (300, 150)


def test_what_was_never_measured_waits_all_the_same() -> None:
    """For all that it reads, which nobody may write over before."""
    graph = of_nodes(
        relu("short", "x", "a"),
        relu("long", "a", "b"),
        Node(id="sum", op="add", inputs=("b", "w"), outputs=("y",)),
        updated("update", "x", "w"),
        outputs=("y",),
        **dict.fromkeys("xabwy", VECTOR),
    )
    found = bounds(graph, "train_step", table(graph, {"relu": {1: 100}, "add": {}, "sgd_update": {1: 50}}), 1, 0)
    assert (found.critical_path_ns, found.work_ns) == (100 + 100 + 50, 100 + 100 + 50)


def test_gathered_rows_count_only_what_the_op_moves() -> None:
    graph = chain(1)
    # The update says that it moves 100 bytes of its 1024: w counts 100 read and 100 written; x 1024, v0 1024.
    assert least_traffic(graph, graph.programs[0], {"relu0": 2048, "update": 100}) == 100 + 100 + 1024 + 1024


def test_a_first_stage_need_not_wait_for_inputs_that_it_does_not_read() -> None:
    graph, machine = small_graph(), target()
    measured = costs(graph, machine)
    program = graph.program["predict"]
    by_node = sum(
        min(sum(map(int, e.warm_ns)) for e in measured.modes(signature_of(graph, n).text))
        for n in program.nodes
        if n.op != "reshape"
    )
    conv2 = next(n for n in program.nodes if n.id == "predict.conv2")
    packing = min(int(e.warm_ns[0]) for e in measured.modes(signature_of(graph, conv2).text))
    # predict is a chain but for the layout conversions of the weights, and every product packs its weights first.
    assert bounds(graph, "predict", measured, 2, 0).critical_path_ns <= by_node - packing


IMAGE = TensorType(shape=(2, 4, 8, 8), layout=Layout.CHANNELS_LAST)


def stages_of(graph: Graph, op: str, slices: int, times: tuple[float, ...], facts: dict[str, int]) -> CostEntry:
    node = next(n for n in graph.programs[0].nodes if n.op == op)
    kernel, dim = ("onednn", "batch") if op == "conv2d" else ("loops", "elements")
    text = signature_of(graph, node).text
    return CostEntry(signature=text, kernel=kernel, dim=dim, slices=slices, warm_ns=times, cold_ns=times, facts=facts)


def of_nodes(*nodes: Node, outputs: tuple[str, ...], **types: TensorType) -> Graph:
    """Values whose names begin with w are parameters, those that nobody writes are inputs."""
    made = {v for n in nodes for v in n.outputs}
    values = []
    for name, type_ in types.items():
        kept = name.startswith("w")
        role = Role.PARAMETER if kept else Role.ACTIVATION if name in made else Role.INPUT
        extra = {"name": name, "init": Init(kind="ones")} if kept else {}
        values.append(Value(id=name, type=type_, role=role, **extra))
    inputs = tuple(v.id for v in values if v.role is Role.INPUT)
    program = Program(name="train_step", nodes=nodes, inputs=inputs, outputs=outputs)
    return Graph(name="by_hand", values=tuple(values), programs=(program,))


def updated(name: str, gradient: str, value: str) -> Node:
    return Node(
        id=name, op="sgd_update", inputs=(gradient,), outputs=(), updates=(value,), attrs=SgdAttrs(lr=1), phase="update"
    )


def relu(name: str, source: str, result: str) -> Node:
    return Node(id=name, op="relu", inputs=(source,), outputs=(result,))


def convolved(times: list[tuple[float, ...]], update_ns: int, after_ns: int) -> int:
    """The critical path of an image that is made in 100 ns and convolved, in modes of such stages (two pack weights
    first), while its weights are updated; what is convolved is read."""
    graph = of_nodes(
        relu("image", "x", "v"),
        Node(id="conv", op="conv2d", inputs=("v", "w"), outputs=("y",), attrs=ConvAttrs(padding=(1, 1, 1, 1))),
        Node(id="after", op="sigmoid", inputs=("y",), outputs=("z",)),
        updated("update", "g", "w"),
        outputs=("z",),
        x=IMAGE,
        v=IMAGE,
        y=IMAGE,
        z=IMAGE,
        w=TensorType(shape=(4, 4, 3, 3)),
        g=TensorType(shape=(4, 4, 3, 3)),
    )
    entries = [
        stages_of(graph, "relu", 1, (100,), {}),
        stages_of(graph, "sigmoid", 1, (after_ns,), {}),
        stages_of(graph, "sgd_update", 1, (update_ns,), {}),
    ]
    for number, stages in enumerate(times):
        facts = {"packed_bytes": 576 * (len(stages) - 1), "scratch_bytes": 64 + number}
        entries.append(stages_of(graph, "conv2d", 2, stages, facts))
    measured = CostTable(target="t", fingerprint="f", entries=tuple(entries))
    return bounds(graph, "train_step", measured, 2, 0).critical_path_ns


@pytest.mark.parametrize("other", [[], [(140,)], [(120,)], [(80, 50)], [(90, 60)]])
def test_stages_take_their_operands_one_by_one(other: list[tuple[float, ...]]) -> None:
    """Weights are packed (80 ns) while the image is made (100 ns), then it is convolved (50 ns). They may be updated
    when they are packed. That another mode would read them to the end postpones nothing."""
    assert convolved([(80, 50), *other], update_ns=60, after_ns=70) == 100 + 50 + 70
    assert convolved([(80, 50), *other], update_ns=200, after_ns=70) == 80 + 200


def test_each_end_is_that_of_the_mode_in_which_it_comes_first() -> None:
    """One has convolved sooner, another is done with the weights sooner."""
    assert convolved([(100, 20), (10, 120)], update_ns=200, after_ns=70) == 10 + 200
    assert convolved([(100, 20), (10, 120)], update_ns=60, after_ns=70) == 100 + 20 + 70


def test_updates_wait_for_each_other_and_for_who_reads_what_they_replace() -> None:
    """50 ns, then a read of 100 ns, then twice 50 ns; what was read is over when the last one starts."""
    graph = of_nodes(
        updated("first", "g", "w"),
        relu("read", "w", "y"),
        Node(id="shown", op="reshape", inputs=("y",), outputs=("z",), attrs=ReshapeAttrs(shape=(2, 128))),
        updated("second", "g", "w"),
        updated("third", "g", "w"),
        outputs=("z",),
        w=VECTOR,
        g=VECTOR,
        y=VECTOR,
        z=TensorType(shape=(2, 128)),
    )
    measured = table(graph, {"relu": {1: 100}, "sgd_update": {1: 50}, "reshape": {}})
    assert bounds(graph, "train_step", measured, 2, 0).critical_path_ns == 50 + 100 + 50 + 50


def test_a_view_is_there_when_its_values_are() -> None:
    """And what it shows is written over no earlier; who reads two values waits for the later one."""
    graph = of_nodes(
        relu("short", "x", "a"),
        relu("long", "a", "b"),
        Node(id="shown", op="reshape", inputs=("b",), outputs=("z",), attrs=ReshapeAttrs(shape=(2, 128))),
        Node(id="both", op="add", inputs=("z", "early"), outputs=("y",)),
        Node(id="of_state", op="reshape", inputs=("w",), outputs=("seen",), attrs=ReshapeAttrs(shape=(2, 128))),
        updated("update", "b", "w"),
        outputs=("y", "seen"),
        x=VECTOR,
        a=VECTOR,
        b=VECTOR,
        w=VECTOR,
        z=TensorType(shape=(2, 128)),
        early=TensorType(shape=(2, 128)),
        y=TensorType(shape=(2, 128)),
        seen=TensorType(shape=(2, 128)),
    )
    measured = table(graph, {"relu": {1: 100}, "add": {1: 30}, "sgd_update": {1: 20}, "reshape": {}})
    assert bounds(graph, "train_step", measured, 2, 0).critical_path_ns == 100 + 100 + 30


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["cpu2", "cpu16"]),
    st.sampled_from([("sequential", ()), ("liu", (1,)), ("liu", (1, 2))]),
    st.sampled_from([0.0, 200.0]),
)
def test_no_plan_beats_its_bounds(seed: int, machine: str, policy: tuple[str, tuple[int, ...]], sync: float) -> None:
    graph, hardware = small_graph(), target(machine)
    plan = planned(graph, hardware, costs(graph, hardware, seed), *policy)
    for program in plan.programs:
        total = simulate(program, sync_ns=sync).total_ns
        assert total >= program.bounds.critical_path_ns
        assert total >= program.bounds.work_ns


def test_sixteen_thousand_nodes_are_quick() -> None:
    graph = chain(16000)
    measured = table(graph, {"relu": {s: 100 + s for s in range(1, 17)}, "sgd_update": {1: 50}})
    assert bounds(graph, "train_step", measured, 16, 1e9).critical_path_ns == 16000 * 101 + 50
