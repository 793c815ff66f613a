"""Co-running nodes at every event, as published (Liu et al., figure 4): the plan's and a real run's in one picture."""

from collections.abc import Mapping, Sequence

from planner.report.chart import Chart, Curve, staircase, step_ticks, svg, vertical_ticks
from planner.report.events import Row, co_running, events
from planner.report.pictures import colours

_MOST_LABELS = 25


def events_picture(title: str, figures: Mapping[str, Sequence[Row]]) -> str:
    """SVG like the published figure: event after event to the right, nodes that run upwards, a curve per figure."""
    series = {name: [e.running for e in events(rows)] for name, rows in figures.items()}
    fill = colours(series)
    count = max((len(s) for s in series.values()), default=0) or 1
    most = max((n for s in series.values() for n in s), default=0) or 1
    # The first one dashed and on top: where the curves agree, both can be seen.
    curves = [
        Curve(n, fill[n], staircase([r / most for r in s], count), dashed=not i)
        for i, (n, s) in enumerate(series.items())
    ]
    chart = Chart(
        title=title,
        x_label="event: a node starts or ends",
        left_label="nodes",
        right_label="",
        curves=tuple(curves[::-1]),
        bars=(),
        bottom=step_ticks(count, _MOST_LABELS),
        left=vertical_ticks(most, min(most, 10)),
        right=(),
        legend=tuple((f"{n}: {co_running(figures[n]).text()}", fill[n]) for n in series),
    )
    return svg(chart)
