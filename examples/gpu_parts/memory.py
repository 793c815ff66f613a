"""Device memory: what plans state, budgets, and how far 12 GB reach."""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from codegen.cuda.bench import device_inputs
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.turns import turn
from codegen.steps import timed
from gpu_parts.study import Study
from planner import zoo
from planner.graph.model import Graph

SHARES = {"budget 0.5": 0.5, "budget 0.33": 0.33}
TORCH_SHARES = (1.0, 0.5, 0.35, 0.7, 0.2)
"""Of the activations' memory, which PyTorch may keep."""
CAP = 12 * 2**30
DEPTHS = (1001, 1922)
"""Depths of ResNet-like networks at batch 16 to try under the cap (SuperNeurons, table 4: 1920)."""
BATCHES = {"alexnet": 1792, "vgg16": 224, "resnet50": 384, "resnet101": 256, "resnet152": 176, "inception_v4": 240}
"""SuperNeurons' largest batches under 12 GB (table 5); the ones last take minutes to plan."""


def run_briefly(study: Study, made: type[CudaExecutor], graph: Graph, repetitions: int = 10) -> dict[str, Any]:
    """Step time on inputs that lie on the GPU, and what the executor took of its memory as the driver tells it."""
    with study.executor(made) as executor:
        inputs = device_inputs(graph, study.device, study.null)
        with turn(study.device, study.null):
            losses = [float(executor.step(*inputs)) for _ in range(3)]
            times = list(timed(lambda: float(executor.step(*inputs)), repetitions))
        over = executor.device_bytes / max(1, executor.plan.pools[0].arena) - 1
        return {
            "step_ms": median(times) / 1e6,
            "loss": losses[-1],
            "device_bytes": executor.device_bytes,
            "over_plan": over,
        }


def memory(study: Study) -> None:
    """What the driver sees the process take for an executor that has run, beside what its plan says. Bar: within 2 %.
    An executor of the same plan has run before: the driver loads kernels into the context when they are first asked
    for, and the bar is about what comes on top."""
    for precision in study.open(("tf32", "bf16")):
        try:
            graph = study.graph("resnet50", precision, batch=64)
            plan, made = study.make(graph, precision)
            inputs = device_inputs(graph, study.device, study.null)
            taken = []
            for _ in range(2):
                before = study.free_bytes()
                with study.executor(made) as executor:
                    for _ in range(3):  # the third replays the recorded graph
                        float(executor.step(*inputs))
                    taken.append(before - study.free_bytes())
        except Exception as error:
            study.failed(precision, error)
            continue
        planned = plan.pools[0].arena
        row = {"planned": planned, "driver": taken[1], "over_plan": taken[1] / max(1, planned) - 1}
        study.keep(precision, {**row, "with_code": taken[0]})


def budgets(study: Study) -> None:
    """Bars: at most 10 % and 16 % slower than without a budget."""
    graph = zoo.build("digits_cnn", 64) if study.null else zoo.build("resnet50", 184)
    for key in study.open(("unbudgeted", *SHARES)):
        try:
            whole = study.found["unbudgeted"]["arena"] if key != "unbudgeted" else 0
            share = 0.8 if study.null else SHARES.get(key, 1.0)
            options = {} if key == "unbudgeted" else {"memory_budget": int(whole * share)}
            plan, made = study.make(graph, "tf32", **options)
            row = {"arena": plan.pools[0].arena, **run_briefly(study, made, graph)}
        except Exception as error:
            study.failed(key, error)
            continue
        free = row if key == "unbudgeted" else study.found["unbudgeted"]
        row["overhead"] = row["step_ms"] / free["step_ms"] - 1
        study.keep(key, row)


def torch_budget(study: Study) -> None:
    """What PyTorch's activation memory budget costs: for every share, step time and measured peak."""
    for key in study.open(str(share) for share in TORCH_SHARES):
        try:
            study.keep(key, torch_under(study, float(key))())
        except Exception as error:
            study.failed(key, error)


def torch_under(study: Study, share: float) -> Callable[[], dict[str, Any]]:
    """Times PyTorch's compiled step that keeps so much of the activations; compiled and warmed up by then."""
    import torch
    import torch._functorch.config as functorch

    from codegen.torch_twin import Twin, optimizer_for

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    place = torch.device("cpu") if study.null else torch.device("cuda", study.device)
    graph = study.graph("resnet50", batch=184)
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    inputs = [torch.as_tensor(each) for each in device_inputs(graph, study.device, study.null)]
    functorch.activation_memory_budget = share
    twin = Twin(graph).to(place).to(memory_format=torch.channels_last)
    for parameter in twin.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.01)
    optimizer, run = optimizer_for(graph, twin), torch.compile(twin)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        run(*inputs)[0].backward()
        optimizer.step()
        if not study.null:
            torch.cuda.synchronize(place)

    for _ in range(1 if study.null else 5):
        step()
    if not study.null:
        torch.cuda.reset_peak_memory_stats(place)

    def measure() -> dict[str, Any]:
        with turn(study.device, study.null):
            times = list(timed(step, 1 if study.null else 10))
        peak = 0 if study.null else torch.cuda.max_memory_allocated(place)
        return {"step_ms": median(times) / 1e6, "peak_bytes": peak}

    return measure


def batches_under_the_cap(study: Study) -> None:
    """SuperNeurons' batches, planned for 12 GB and run for a few steps."""
    _under_the_cap(study, [(name, {"batch": batch}) for name, batch in BATCHES.items()])


def of_depth(depth: int) -> str:
    """The zoo's name of a ResNet-like network of so many layers."""
    return f"resnet_6_32_{(depth - 2) // 3 - 44}_6"


def depths_under_the_cap(study: Study) -> None:
    """SuperNeurons' depths likewise: thousands of nodes, minutes of compiling."""
    _under_the_cap(study, [(of_depth(depth), {"batch": 16}) for depth in DEPTHS])


def _under_the_cap(study: Study, wanted: list[tuple[str, dict[str, int]]]) -> None:
    if study.null:
        wanted = [("resnet_1_1_1_1", {"batch": 2, "image_size": 32})]
    networks = {f"{name} {sizes}": (name, sizes) for name, sizes in wanted}
    for key in study.open(networks):
        name, sizes = networks[key]
        begun = time.monotonic()
        try:
            graph = zoo.build(name, **sizes)
            plan, made = study.make(graph, "tf32", rough=True, memory_budget=CAP)
            made_s = time.monotonic() - begun
            row = {"arena": plan.pools[0].arena, "made_s": round(made_s, 1), **run_briefly(study, made, graph, 3)}
        except Exception as error:
            study.failed(key, error)
            continue
        study.keep(key, row)
