"""Co-running nodes at every event, by hand."""

from planner.report.events import Event, co_running, events, events_text

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
    assert events_text(ROWS).splitlines()[:3] == ["time_ns,running", "0,1", "5,2"]


def test_nothing_ran() -> None:
    assert events([]) == [] and co_running([]).mean == 0.0
