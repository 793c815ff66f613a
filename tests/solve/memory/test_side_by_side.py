"""Nodes side by side within a number of bytes: the example by hand, and whole schedules against lifetimes."""

import random
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.graph.dependencies import dependencies
from planner.graph.model import Graph, Node, Program, Role, TensorType, Value
from planner.ops.base import Mode
from planner.ops.copy import PermuteAttrs
from planner.solve.assemble import Setting
from planner.solve.liveness import liveness
from planner.solve.memory.room import lifetimes
from planner.solve.memory.side_by_side import Work, side_by_side
from planner.solve.offsets import most_alive
from planner.solve.options import PlanOptions
from planner.solve.rewriting import calm
from planner.solve.schedule import Schedule
from planner.solve.scheduling import base_schedules
from planner.solve.threads import Choice
from planner.target.text import load_target
from tests.graphs import random_net

TRAIN = "train_step"
UNIT = 64
TURN = PermuteAttrs(axes=(1, 0))


def chain() -> Graph:
    """d1 makes v1 from x, d2 makes v2 from v1, ...; w1 makes z1 from v1, w2 makes z2 from v2, ... All of a unit, and
    nobody reads z1, z2, z3."""
    square = TensorType(shape=(4, 4))
    nodes, values = [], [Value(id="x", type=square, role=Role.INPUT)]
    for i, before in ((1, "x"), (2, "v1"), (3, "v2")):
        nodes += [
            Node(id=f"d{i}", op="permute", inputs=(before,), outputs=(f"v{i}",), attrs=TURN),
            Node(id=f"w{i}", op="permute", inputs=(f"v{i}",), outputs=(f"z{i}",), attrs=TURN),
        ]
        values += [Value(id=f"{v}{i}", type=square, role=Role.ACTIVATION) for v in "vz"]
    program = Program(name=TRAIN, nodes=tuple(nodes), inputs=("x",), outputs=())
    return Graph(name="chain", values=tuple(values), programs=(program,))


def test_the_example() -> None:
    graph = chain()
    node = graph.program[TRAIN].node
    choices = {n: Choice(Mode("loops", "rows", 1), {}, (5,)) for n in node}
    lean = Schedule(TRAIN, graph.program[TRAIN].nodes, choices, dict.fromkeys(node, (0,)))

    def spans(limit: int) -> dict[str, tuple[float, float]]:
        work = Work(
            graph=graph,
            lean=lean,
            wanted=tuple(node[n] for n in ("d1", "d2", "d3", "w1", "w2", "w3")),
            lives=lifetimes(graph, {TRAIN: lean}, TRAIN, (), ()),
            took=dict.fromkeys(node, 5.0),
            cores=2,
            lanes=2,
        )
        assert work.lives.peak == 3 * UNIT  # x, v1, and z1 or v2
        return dict(side_by_side(work, limit).schedule.spans)

    # Without a limit d3 comes first, and w1 beside it.
    free = spans(10**6)
    assert free == {"d1": (0, 5), "d2": (5, 10), "w1": (5, 10), "d3": (10, 15), "w2": (10, 15), "w3": (15, 20)}
    # x, v1, v2 and z1, then x, v2, v3 and z2: the same starts, but with 5 units w1 could have been left for later.
    assert spans(4 * UNIT) == free
    # w1 and d2 do not fit beside each other: one after the other, as the lean order is.
    alone = spans(3 * UNIT)
    assert list(alone) == ["d1", "w1", "d2", "w2", "d3", "w3"]
    assert max(end for _, end in alone.values()) == 30


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), lanes=st.integers(2, 8), share=st.floats(0, 1))
def test_whole_steps_keep_order_lanes_and_bytes(seed: int, lanes: int, share: float) -> None:
    graph, target = random_net(random.Random(seed)), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=lanes)
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True, lanes=lanes)
    setting = Setting(graph, target, costs, options, lambda text: None)
    given = base_schedules(setting)
    quiet = calm(graph, given)
    lives = lifetimes(graph, quiet, TRAIN, (), ())
    took = {n: float(max(1, c.total_ns)) for n, c in quiet[TRAIN].choices.items() if c.stage_ns}
    work = Work(graph, quiet[TRAIN], given[TRAIN].order, lives, took, lanes, lanes)
    limit = round(lives.peak * (1 + share))
    within = side_by_side(work, limit)
    found = within.schedule
    assert within.least <= limit < within.below
    last = within.least if within.below == inf else int(within.below) - 1
    assert side_by_side(work, within.least) == side_by_side(work, last) == within
    assert sorted(n.id for n in found.order) == sorted(took.keys() | quiet[TRAIN].choices.keys())
    at = {n.id: i for i, n in enumerate(found.order)}
    for node, needed in dependencies(graph, graph.program[TRAIN]).items():
        assert all(at[n] < at[node] for n in needed)
    for node in found.order:
        lanes_of = found.lanes[node.id]
        assert len(set(lanes_of)) == len(lanes_of) == found.choices[node.id].mode.slices
        assert set(lanes_of) <= set(range(lanes))
    starts = [found.spans[n.id][0] for n in found.order]
    assert starts == sorted(starts)
    # What takes over other bytes in place than in the lean order may need some of its own; else the limit holds.
    live, planned = liveness(graph, {**quiet, TRAIN: found}), liveness(graph, quiet)
    others = [v for v, source in planned.shares.items() if live.shares.get(v) != source]
    # The other program, which has no limit here, may need more than the step.
    within_limit = limit + sum(graph.value[v].type.bytes for v in others)
    assert most_alive(live.blocks) <= max(within_limit, most_alive(planned.blocks))


def test_more_bytes_than_the_lean_order_needs_are_never_needed() -> None:
    """The limit may even be less: then nodes run one after the other where it binds, and the lean peak stays."""
    graph, target = random_net(random.Random(5)), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=4)
    options = PlanOptions(policy="liu", strategies=(1, 3), lanes=4)
    given = base_schedules(Setting(graph, target, costs, options, lambda text: None))
    quiet = calm(graph, given)
    lives = lifetimes(graph, quiet, TRAIN, (), ())
    took = {n: float(max(1, c.total_ns)) for n, c in quiet[TRAIN].choices.items() if c.stage_ns}
    work = Work(graph, quiet[TRAIN], given[TRAIN].order, lives, took, 4, 4)
    found = side_by_side(work, 0).schedule
    assert most_alive(liveness(graph, {**quiet, TRAIN: found}).blocks) <= lives.peak
