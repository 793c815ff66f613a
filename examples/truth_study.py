"""Every network of the zoo against PyTorch in float64: are executors as near to the truth as PyTorch's float32?

Plans with modelled costs for this machine, emits, builds, and takes three steps from random parameters on random
inputs. The bar: every tensor's error is at most twice PyTorch's own float32 error, or 1e-5 (codegen/truth.py).

A line per contender: the executor, and PyTorch in channels-last format, which differs from PyTorch's default format
in the order of additions only. Columns, under both verdicts (`same branch`: against float64 with the contender's own
decisions at relu and max pool; `literal`: against float64 that decides for itself): how many tensors miss the bar, and
the largest error as a share of what is allowed. Then the decisions that float64 would not have taken there: how many,
how many PyTorch's default format has, and the farthest from its kink as a share of what is allowed.

Exit status 1 where an executor's tensor or decision misses the bar on the same branch. Needs torch.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from codegen.branches import decisive_values
from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.facts import facts, modelled_by
from codegen.load import executor_class
from codegen.truth import Row, Verdict, truth, worst_per_kind
from planner import zoo
from planner.console import script
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect

HEAD = (
    f"{'network':15}{'seed':>11} {'contender':14}{'tensors':>8}"
    f"{'same branch':>14}{'literal':>15}{'flips':>8}{'torch':>7}{'farthest':>9}  worst on the same branch"
)
RATE = 1e-3
"""The zoo's 0.1 is meant for large batches: on two images, three steps multiply float32 rounding to errors of 1e-1 in
PyTorch and in executors, which then say nothing."""
ALL = (*zoo.NETWORKS, "resnet_1_1_1_1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(ALL)}; default: all of them")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--image-size", type=int, help="default: the network's own")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, help="of parameters and inputs; default: another one every time")
    parser.add_argument("--draws", type=int, default=1, help="seeds per network, counting up from the first")
    parser.add_argument("--lr", type=float, default=RATE, help="learning rate; 0: the network's own")
    parser.add_argument(
        "--implementation", default="", help="of library nodes, wherever there is one of that name (winograd)"
    )
    parser.add_argument("--policy", default="auto", choices=("sequential", "liu", "auto"))
    parser.add_argument(
        "--same-branch", action="store_true", help="leave the literal verdict out: less memory (VGG16: 9 GiB)"
    )
    parser.add_argument("--json", action="store_true", help="print every tensor as JSON")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    console = Console(stderr=True)
    results: list[dict[str, Any]] = []
    right = True
    if not options.json:
        print(HEAD, flush=True)
    for name in options.networks or ALL:
        graph = zoo.build(name, options.batch, image_size=options.image_size)
        with console.status(f"{graph.name}: planning and building"), tempfile.TemporaryDirectory() as folder:
            executors = make(graph, Path(folder), options.policy, options.implementation)
            for seed in range(first, first + options.draws):
                begun = time.perf_counter()
                found = compare(graph, executors, seed, options)
                right = right and not found["executor"].wrong
                results += [document(name, seed, who, verdict) for who, verdict in found.items()]
                if not options.json:
                    print("\n".join(line(name, seed, who, verdict) for who, verdict in found.items()), flush=True)
                console.print(f"{graph.name}: {time.perf_counter() - begun:.0f} s")
                gc.collect()
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        print()
    return 0 if right else 1


def make(graph: Graph, folder: Path, policy: Any, implementation: str) -> type[Executor]:
    """Plan for this machine without measuring anything, emit and build."""
    target = detect()
    options = PlanOptions(policy=policy, keep=decisive_values(graph))
    costs = modelled_by(implementation, graph, target) if implementation else modelled_costs(graph, target, facts)
    plan = make_plan(graph, target, costs, options)
    emit(plan, graph, target, folder)
    build(folder)
    return executor_class(folder)


def compare(graph: Graph, executors: type[Executor], seed: int, options: argparse.Namespace) -> dict[str, Verdict]:
    with executors(seed=seed, pin=False, poison=True) as executor:
        if options.lr:
            executor.lr = options.lr
        return truth(graph, executor, options.steps, seed, control=True, free=not options.same_branch)


def line(name: str, seed: int, who: str, verdict: Verdict) -> str:
    worst = max(worst_per_kind(verdict.rows), key=lambda row: row.ratio)
    flips, torch_flips = sum(f.count for f in verdict.flips), sum(f.torch_count for f in verdict.flips)
    farthest = max((f.worst / f.allowed for f in verdict.flips), default=0.0)
    return (
        f"{name:15}{seed:11} {who:14}{len(verdict.rows):8}{share(verdict.rows):>14}{share(verdict.free):>15}"
        f"{flips:8}{torch_flips:7}{farthest:9.2f}"
        f"  {worst.kind} {worst.name}: {worst.error:.1e}, torch {worst.torch_error:.1e}"
    )


def share(rows: Sequence[Row]) -> str:
    """Tensors that miss the bar, and the worst error as a share of what is allowed."""
    if not rows:
        return "-"
    return f"{sum(not row.ok for row in rows)}, {max(row.ratio for row in rows):.2f}"


def document(name: str, seed: int, who: str, verdict: Verdict) -> dict[str, Any]:
    rows = {
        "same_branch": [{**r._asdict(), "allowed": r.allowed, "ok": r.ok} for r in verdict.rows],
        "literal": [{**r._asdict(), "allowed": r.allowed, "ok": r.ok} for r in verdict.free],
        "flips": [{**f._asdict(), "ok": f.ok} for f in verdict.flips if f.count or f.torch_count],
    }
    return {"network": name, "seed": seed, "contender": who, **rows}


if __name__ == "__main__":
    script(main)
