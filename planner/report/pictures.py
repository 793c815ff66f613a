"""Where rectangles go in the HTML page's two pictures: lanes over time, and arena bytes over steps.

Only geometry, in drawing units; colours are chosen here too, because both pictures and the legend share them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.graph.model import Graph
from planner.plan.lifetimes import Block
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


class Picture(NamedTuple):
    width: float
    height: float
    shapes: tuple[Shape, ...]
    legend: tuple[Legend, ...]
    note: str
    """What the picture leaves out; empty when it has everything."""


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour per name, spread evenly over the circle of hues in the names' order."""
    unique = sorted(set(names))
    return {
        n: f"hsl({360 * i // len(unique)} {65 if i % 2 else 45}% {58 if i % 3 else 68}%)" for i, n in enumerate(unique)
    }


def lane_picture(program: ProgramPlan, graph: Graph, timeline: Timeline) -> Picture:
    """Every lane a row, every slice a rectangle. Slices too narrow to see are drawn as one grey rectangle per run of
    neighbours."""
    ops = {n.id: n.op for n in graph.program[program.name].nodes}
    fill = colours(list(ops.values()))
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
    return Picture(WIDTH, LANE * max(1, timeline.lanes), tuple(shapes), legend, note)


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
    return Picture(
        WIDTH, ARENA_HEIGHT, tuple(shapes), legend, f"{left} smaller blocks are left out" if left > 0 else ""
    )
