"""`stepplan bench` of an executor on a GPU. Steps are timed from the call to the end of their work; PyTorch's, in the
same precision, alternate with them."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

from codegen.cuda.executor import CudaExecutor
from codegen.cuda.turns import compilers_turns, turn
from codegen.steps import Step, fastest, floor_ns, paired, random_inputs, spread, timed
from planner.bundle import Bundle
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.precision import full_precision, is_mixed
from planner.plan.schema import Plan

CONTENDERS = ("eager", "reduce-overhead", "max-autotune")
"""PyTorch without its compiler, and its compiler's modes with CUDA graphs, the quicker to compile first."""


def bench(
    made: type[CudaExecutor],
    bundle: Bundle,
    *,
    against: str | None = None,
    contenders: Sequence[str] = ("eager", "max-autotune"),
    repetitions: int = 10,
    costs: CostTable | None = None,
    say: Callable[[str], None] = lambda text: None,
    device: int = 0,
    null_device: bool = False,
) -> dict[str, Any]:
    """As codegen.bench.bench, and `host_ms`: how long `step` keeps the caller. Memory is what the driver says that the
    executor took. `contenders`: of CONTENDERS. `null_device`: a dry run, PyTorch's too, whose times mean nothing."""
    plan, graph = bundle.plan, bundle.graph
    with made(seed=0, device=device, null_device=null_device) as executor:
        inputs = device_inputs(graph, device, null_device)

        def step() -> float:
            return float(executor.step(*inputs))

        say("warming up")
        with turn(device, null_device):
            for _ in range(3):
                step()
            times = list(timed(step, repetitions))
            result = step_times(plan, times)
            result["host_ms"] = host_ms(executor, inputs, repetitions)
        planned = plan.pools[0].arena
        result["memory"] = {
            "planned_bytes": planned,
            "gained_bytes": executor.device_bytes,
            "over": executor.device_bytes - planned,
        }
        if costs is not None:
            result["floor_ms"] = floor_ns(graph, costs, 1) / 1e6
            result["over_floor"] = result["step_ms"] / result["floor_ms"]
        if against == "torch":
            state = executor.state_dict()
            result["against"] = {}
            precision = "bf16" if is_mixed(graph) else "tf32" if rounds_to_tf32(plan) else "float32"
            model = full_precision(graph) if is_mixed(graph) else graph
            theirs = torch_contenders(model, inputs, state, precision, device, contenders, say, null_device)
            for name, contender in theirs:
                say(f"against {name}")
                with turn(device, null_device):
                    result["against"][name] = paired(step, contender, repetitions)
                del contender
                gc.collect()
            result |= fastest(result["against"])
    return result


def step_times(plan: Plan, times: list[float]) -> dict[str, Any]:
    predicted = plan.program["train_step"].predicted_ns
    return {
        "name": plan.name,
        "target": plan.target,
        "lanes": len(plan.lanes),
        "step_ms": median(times) / 1e6,
        "spread": spread(times),
        "predicted_ms": predicted / 1e6,
        "measured_over_predicted": median(times) / max(1, predicted),
    }


def host_ms(executor: CudaExecutor, inputs: list[Any], repetitions: int) -> float:
    """Median time until `step` returns, with the GPU idle before it."""
    spent: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter_ns()
        loss = executor.step(*inputs)
        spent.append(float(time.perf_counter_ns() - start))
        loss.wait()
    return median(spent) / 1e6


def device_inputs(graph: Graph, device: int, null_device: bool = False) -> list[Any]:
    """Random inputs as PyTorch tensors on the GPU in the planned layout; without a GPU as arrays."""
    arrays = random_inputs(graph)
    if null_device:
        return list(arrays)
    import torch

    tensors = [torch.from_numpy(a).cuda(device) for a in arrays]
    return [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors]


def rounds_to_tf32(plan: Plan) -> bool:
    """Whether any node's algorithm may, so that PyTorch may too."""
    return any(n.implementation.endswith(":tf32") for p in plan.programs for n in p.nodes)


def _preparing(name: str, device: int, null_device: bool) -> AbstractContextManager[None]:
    """While a contender warms up its library, or its compiler, times kernels."""
    if null_device:
        return nullcontext()
    return turn(device) if name == "eager" else compilers_turns(device)


def torch_contenders(
    graph: Graph,
    inputs: list[Any],
    state: dict[str, Any],
    precision: str,
    device: int,
    names: Sequence[str],
    say: Callable[[str], None] = lambda text: None,
    null_device: bool = False,
) -> Iterator[tuple[str, Step]]:
    """Eager, or compiled in one of PyTorch's modes that record CUDA graphs; channels-last, warmed up, one at a time. In
    float32, with the matrix units' TF32, or in bfloat16 under autocast. `null_device`: on the processor. SP1513: the
    step has several losses."""
    import torch

    from codegen.torch_twin import Twin, optimizer_for

    place = torch.device("cpu") if null_device else torch.device("cuda", device)
    tensors = [torch.as_tensor(each) for each in inputs]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True
    for name in names:
        say(f"preparing {name}")
        # All twins run one code object: of a process's ninth on, PyTorch would run them without its compiler.
        torch._dynamo.reset()
        twin = Twin(graph)
        if len(twin.parts) > 1:
            what = (
                f"{graph.name} trains for {len(twin.parts)} losses, which PyTorch's CUDA graphs are not made for here"
            )
            raise UserError("SP1513", what, "compare without --against torch")
        twin = twin.load(state).to(place).of_images(torch.channels_last)
        optimizer = optimizer_for(graph, twin)
        run = twin if name == "eager" else torch.compile(twin, mode=name, dynamic=False)

        def step(run: Any = run, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(place.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = run(*tensors)[0]
            loss.backward()
            optimizer.step()
            if not null_device:
                torch.cuda.synchronize(place)

        with _preparing(name, device, null_device):
            for _ in range(2 if null_device else 10):
                step()
        yield name, step
        del twin, optimizer, run, step
        torch._dynamo.reset()  # gives back what its CUDA graphs hold
        gc.collect()
        torch.cuda.empty_cache()
