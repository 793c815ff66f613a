"""Traces: planned, measured, and both in one file."""

import json
from typing import Any

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
    assert names(text, "process_name") == {(0, 0): "small train_step", (1, 0): "small predict"}
    assert names(text, "thread_name") == {(p, t): f"lane {t}" for p in (0, 1) for t in (0, 1)}
    events = slices(text, 0)
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
    assert names(text, "process_name") == {(0, 0): "small train_step planned", (1, 0): "small train_step measured"}
    # The clock starts with the first measured slice: 0 and 250 ns; 1500 and 1750 ns long.
    assert [(e["tid"], e["ts"], e["dur"]) for e in slices(text, 1)] == [(0, 0.0, 1.5), (1, 0.25, 1.75)]
    assert min(e["ts"] for e in slices(text, 0)) == 0


def test_measured_alone() -> None:
    graph, plan, _ = small_plan()
    rows = simulate(plan.program["predict"], noise=0.2, seed=3).rows()
    text = measured_trace(plan, graph, {"predict": rows})
    assert names(text, "process_name") == {(0, 0): "small predict measured"}
    assert len(slices(text, 0)) == len(rows)
    assert json.loads(measured_trace(plan, graph, {"predict": []}))["traceEvents"]


def test_hostile_names_are_only_text() -> None:
    graph, plan = hostile()
    text = perfetto_trace(plan, graph)
    json.loads(text)
    assert text.isascii() and "\x1b" not in text
