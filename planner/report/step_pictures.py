"""Memory of one plan's steps as PNG pictures; a step is a node, in the order of the plan.

- `memory_picture`: bytes in use at every step, with what the same order would need if less were done (SuperNeurons,
  figure 10): every value kept for the whole step, then every value only as long as it is read, then the plan itself;
- `workspace_picture`: at every step the bytes that all but scratch leaves, and the scratch within them (figure 12);
- `arena_picture`: where in the arena every block lies, from its first step to its last.
"""

from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb

import numpy as np
import numpy.typing as npt

from planner.graph.model import Graph
from planner.plan.expand import expanded
from planner.plan.lifetimes import blocks, in_first_pool
from planner.plan.schema import Plan, ProgramPlan
from planner.report.raster import BLACK, GREY, Colour, Raster
from planner.report.table import block_role
from planner.units import align

Ints = npt.NDArray[np.int64]

WIDTH, HEIGHT = 1400, 760
LEFT, RIGHT, TOP = 110, 1360, 70
LEGEND_ROW = 22
MIB = 2**20
TICKS = 5


def memory_stages(graph: Graph, plan: Plan, program: ProgramPlan) -> dict[str, Ints]:
    """Bytes in use at every step: `all kept`, `liveness` (nothing shared, run again or moved) and `plan`.

    The first two count the graph's own values and this plan's scratch.
    """
    steps = {n.node: at for at, n in enumerate(program.nodes)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for node in graph.program[program.name].nodes:
        for value in (*node.reads, *node.writes):
            first[value] = min(steps[node.id], first.get(value, len(steps)))
            last[value] = max(steps[node.id], last.get(value, 0))
    last.update(dict.fromkeys(graph.program[program.name].outputs, max(0, len(steps) - 1)))
    found = in_first_pool(blocks(expanded(graph, plan), plan, program.name), plan)
    always = {v for b in found if b.always for v in b.members}
    fixed = sum(align(b.bytes) for b in found if b.always)
    scratch = np.array([n.scratch_bytes for n in program.nodes], np.int64)
    views = {v for v, p in plan.placement.items() if p.shares and p.bytes == 0}
    own = {v: align(graph.value[v].type.bytes) for v in first if v not in always and v not in views}
    kept = np.full(len(steps), sum(own.values()) + fixed, np.int64) + scratch
    live = _levels([(first[v], last[v], size) for v, size in own.items()], len(steps)) + fixed + scratch
    return {
        "all kept": kept,
        "liveness": live,
        "plan": _levels([(b.first, b.last, align(b.bytes)) for b in found], len(steps)),
    }


def free_and_scratch(graph: Graph, plan: Plan, program: ProgramPlan) -> tuple[Ints, Ints]:
    """At every step: bytes that all but scratch leaves of the room (`room_of`), and scratch."""
    found = in_first_pool(blocks(expanded(graph, plan), plan, program.name), plan)
    functional = [(b.first, b.last, align(b.bytes)) for b in found if not b.id.startswith("scratch:")]
    scratch = np.array([n.scratch_bytes for n in program.nodes], np.int64)
    return room_of(plan) - _levels(functional, len(program.nodes)), scratch


def room_of(plan: Plan) -> int:
    """The memory budget where it is near; else the arena, which is all that this plan asks for."""
    pool = plan.pools[0]
    return pool.capacity if pool.capacity < 1.25 * pool.arena else pool.arena


def memory_picture(graph: Graph, plan: Plan, program: ProgramPlan) -> bytes:
    curves = memory_stages(graph, plan, program)
    colours = dict(zip(curves, _colours(len(curves)), strict=True))
    top = max([room_of(plan), *(int(c.max(initial=0)) for c in curves.values())])
    legend = {f"{name}: peak {int(c.max(initial=0)) / MIB:.1f} MIB": colours[name] for name, c in curves.items()}
    chart = _Chart(f"{program.name}: bytes in use", len(program.nodes), top, {**legend, _room(plan): BLACK})
    for name, curve in curves.items():
        chart.staircase(curve, colours[name])
    chart.level(room_of(plan))
    return chart.picture.png()


def workspace_picture(graph: Graph, plan: Plan, program: ProgramPlan) -> bytes:
    free, scratch = free_and_scratch(graph, plan, program)
    pale, dark = (205, 222, 205), (190, 60, 40)
    used = f"{int((scratch > 0).sum())} of {len(scratch)} steps"
    legend = {
        f"free: {int(free.min(initial=room_of(plan))) / MIB:.1f} MIB at least": pale,
        f"scratch: {int(scratch.max(initial=0)) / MIB:.1f} MIB at most. {used}": dark,
    }
    title = f"{program.name}: free bytes and scratch"
    chart = _Chart(title, len(scratch), max(int(free.max(initial=0)), int(scratch.max(initial=0))), legend)
    for at in range(len(scratch)):
        chart.box(at, at + 1, 0, int(free[at]), pale)
        chart.box(at, at + 1, 0, int(scratch[at]), dark)
    return chart.picture.png()


def arena_picture(graph: Graph, plan: Plan, program: ProgramPlan) -> bytes:
    bigger = expanded(graph, plan)
    found = in_first_pool(blocks(bigger, plan, program.name), plan)
    roles = {b.id: block_role(b, bigger) for b in found}
    names = sorted(set(roles.values()))
    colours = dict(zip(names, _colours(len(names)), strict=True))
    top = max([plan.pools[0].arena, *(b.end for b in found)])
    chart = _Chart(f"{program.name}: arena, {len(found)} blocks", len(program.nodes), top, colours)
    for block in found:
        chart.box(block.first, block.last + 1, block.offset, block.end, colours[roles[block.id]], edge=True)
    return chart.picture.png()


PICTURES = {"memory": memory_picture, "workspaces": workspace_picture, "arena": arena_picture}


def step_pictures(graph: Graph, plan: Plan) -> dict[str, bytes]:
    """File name -> PNG: all pictures of every program that has nodes."""
    several = sum(bool(p.nodes) for p in plan.programs) > 1
    return {
        f"{name}_{program.name}.png" if several else f"{name}.png": draw(graph, plan, program)
        for program in plan.programs
        if program.nodes
        for name, draw in PICTURES.items()
    }


def _levels(spans: Sequence[tuple[int, int, int]], steps: int) -> Ints:
    """(first, last, bytes) added up at every step."""
    change = np.zeros(steps + 1, np.int64)
    for first, last, size in spans:
        change[first] += size
        change[last + 1] -= size
    return np.cumsum(change)[:steps]


def _room(plan: Plan) -> str:
    kind = "arena" if room_of(plan) == plan.pools[0].arena else "budget"
    return f"{kind}: {room_of(plan) / MIB:.1f} MIB"


def _colours(count: int) -> list[Colour]:
    """Evenly around the circle, dark and light in turns."""
    found: list[Colour] = []
    for index in range(count):
        red, green, blue = hls_to_rgb(0.58 + index / max(1, count), (0.42, 0.62)[index % 2], 0.6)
        found.append((round(255 * red), round(255 * green), round(255 * blue)))
    return found


class _Chart:
    """Axes (steps to the right, MiB upwards) and a legend below."""

    def __init__(self, title: str, steps: int, top: int, legend: Mapping[str, Colour]) -> None:
        self.bottom = HEIGHT - 80 - LEGEND_ROW * len(legend)
        self.steps, self.top = max(1, steps), max(1, top)
        self.picture = Raster(WIDTH, HEIGHT)
        self.picture.text(LEFT, 20, title.replace("_", " "), scale=3)
        self.picture.text(8, TOP - 26, "MIB")
        for i in range(TICKS + 1):
            y = self._y(self.top * i / TICKS)
            self.picture.line(LEFT, y, RIGHT, y, GREY, 1)
            self.picture.text(8, round(y) - 5, f"{self.top * i / TICKS / MIB:.4g}")
        for step in range(0, self.steps + 1, max(1, self.steps // 10)):
            self.picture.line(self._x(step), self.bottom, self._x(step), self.bottom + 5, BLACK, 1)
            self.picture.text(round(self._x(step)) - 8, self.bottom + 12, str(step))
        self.picture.text((LEFT + RIGHT) // 2 - 16, self.bottom + 32, "step")
        for row, (name, colour) in enumerate(legend.items()):
            y = self.bottom + 56 + LEGEND_ROW * row
            self.picture.box(LEFT, y, 14, 14, colour)
            self.picture.text(LEFT + 24, y + 2, name.replace("_", " "))

    def _x(self, step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / self.steps

    def _y(self, size: float) -> float:
        return self.bottom - (self.bottom - TOP) * size / self.top

    def box(self, first: int, end: int, low: int, high: int, colour: Colour, edge: bool = False) -> None:
        """At least one dot where there is anything; `edge` darkens its outline where it is large enough."""
        left, right = round(self._x(first)), round(self._x(end))
        top, bottom = round(self._y(high)), round(self._y(low))
        width, height = max(1, right - left), max(int(high > low), bottom - top)
        if edge and width > 3 and height > 3:
            red, green, blue = colour
            self.picture.box(left, top, width, height, (red * 2 // 3, green * 2 // 3, blue * 2 // 3))
            left, top, width, height = left + 1, top + 1, width - 1, height - 1
        self.picture.box(left, top, width, height, colour)

    def staircase(self, sizes: Ints, colour: Colour) -> None:
        before = self._y(int(sizes[0])) if len(sizes) else 0.0
        for step, size in enumerate(sizes):
            y, left, right = self._y(int(size)), round(self._x(step)), round(self._x(step + 1))
            self.picture.box(left, round(min(y, before)), 2, round(abs(y - before)) + 2, colour)
            self.picture.box(left, round(y), max(2, right - left), 2, colour)
            before = y

    def level(self, size: int) -> None:
        for x in range(LEFT, RIGHT, 12):
            self.picture.box(x, round(self._y(size)), 6, 1, BLACK)
