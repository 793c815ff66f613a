"""Traces that executors wrote (`Executor.trace(FILE)`), read back: when each slice of a program's runs ran."""

from collections import Counter
from pathlib import Path
from typing import Any

from planner.artefact import read_json
from planner.errors import UserError
from planner.plan.schema import Plan, slice_name
from planner.report.perfetto import Row, measured_title


def read_runs(path: Path | str, plan: Plan, program: str) -> list[list[Row]]:
    """Every traced run of `program`, as rows of (slice, lane, start ns, end ns).

    SP1701: the file cannot be read. SP1704: it is no trace of this plan's program.
    """
    events = read_json(path, "trace").get("traceEvents")
    try:
        found = _rows(events, measured_title(plan, program))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _unfit(path, f"an event is malformed ({type(error).__name__})") from error
    known = {entry.run for lane in plan.program[program].lanes for entry in lane}
    strange = next((name for name, _, _, _ in found if name not in known), None)
    if strange is not None:
        raise _unfit(path, f"slice {strange!r} is not in the plan")
    # A lane runs the same slices in every run: how often a slice was seen before says in which run this one is.
    seen: Counter[str] = Counter()
    runs: list[list[Row]] = []
    for row in sorted(found, key=lambda r: r[2]):
        if seen[row[0]] == len(runs):
            runs.append([])
        runs[seen[row[0]]].append(row)
        seen[row[0]] += 1
    if not runs or len({len(run) for run in runs}) > 1 or len(runs[0]) < len(known):
        raise _unfit(path, f"it has no complete run of {program}")
    return runs


def _rows(events: Any, title: str) -> list[Row]:
    process = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == title}
    return [
        (
            slice_name(e["name"], int(e["args"]["stage"]), int(e["args"]["slice"])),
            int(e["tid"]) - 1,
            1000 * float(e["ts"]),
            1000 * (float(e["ts"]) + float(e["dur"])),
        )
        for e in events
        if e["ph"] == "X" and e["pid"] in process
    ]


def _unfit(path: Path | str, why: str) -> UserError:
    return UserError(
        "SP1704", f"{path} is no trace of this plan: {why}", "give a file that Executor.trace(FILE) of this plan wrote"
    )
