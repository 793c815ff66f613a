"""Explanations of nodes and values."""

import json

import pytest

from planner.costs.table import CostEntry, CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.ops.signature import signature_of
from planner.plan.explain import explain
from planner.plan.schema import Plan
from tests.plan.example import costs, planned, small_graph, small_plan, target


def with_times(node: str, times: dict[tuple[str, int], float], graph: Graph, table: CostTable) -> CostTable:
    """The table with only these (dim, slices) -> ns for one node's signature, half in each stage, warm = cold."""
    found = next(n for p in graph.programs for n in p.nodes if n.id == node)
    text = signature_of(graph, found).text
    old = table.modes(text)[0]
    stages = len(old.warm_ns)
    new = tuple(
        CostEntry(
            signature=text,
            kernel=old.kernel,
            dim=dim,
            slices=slices,
            warm_ns=(ns / stages,) * stages,
            cold_ns=(ns / stages,) * stages,
            facts=old.facts,
        )
        for (dim, slices), ns in times.items()
    )
    return table.model_copy(update={"entries": tuple(e for e in table.entries if e.signature != text) + new})


def setup(
    times: dict[tuple[str, int], float], policy: str = "liu", strategies: tuple[int, ...] = (1,), node: str = "conv2"
) -> tuple[Graph, Plan, CostTable]:
    graph, machine = small_graph(), target()
    table = with_times(node, times, graph, costs(graph, machine))
    return graph, planned(graph, machine, table, policy, strategies), table


def reasons(node: str, graph: Graph, plan: Plan, table: CostTable | None) -> tuple[str, ...]:
    return explain(node, graph, plan, table).nodes[0].reasons


def test_the_fastest_mode() -> None:
    found = reasons("conv2", *setup({("batch", 1): 1000, ("batch", 2): 600}))
    assert found == ("it is the fastest of 2 measured modes",)


def test_the_only_mode() -> None:
    assert reasons("conv2", *setup({("batch", 1): 1000})) == ("it is the only measured mode",)


def test_too_few_lanes() -> None:
    found = reasons("conv2", *setup({("batch", 1): 1000, ("batch", 4): 300}))
    # 300 - 1000 = -700 ns
    assert found == (
        "it is the only measured mode that fits the lanes",
        "the plan has 2 lanes; onednn/batchx4 would change its time by -700 ns",
    )


def test_policy_sequential() -> None:
    found = reasons("conv2", *setup({("batch", 1): 500, ("batch", 2): 600}, "sequential"))
    assert found == (
        "policy sequential gives every node all lanes, or as many as it can use; onednn/batchx1 would take 100 ns less",
    )


def test_strategy_2() -> None:
    # conv1 is the most time-consuming convolution and wants 2 slices; conv2 on its own would take 1.
    found = reasons("conv2", *setup({("batch", 1): 500, ("batch", 2): 600}, strategies=(1, 2)))
    assert found == (
        "strategy 2 gives every conv2d 2 slices, the best count of conv1; onednn/batchx1 would take 100 ns less",
    )


def test_a_view_runs_nothing() -> None:
    graph, plan, table = small_plan()
    found = explain("flatten", graph, plan, table)
    assert found.nodes[0].reasons == ("it is another view of the same bytes: nothing runs",)
    assert "alternatives" not in found.text()


def test_without_a_cost_table_or_with_a_wrong_one() -> None:
    graph, plan, table = small_plan()
    assert reasons("conv1", graph, plan, None) == ("name the cost table (--costs) to compare with the alternatives",)
    other = table.model_copy(update={"entries": ()})
    assert "made from another one" in reasons("conv1", graph, plan, other)[0]


def test_a_node_in_numbers() -> None:
    graph, plan, table = setup({("batch", 1): 1000, ("batch", 2): 600})
    table = table.model_copy(update={"flops": 100e9, "bandwidth": 50e9})
    node = explain("conv2", graph, plan, table).nodes[0]
    assert node.stage_ns == (300, 300)
    # y is 4 x 8 x 8 x 8 = 2048 elements, each 16 multiplications and additions: 65536 operations in 600 ns.
    assert node.flops.per_second == pytest.approx(65536 / 600e-9)
    assert node.flops.peak == 200e9  # two slices on two cores
    assert node.flops.share == pytest.approx(65536 / 600e-9 / 200e9)
    assert node.share == pytest.approx(600 / plan.program["train_step"].predicted_ns)
    assert [(a.mode, a.here_ns, a.chosen) for a in node.alternatives] == [
        ("onednn/batchx2", 600, True),
        ("onednn/batchx1", 1000, False),
    ]
    assert node.end_ns - node.start_ns >= 600
    assert node.lanes == (0, 1)
    assert "bn1" in node.needs
    text = explain("conv2", graph, plan, table).text()
    assert "runs        onednn/batchx2, 300 ns + 300 ns = 600 ns" in text
    assert "onednn/batchx1          1.00 us         +66.7 %" in text  # 1000 / 600 - 1
    assert "from model.py:12 conv2" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_bytes_in_other_caches() -> None:
    """They are in a node's time, but alternatives are compared without them."""
    graph, plan, table = setup({("batch", 1): 1000, ("batch", 2): 600})
    table = table.model_copy(update={"fetch_ns": 20.0, "reclaim_ns": 120.0})
    plan = planned(graph, target(), table, "liu", (1,))
    node = explain("conv2", graph, plan, table).nodes[0]
    assert node.crossing_ns > 0 and sum(node.stage_ns) == 600 + node.crossing_ns
    assert node.reasons == ("it is the fastest of 2 measured modes",)
    assert [(a.mode, a.here_ns) for a in node.alternatives] == [("onednn/batchx2", 600), ("onednn/batchx1", 1000)]
    text = explain("conv2", graph, plan, table).text()
    assert "crossing    " in text and "that another lane wrote last" in text
    assert "onednn/batchx1          1.00 us         +66.7 %" in text


def test_a_value() -> None:
    graph, plan, table = small_plan()
    value = explain("bn1.y", graph, plan, table).values[0]
    # 4 x 16 x 8 x 8 float32
    assert (value.bytes, value.type) == (16384, "f32[4,16,8,8]cl")
    (life,) = value.lives
    assert (life.writer, life.readers[0], life.readers[-1]) == ("bn1", "conv2", "conv2.backward_weights")
    order = [n.node for n in plan.program["train_step"].nodes]
    assert order[life.first] == "bn1"
    assert order[life.last] == "conv2.backward_weights"
    assert "conv2.backward_weights (conv2d_backward_weights, backward) is the last to read it" in life.reason
    assert life.start_ns < life.end_ns
    offsets = plan.placement
    for name in (*life.before, *life.after):
        if name in offsets:
            there, own = offsets[name], offsets["bn1.y"]
            assert there.offset < own.offset + own.bytes and own.offset < there.offset + there.bytes


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("conv1.weight", "a parameter keeps its bytes over all programs"),
        ("bn1.running_mean", "a state keeps its bytes over all programs"),
        ("image", "inputs keep their bytes: whoever calls fills them between steps"),
        ("loss.loss", "train_step returns it"),
        ("fc.y", "a value that took over its bytes is needed until fc.backward_data (linear_backward_data)"),
    ],
)
def test_why_a_value_lives(value: str, reason: str) -> None:
    graph, plan, table = small_plan()
    assert explain(value, graph, plan, table).values[0].lives[0].reason == reason


def test_every_name_can_be_explained() -> None:
    graph, plan, table = small_plan("sequential", "cpu16")
    names = [n.id for p in graph.programs for n in p.nodes] + [v.id for v in graph.values]
    for name in names:
        found = explain(name, graph, plan, table)
        assert found.text()
        json.dumps(found.document())


def test_an_unknown_name() -> None:
    graph, plan, table = small_plan()
    with pytest.raises(UserError, match="SP1450") as caught:
        explain("conv3", graph, plan, table)
    assert "conv1" in caught.value.fix
    for name in ("", "qqqqqq", "\x1b[31m"):
        with pytest.raises(UserError, match="SP1450"):
            explain(name, graph, plan, table)
