"""Pictures of memory over the steps of a training iteration, as SVG files of their own.

- `stages_picture`: bytes of every stage overlaid, live tensors dashed (SuperNeurons, figure 10);
- `workspace_picture`: per convolution the free bytes and what its workspace takes of them (figure 12).

Names come from graphs of strangers; the template engine escapes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.report.html import environment
from planner.report.pictures import colours
from planner.solve.layer_accounting import Profile

WIDTH, HEIGHT = 1000.0, 420.0
"""Of the drawing area; axes and labels are around it."""
MB = 2**20
_TICKS = 5
_MOST_LABELS = 50


class Curve(NamedTuple):
    name: str
    colour: str
    path: str
    """An SVG path."""
    dashed: bool


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


class Tick(NamedTuple):
    at: float
    text: str


class Chart(NamedTuple):
    title: str
    x_label: str
    left_label: str
    right_label: str
    """Empty where there is no second axis."""
    curves: tuple[Curve, ...]
    bars: tuple[Bar, ...]
    bottom: tuple[Tick, ...]
    left: tuple[Tick, ...]
    right: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    """(name, colour)"""


class WorkspaceBar(NamedTuple):
    """One convolution at one step."""

    step: str
    free: int
    workspace: int
    algorithm: str


def stages_picture(title: str, profiles: Sequence[Profile]) -> str:
    """One curve of bytes per stage, and one dashed curve of its live tensors."""
    fill = colours([p.stage for p in profiles])
    top = max((s.bytes for p in profiles for s in p.steps), default=0) or 1
    most = max((s.tensors for p in profiles for s in p.steps), default=0) or 1
    count = max((len(p.steps) for p in profiles), default=0) or 1
    curves = []
    for p in profiles:
        curves.append(Curve(p.stage, fill[p.stage], _staircase([s.bytes / top for s in p.steps], count), False))
        tensors = [s.tensors / most for s in p.steps]
        curves.append(Curve(f"{p.stage}, live tensors", fill[p.stage], _staircase(tensors, count), True))
    every = max(1, count // _MOST_LABELS)
    bottom = [Tick((i + 0.5) / count * WIDTH, str(i + 1)) for i in range(0, count, every)]
    legend = tuple((f"{p.stage} (peak {p.peak.bytes / MB:.3f} MB, {p.peak.layer})", fill[p.stage]) for p in profiles)
    chart = Chart(
        title, "step", "MB", "live tensors", tuple(curves), (), tuple(bottom), _ticks(top / MB), _ticks(most), legend
    )
    return _svg(chart)


def workspace_picture(title: str, bars: Sequence[WorkspaceBar]) -> str:
    """Two bars on top of each other per convolution: free bytes, and the workspace within them."""
    fill = colours(["free", "workspace"])
    top = max((b.free for b in bars), default=0) or 1
    width = WIDTH / max(1, len(bars))
    shapes = []
    for index, bar in enumerate(bars):
        note = f"{bar.step}: {bar.algorithm}, {bar.workspace / MB:.1f} of {bar.free / MB:.1f} MB free"
        for kind, size in (("free", bar.free), ("workspace", bar.workspace)):
            height = size / top * HEIGHT
            x = round((index + 0.1) * width, 2)
            shapes.append(Bar(x, round(HEIGHT - height, 2), round(0.8 * width, 2), round(height, 2), fill[kind], note))
    bottom = tuple(Tick((i + 0.5) * width, b.step) for i, b in enumerate(bars))
    legend = tuple((k, fill[k]) for k in ("free", "workspace"))
    return _svg(Chart(title, "convolution", "MB", "", (), tuple(shapes), bottom, _ticks(top / MB), (), legend))


def _staircase(shares: Sequence[float], count: int) -> str:
    """A path that holds each step's share of the height over the step's width."""
    parts: list[str] = []
    for index, share in enumerate(shares):
        y = round(HEIGHT * (1 - share), 2)
        parts += [f"{'L' if parts else 'M'}{round(index / count * WIDTH, 2)} {y}"]
        parts += [f"L{round((index + 1) / count * WIDTH, 2)} {y}"]
    return " ".join(parts)


def _ticks(top: float) -> tuple[Tick, ...]:
    return tuple(Tick(HEIGHT * (1 - i / _TICKS), f"{top * i / _TICKS:.0f}") for i in range(_TICKS + 1))


def _svg(chart: Chart) -> str:
    return environment().get_template("chart.svg.j2").render(chart=chart, width=WIDTH, height=HEIGHT)
