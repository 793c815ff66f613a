"""Concurrency control on this machine, measured: for a machine with many cores, within ten minutes.

python examples/many_core_study.py [--network resnet50 ...] [--seconds 600] [--lanes N] [--torch] -o results.json

For every network: times the kernels and the pairs that plans run side by side; plans each policy and set of strategies;
builds and runs every plan, steps in turn so that a machine that slows down slows all; compares with the best uniform
setting (inter-op x intra-op), found by trying all. Results are written after every network, so that a run that is cut
off leaves what it has. Beside every measured time stands the predicted one.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from codegen.bench import random_inputs, spread, torch_contenders
from codegen.build import build as compile_folder
from codegen.cpu.emit import emit
from codegen.load import executor_class
from codegen.pairs import profile_pairs
from codegen.profile import profile
from codegen.tracing import rows_of
from planner.artefact import write_text
from planner.costs.table import CostTable
from planner.graph.model import Graph
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.plan.schema import Plan
from planner.report.events import co_running
from planner.solve.options import Pins, PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.zoo import build

NETWORKS = ("resnet50", "dcgan", "inception_v3", "lstm")
STEPS = 7
STRATEGIES: Mapping[str, tuple[int, ...]] = {"1": (1,), "1,2": (1, 2), "1,3": (1, 3), "1,2,3": (1, 2, 3)}


def candidates(graph: Graph, table: CostTable, lanes: int) -> dict[str, PlanOptions]:
    """Name -> options: the policies, the strategies, and every uniform pair (inter-op x intra-op) on these lanes."""
    found = {"sequential": PlanOptions(policy="sequential", lanes=lanes)}
    for name, strategies in STRATEGIES.items():
        found[name] = PlanOptions(policy="liu", strategies=strategies, lanes=lanes)
    intra = 1
    while intra <= lanes:
        pins = Pins(slices=_slices(graph, table, intra))
        if intra < lanes:
            found[f"uniform 1 x {intra}"] = PlanOptions(policy="liu", strategies=(1,), lanes=lanes, pins=pins)
            found[f"uniform {lanes // intra} x {intra}"] = PlanOptions(
                policy="liu", strategies=(1, 3), lanes=lanes, pins=pins
            )
        intra *= 2
    return found | {"auto": PlanOptions(lanes=lanes)}


def _slices(graph: Graph, table: CostTable, wanted: int) -> dict[str, int]:
    """`wanted` slices for every node, or the next smaller count that it has."""
    found = {}
    for program in graph.programs:
        for node in program.nodes:
            signature = signature_of(graph, node)
            if op_named(node.op).alias(signature) is None:
                counts = {e.slices for e in table.modes(signature.text) if e.slices <= wanted}
                found[node.id] = max(counts, default=1)
    return found


def measure(graph: Graph, target: Target, plans: Mapping[str, Plan], folder: Path, torch: bool) -> list[dict[str, Any]]:
    """One row per plan: predicted and measured step, and how many nodes ran at once in a traced step."""
    inputs, times = random_inputs(graph), {name: list[float]() for name in plans}
    rows = []
    with ExitStack() as stack:
        executors = {}
        for number, (name, plan) in enumerate(plans.items()):
            emit(plan, graph, target, folder / f"plan{number}")
            compile_folder(folder / f"plan{number}")
            executors[name] = stack.enter_context(executor_class(folder / f"plan{number}")(seed=0))
        for step in range(STEPS + 2):
            for name, executor in executors.items():
                begun = time.perf_counter_ns()
                executor.step(*inputs)
                if step > 1:
                    times[name].append(float(time.perf_counter_ns() - begun))
        for name, executor in executors.items():
            executor.trace()
            executor.step(*inputs)
            rows.append(
                {
                    "plan": name,
                    "ms": median(times[name]) / 1e6,
                    "spread": spread(times[name]),
                    "predicted_ms": plans[name].program["train_step"].predicted_ns / 1e6,
                    "arena_bytes": plans[name].pools[0].arena,
                    "co_running": co_running(rows_of(executor.trace_events())).text(),
                }
            )
        if torch:
            state, lanes = executors["auto"].state_dict(), len(plans["auto"].lanes)
            for name, step in torch_contenders(graph, inputs, state, lanes, lambda text: None):
                took = []
                for _ in range(STEPS):
                    begun = time.perf_counter_ns()
                    step()
                    took.append(float(time.perf_counter_ns() - begun))
                rows.append({"plan": f"torch {name}", "ms": median(took) / 1e6, "spread": spread(took)})
    return rows


def study(
    name: str, batch: int | None, target: Target, lanes: int, seconds: float, torch: bool, table: CostTable | None
) -> tuple[dict[str, Any], CostTable]:
    graph, options = build(name, batch), PlanOptions(lanes=lanes)
    begun = time.monotonic()
    table = profile([graph], target, table, lanes=lanes, budget_s=0.4 * seconds)
    table = profile_pairs([graph], target, table, options=options, budget_s=0.1 * seconds)
    plans: dict[str, Plan] = {}
    for what, wanted in candidates(graph, table, lanes).items():
        plan = make_plan(graph, target, table, wanted)
        if not any(plan.programs == other.programs for other in plans.values()):
            plans[what] = plan
        elif what == "auto":
            plans = {**{k: v for k, v in plans.items() if v.programs != plan.programs}, "auto": plan}
    with tempfile.TemporaryDirectory(prefix="stepplan-study-") as folder:
        rows = measure(graph, target, plans, Path(folder), torch)
    ours = {row["plan"]: row["ms"] for row in rows}
    uniform = {k: v for k, v in ours.items() if k.startswith("uniform") or k == "sequential"}
    summary: dict[str, Any] = {"network": graph.name, "seconds": time.monotonic() - begun, "rows": rows}
    if "sequential" in ours:
        summary["auto_over_sequential"] = ours["sequential"] / ours["auto"]
    if uniform:
        best = min(uniform, key=lambda k: uniform[k])
        summary |= {"best_uniform": best, "auto_over_best_uniform": uniform[best] / ours["auto"]}
    return summary, table


def lines_of(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{summary['network']}, {summary['seconds']:.0f} s"]
    for row in summary["rows"]:
        predicted = f", predicted {row['predicted_ms']:.3f}" if "predicted_ms" in row else ""
        lines.append(f"  {row['plan']:18} {row['ms']:10.3f} ms (spread {row['spread']:.1%}){predicted}")
        if "co_running" in row:
            lines.append(f"{'':20} {row['co_running']}")
    lines += [f"  {k} {summary[k]:.3f}" for k in ("auto_over_sequential", "auto_over_best_uniform") if k in summary]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", help="default: " + ", ".join(NETWORKS))
    parser.add_argument("--batch", type=int, help="default: each network's own")
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything, roughly")
    parser.add_argument("--lanes", type=int, help="default: one per core")
    parser.add_argument("--torch", action="store_true", help="PyTorch eager and compiled as well")
    parser.add_argument("-o", "--out", type=Path, default=Path("many_core.json"))
    chosen = parser.parse_args(arguments)
    target = detect(measure=True)
    lanes, names = chosen.lanes or target.physical_cores, chosen.network or NETWORKS
    document: dict[str, Any] = {"target": target.model_dump(mode="json"), "lanes": lanes, "networks": []}
    table: CostTable | None = None
    for name in names:
        part = chosen.seconds / len(names)
        summary, table = study(name, chosen.batch, target, lanes, part, chosen.torch, table)
        document["networks"].append(summary)
        write_text(chosen.out, json.dumps(document, indent=1))
        print("\n".join(lines_of(summary)), flush=True)


if __name__ == "__main__":
    main()
