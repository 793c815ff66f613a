"""Everything that is to be measured of GPU executors, on a machine with a GPU; at most ten minutes a part.

python examples/gpu_study.py [PART ...] [--out gpu_results.json] [--device 0] [--null]

Parts, in this order; none named: all of them. Each is one row of the acceptance of the CUDA executor.
    machine    the GPU, the driver, the libraries, copy bandwidths; every convolution algorithm of ResNet-50
    correct    zoo networks against PyTorch in float64: at most twice PyTorch float32's own error, or 1e-5
    bfloat16   the same networks in bfloat16: no further from float64 than PyTorch's autocast
    speed32, speed64, speed256
               ResNet-50 steps at that batch in TF32, bfloat16 and float32, in pairs with PyTorch eager and
               torch.compile (max-autotune, channels-last, CUDA graphs) in the same precision
    memory     peak device memory as the driver tells it, less the context, against the plan
    budgets    step times under 50 % and 33 % of the unbudgeted peak, ResNet-50 at batch 184
    torch_budget
               PyTorch's activation memory budget on the same network: what it costs at which measured peak
    cap        how far 12 GB reach: SuperNeurons' batches and depths, run
    streams    pairs of nodes on two streams (table VII's five operators), and one stream against what `auto` takes
    host       host time per step with the recorded graph
    sanitize   compute-sanitizer (memcheck, racecheck) on a small network, in float32 and bfloat16
Results are written after every part, and what is there from another run is kept. `--null`: a dry run of the script on
the null device with toy networks; its times mean nothing. Without a GPU every part says so.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from codegen.branches import decisive_values
from codegen.build import build
from codegen.cuda.bench import bench, device_inputs, host_ms
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.pairs import profile_pairs, time_pair
from codegen.cuda.probe import algorithms, probe
from codegen.cuda.profile import copy_bandwidths, profile
from codegen.emit import emit
from codegen.load import executor_class
from codegen.steps import paired, random_inputs, timed
from planner import zoo
from planner.artefact import write_text
from planner.bundle import read_bundle
from planner.costs.table import CostTable, read_costs, write_costs
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.ops.base import op_named
from planner.ops.conv import ConvAttrs
from planner.ops.pool import AdaptivePoolAttrs, MaxPoolAttrs
from planner.ops.shape import ReshapeAttrs
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
TOY: dict[str, dict[str, int]] = {"mlp": {"batch": 2}, "digits_cnn": {"batch": 4}}
"""On the null device."""
PRECISIONS = ("tf32", "bf16", "float32")
TORCH_BUDGETS = (1.0, 0.7, 0.5, 0.35, 0.2, 0.1)
"""Shares of the activations' memory that PyTorch may keep."""
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

    def costs(self, graphs: list[Graph], precision: str) -> CostTable:
        """The table of one precision with everything of these graphs in it."""
        target, file = load_target("h200"), self.folder / f"costs_{precision}.json"
        table = read_costs(file) if file.exists() else None
        tf32 = precision == "tf32"
        found = profile(graphs, target, table, tf32=tf32, device=self.device, null_device=self.null)
        write_costs(found, file)
        return found

    def graph(self, name: str, toy: str = "digits_cnn", precision: str = "float32", **sizes: Any) -> Graph:
        """A zoo network; on the null device a small one in its place."""
        graph = zoo.build(toy, 4) if self.null else zoo.build(name, **sizes)
        return mixed_precision(graph) if precision == "bf16" else graph

    def make(self, graph: Graph, precision: str = "float32", **options: Any) -> tuple[Plan, type[CudaExecutor]]:
        """Profile, plan, emit, build."""
        target = load_target("h200")
        plan = make_plan(graph, target, self.costs([graph], precision), PlanOptions.model_validate(options))
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

    def in_time(self, keys: Iterable[str], found: dict[str, Any]) -> Iterator[str]:
        """Those for which there is time when they are asked for; `found` says of the others that there was none."""
        for key in keys:
            if self.late:
                found[key] = "no time was left"
            else:
                yield key

    @property
    def arch(self) -> str:
        return load_target("h200").gpus[0].arch

    def require_gpu(self) -> None:
        """SP1851 to SP1854: there is none that the target describes."""
        if self.null:
            return
        found = probe(self.arch, False).describe(self.device)
        if found["driver"] == 0 or not 0 <= self.device < found["devices"]:
            what = "there is no NVIDIA driver" if found["driver"] == 0 else f"there is no GPU {self.device}"
            raise UserError("SP1853", f"{what} on this machine", "run on one with a GPU, or with --null for a dry run")
        if found["arch"] != self.arch:
            raise UserError("SP1854", f"the GPU is {found['arch']}, the study plans for {self.arch}", "use an H200")

    def free_bytes(self) -> int:
        """Of the GPU's memory, as the driver tells it."""
        return int(probe(self.arch, self.null).describe(self.device)["free_bytes"])


def machine(study: Study) -> dict[str, Any]:
    graph = study.graph("resnet50", batch=32)
    told: dict[str, Any] = dict(probe(study.arch, study.null).describe(study.device))
    told["copies"] = copy_bandwidths(load_target("h200"), study.device, study.null)
    told["convolutions"] = {}
    for signature in signatures_of([graph, mixed_precision(graph)]):
        if op_named(signature.op).family == "conv" and not study.late:
            for tf32 in (False, True) if signature.inputs[0].dtype == "float32" else (False,):
                ways = algorithms(signature, study.arch, tf32=tf32, device=study.device, null_device=study.null)
                told["convolutions"].setdefault(signature.text, []).extend(w._asdict() for w in ways)
    return told


def correct(study: Study) -> dict[str, Any]:
    from codegen.truth import truth, worst_per_kind

    found: dict[str, Any] = {}
    sizes = TOY if study.null else CORRECT
    for name in study.in_time(sizes, found):
        graph = zoo.build(name, **sizes[name])
        _, made = study.make(graph, policy="sequential", keep=decisive_values(graph))
        with study.open(made, seed=1, poison=True) as executor:
            executor.lr = RATE
            verdict = truth(graph, executor)["executor"]
        worst = {r.kind: {**r._asdict(), "ratio": r.ratio} for r in worst_per_kind(verdict.rows)}
        found[name] = {"wrong": len(verdict.wrong), "tensors": len(verdict.rows), "worst": worst}
        print(f"  {name}: {len(verdict.wrong)} of {len(verdict.rows)} tensors beyond the bar", flush=True)
    return found


def bfloat16(study: Study) -> dict[str, Any]:
    from codegen.autocast import distances

    found: dict[str, Any] = {}
    sizes = TOY if study.null else CORRECT
    for name in study.in_time(sizes, found):
        graph = zoo.build(name, **sizes[name])
        _, made = study.make(mixed_precision(graph), "bf16", policy="sequential")
        with study.open(made, seed=1, poison=True) as executor:
            executor.lr = RATE
            rows = distances(graph, executor, device="cpu" if study.null else "cuda")
        found[name] = {r.kind: {**r._asdict(), "ok": r.ok} for r in rows}
        print(f"  {name}: {found[name]}", flush=True)
    return found


def speed(study: Study, batch: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for precision in study.in_time(PRECISIONS, found):
        graph = study.graph("resnet50", precision=precision, batch=batch)
        _, made = study.make(graph, precision)
        found[precision] = bench(
            made,
            read_bundle(made._folder),
            against=None if study.null else "torch",
            repetitions=30 if not study.null else 2,
            device=study.device,
            null_device=study.null,
        )
        print(f"  batch {batch} {precision}: {found[precision]}", flush=True)
    return found


def memory(study: Study) -> dict[str, Any]:
    """What the driver sees the process take for an executor that has run, beside what its plan says. The context and
    the libraries' code are there before: a small network has run. Bar: within 2 %."""
    small = study.graph("digits_cnn", batch=64)
    _, made = study.make(small, "tf32")
    found: dict[str, Any] = {}
    with study.open(made) as first:
        float(first.step(*random_inputs(small)))
        for precision in ("tf32", "bf16"):
            graph = study.graph("resnet50", precision=precision, batch=64)
            plan, made = study.make(graph, precision)
            before = study.free_bytes()
            with study.open(made) as executor:
                inputs = random_inputs(graph)
                for _ in range(3):  # the third replays the recorded graph
                    float(executor.step(*inputs))
                taken, planned = before - study.free_bytes(), plan.pools[0].arena
            found[precision] = {"planned": planned, "driver": taken, "over_plan": taken / max(1, planned) - 1}
            print(f"  {precision}: {found[precision]}", flush=True)
    return found


def budgets(study: Study) -> dict[str, Any]:
    """Bars: at most 10 % and 16 % slower than without a budget."""
    found: dict[str, Any] = {}
    graph = zoo.build("digits_cnn", 64) if study.null else zoo.build("resnet50", 184)
    plan, made = study.make(graph, "tf32")
    full, base = plan.pools[0].arena, run_briefly(study, made, graph)
    found["unbudgeted"] = {"arena": full, **base}
    shares = {f"budget {share}": share for share in ((0.8,) if study.null else (0.5, 0.33))}
    for key in study.in_time(shares, found):
        try:
            tight, made = study.make(graph, "tf32", memory_budget=int(full * shares[key]))
            row = {"arena": tight.pools[0].arena, **run_briefly(study, made, graph)}
            row["overhead"] = row["step_ms"] / base["step_ms"] - 1
        except UserError as error:
            row = {"error": error.problem}
        found[key] = row
        print(f"  {key}: {row}", flush=True)
    return found


def torch_budget(study: Study) -> dict[str, Any]:
    """What PyTorch's activation memory budget costs: for every share, step time and measured peak."""
    if study.null:
        return {"skipped": "PyTorch needs the GPU"}
    import torch
    import torch._functorch.config as functorch

    from codegen.torch_twin import Twin, optimizer_for

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    graph = zoo.build("resnet50", 184)
    inputs = device_inputs(graph, study.device)
    found: dict[str, Any] = {}
    shares = {str(share): share for share in TORCH_BUDGETS}
    for key in study.in_time(shares, found):
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        functorch.activation_memory_budget = shares[key]
        twin = Twin(graph).cuda(study.device).to(memory_format=torch.channels_last)
        for parameter in twin.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.01)
        optimizer, run = optimizer_for(graph, twin), torch.compile(twin)

        def step(run: Any = run, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            run(*inputs)[0].backward()
            optimizer.step()
            torch.cuda.synchronize(study.device)

        for _ in range(5):
            step()
        torch.cuda.reset_peak_memory_stats(study.device)
        times = list(timed(step, 10))
        peak = torch.cuda.max_memory_allocated(study.device)
        found[key] = {"step_ms": median(times) / 1e6, "peak_bytes": peak}
        print(f"  {key}: {found[key]}", flush=True)
        del twin, optimizer, run, step
    return found


def under_the_cap(study: Study) -> dict[str, Any]:
    """SuperNeurons' batches and depths, planned for 12 GB and run for a few steps."""
    found: dict[str, Any] = {}
    wanted = [(name, {"batch": batch}) for name, batch in BATCHES.items()]
    wanted += [(f"resnet_6_32_{(depth - 2) // 3 - 44}_6", {"batch": 16}) for depth in DEPTHS]
    if study.null:
        wanted = [("digits_cnn", {"batch": 8})]
    networks = {f"{name} {sizes}": (name, sizes) for name, sizes in wanted}
    for key in study.in_time(networks, found):
        name, sizes = networks[key]
        try:
            graph = zoo.build(name, **sizes)
            plan, made = study.make(graph, "tf32", memory_budget=CAP)
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


def two_of_each() -> Graph:
    """Table VII's five operators (convolution, its two gradients, bias, max pooling), two instances of each that may
    run side by side."""
    b = GraphBuilder("two_of_each")
    x = b.input("images", TensorType(shape=(32, 64, 56, 56), layout=Layout.CHANNELS_LAST))
    small, ends = Init(kind="normal", value=0.05), []
    for side in ("left", "right"):
        weight = b.parameter(f"{side}.weight", (64, 64, 3, 3), small)
        (y,) = b.op("conv2d", [x, weight], ConvAttrs(padding=(1, 1, 1, 1)), name=f"{side}.conv1")
        weight = b.parameter(f"{side}.weight2", (64, 64, 3, 3), small)
        bias = b.parameter(f"{side}.bias2", (1, 64, 1, 1), small)
        (y,) = b.op("conv2d", [y, weight], ConvAttrs(padding=(1, 1, 1, 1)), name=f"{side}.conv2")
        (y,) = b.op("add", [y, bias], name=f"{side}.bias_add")
        (y,) = b.op("max_pool2d", [y], MaxPoolAttrs(kernel=(2, 2), stride=(2, 2)), name=f"{side}.pool")[:1]
        ends.append(y)
    (y,) = b.op("add", ends, name="join")
    (y,) = b.op("adaptive_avg_pool2d", [y], AdaptivePoolAttrs(output=(1, 1)), name="mean")
    (y,) = b.op("reshape", [y], ReshapeAttrs(shape=(32, 64)), name="flat")
    labels = b.input("labels", TensorType(shape=(32,), dtype=DType.INT64))
    loss = b.op("cross_entropy", [y, labels], name="loss")[0]
    return b.finish(loss, y, Optimizer(lr=0.1))


TABLE_VII = ("conv2", "conv2.backward_data", "conv2.backward_weights", "bias_add", "pool")


def streams(study: Study) -> dict[str, Any]:
    """Bar: what `auto` takes on two streams is never slower than one stream."""
    found: dict[str, Any] = {"pairs": {}}
    if not study.null:
        graph = two_of_each()
        _, made = study.make(graph, "tf32", lanes=2, policy="liu", strategies=(1, 3))
        with study.open(made) as executor:
            float(executor.step(*random_inputs(graph)))
            names = {n.id for n in graph.program["train_step"].nodes}
            for op in TABLE_VII:
                left, right = f"left.{op}", f"right.{op}"
                if {left, right} <= names:
                    timed_pair = time_pair(executor, "train_step", left, right)
                    found["pairs"][op] = {**timed_pair._asdict(), "gain": timed_pair.gain}
    graph = study.graph("inception_v3", batch=32)
    target, costs = load_target("h200"), study.costs([graph], "tf32")
    paired_costs = profile_pairs([graph], target, costs, device=study.device, null_device=study.null)
    found["slowdowns"] = len(paired_costs.coruns)
    made_of = {}
    for lanes, policy in ((1, "sequential"), (2, "auto")):
        plan = make_plan(graph, target, paired_costs, PlanOptions.model_validate({"lanes": lanes, "policy": policy}))
        made_of[lanes] = study.built(plan, graph)
        found[f"{graph.name} on {lanes}, {policy}"] = {
            "lanes": len(plan.lanes),
            **run_briefly(study, made_of[lanes], graph),
        }
    with study.open(made_of[1]) as one, study.open(made_of[2]) as several:
        inputs = device_inputs(graph, study.device, study.null)
        steps = [lambda e=e: float(e.step(*inputs)) for e in (several, one)]
        found["auto / one stream"] = paired(*steps, 30 if not study.null else 2)
    return found


def host(study: Study) -> dict[str, Any]:
    """Bar: 50 us."""
    found: dict[str, Any] = {}
    for name, batch in (("digits_cnn", 64), ("resnet50", 32)):
        graph = study.graph(name, batch=batch)
        _, made = study.make(graph, "tf32")
        with study.open(made) as executor:
            inputs = device_inputs(graph, study.device, study.null)
            for _ in range(3):
                float(executor.step(*inputs))
            found[name] = {"host_us": 1e3 * host_ms(executor, inputs, 200 if not study.null else 3)}
            found[name]["nodes"] = executor.node_times(repetitions=5)
    return found


SANITIZED = """
import sys
from codegen.steps import random_inputs, timed
from codegen.load import executor_class
from planner.bundle import read_bundle
graph = read_bundle(sys.argv[1]).graph
with executor_class(sys.argv[1])(seed=0, device=int(sys.argv[2])) as executor:
    print([float(executor.step(*random_inputs(graph, i))) for i in range(3)])
"""


def sanitize(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tool = shutil.which("compute-sanitizer")
    for precision in ("float32", "bf16"):
        graph = study.graph("digits_cnn", precision=precision, batch=8)
        _, made = study.make(graph, precision, lanes=2, policy="liu", strategies=(1, 3))
        for check in ("memcheck", "racecheck") if tool and not study.null else ():
            command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-c", SANITIZED]
            done = subprocess.run(
                [*command, str(made._folder), str(study.device)], capture_output=True, text=True, timeout=140
            )
            found[f"{check} {precision}"] = {"status": done.returncode, "end": done.stdout[-1500:]}
            print(f"  {check} {precision}: {done.returncode}", flush=True)
    return found or {"skipped": "compute-sanitizer is not there" if tool is None else "there is no GPU"}


PARTS: dict[str, Callable[[Study], dict[str, Any]]] = {
    "machine": machine,
    "correct": correct,
    "bfloat16": bfloat16,
    "speed32": lambda study: speed(study, 32),
    "speed64": lambda study: speed(study, 64),
    "speed256": lambda study: speed(study, 256),
    "memory": memory,
    "budgets": budgets,
    "torch_budget": torch_budget,
    "cap": under_the_cap,
    "streams": streams,
    "host": host,
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
            study.require_gpu()
            results[name] = PARTS[name](study)
        except UserError as error:
            print(f"  {error.code}: {error.problem}; {error.fix}", flush=True)
            results[name] = {"error": f"{error.code}: {error.problem}"}
            failed = True
        except Exception as error:  # the next part may still tell something
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            failed = True
        results[name]["seconds"] = round(time.monotonic() - begun, 1)
        write_text(options.out, json.dumps(results, indent=1, default=str) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
