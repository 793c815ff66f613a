"""`stepplan bench`: an executor against its plan, and side by side with PyTorch.

Everything is a ratio within one run: a contender's steps alternate with the executor's, so a machine that slows down
slows both. Inputs are random every time. Medians; the spread is reported beside them.
"""

import re
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from codegen.contender import WAYS, Contender, Failed, Work, require_torch
from codegen.cuda.bench import bench as bench_gpu
from codegen.cuda.executor import CudaExecutor
from codegen.initial import give_back_memory
from codegen.load import executor_class
from codegen.steps import Step, fastest, floor_ns, in_turn, random_inputs, settled, spread, timed
from planner.bundle import read_bundle
from planner.costs.table import CostTable
from planner.plan.contention import contention_of
from planner.plan.crossing import Crossing, times_at
from planner.plan.schema import Plan, ProgramPlan
from planner.plan.simulate import simulate

WARM_S = 0.05
"""The first few milliseconds of steps are slower than the others, however many steps that are,"""
MEASURED_S = 0.1
"""and what is timed for less than so long says more about one moment than about the step."""


def bench(
    folder: Path | str,
    *,
    against: str | None = None,
    repetitions: int = 10,
    costs: CostTable | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure a built executor. `against="torch"` adds eager and compiled PyTorch in both memory formats, in the
    executor's precision.

    Returns step_ms, predicted_ms, overhead (step / kernels on the busiest lane - 1), memory (bytes the process gained
    against the plan), how the machine runs the lanes (handoff_ns, crossing_ns_per_kib, crowding), the floor where a
    cost table is given, and per contender its milliseconds and the ratio executor / contender (below 1: the executor is
    faster).
    """
    if against == "torch":
        require_torch()
    bundle, made = read_bundle(folder), executor_class(folder)
    if issubclass(made, CudaExecutor):
        return bench_gpu(made, bundle, against=against, repetitions=repetitions, costs=costs, say=say)
    cores = sum(lane.kind == "core" for lane in bundle.plan.lanes)
    inputs = random_inputs(bundle.graph)
    give_back_memory()
    held = anonymous_bytes()
    ex = made(seed=0)

    def step() -> float:
        return ex.step(*inputs)

    say("warming up")
    for _ in range(3):
        step()
    gained = anonymous_bytes() - held
    planned = bundle.plan.pools[0].arena
    lasting(step, 3, WARM_S)
    before, times, after = _state(ex), lasting(step, repetitions, MEASURED_S), _state(ex)
    busiest = busiest_lane(ex, step)
    program = bundle.plan.program["train_step"]
    predicted = program.predicted_ns
    result: dict[str, Any] = {
        "name": bundle.plan.name,
        "target": bundle.plan.target,
        "lanes": cores,
        "step_ms": median(times) / 1e6,
        "spread": spread(times),
        "predicted_ms": predicted / 1e6,
        "measured_over_predicted": median(times) / max(1, predicted),
        "overhead": busiest["step"] / busiest["kernels"] - 1,
        "memory": {"planned_bytes": planned, "gained_bytes": gained, "over": gained - planned},
    }
    crossing = Crossing(*(mean(pair) for pair in zip(before.crossing, after.crossing, strict=True)))
    result |= {
        "handoff_ns": max(before.handoff_ns, after.handoff_ns),
        "crossing_ns_per_kib": crossing._asdict(),
        "planned_reclaim_ns": bundle.plan.sharing.reclaim_ns,
        "crowding": mean((before.crowding, after.crowding)),
        "lanes_share_cores": bool(bundle.plan.sharing.cores),
    }
    if any(node.crossed for node in program.nodes):
        now = predicted_at(bundle.plan, program, crossing)
        result["predicted_now_ms"] = now / 1e6
        result["measured_over_predicted_now"] = median(times) / max(1, now)
    if costs is not None:
        result["profiled_handoff_ns"] = costs.handoff_ns
        result["floor_ms"] = floor_ns(bundle.graph, costs, cores) / 1e6
        result["over_floor"] = result["step_ms"] / result["floor_ms"]
    if against == "torch":
        work = Work(bundle.graph, inputs, ex.state_dict(), cores)
        result |= _against(step, work, repetitions, say)
    ex.close()
    return result


def _against(step: Step, work: Work, repetitions: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Each contender's steps in turn with the executor's. `failed`: what PyTorch cannot compile or run, and why."""
    against: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    for way in WAYS:
        say(f"preparing {way}")
        try:
            with Contender(way, work) as contender:
                say(f"against {way}")
                against[way] = in_turn(partial(settled, step), contender.settled, repetitions)
        except Failed as reason:
            failed[way] = str(reason)
    return {"against": against, **fastest(against)} | ({"failed": failed} if failed else {})


class _State(NamedTuple):
    """How the machine runs the lanes at a moment."""

    handoff_ns: float
    crossing: Crossing
    crowding: float


def _state(ex: Any) -> _State:
    return _State(ex.handoff_ns(), ex.crossing(), ex.crowding())


def lasting(step: Step, repetitions: int, seconds: float) -> list[float]:
    """ns of each call: as many as are asked for, and more until they took so long together."""
    times: list[float] = []
    while len(times) < repetitions or sum(times) < seconds * 1e9:
        times += timed(step, 1)
    return times


def predicted_at(plan: Plan, program: ProgramPlan, crossing: Crossing) -> float:
    """What the plan's prediction, ns, would be with the lanes as near to each other as `crossing` says."""
    contention = contention_of(plan.sharing, program)
    times = times_at(plan, program.name, crossing)
    before, now = (simulate(program, contention=contention, stage_ns=t).total_ns for t in ({}, times))
    return program.predicted_ns - before + now


def anonymous_bytes() -> int:
    """Memory of its own that the process holds now: without pages of files (libraries), which any process shares."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssAnon:\s*(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def busiest_lane(ex: Any, step: Step) -> dict[str, float]:
    """A step's wall time and the time inside kernels on the lane that has most of it, medians over five, ns. Every
    other step is traced: turning the record into Python's objects would count as the executor's time."""
    steps, kernels = [], []
    for _ in range(5):
        ex.trace(on=False)
        steps.append(next(timed(step, 1)))
        ex.trace()
        step()
        lanes: dict[int, float] = {}
        for event in ex.trace_events()[-1]:
            lanes[event.lane] = lanes.get(event.lane, 0.0) + event.end_ns - event.start_ns
        kernels.append(max(lanes.values()))
    ex.trace(on=False)
    return {"step": median(steps), "kernels": median(kernels)}
