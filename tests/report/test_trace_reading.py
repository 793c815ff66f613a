"""Traces of real runs, read back: every run whole, and nothing that is no trace of the plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import UserError
from planner.plan.simulate import simulate
from planner.report.perfetto import measured_trace, perfetto_trace
from planner.report.trace_reading import read_runs
from tests.plan.example import small_plan

GRAPH, PLAN, _ = small_plan()
PROGRAM = PLAN.program["train_step"]
Rows = list[tuple[str, int, float, float]]


def run(seed: int, start: float) -> Rows:
    return [(n, lane, a + start, b + start) for n, lane, a, b in simulate(PROGRAM, noise=0.3, seed=seed).rows()]


def written(tmp_path: Path, rows: Rows) -> Path:
    file = tmp_path / "run.json"
    file.write_text(measured_trace(PLAN, GRAPH, {"train_step": rows, "predict": []}))
    return file


def test_runs_come_back_one_by_one(tmp_path: Path) -> None:
    first, second = run(1, 5e6), run(2, 9e6)
    found = read_runs(written(tmp_path, first + second), PLAN, "train_step")
    assert len(found) == 2
    for rows, told in zip(found, (first, second), strict=True):
        assert {(r[0], r[1]) for r in rows} == {(r[0], r[1]) for r in told}
        times = {r[0]: (r[2] + 5e6, r[3] + 5e6) for r in rows}
        assert all(times[n] == pytest.approx((a, b), abs=1) for n, _, a, b in told)


def broken(**changes: Any) -> str:
    """A trace whose first slice has other fields."""
    document = json.loads(measured_trace(PLAN, GRAPH, {"train_step": run(1, 0)}))
    next(e for e in document["traceEvents"] if e["ph"] == "X").update(changes)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"traceEvents": 3}',
        '{"traceEvents": [{"name": 1}]}',
        perfetto_trace(PLAN, GRAPH),  # planned, not measured
        measured_trace(PLAN, GRAPH, {"train_step": run(1, 0)[:-1]}),
        broken(ts="soon"),
        broken(name="../other"),
        broken(args=[]),
    ],
)
def test_what_is_no_run_of_the_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(UserError, match="SP1704"):
        read_runs(file, PLAN, "train_step")
