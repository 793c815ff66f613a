"""A chart with curves and bars as SVG: what figures of memory and of co-running share.

Geometry in drawing units. Names come from files of strangers; the template engine escapes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.report.html import environment

WIDTH, HEIGHT = 1000.0, 420.0
"""Of the drawing area; axes and labels are around it."""
_TICKS = 5


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


def staircase(shares: Sequence[float], count: int) -> str:
    """A path that holds each step's share of the height over the step's width, one of `count`."""
    parts: list[str] = []
    for index, share in enumerate(shares):
        y = round(HEIGHT * (1 - share), 2)
        parts += [f"{'L' if parts else 'M'}{round(index / count * WIDTH, 2)} {y}"]
        parts += [f"L{round((index + 1) / count * WIDTH, 2)} {y}"]
    return " ".join(parts)


def vertical_ticks(top: float, count: int = _TICKS) -> tuple[Tick, ...]:
    """From 0 at the bottom to `top`."""
    return tuple(Tick(HEIGHT * (1 - i / count), f"{top * i / count:.0f}") for i in range(count + 1))


def step_ticks(count: int, most: int) -> tuple[Tick, ...]:
    """The numbers of `count` steps from 1, at most about `most` of them, each in the middle of its step."""
    every = -(-count // most) or 1
    return tuple(Tick((i + 0.5) / count * WIDTH, str(i + 1)) for i in range(0, count, every))


def svg(chart: Chart) -> str:
    return environment().get_template("chart.svg.j2").render(chart=chart, width=WIDTH, height=HEIGHT)
