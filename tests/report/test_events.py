"""Co-running nodes at every event, by hand."""

import re
import xml.etree.ElementTree as ET

from planner.report.chart import HEIGHT
from planner.report.event_pictures import events_picture
from planner.report.events import Event, co_running, events, events_text

SVG = "{http://www.w3.org/2000/svg}"

ROWS = [
    ("a/0#0", 0, 0.0, 10.0),
    ("a/0#1", 1, 0.0, 12.0),
    ("b/0#0", 2, 5.0, 8.0),
    ("c/0#0", 1, 12.0, 20.0),
    ("c/1#0", 1, 20.0, 25.0),
]


def test_by_hand() -> None:
    assert events(ROWS) == [Event(0, 1), Event(5, 2), Event(8, 1), Event(12, 0), Event(12, 1), Event(25, 0)]
    found = co_running(ROWS)
    assert (found.events, found.most, found.nodes, found.beside) == (6, 2, 3, 2)
    assert found.mean == 5 / 6


def test_never_more_nodes_than_lanes() -> None:
    """Lane 1, held up, begins its slice of `a` when lane 0 is through with `b` already; `d` takes no time."""
    rows = [
        ("a/0#0", 0, 0.0, 4.0),
        ("b/0#0", 0, 4.0, 9.0),
        ("a/0#1", 1, 10.0, 15.0),
        ("d/0#0", 0, 12.0, 12.0),
        ("c/0#0", 0, 12.0, 20.0),
    ]
    assert [(e.time_ns, e.running) for e in events(rows)] == [
        (0, 1), (4, 1), (9, 0), (12, 2), (12, 1), (12, 2), (15, 1), (20, 0)
    ]  # fmt: skip
    assert co_running(rows).beside == 3


def test_planned_and_measured_in_one_table_and_one_picture() -> None:
    later = [(name, lane, start + 100, end + 100) for name, lane, start, end in ROWS]
    lines = events_text({"planned": ROWS, "measured": later}).splitlines()
    assert lines[:3] == ["of,event,time_ns,running", "planned,1,0,1", "planned,2,5,2"]
    assert lines[7:] == [line.replace("planned", "measured") for line in lines[1:7]]
    page = ET.fromstring(events_picture("two", {"planned": ROWS, "measured": later}))
    curves = {p.find(f"{SVG}title").text: p.get("d", "") for p in page.iter(f"{SVG}path")}  # type: ignore[union-attr]
    assert set(curves) == {"planned", "measured"} and curves["planned"] == curves["measured"]
    heights = [float(n) for n in re.findall(r" (-?\d+\.\d+)", curves["planned"])][::2]
    assert heights == [HEIGHT * (1 - running / 2) for running in (1, 2, 1, 0, 1, 0)]
    assert "0.83 nodes run at once" in "".join(t.text or "" for t in page.iter(f"{SVG}text"))


def test_nothing_ran() -> None:
    assert events([]) == [] and co_running([]).mean == 0.0
    ET.fromstring(events_picture("nothing", {"planned": []}))
