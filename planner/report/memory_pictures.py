"""Pictures of memory over the steps of a training iteration, as SVG files of their own.

- `stages_picture`: bytes of every stage overlaid, live tensors dashed (SuperNeurons, figure 10);
- `workspace_picture`: per convolution the free bytes and what its workspace takes of them (figure 12).

Names come from graphs of strangers; the template engine escapes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.report.chart import HEIGHT, WIDTH, Bar, Chart, Curve, Tick, staircase, step_ticks, svg, vertical_ticks
from planner.report.pictures import colours
from planner.solve.superneurons.layer_accounting import Profile

MB = 2**20
_MOST_LABELS = 50


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
        curves.append(Curve(p.stage, fill[p.stage], staircase([s.bytes / top for s in p.steps], count), False))
        tensors = [s.tensors / most for s in p.steps]
        curves.append(Curve(f"{p.stage}, live tensors", fill[p.stage], staircase(tensors, count), True))
    legend = tuple((f"{p.stage} (peak {p.peak.bytes / MB:.3f} MB, {p.peak.layer})", fill[p.stage]) for p in profiles)
    chart = Chart(
        title=title,
        x_label="step",
        left_label="MB",
        right_label="live tensors",
        curves=tuple(curves),
        bars=(),
        bottom=step_ticks(count, _MOST_LABELS),
        left=vertical_ticks(top / MB),
        right=vertical_ticks(most),
        legend=legend,
    )
    return svg(chart)


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
    return svg(Chart(title, "convolution", "MB", "", (), tuple(shapes), bottom, vertical_ticks(top / MB), (), legend))
