"""How long planning takes, in seconds of processor time: ResNet-50, and chains of residual blocks up to 16,000 nodes,
with modelled costs.

python examples/scale_study.py [--lanes 2] [--policy auto] [--blocks 80] [--json]

With more than 16 lanes: strategies 1 to 4 on the modelled Knights Landing. `--policy auto` tries every candidate.
"""

import argparse
import json
import time

from planner.console import script
from planner.costs.model import modelled_costs
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.plan.check import check
from planner.plan.text import plan_text
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from planner.zoo import build


def residual_chain(blocks: int, batch: int = 16) -> Graph:
    """`blocks` residual blocks of two convolutions each; about 19 training nodes per block."""
    b = GraphBuilder(f"chain_{blocks}")
    x = b.input("images", TensorType(shape=(batch, 16, 8, 8), layout=Layout.CHANNELS_LAST))
    labels = b.input("labels", TensorType(shape=(batch,), dtype=DType.INT64))
    for index in range(blocks):
        y = layers.conv2d(b, x, 16, 3, padding=1, bias=False, name=f"b{index}.conv1")
        y = layers.relu(b, layers.batch_norm(b, y, name=f"b{index}.bn1"), name=f"b{index}.relu1")
        y = layers.conv2d(b, y, 16, 3, padding=1, bias=False, name=f"b{index}.conv2")
        y = layers.add(b, layers.batch_norm(b, y, name=f"b{index}.bn2"), x, name=f"b{index}.add")
        x = layers.relu(b, y, name=f"b{index}.relu2")
    x = layers.flatten(b, layers.adaptive_avg_pool(b, x, 1, name="pool"), name="flatten")
    logits = layers.linear(b, x, 10, name="fc")
    return b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(momentum=0.9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--policy", choices=("liu", "auto"), default="liu")
    parser.add_argument("--blocks", type=int, action="append", help="a chain of so many; default: ResNet-50, 80, 850")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    target = load_target("cpu2" if options.lanes <= 2 else "cpu16" if options.lanes <= 16 else "knl7250")
    strategies = (1, 2, 3, 4) if options.lanes > 16 else (1,)
    if options.policy == "auto":
        wanted = PlanOptions(lanes=options.lanes)
    else:
        wanted = PlanOptions(policy="liu", strategies=strategies, lanes=options.lanes)
    rows = []
    for blocks in options.blocks or (0, 80, 850):
        graph = residual_chain(blocks) if blocks else build("resnet50")
        costs = modelled_costs(graph, target, lanes=options.lanes)
        begun = time.process_time()
        plan = make_plan(graph, target, costs, wanted)
        planned = time.process_time()
        findings = check(graph, plan, target)
        checked = time.process_time()
        text = plan_text(plan)
        written = time.process_time()
        rows.append(
            {
                "graph": graph.name,
                "nodes": sum(len(p.nodes) for p in graph.programs),
                "plan_s": round(planned - begun, 2),
                "check_s": round(checked - planned, 2),
                "text_s": round(written - checked, 2),
                "findings": len(findings),
                "plan_mib": round(len(text) / 2**20, 2),
            }
        )
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    script(main)
