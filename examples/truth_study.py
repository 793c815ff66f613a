"""Every network of the zoo against PyTorch in float64: are executors as near to the truth as PyTorch's float32?

Plans with modelled costs for this machine, emits, builds, runs three steps from random parameters on random inputs, and
prints, per kind, how many tensors are beyond what is allowed, how many of those are odd (kinks do not explain them),
and the worst tensor: its error, PyTorch's own, what kinks do, and the share of what is allowed (codegen/truth.py). Exit
status 1 where a tensor is odd. Needs torch.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from codegen.truth import Row, truth, worst_per_kind
from planner import zoo
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect

HEAD = (
    f"{'network':15}{'kind':10}{'tensors':>8}{'beyond':>7}{'odd':>5}"
    f"  {'error':>8}{'torch':>9}{'kinks':>9}{'share':>7}  worst tensor"
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
    parser.add_argument("--lr", type=float, default=RATE, help="learning rate; 0: the network's own")
    parser.add_argument("--policy", default="auto", choices=("sequential", "liu", "auto"))
    parser.add_argument("--control", action="store_true", help="PyTorch in channels-last format instead of executors")
    parser.add_argument("--json", action="store_true", help="print every tensor as JSON")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    console = Console(stderr=True)
    results: dict[str, Any] = {"seed": seed, "networks": {}}
    right = True
    if not options.json:
        print(f"seed {seed}")
        print(HEAD)
    for name in options.networks or ALL:
        begun = time.perf_counter()
        graph = zoo.build(name, options.batch, image_size=options.image_size)
        with console.status(f"{graph.name}: planning and building"), tempfile.TemporaryDirectory() as folder:
            make(graph, Path(folder), options.policy)
            rows = compare(graph, Path(folder), seed, options)
        right = right and all(row.explained for row in rows)
        results["networks"][name] = [
            {**row._asdict(), "allowed": row.allowed, "ok": row.ok, "explained": row.explained} for row in rows
        ]
        if not options.json:
            print("\n".join(lines(name, rows)), flush=True)
        console.print(f"{graph.name}: {time.perf_counter() - begun:.0f} s")
        gc.collect()
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        print()
    return 0 if right else 1


def make(graph: Graph, folder: Path, policy: Any) -> None:
    """Plan for this machine without measuring anything, emit and build."""
    target = detect()
    plan = make_plan(graph, target, modelled_costs(graph, target, facts), PlanOptions(policy=policy))
    emit(plan, graph, target, folder)
    build(folder)


def compare(graph: Graph, folder: Path, seed: int, options: argparse.Namespace) -> list[Row]:
    with executor_class(folder)(seed=seed, pin=False, poison=True) as executor:
        if options.lr:
            executor.lr = options.lr
        return truth(graph, executor, options.steps, seed, control=options.control)


def lines(name: str, rows: list[Row]) -> list[str]:
    """One line per kind."""
    found = []
    for worst in worst_per_kind(rows):
        alike = [row for row in rows if row.kind == worst.kind]
        beyond, odd = sum(not row.ok for row in alike), sum(not row.explained for row in alike)
        numbers = f"{worst.error:8.1e}{worst.torch_error:9.1e}{worst.kink_error:9.1e}{worst.ratio:7.2f}"
        found.append(f"{name:15}{worst.kind:10}{len(alike):8}{beyond:7}{odd:5}  {numbers}  {worst.name}")
        name = ""
    return found


if __name__ == "__main__":
    sys.exit(main())
