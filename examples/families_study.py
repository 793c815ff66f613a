"""Every module of tests/models, captured, built and trained for some steps beside PyTorch in float64: are executors as
near to the truth as PyTorch's float32?

Small modules of the families MobileNetV2/V3, EfficientNet, DenseNet, U-Net, ConvNeXt, ViT, BERT, GPT-2, LSTM, GRU and
graph attention, with random weights and inputs, planned from modelled costs. The bar, the columns and the exit status
are those of examples/truth_study.py, on the branch that each run took at relu and max pool. Needs torch.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))

from codegen.branches import decisive_values
from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.facts import facts
from codegen.load import executor_class
from codegen.truth import Verdict, truth, worst_per_kind
from planner.capturing import Captured, capture
from planner.console import one_of, positive, script
from planner.costs.model import modelled_costs
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from tests.models import FAMILIES

HEAD = (
    f"{'module':20}{'seed':>11}{'nodes':>7}{'tensors':>9}{'beyond':>8}{'worst':>7}{'flips':>7}{'farthest':>10}  tensor"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known: dict[str, Any] = {"type": one_of(FAMILIES), "metavar": "MODULE", "help": ", ".join(FAMILIES)}
    parser.add_argument("modules", nargs="*", default=sorted(FAMILIES), **known)
    parser.add_argument("--steps", type=positive, default=3)
    parser.add_argument("--seed", type=int, help="of weights and inputs; default: another one every time")
    parser.add_argument("--draws", type=int, default=1, help="seeds per module, counting up from the first")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    found: Counter[bool] = Counter()
    print(HEAD, flush=True)
    for name in options.modules:
        with tempfile.TemporaryDirectory() as folder:
            executors = make(captured_with(name, first), Path(folder))
            for seed in range(first, first + options.draws):
                captured = captured_with(name, seed)
                captured.write_weights(Path(folder) / "weights.npz")
                with executors(seed=seed, pin=False, poison=True) as executor:
                    verdict = truth(captured.graph, executor, options.steps, seed)["executor"]
                print(line(name, seed, captured, verdict), flush=True)
                found[not verdict.wrong] += 1
    print(f"{found[True]} of {found.total()} runs meet the bar")
    return 1 if found[False] else 0


def captured_with(name: str, seed: int) -> Captured:
    torch.manual_seed(seed)
    module, inputs, options = FAMILIES[name]()
    return capture(module, inputs, **options)


def make(captured: Captured, folder: Path) -> type[Executor]:
    """Plan for this machine without measuring anything, emit and build."""
    graph, target = captured.graph, detect()
    options = PlanOptions(keep=decisive_values(graph))
    emit(make_plan(graph, target, modelled_costs(graph, target, facts), options), graph, target, folder)
    build(folder)
    captured.write_weights(folder / "weights.npz")
    return executor_class(folder)


def line(name: str, seed: int, captured: Captured, verdict: Verdict) -> str:
    worst = max(worst_per_kind(verdict.rows), key=lambda row: row.ratio)
    wrong = sum(not row.ok for row in verdict.rows)
    flips = sum(f.count for f in verdict.flips)
    farthest = max((f.worst / f.allowed for f in verdict.flips), default=0.0)
    return (
        f"{name:20}{seed:11}{len(captured.graph.program['train_step'].nodes):7}{len(verdict.rows):9}{wrong:8}"
        f"{worst.ratio:7.2f}{flips:7}{farthest:10.2f}"
        f"  {worst.kind} {worst.name}: {worst.error:.1e}, torch {worst.torch_error:.1e}"
    )


if __name__ == "__main__":
    script(main)
