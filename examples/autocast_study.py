"""Networks of the zoo in bfloat16 against PyTorch's own mixed precision: how far is each from float64?

Plans with modelled costs for this machine, emits, builds, and takes some steps from random parameters on random
inputs, as PyTorch does under autocast and in float64 (codegen/autocast.py). A line per network: for losses, the first
step's gradients and the parameters after the steps the median relative error over tensors, the executor's and
autocast's. The processor needs instructions for bfloat16 (SP1033). Needs torch.

Exit status 1 where an executor's gradients or parameters are further off than `--most` times autocast's. A loss is one
number a step, of which either may be nearer by chance: shown, not judged.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from codegen.autocast import KINDS, distances
from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.facts import facts
from codegen.load import executor_class
from planner import zoo
from planner.console import script
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.graph.precision import mixed_precision
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect

USUAL = ("mlp", "digits_cnn", "lstm", "wide_deep", "resnet18", "resnet34", "resnet50")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"default: {', '.join(USUAL)}")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--image-size", type=int, help="default: the network's own")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, help="of parameters; default: another one every time")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate; 0: the network's own")
    parser.add_argument("--most", type=float, default=1.1)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    right = True
    print(f"{'network':16}{'seed':>11}" + "".join(f"{kind + ', autocast':>28}" for kind in KINDS), flush=True)
    for name in options.networks or USUAL:
        graph = zoo.build(name, options.batch, image_size=options.image_size)
        with tempfile.TemporaryDirectory() as folder, make(mixed_precision(graph), Path(folder))(seed=seed) as executor:
            if options.lr:
                executor.lr = options.lr
            found = distances(graph, executor, options.steps, device="cpu")
        right = right and all(d.executor <= options.most * d.autocast for d in found if d.kind != "loss")
        errors = (f"{d.executor:.2e}, {d.autocast:.2e} ({d.executor / d.autocast:.2f})" for d in found)
        print(f"{name:16}{seed:11}" + "".join(f"{text:>28}" for text in errors), flush=True)
    return 0 if right else 1


def make(graph: Graph, folder: Path) -> type[Executor]:
    """Plan for this machine without measuring anything, emit and build."""
    target = detect()
    plan = make_plan(graph, target, modelled_costs(graph, target, facts), PlanOptions(policy="sequential"))
    emit(plan, graph, target, folder)
    build(folder)
    return executor_class(folder)


if __name__ == "__main__":
    script(main)
