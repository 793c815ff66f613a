"""`stepplan bench`: an executor against its plan, and side by side with PyTorch.

Everything is a ratio within one run: a contender's steps alternate with the executor's, so a machine that slows down
slows both. Inputs are random every time. Medians; the spread is reported beside them.
"""

import gc
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from codegen.cuda.bench import bench as bench_gpu
from codegen.cuda.executor import CudaExecutor
from codegen.initial import give_back_memory
from codegen.load import executor_class
from codegen.steps import Step, fastest, floor_ns, paired, random_inputs, spread, timed
from planner.bundle import read_bundle
from planner.costs.table import CostTable
from planner.graph.model import Graph
from planner.graph.precision import full_precision, is_mixed
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
        result["against"], failed = {}, dict[str, str]()
        for name, contender in torch_contenders(bundle.graph, inputs, ex.state_dict(), cores, say, failed):
            say(f"against {name}")
            result["against"][name] = paired(step, contender, repetitions)
            del contender
            gc.collect()
        result |= fastest(result["against"]) | ({"failed": failed} if failed else {})
    ex.close()
    return result


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


def torch_contenders(
    graph: Graph,
    inputs: list[np.ndarray],
    state: dict[str, Any],
    threads: int,
    say: Callable[[str], None],
    failed: dict[str, str],
) -> Iterator[tuple[str, Step]]:
    """Eager and torch.compile, each in NCHW and channels-last, warmed up, one at a time; of a graph in bfloat16 the
    float32 one under autocast. `failed`: becomes what PyTorch cannot compile, and its own words."""
    import torch

    from codegen.torch_twin import Twin, optimizer_for

    torch.set_num_threads(threads)
    low = is_mixed(graph)
    graph = full_precision(graph) if low else graph

    def forward_of(module: Any, compiled: bool) -> Callable[..., Any]:
        call = torch.compile(module, dynamic=False) if compiled else module  # shapes are what the plan has fixed

        def run(*given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                return call(*given)

        return run

    for compiled in (False, True):
        for format_ in (torch.contiguous_format, torch.channels_last):
            name = f"{'compile' if compiled else 'eager'} {'NCHW' if format_ is torch.contiguous_format else 'NHWC'}"
            say(f"preparing {name}")
            torch._dynamo.reset()
            # One code object runs all parts of a step: at the default of 8 shapes the rest would run eagerly.
            torch._dynamo.config.recompile_limit = 256
            module = Twin(graph).load(state).of_images(format_)
            tensors = [torch_tensor(torch, a, format_) for a in inputs]
            if len(module.parts) > 1:
                several = module.alternating(partial(forward_of, compiled=compiled))
                step = partial(_alternating_step, several, tensors)
            else:
                step = partial(torch_step, forward_of(module, compiled), optimizer_for(graph, module), tensors)
            try:
                for _ in range(3):
                    step()
            except torch._dynamo.exc.TorchDynamoException as error:
                failed[name] = str(error).strip().split("\n")[0]
                continue
            yield name, step


def _alternating_step(call: Callable[..., Any], tensors: Sequence[Any]) -> float:
    return float(call(*tensors))


def torch_step(forward: Callable[..., Any], optimizer: Any, tensors: Sequence[Any]) -> float:
    """One training step of a PyTorch module, as its users write it; its loss."""
    optimizer.zero_grad(set_to_none=True)
    loss, _ = forward(*tensors)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def torch_tensor(torch: Any, array: np.ndarray, format_: Any) -> Any:
    """Of the array's memory where it is contiguous; images in a memory format."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.contiguous(memory_format=format_) if tensor.ndim == 4 else tensor
