"""The plan as text."""

from planner.report.table import node_lines, plan_table, summary_lines
from tests.plan.example import small_plan
from tests.plan.test_diff import node, plan, program
from tests.report.hostile import hostile


def test_summary_by_hand() -> None:
    # Two lanes: conv1 on both for 4000 ns, fc on one for 1000: (2 x 4000 + 1000) / (2 x 6250) = 72 % busy;
    # gap 6250 / 1000 - 1 = 525 %.
    part = program(
        [node("conv1", 2, 4000), node("fc", 1, 1000)], [["conv1/0#0", "fc/0#0<conv1/0#1"], ["conv1/0#1"]], 6250
    )
    assert summary_lines(plan(part)) == [
        "program     predicted    bound  bound by      gap    busy     peak  nodes  slices  waits",
        "----------  ---------  -------  --------  -------  ------  -------  -----  ------  -----",
        "train_step    6.25 us  1.00 us  path      525.0 %  72.0 %  4.0 KiB      2       3      1",
    ]


def test_nodes_are_ranked_by_time() -> None:
    graph, plan_, _ = small_plan()
    part = plan_.program["train_step"]
    lines = node_lines(part, graph, 3)
    slowest = max(part.nodes, key=lambda n: n.predicted_ns)
    assert lines[3].split()[0] == slowest.node
    rest = sorted((n.predicted_ns for n in part.nodes), reverse=True)[3:]
    assert lines[-1].startswith(f"  and {len(part.nodes) - 3} more, {sum(rest) / 1000:.2f} us together")


def test_the_whole_table() -> None:
    for machine in ("cpu2", "cpu16"):
        graph, plan_, _ = small_plan(machine=machine)
        text = plan_table(plan_, graph)
        assert text == plan_table(plan_, graph)
        assert text.isascii()
        assert all(len(line) <= 120 and line == line.rstrip() for line in text.splitlines())
        for word in ("train_step", "predict", "conv1.backward_weights", "memory of train_step at its peak"):
            assert word in text


def test_long_and_hostile_names_stay_on_their_line() -> None:
    graph, plan_ = hostile()
    text = plan_table(plan_, graph)
    assert text.isascii() and "\x1b" not in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_program_without_nodes() -> None:
    graph, plan_, _ = small_plan()
    empty = plan_.programs[0].model_copy(update={"nodes": (), "lanes": ((), ()), "predicted_ns": 0})
    assert "nothing" in plan_table(plan_.model_copy(update={"programs": (empty,)}), graph)
