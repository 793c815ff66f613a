"""Plan differences: what counts as one, what it says, and in which order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import __version__
from planner.errors import UserError
from planner.plan.diff import _moved, diff
from planner.plan.diff_text import render
from planner.plan.schema import Bounds, Entry, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan
from planner.plan.text import plan_text, read_plan
from planner.target.text import load_target, target_hash
from tests.plan.example import small_plan


def node(name: str, slices: int = 1, ns: int = 1000, scratch: int = 0, dim: str = "batch") -> NodePlan:
    return NodePlan(node=name, kernel="onednn", dim=dim, slices=slices, stage_ns=(ns,), scratch_bytes=scratch)


def program(nodes: list[NodePlan], lanes: list[list[str]], predicted: int, peak: int = 4096) -> ProgramPlan:
    """Lanes as lists of `slice < wait < wait`."""
    entries = tuple(tuple(Entry(run=e.split("<")[0], wait=tuple(e.split("<")[1:])) for e in lane) for lane in lanes)
    bounds = Bounds(critical_path_ns=1000, work_ns=0, bandwidth_ns=0)
    return ProgramPlan(
        name="train_step", nodes=tuple(nodes), lanes=entries, predicted_ns=predicted, peak_bytes=peak, bounds=bounds
    )


def plan(part: ProgramPlan, placements: list[Placement] | None = None, **update: object) -> Plan:
    return Plan(
        name="net",
        policy="liu",
        target="cpu2",
        graph_hash="g",
        target_hash="t",
        costs_hash="c",
        pools=(PoolUse(name="dram", capacity=2**20, arena=8192),),
        lanes=(Lane(id=0, cpu=0), Lane(id=1, cpu=1)),
        placements=tuple(placements or ()),
        programs=(part,),
    ).model_copy(update=update)


def place(value: str, offset: int, size: int = 1024, shares: str = "", pool: str = "dram") -> Placement:
    return Placement(value=value, pool=pool, offset=offset, bytes=size, shares=shares)


def before() -> Plan:
    nodes = [node("conv1", 1, 4000), node("pool1", 1, 500), node("fc", 1, 1000, 64), node("old", 1, 700)]
    lanes = [["conv1/0#0", "pool1/0#0", "old/0#0", "fc/0#0"], []]
    return plan(program(nodes, lanes, 6200), [place("x", 0), place("y", 1024), place("z", 2048), place("gone", 4096)])


def after() -> Plan:
    nodes = [node("conv1", 2, 2100), node("fc", 1, 900, 128), node("pool1", 1, 500), node("new", 1, 300)]
    lanes = [["conv1/0#0", "fc/0#0<conv1/0#1", "new/0#0"], ["conv1/0#1", "pool1/0#0<conv1/0#0"]]
    found = plan(
        program(nodes, lanes, 3600, 5120),
        [place("x", 512), place("y", 1024, shares="x"), place("z", 2048, 512)],
        policy="sequential",
    )
    return found


def test_what_changed_in_order_of_effect() -> None:
    found = diff(before(), after())
    (part,) = found.programs
    assert [(s.name, s.before, s.after) for s in found.settings] == [("policy", "liu", "sequential")]
    # conv1: 2100 - 4000 = -1900 ns in another mode; fc keeps its mode, 900 - 1000 = -100 ns, 64 bytes more scratch.
    assert [(c.node, c.delta_ns) for c in part.modes] == [("conv1", -1900)]
    assert [(c.node, c.delta_ns) for c in part.times] == [("fc", -100)]
    assert [(c.node, c.delta_scratch) for c in part.scratch] == [("fc", 64)]
    assert [c.node for c in part.added] == ["new"]
    assert [c.node for c in part.removed] == ["old"]
    # Common nodes: conv1 pool1 fc -> conv1 fc pool1: one of fc and pool1 moved.
    assert len(part.schedule.moved_nodes) == 1
    assert (part.schedule.waits_before, part.schedule.waits_after) == (0, 2)
    assert part.schedule.other_lane == 1  # pool1
    assert part.schedule.changed_waits == 2  # fc and pool1
    assert [(c.value, c.change) for c in found.placement.changes] == [
        ("gone", "removed"),
        ("y", "shares"),
        ("z", "resized"),
    ]
    assert (found.placement.moved, found.placement.moved_bytes) == (1, 1024)  # x


def test_text_starts_with_time_and_memory() -> None:
    text = render(diff(before(), after()))
    lines = text.splitlines()
    assert lines[0] == "plan net"
    # 3600 / 6200 - 1 = -41.9 %, 5120 / 4096 - 1 = +25.0 %
    totals = "train_step 6.20 us -> 3.60 us -41.9 % 4.0 KiB -> 5.0 KiB +25.0 % 1.00 us 0 -> 2"
    assert " ".join(lines[3].split()) == totals
    assert "  conv1  onednn/batch x1 -> x2  4.00 us -> 2.10 us  -1.90 us      0 B" in lines
    assert text.index("settings") < text.index("modes of") < text.index("order of") < text.index("placement")
    assert all(len(line) <= 120 for line in lines)


def test_text_says_what_the_time_went_to() -> None:
    """-2600 ns in all: conv1's mode -1900, fc's time -100, a new node +300, an old one -700; the rest is waiting."""
    text = render(diff(before(), after()))
    parts = "1 mode -1.90 us, 1 time -100 ns, 1 added +300 ns, 1 removed -700 ns, waiting -200 ns"
    assert f"train_step is faster by 2.60 us: {parts}" in " ".join(text.split())


def test_targets_say_what_differs_between_the_machines() -> None:
    one = load_target("cpu16")
    cpu = one.cpu.model_copy(update={"march": "x86-64-v3", "cores": one.cpu.cores[:4]})
    other = one.model_copy(update={"cpu": cpu})
    changed = before().model_copy(update={"target_hash": target_hash(other)})
    found = diff(before(), changed, None, None, one, other)
    named = {s.name: (s.before, s.after) for s in found.settings}
    assert named["march"] == (one.cpu.march, "x86-64-v3") and named["cores"][1].startswith("4, 4 lanes")
    assert "processor" not in named and "caches" not in named


def test_implementations_have_their_own_column() -> None:
    def using(implementation: str) -> Plan:
        one = node("conv1", 2, 4000).model_copy(update={"implementation": implementation})
        return plan(program([one], [["conv1/0#0"], ["conv1/0#1"]], 2000))

    text = render(diff(using("jit:avx2"), using("brgconv:avx512_core")))
    assert "  conv1  onednn/batch x2  jit:avx2 -> brgconv:avx512_core  4.00 us" in text


def test_markdown_and_json() -> None:
    found = diff(before(), after())
    markdown = render(found, "markdown")
    assert markdown.startswith("# plan net\n\n| program | predicted |")
    assert "| conv1 | onednn/batch x1 -\\> x2 |" in markdown
    document = json.loads(render(found, "json"))
    assert document["changed"] is True
    assert document["programs"][0]["modes"][0]["after"]["slices"] == 2
    with pytest.raises(UserError, match="SP1451"):
        render(found, "yaml")


def test_the_same_plan_has_no_difference() -> None:
    graph, plan_, _ = small_plan()
    found = diff(plan_, plan_, graph, graph)
    assert not found.changed
    assert "no difference" in render(found)
    assert json.loads(render(found, "json"))["changed"] is False


def test_a_newer_tool_and_another_cost_table_alone_are_no_difference(tmp_path, monkeypatch) -> None:
    _, first, _ = small_plan()
    (tmp_path / "a.json").write_text(plan_text(first))
    monkeypatch.setattr("planner.plan.text.__version__", __version__ + ".post1")
    second = first.model_copy(update={"costs_hash": "0" * 16})
    (tmp_path / "b.json").write_text(plan_text(second))
    assert (tmp_path / "a.json").read_text() != (tmp_path / "b.json").read_text()
    assert not diff(read_plan(tmp_path / "a.json"), read_plan(tmp_path / "b.json")).changed


@pytest.mark.parametrize(
    "update",
    [
        {"graph_hash": "other"},
        {"target_hash": "other"},
        {"lanes": (Lane(id=0, cpu=0), Lane(id=1, cpu=3))},
        {"pools": (PoolUse(name="dram", capacity=2**20, arena=8256),)},
        {"pools": (PoolUse(name="dram", capacity=2**20 + 64, arena=8192),)},
        {"placements": (place("x", 64),)},
        {"programs": ()},
    ],
)
def test_every_other_field_is_a_difference(update: dict[str, object]) -> None:
    base = plan(program([node("a")], [["a/0#0"], []], 1000), [place("x", 0)])
    assert diff(base, base.model_copy(update=update)).changed
    assert diff(base.model_copy(update=update), base).changed


@pytest.mark.parametrize(
    "other",
    [
        program([node("a"), node("b")], [["b/0#0", "a/0#0"], []], 2000),
        program([node("a"), node("b")], [["a/0#0"], ["b/0#0"]], 2000),
        program([node("a"), node("b")], [["a/0#0", "b/0#0<a/0#0"], []], 2000),
        program([node("b"), node("a")], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b", scratch=64)], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b").model_copy(update={"scratch_offset": 64})], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b").model_copy(update={"facts": {"k": 1}})], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b").model_copy(update={"implementation": "x"})], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b", dim="rows")], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b", ns=999)], [["a/0#0", "b/0#0"], []], 2000),
        program([node("a"), node("b")], [["a/0#0", "b/0#0"], []], 2001),
        program([node("a"), node("b")], [["a/0#0", "b/0#0"], []], 2000, peak=4097),
    ],
)
def test_every_field_of_a_program_is_a_difference(other: ProgramPlan) -> None:
    base = program([node("a"), node("b")], [["a/0#0", "b/0#0"], []], 2000)
    assert diff(plan(base), plan(other)).changed
    assert "no difference" not in render(diff(plan(base), plan(other)))


def test_graphs_name_ops_and_origins() -> None:
    graph, a, _ = small_plan("liu")
    _, b, _ = small_plan("sequential")
    text = render(diff(a, b, graph, graph))
    assert "batch_norm_backward" in text
    found = next(c for p in diff(a, b, graph, graph).programs for c in p.modes if c.node == "bn1")
    assert found.op == "batch_norm"


def test_long_lists_are_cut_and_say_so() -> None:
    count = 30
    nodes = [[node(f"n{i:02}", 1, 1000 + side * i) for i in range(count)] for side in (0, 1)]
    lanes = [[f"n{i:02}/0#0" for i in range(count)], []]
    found = diff(plan(program(nodes[0], lanes, 1)), plan(program(nodes[1], lanes, 1)))
    # n01..n29 changed; the largest 20 are n29..n10, the other nine come to 1 + ... + 9 = 45 ns.
    assert "and 9 more, +45 ns together" in render(found)
    assert "more" not in render(found, limit=29)


def test_names_cannot_break_out_of_the_page() -> None:
    name = "a|b`\x1b[31m\n# x"
    a, b = (plan(program([node(name, n)], [[], []], 1000)) for n in (1, 2))
    text, markdown = render(diff(a, b)), render(diff(a, b), "markdown")
    assert "\x1b" not in text + markdown
    assert "a\\|b\\`\\\\x1b\\[31m\\\\n\\# x" in markdown


@given(st.permutations(list(range(9))))
def test_the_fewest_nodes_move(order: list[int]) -> None:
    before, after = [str(i) for i in range(9)], [str(i) for i in order]
    moved = set(_moved(before, after))
    kept = [n for n in after if n not in moved]
    assert kept == [n for n in before if n not in moved]
    longest = [1] * 9
    for i in range(9):
        longest[i] = 1 + max((longest[j] for j in range(i) if order[j] < order[i]), default=0)
    assert len(kept) == max(longest)


def test_what_is_only_listed_otherwise_is_told() -> None:
    """Another file, from which another executor is made."""
    a = before()
    turned, copying, again = (
        (Lane(id=1, cpu=0), Lane(id=0, cpu=1)),
        (Lane(id=0, cpu=0), Lane(id=1, cpu=1, kind="copy")),
        a.programs[0].model_copy(update={"name": "predict"}),
    )
    both = a.model_copy(update={"programs": (*a.programs, again)})
    for one, other, words in (
        (a, a.model_copy(update={"lanes": turned}), ("numbers of lanes", "0,1", "1,0")),
        (a, a.model_copy(update={"lanes": copying}), ("lanes", "1 core, 1 copy")),
        (a, a.model_copy(update={"placements": a.placements[::-1]}), ("values are listed in another order",)),
        (both, both.model_copy(update={"programs": both.programs[::-1]}), ("order of programs",)),
    ):
        found = diff(one, other)
        assert found.changed and all(w in render(found, form) for w in words for form in ("text", "markdown"))
        assert not diff(other, other).changed
