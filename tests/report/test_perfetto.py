"""Traces: planned, measured, and both in one file."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planner.plan.simulate import simulate
from planner.report.perfetto import compared_trace, measured_trace, perfetto_trace
from tests.plan.example import small_plan
from tests.report.hostile import hostile


def slices(text: str, pid: int) -> list[dict[str, Any]]:
    return [e for e in json.loads(text)["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]


def names(text: str, kind: str) -> dict[tuple[int, int], str]:
    events = json.loads(text)["traceEvents"]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == kind}


def test_the_plan_s_prediction() -> None:
    graph, plan, _ = small_plan()
    text = perfetto_trace(plan, graph)
    assert text == perfetto_trace(plan, graph)
    assert names(text, "process_name") == {(1, 0): "small train_step", (2, 0): "small predict"}
    assert names(text, "thread_name") == {(p, t + 1): f"lane {t}" for p in (1, 2) for t in (0, 1)}
    events = slices(text, 1)
    assert len(events) == sum(map(len, plan.program["train_step"].lanes))
    conv = next(e for e in events if e["name"] == "conv2" and e["args"]["stage"] == 1 and e["args"]["slice"] == 0)
    chosen = plan.program["train_step"].node["conv2"]
    assert conv["args"] == {
        "stage": 1,
        "slice": 0,
        "op": "conv2d",
        "origin": "model.py:12 conv2",
        "mode": "onednn/batchx2",
        "planned_us": chosen.stage_ns[1] / 1000,
    }
    assert conv["dur"] == chosen.stage_ns[1] / 1000
    end = max(e["ts"] + e["dur"] for e in events)
    assert abs(end - simulate(plan.program["train_step"]).total_ns / 1000) < 1e-3


def test_planned_and_measured_side_by_side() -> None:
    graph, plan, _ = small_plan()
    rows = [("conv1/0#0", 0, 5_000_000.0, 5_001_500.0), ("conv1/0#1", 1, 5_000_250.0, 5_002_000.0)]
    text = compared_trace(plan, graph, "train_step", rows)
    assert names(text, "process_name") == {(1, 0): "small train_step planned", (2, 0): "small train_step measured"}
    # The clock starts with the first measured slice: 0 and 250 ns; 1500 and 1750 ns long.
    assert [(e["tid"], e["ts"], e["dur"]) for e in slices(text, 2)] == [(1, 0.0, 1.5), (2, 0.25, 1.75)]
    assert min(e["ts"] for e in slices(text, 1)) == 0


def test_measured_alone() -> None:
    graph, plan, _ = small_plan()
    rows = simulate(plan.program["predict"], noise=0.2, seed=3).rows()
    text = measured_trace(plan, graph, {"predict": rows})
    assert names(text, "process_name") == {(1, 0): "small predict measured"}
    assert len(slices(text, 1)) == len(rows)
    assert json.loads(measured_trace(plan, graph, {"predict": []}))["traceEvents"]


def require_valid(text: str) -> None:
    """The rules of the Chrome trace-event format, and what Perfetto's importer needs besides: slices that do not
    overlap within a thread, in whole nanoseconds; no thread or process 0."""
    document = json.loads(text)
    events = document["traceEvents"]
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    last: dict[tuple[int, int], int] = {}
    times = []
    for event in events:
        assert event["ph"] in ("X", "M") and isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and event["pid"] > 0 and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert not times or event["pid"] > times[-1][0], "names come before what they name"
            continue
        thread = (event["pid"], event["tid"])
        assert thread[1] > 0 and ("thread_name", *thread) in named and ("process_name", thread[0], 0) in named
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["cat"]
        begun, length = event["ts"] * 1000, event["dur"] * 1000
        assert abs(begun - round(begun)) < 1e-3 and abs(length - round(length)) < 1e-3
        assert round(begun) >= last.get(thread, 0), f"{event['name']} is dropped as overlapping"
        last[thread] = round(begun) + round(length)
        times.append((event["pid"], event["ts"]))
    assert times == sorted(times)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1e6), st.floats(0, 1e9)), max_size=60))
def test_traces_follow_the_format(gaps: list[tuple[int, float, float]]) -> None:
    """Slices one right after the other, at any times."""
    graph, plan, _ = small_plan()
    require_valid(perfetto_trace(plan, graph))
    clock, rows = [0.0, 0.0], []
    for lane, gap, length in gaps:
        start = clock[lane] + (gap if gap > 1e5 else 0)
        clock[lane] = start + length
        rows.append(("conv1/0#0", lane, start, clock[lane]))
    require_valid(measured_trace(plan, graph, {"train_step": rows}))
    require_valid(compared_trace(plan, graph, "train_step", rows))


def test_hostile_names_are_only_text() -> None:
    graph, plan = hostile()
    text = perfetto_trace(plan, graph)
    json.loads(text)
    assert text.isascii() and "\x1b" not in text
