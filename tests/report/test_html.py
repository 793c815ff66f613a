"""The page: complete, self-contained, and safe whatever the names are."""

import re
from html.parser import HTMLParser
from itertools import pairwise

from planner.plan.lifetimes import blocks, peak_place
from planner.plan.schema import Bounds, Entry, NodePlan, ProgramPlan, slice_name
from planner.plan.simulate import simulate
from planner.report.html import html_page
from planner.report.pictures import ARENA_HEIGHT, MOST_SHAPES, WIDTH, arena_picture, colours, lane_picture
from tests.plan.example import small_plan
from tests.report.hostile import NASTY, hostile

VOID = {"meta", "rect", "line", "br"}


class Page(HTMLParser):
    """Checks that tags close in order; collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag in ("rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page() -> None:
    graph, plan, _ = small_plan()
    text = html_page(plan, graph)
    assert text == html_page(plan, graph)
    page = Page(text)
    for word in ("small on cpu2", "train_step", "predict", "conv1.backward_weights", "model.py:12 conv2"):
        assert word in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 4
    rows = sum(tag == "tr" for tag, _ in page.tags)
    assert rows > sum(len(p.nodes) for p in plan.programs)


def test_the_page_loads_nothing() -> None:
    graph, plan, _ = small_plan()
    page = Page(html_page(plan, graph))
    assert not [a for _, a in page.tags if "src" in a or "href" in a]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'")


def test_hostile_names_are_only_text() -> None:
    graph, plan = hostile()
    text = html_page(plan, graph)
    page = Page(text)
    assert not [t for t, _ in page.tags if t == "img"]
    assert sum(t == "script" for t, _ in page.tags) == 1
    assert "evil.example" in page.text
    assert text.isascii() and "\x1b" not in text
    assert NASTY not in text


def test_lanes_are_drawn_to_scale() -> None:
    graph, plan, _ = small_plan()
    program = plan.program["train_step"]
    timeline = simulate(program)
    picture = lane_picture(program, graph, timeline)
    assert len(picture.shapes) == len(timeline.slices) and not picture.note
    first = picture.shapes[0]
    assert first.x == 0
    assert abs(first.width - timeline.end_ns[0] / timeline.total_ns * WIDTH) < 0.01
    assert max(s.x + s.width for s in picture.shapes) <= WIDTH + 0.1
    assert {entry.name for entry in picture.legend} >= {"conv2d", "sgd_update"}


def test_the_arena_is_drawn_to_scale() -> None:
    graph, plan, _ = small_plan()
    program = plan.program["train_step"]
    picture = arena_picture(plan, program, graph, blocks(graph, plan, "train_step"))
    for i, a in enumerate(picture.shapes):
        assert a.y >= -0.01 and a.y + a.height <= ARENA_HEIGHT + 0.01
        for b in picture.shapes[:i]:
            apart = 0.02  # coordinates are rounded to 0.01
            over_x = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            over_y = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert over_x < apart or over_y < 0.05 + apart


def test_a_large_program_stays_small() -> None:
    graph, _, _ = small_plan()
    count, lanes = 8000, 16
    nodes = tuple(NodePlan(node=f"n{i}", kernel="k", dim="d", slices=lanes, stage_ns=(100,)) for i in range(count))
    entries = tuple(tuple(Entry(run=slice_name(n.node, 0, i)) for n in nodes) for i in range(lanes))
    bounds = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)
    program = ProgramPlan(name="train_step", nodes=nodes, lanes=entries, predicted_ns=1, peak_bytes=0, bounds=bounds)
    picture = lane_picture(program, graph, simulate(program))
    # Every slice is 0.2 units wide: too narrow, so that each lane is one run.
    assert len(picture.shapes) == lanes <= MOST_SHAPES
    assert "128000 slices are too short" in picture.note
    assert re.match(r"8000 short slices, 800.00 us", picture.shapes[0].title)


def test_an_op_has_one_colour_in_all_programs() -> None:
    graph, plan, _ = small_plan()
    legends = [dict(lane_picture(p, graph, simulate(p)).legend) for p in plan.programs]
    common = set(legends[0]) & set(legends[1])
    assert "conv2d" in common and all(legends[0][op] == legends[1][op] for op in common)


def test_colours_can_be_told_apart() -> None:
    """Different ones, and names next to each other in the alphabet are far apart on the circle of hues, or in shade."""
    for count in (1, 2, 3, 7, 8, 9, 16, 17, 24, 40):
        names = [f"op{i:02}" for i in range(count)]
        found = colours(names)
        assert len(set(found.values())) == count
        values = [[int(n) for n in re.findall(r"\d+", found[name])] for name in names]
        for (hue, _, light), (other, _, shade) in pairwise(values):
            assert min((hue - other) % 360, (other - hue) % 360) >= 45 or light != shade


def test_axes() -> None:
    graph, plan, _ = small_plan()
    program = plan.program["train_step"]
    timeline = simulate(program)
    ticks = lane_picture(program, graph, timeline).ticks
    assert ticks[0] == (0, "0 ns") and 5 <= len(ticks) <= 11 and all(a.x < b.x <= WIDTH for a, b in pairwise(ticks))
    arena = arena_picture(plan, program, graph, blocks(graph, plan, program.name))
    assert arena.ticks[0] == (0, "0") and len(arena.ticks) <= 11
    place, _ = peak_place(blocks(graph, plan, program.name))
    assert arena.mark is not None and place <= arena.mark / WIDTH * len(program.nodes) <= place + 1
    page = Page(html_page(plan, graph))
    assert sum(tag == "line" for tag, _ in page.tags) == len(plan.programs)


def test_an_origin_that_the_name_says_is_left_out() -> None:
    graph, plan, _ = small_plan()
    assert "model.py:12 conv2" in html_page(plan, graph)
    programs = []
    for p in graph.programs:
        origins = [n.id.removeprefix("predict.").partition(".")[0] for n in p.nodes]
        nodes = (n.model_copy(update={"origin": o}) for n, o in zip(p.nodes, origins, strict=True))
        programs.append(p.model_copy(update={"nodes": tuple(nodes)}))
    plain = html_page(plan, graph.model_copy(update={"programs": tuple(programs)}))
    assert "<th>origin</th>" not in plain
