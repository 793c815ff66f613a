"""Where rectangles go in the HTML page's two pictures: lanes over time, and arena bytes over steps.

Only geometry, in drawing units; colours are chosen here too, because both pictures and the legend share them.
"""

from collections.abc import Iterable, Sequence
from math import floor, gcd, log10
from typing import NamedTuple

from planner.graph.model import Graph
from planner.plan.lifetimes import Block, peak_place
from planner.plan.schema import Plan, ProgramPlan
from planner.plan.simulate import Timeline
from planner.report.table import block_role
from planner.units import format_bytes, format_ns

WIDTH = 1600.0
LANE = 22.0
ARENA_HEIGHT = 560.0
MOST_SHAPES = 12_000
"""A page with more rectangles than that is slow to open."""


class Shape(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str


class Legend(NamedTuple):
    name: str
    fill: str


class Tick(NamedTuple):
    x: float
    text: str


class Picture(NamedTuple):
    width: float
    height: float
    shapes: tuple[Shape, ...]
    legend: tuple[Legend, ...]
    note: str
    """What the picture leaves out; empty when it has everything."""
    ticks: tuple[Tick, ...] = ()
    """Of the axis below it; the first is at the left edge."""
    mark: float | None = None
    """Where a vertical line stands out."""


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour per name. Hues are spread evenly over the circle, each in two or three shades where there are many:
    names that follow each other in the alphabet (an op and its backward) are often neighbours in a picture, so they
    differ by a third of the circle and not by one step."""
    unique = sorted(set(names))
    shades = _SHADES[: 1 + (len(unique) > 8) + (len(unique) > 16)]
    hues = max(1, -(-len(unique) // len(shades)))
    stride = next(s for s in range(max(1, hues // 3), hues + 1) if gcd(s, hues) == 1)
    return {
        n: f"hsl({360 * (i * stride % hues) // hues} {shades[i // hues][0]}% {shades[i // hues][1]}%)"
        for i, n in enumerate(unique)
    }


_SHADES = ((65, 62), (55, 38), (75, 82))
"""(saturation, lightness) in percent."""


def op_colours(graph: Graph) -> dict[str, str]:
    """One colour per op for all programs of a graph, so that their pictures can be compared."""
    return colours(n.op for p in graph.programs for n in p.nodes)


def lane_picture(program: ProgramPlan, graph: Graph, timeline: Timeline) -> Picture:
    """Every lane a row, every slice a rectangle. Slices too narrow to see are drawn as one grey rectangle per run of
    neighbours."""
    ops = {n.id: n.op for n in graph.program[program.name].nodes}
    fill = op_colours(graph)
    total = timeline.total_ns or 1.0
    narrow = max(0.4, WIDTH * timeline.lanes / MOST_SHAPES)
    shapes: list[Shape] = []
    merged = 0
    run: list[tuple[float, float, int]] = []

    def flush() -> None:
        nonlocal merged
        if run:
            start, end, lane = run[0][0], run[-1][1], run[0][2]
            title = f"{len(run)} short slices, {format_ns(sum(e - s for s, e, _ in run))}"
            shapes.append(_slice(start, end, lane, total, "#999", title))
            merged += len(run)
            run.clear()

    for name, lane, start, end in timeline.rows():
        node = name.rpartition("/")[0]
        small = (end - start) / total * WIDTH < narrow
        # A gap that would be visible, or another lane, ends a run of narrow slices.
        if run and (not small or lane != run[-1][2] or (start - run[-1][1]) / total * WIDTH >= narrow):
            flush()
        if small:
            run.append((start, end, lane))
            continue
        op = ops.get(node, "unknown")
        title = f"{name} ({op}) {format_ns(start)} .. {format_ns(end)}, {format_ns(end - start)}"
        shapes.append(_slice(start, end, lane, total, fill.get(op, "#bbb"), title))
    flush()
    used = {ops[n.node] for n in program.nodes if n.stage_ns and n.node in ops}
    legend = tuple(Legend(op, fill[op]) for op in sorted(used))
    note = f"{merged} slices are too short to tell apart and are drawn grey, in runs" if merged else ""
    return Picture(WIDTH, LANE * max(1, timeline.lanes), tuple(shapes), legend, note, _time_ticks(timeline.total_ns))


def _time_ticks(total: float) -> tuple[Tick, ...]:
    """At round times (1, 2 or 5 times a power of ten), some five to ten of them."""
    if total <= 0:
        return ()
    power: float = 10 ** floor(log10(total / 5))
    step = next(power * n for n in (5, 2, 1) if power * n <= total / 5)
    return tuple(Tick(round(i * step / total * WIDTH, 2), format_ns(i * step)) for i in range(int(total / step) + 1))


def _slice(start: float, end: float, lane: int, total: float, fill: str, title: str) -> Shape:
    x, width = start / total * WIDTH, (end - start) / total * WIDTH
    return Shape(round(x, 2), lane * LANE + 1, round(max(width, 0.1), 2), LANE - 2, fill, title)


def arena_picture(plan: Plan, program: ProgramPlan, graph: Graph, found: Sequence[Block]) -> Picture:
    """The arena from offset 0 at the bottom, one column per node in the order of the schedule; a block is a rectangle
    from the node that first uses it to the last one."""
    arena = max([p.arena for p in plan.pools[:1]] + [b.end for b in found] + [1])
    steps = max(1, len(program.nodes))
    roles = [block_role(b, graph) for b in found]
    fill = colours(roles)
    # What covers most of the picture comes first, so that what is left out is what nobody would see.
    ranked = sorted(zip(found, roles, strict=True), key=lambda p: (-p[0].bytes * (p[0].last - p[0].first + 1), p[0].id))
    shapes = []
    for block, role in ranked[:MOST_SHAPES]:
        x = block.first / steps * WIDTH
        width = (block.last - block.first + 1) / steps * WIDTH
        height = block.bytes / arena * ARENA_HEIGHT
        y = ARENA_HEIGHT - (block.offset + block.bytes) / arena * ARENA_HEIGHT
        inside = f", with {', '.join(block.members[1:])}" if len(block.members) > 1 else ""
        life = "always" if block.always else f"nodes {block.first} .. {block.last}"
        title = f"{block.id} ({role}) {format_bytes(block.bytes)} at {block.offset}, {life}{inside}"
        shapes.append(Shape(round(x, 2), round(y, 2), round(width, 2), round(max(height, 0.05), 2), fill[role], title))
    left = len(ranked) - len(shapes)
    legend = tuple(Legend(r, fill[r]) for r in sorted(set(roles)))
    note = f"{left} smaller blocks are left out" if left > 0 else ""
    every = max(1, -(-steps // 10))
    ticks = tuple(Tick(round(i / steps * WIDTH, 2), str(i)) for i in range(0, steps, every))
    peak = round((peak_place(tuple(found))[0] + 0.5) / steps * WIDTH, 2) if found else None
    return Picture(WIDTH, ARENA_HEIGHT, tuple(shapes), legend, note, ticks, peak)
