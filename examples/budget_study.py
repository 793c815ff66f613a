"""Budgets executed: what a model needs, gains and takes with less and less memory, and whether its bits stay the same.

python examples/budget_study.py [--model resnet50] [--batch 16] [--shares 1,0.8,0.6,0.5,0.4,0.33] [--json]

The unbudgeted plan comes first; every share of its arena, and the smallest budget there is, are planned, built and run,
each in a process of its own. `--modelled` takes modelled costs instead of profiling: times then mean nothing, but
memory and bits do. `--disk` gives the target a second pool, a file, so that values may move there; `--host` one in
memory, as processors with fast memory of their own have (what a process gains is then of both pools).

`--of-torch 0.33` adds the budget in which activations and gradients get that share of what PyTorch keeps: all tensors
that autograd saves, each storage once, and gradients, when they are most (codegen/torch_memory.py; no fusion, no
checkpointing). Parameters, optimizer state, running statistics and inputs come on top, at their size.
"""

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.profile import profile
from codegen.steps import random_inputs
from planner.artefact import write_bytes
from planner.capturing import capture
from planner.console import script
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable, read_costs, write_costs
from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph
from planner.plan.check import check
from planner.report.pareto import pareto_picture
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_pareto, make_plan
from planner.target.model import Target
from planner.target.text import load_target
from planner.units import align

STEPS = 3

RUN = """
import hashlib, json, sys, time
import numpy as np
from codegen.bench import anonymous_bytes
from codegen.steps import random_inputs
from codegen.initial import give_back_memory
from codegen.load import executor_class
from planner.bundle import read_bundle
folder, spill, steps, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
graph = read_bundle(folder).graph
batches = [random_inputs(graph, seed) for seed in range(2)]
make = executor_class(folder)
give_back_memory()
before = anonymous_bytes()
executor = make(seed=0, spill=spill or None)
losses = [executor.step(*batches[i % 2]) for i in range(steps)]
gained = anonymous_bytes() - before
digest = hashlib.sha256()
loss, gradients = executor.gradients(*batches[1])
for name in sorted(gradients):
    digest.update(gradients[name].tobytes())
for name, value in sorted(executor.state_dict().items()):
    digest.update(np.ascontiguousarray(value).tobytes())
times = []
for i in range(repetitions):
    start = time.perf_counter_ns()
    executor.step(*batches[i % 2])
    times.append(time.perf_counter_ns() - start)
print(json.dumps({"losses": [float(x).hex() for x in [*losses, loss]], "digest": digest.hexdigest(),
                  "gained_bytes": gained, "step_ms": sorted(times)[len(times) // 2] / 1e6 if times else 0.0}))
"""


def smallest(graph: Graph, target: Target, costs: CostTable, policy: str) -> int:
    """The smallest budget that the planner can meet: it says so when asked for less."""
    try:
        make_plan(graph, target, costs, PlanOptions.model_validate({"policy": policy, "memory_budget": 1}))
    except UserError as error:
        found = re.search(r"can meet is (\d+) bytes", error.fix)
        assert found, error
        return int(found[1])
    raise AssertionError("a plan for one byte")


def of_torch(graph: Graph, share: float) -> tuple[int, int]:
    """(the budget with a share of what PyTorch keeps, all that PyTorch keeps besides parameters and the like)"""
    import torch

    from codegen.torch_memory import torch_keeps

    kept = torch_keeps(graph, tuple(torch.as_tensor(a) for a in random_inputs(graph, 0)))
    inputs = {v for p in graph.programs for v in p.inputs}
    rest = sum(align(v.type.bytes) for v in graph.values if v.role in PERSISTENT or v.id in inputs)
    return round(share * kept.total) + rest, kept.total


def study(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    work = Path(arguments.work)
    captured = capture(arguments.model, batch=arguments.batch)
    graph = captured.graph
    target = load_target(arguments.target)
    if arguments.disk or arguments.host:
        speed = 1_000_000_000 if arguments.disk else 10_000_000_000
        slow = {
            "name": "disk" if arguments.disk else "host",
            "kind": "disk" if arguments.disk else "dram",
            "capacity": 2**36,
            "bandwidth": speed,
            "link_in": speed,
            "link_out": speed,
        }
        target = Target.model_validate(
            {**target.model_dump(), "name": f"{target.name}_{slow['name']}", "pools": (*target.pools, slow)}
        )
    costs = costs_of(arguments, graph, target, work)
    started = time.perf_counter()
    plain = make_plan(graph, target, costs, PlanOptions(policy=arguments.policy))
    print(f"planned without a budget in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    whole = plain.pools[0].arena
    budgets = [(f"{share:.0%}", round(share * whole)) for share in arguments.shares]
    if arguments.of_torch:
        budget, kept = of_torch(graph, arguments.of_torch)
        print(f"PyTorch keeps {kept / 2**20:.1f} MiB of activations and gradients", file=sys.stderr)
        budgets.append((f"{arguments.of_torch:.0%} of PyTorch", budget))
    least = smallest(graph, target, costs, arguments.policy)
    budgets.append(("least", least))
    rows: list[dict[str, Any]] = []
    for name, budget in budgets:
        if budget < least:
            rows.append({"budget": name, "budget_bytes": budget, "least_bytes": least})
            continue
        started = time.perf_counter()
        options = PlanOptions(policy=arguments.policy, memory_budget=budget)
        plan = plain if budget >= whole else make_plan(graph, target, costs, options)
        planning = time.perf_counter() - started
        assert check(graph, plan, target) == []
        program = plan.program["train_step"]
        row: dict[str, Any] = {
            "budget": name,
            "budget_bytes": budget,
            "arena_bytes": [p.arena for p in plan.pools],
            "planning_s": round(planning, 2),
            "predicted_ms": program.predicted_ns / 1e6,
            "least_again_ms": program.least_again_ns / 1e6,
            "policy": f"{plan.policy} {','.join(map(str, plan.strategies))}".strip(),
            "recomputed": len(program.rewrite.recomputes),
            "moved": sum(t.kind == "offload" for t in program.rewrite.transfers),
        }
        if not arguments.plan_only:
            folder = work / f"budget_{hashlib.sha256(f'{arguments.model}{name}'.encode()).hexdigest()[:8]}"
            emit(plan, graph, target, folder)
            captured.write_weights(folder / "weights.npz")
            build(folder)
            spill = str(work) if arguments.disk and len(plan.pools) > 1 else ""
            command = [sys.executable, "-c", RUN, str(folder), spill, str(STEPS), str(arguments.repetitions)]
            row |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row)
        told = {k: v for k, v in row.items() if k not in ("losses", "digest")}
        print(json.dumps(told), file=sys.stderr)
    for row in (r for r in rows if "arena_bytes" in r):
        row["overhead"] = row["predicted_ms"] / rows[0]["predicted_ms"] - 1
        if "digest" in row:
            row["same_bits"] = (row["losses"], row["digest"]) == (rows[0]["losses"], rows[0]["digest"])
            row["measured_overhead"] = row["step_ms"] / rows[0]["step_ms"] - 1 if rows[0]["step_ms"] else 0.0
    if arguments.png:
        plans = make_pareto(graph, target, costs, PlanOptions(policy=arguments.policy))
        write_bytes(Path(arguments.png), pareto_picture(plans))
    return rows


def costs_of(arguments: argparse.Namespace, graph: Graph, target: Target, work: Path) -> CostTable:
    if arguments.modelled:
        return modelled_costs(graph, target, facts)
    file = Path(arguments.costs) if arguments.costs else work / "costs.json"
    known = read_costs(file) if file.exists() else None
    save = functools.partial(write_costs, path=file)
    table = profile([graph], target, known, budget_s=arguments.profile_seconds, save=save)
    write_costs(table, file)
    return table


def text(rows: list[dict[str, Any]]) -> str:
    head = f"{'budget':>14} {'arena MiB':>10} {'gained MiB':>11} {'again':>6} {'moved':>6} {'at least':>9}"
    lines = [f"{head} {'predicted':>10} {'measured':>9} bits"]
    first = rows[0]["predicted_ms"]
    for row in rows:
        if "least_bytes" in row:
            lines.append(f"{row['budget']:>14}   not even {row['least_bytes'] / 2**20:.1f} MiB fit into it")
            continue
        gained = f"{row['gained_bytes'] / 2**20:.1f}" if "gained_bytes" in row else ""
        measured = f"{100 * row['measured_overhead']:+.1f} %" if "measured_overhead" in row else ""
        bits = {True: "same", False: "DIFFER"}.get(row.get("same_bits"), "")
        lines.append(
            f"{row['budget']:>14} {row['arena_bytes'][0] / 2**20:>10.1f} {gained:>11} {row['recomputed']:>6} "
            f"{row['moved']:>6} {100 * row['least_again_ms'] / first:>+7.1f} % {100 * row['overhead']:>+8.1f} % "
            f"{measured:>9} {bits}"
        )
    return "\n".join(lines)


def shares(text: str) -> list[float]:
    return [float(share) for share in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--target", default="cpu2")
    parser.add_argument("--policy", default="sequential")
    parser.add_argument("--shares", default="1,0.8,0.6,0.5,0.4,0.33", type=shares)
    parser.add_argument("--of-torch", type=float, default=0.0)
    parser.add_argument("--work", default="/tmp/budget_study")
    parser.add_argument("--costs", default="")
    parser.add_argument("--profile-seconds", type=float, help="spend no longer on profiling")
    parser.add_argument("--modelled", action="store_true")
    slower = parser.add_mutually_exclusive_group()
    slower.add_argument("--disk", action="store_true")
    slower.add_argument("--host", action="store_true")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--png", default="")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = study(arguments)
    print(json.dumps(rows) if arguments.json else text(rows))


if __name__ == "__main__":
    script(main)
