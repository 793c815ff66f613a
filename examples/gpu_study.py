"""Everything that is to be measured of GPU executors, on a machine with a GPU; at most ten minutes a part.

python examples/gpu_study.py [PART ...] [--out gpu_results.json] [--device 0] [--null]

Parts, in this order; none named: all of them.
    machine    the GPU, the driver, the libraries, copy bandwidths; every convolution algorithm of ResNet-50
    correct    zoo networks against PyTorch in float64: at most twice PyTorch float32's own error, or 1e-5
    speed      ResNet-50 steps, float32 and TF32, in pairs with PyTorch eager and torch.compile (max-autotune)
    memory     peak device memory against the plan; budgets of 50 % and 33 % at batch 184; how far 12 GB reach
    streams    one stream against several; host time per step with the recorded graph
    sanitize   compute-sanitizer (memcheck, racecheck) on a small network
Results are written after every part, and what is there from another run is kept. `--null`: a dry run of the script on
the null device with toy networks; its times mean nothing.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from codegen.bench import random_inputs, timed
from codegen.branches import decisive_values
from codegen.build import build
from codegen.cuda.bench import bench, device_inputs, host_ms
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.probe import algorithms, probe
from codegen.cuda.profile import copy_bandwidths, profile
from codegen.emit import emit
from codegen.load import executor_class
from planner import zoo
from planner.artefact import write_text
from planner.bundle import read_bundle
from planner.costs.table import CostTable, read_costs, write_costs
from planner.errors import UserError
from planner.graph.model import Graph
from planner.ops.base import op_named
from planner.ops.signature import signatures_of
from planner.plan.schema import Plan
from planner.plan.text import plan_hash
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target

CORRECT: dict[str, dict[str, int]] = {
    "mlp": {"batch": 8},
    "digits_cnn": {"batch": 8},
    "resnet18": {"batch": 8, "image_size": 64},
    "resnet50": {"batch": 8, "image_size": 64},
    "alexnet": {"batch": 4, "image_size": 96},
    "densenet121": {"batch": 4, "image_size": 64},
    "inception_v3": {"batch": 2, "image_size": 139},
    "lstm": {"batch": 4},
    "wide_deep": {"batch": 16},
}
RATE = 1e-3
"""As examples/truth_study.py: the zoo's own rates are meant for large batches."""
CAP = 12 * 2**30
DEPTHS = (1920, 1517, 1001)
"""Depths of ResNet-like networks at batch 16 to try under the cap, the largest first (SuperNeurons, table 4)."""
BATCHES = {"alexnet": 1792, "vgg16": 224, "inception_v4": 240, "resnet50": 384, "resnet101": 256, "resnet152": 176}
"""SuperNeurons' largest batches under 12 GB (table 5)."""


@dataclass
class Study:
    """What all parts share."""

    device: int
    null: bool
    folder: Path
    deadline: float = 0.0

    def costs(self, graphs: list[Graph], tf32: bool) -> CostTable:
        """The table of one precision with everything of these graphs in it."""
        target, file = load_target("h200"), self.folder / f"costs_{'tf32' if tf32 else 'float32'}.json"
        table = read_costs(file) if file.exists() else None
        found = profile(graphs, target, table, tf32=tf32, device=self.device, null_device=self.null)
        write_costs(found, file)
        return found

    def make(self, graph: Graph, tf32: bool = False, **options: Any) -> tuple[Plan, type[CudaExecutor]]:
        """Profile, plan, emit, build."""
        target = load_target("h200")
        plan = make_plan(graph, target, self.costs([graph], tf32), PlanOptions.model_validate(options))
        return plan, self.built(plan, graph)

    def built(self, plan: Plan, graph: Graph) -> type[CudaExecutor]:
        folder = self.folder / f"{graph.name}_{plan_hash(plan)}"
        emit(plan, graph, load_target("h200"), folder)
        build(folder, null_device=self.null)
        found = executor_class(folder)
        assert issubclass(found, CudaExecutor)
        return found

    def open(self, made: type[CudaExecutor], **options: Any) -> CudaExecutor:
        return made(device=self.device, null_device=self.null, **options)

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline


def machine(study: Study) -> dict[str, Any]:
    graph = zoo.build("resnet50", 32) if not study.null else zoo.build("digits_cnn", 4)
    arch = load_target("h200").gpus[0].arch
    told: dict[str, Any] = dict(probe(arch, study.null).describe(study.device))
    told["copies"] = copy_bandwidths(load_target("h200"), study.device, study.null)
    told["convolutions"] = {}
    for signature in signatures_of([graph]):
        if op_named(signature.op).family == "conv" and not study.late:
            for tf32 in (False, True):
                ways = algorithms(signature, arch, tf32=tf32, device=study.device, null_device=study.null)
                told["convolutions"].setdefault(signature.text, []).extend(w._asdict() for w in ways)
    return told


def correct(study: Study) -> dict[str, Any]:
    from codegen.truth import truth, worst_per_kind

    found: dict[str, Any] = {}
    for name, sizes in CORRECT.items() if not study.null else [("mlp", {"batch": 2}), ("digits_cnn", {"batch": 4})]:
        if study.late:
            found[name] = "no time was left"
            continue
        graph = zoo.build(name, **sizes)
        _, made = study.make(graph, policy="sequential", keep=decisive_values(graph))
        with study.open(made, seed=1, poison=True) as executor:
            executor.lr = RATE
            verdict = truth(graph, executor)["executor"]
        worst = {r.kind: {**r._asdict(), "ratio": r.ratio} for r in worst_per_kind(verdict.rows)}
        found[name] = {"wrong": len(verdict.wrong), "tensors": len(verdict.rows), "worst": worst}
        print(f"  {name}: {len(verdict.wrong)} of {len(verdict.rows)} tensors beyond the bar", flush=True)
    return found


def speed(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {"bfloat16": "not there yet"}
    batches = (32, 64, 256) if not study.null else (4,)
    for batch in batches:
        for tf32 in (True, False):
            if study.late:
                found[f"batch {batch} tf32={tf32}"] = "no time was left"
                continue
            graph = zoo.build("resnet50" if not study.null else "digits_cnn", batch)
            _, made = study.make(graph, tf32)
            row = bench(
                made,
                read_bundle(made._folder),
                against=None if study.null else "torch",
                repetitions=30 if not study.null else 2,
                device=study.device,
                null_device=study.null,
            )
            found[f"batch {batch} tf32={tf32}"] = row
            print(f"  batch {batch} tf32={tf32}: {row}", flush=True)
    return found


def memory(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    graph = zoo.build("resnet50", 184) if not study.null else zoo.build("digits_cnn", 64)
    plan, made = study.make(graph, tf32=True)
    full, base = plan.pools[0].arena, run_briefly(study, made, graph)
    found["unbudgeted"] = {"arena": full, **base}
    for share in (0.5, 0.33) if not study.null else (0.8,):
        try:
            tight, made = study.make(graph, tf32=True, memory_budget=int(full * share))
            row = {"arena": tight.pools[0].arena, **run_briefly(study, made, graph)}
            row["overhead"] = row["step_ms"] / base["step_ms"] - 1
        except UserError as error:
            row = {"error": error.problem}
        found[f"budget {share}"] = row
        print(f"  {share}: {row}", flush=True)
    if not study.null:
        found["cap"] = under_the_cap(study)
    return found


def under_the_cap(study: Study) -> dict[str, Any]:
    """SuperNeurons' batches and depths, planned for 12 GB and run for a few steps."""
    found: dict[str, Any] = {}
    wanted = [(name, {"batch": batch}) for name, batch in BATCHES.items()]
    wanted += [(f"resnet_6_32_{(depth - 2) // 3 - 44}_6", {"batch": 16}) for depth in DEPTHS]
    for name, sizes in wanted:
        key = f"{name} {sizes}"
        if study.late:
            found[key] = "no time was left"
            continue
        try:
            graph = zoo.build(name, **sizes)
            plan, made = study.make(graph, tf32=True, memory_budget=CAP)
            found[key] = {"arena": plan.pools[0].arena, **run_briefly(study, made, graph, 3)}
        except (UserError, MemoryError) as error:
            found[key] = {"error": str(error)[:300]}
        print(f"  {key}: {found[key]}", flush=True)
    return found


def run_briefly(study: Study, made: type[CudaExecutor], graph: Graph, repetitions: int = 10) -> dict[str, Any]:
    """Step time, and what the executor took of the GPU's memory as the driver tells it."""
    with study.open(made) as executor:
        inputs = random_inputs(graph)
        losses = [float(executor.step(*inputs)) for _ in range(3)]
        times = list(timed(lambda: float(executor.step(*inputs)), repetitions))
        over = executor.device_bytes / max(1, executor.plan.pools[0].arena) - 1
        return {
            "step_ms": median(times) / 1e6,
            "loss": losses[-1],
            "device_bytes": executor.device_bytes,
            "over_plan": over,
        }


def streams(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    graph = zoo.build("inception_v3", 32) if not study.null else zoo.build("digits_cnn", 8)
    for lanes in (1, 2, 4):
        options: dict[str, Any] = {"policy": "sequential"} if lanes == 1 else {"policy": "liu", "strategies": (1, 3)}
        _, made = study.make(graph, tf32=True, lanes=lanes, **options)
        found[f"{graph.name} on {lanes}"] = run_briefly(study, made, graph)
    small = zoo.build("digits_cnn", 64)
    _, made = study.make(small)
    with study.open(made) as executor:
        inputs = device_inputs(small, study.device, study.null)
        found["host_us_per_step"] = 1e3 * host_ms(executor, inputs, 200 if not study.null else 3)
        found["node_times"] = executor.node_times(repetitions=5)
    return found


SANITIZED = """
import sys
from codegen.bench import random_inputs, timed
from codegen.load import executor_class
from planner.bundle import read_bundle
graph = read_bundle(sys.argv[1]).graph
with executor_class(sys.argv[1])(seed=0, device=int(sys.argv[2])) as executor:
    print([float(executor.step(*random_inputs(graph, i))) for i in range(3)])
"""


def sanitize(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    graph = zoo.build("digits_cnn", 8)
    _, made = study.make(graph, lanes=2, policy="liu", strategies=(1, 3))
    tool = shutil.which("compute-sanitizer")
    if study.null or tool is None:
        return {"skipped": "compute-sanitizer is not there"}
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-c", SANITIZED]
        done = subprocess.run(
            [*command, str(made._folder), str(study.device)], capture_output=True, text=True, timeout=280
        )
        found[check] = {"status": done.returncode, "end": done.stdout[-1500:]}
        print(f"  {check}: {done.returncode}", flush=True)
    return found


PARTS: dict[str, Callable[[Study], dict[str, Any]]] = {
    "machine": machine,
    "correct": correct,
    "speed": speed,
    "memory": memory,
    "streams": streams,
    "sanitize": sanitize,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("gpu_results.json"))
    parser.add_argument("--folder", type=Path, default=Path("out/gpu_study"), help="for cost tables and executors")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0, help="per part; a part starts nothing new after that")
    parser.add_argument("--null", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    study = Study(options.device, options.null, options.folder)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    np.seterr(all="ignore")
    failed = False
    for name in options.parts or PARTS:
        print(f"{name} ...", flush=True)
        begun = time.monotonic()
        study.deadline = begun + 60 * options.minutes
        try:
            results[name] = PARTS[name](study)
        except Exception as error:  # the next part may still tell something
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            failed = True
        results[name]["seconds"] = round(time.monotonic() - begun, 1)
        write_text(options.out, json.dumps(results, indent=1, default=str) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
