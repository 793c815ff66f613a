"""Does it pay to run a convolution's two gradients side by side, and does the planner find out? Measured here.

python examples/pair_study.py [--network resnet50] [--batch N] [--costs FILE] [--budget SECONDS] [--json]

Every convolution's gradient w.r.t. its input and the one w.r.t. its weights are ready at the same time. For each pair:
one after the other, each on all lanes, against side by side, each on half of the lanes, runs in turn. The slow-downs
that they cause each other go into the cost table; the same plan before and after says what the planner makes of them.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from codegen.facts import facts
from codegen.measure import Bench
from codegen.pairs import Pair, PairBench, beside, visit_pairs
from codegen.profile import profile
from codegen.profile_cases import Case, Memory, Programs, case_node
from planner.console import script
from planner.costs.table import CoRun, CostTable, read_costs, write_costs
from planner.graph.model import Graph, Node
from planner.ops.base import Signature
from planner.ops.signature import signature_of
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.report.events import node_spans
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.zoo import build

DATA, WEIGHTS = "conv2d_backward_data", "conv2d_backward_weights"
REPETITIONS = 9


def gradients(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """(gradient w.r.t. the input, w.r.t. the weights) of every convolution that has both."""
    by_layer: dict[str, dict[str, Node]] = {}
    for node in graph.program["train_step"].nodes:
        if node.op in (DATA, WEIGHTS):
            by_layer.setdefault(node.id.rpartition(".")[0], {})[node.op] = node
    for found in by_layer.values():
        if len(found) == 2:
            yield found[DATA], found[WEIGHTS]


class Turns(Bench):
    """Both ways of a pair on the same memory: one after the other on all lanes, and side by side on half of them."""

    def __init__(self, pairs: Sequence[tuple[list[Case], list[Case]]], target: Target, folder: Path) -> None:
        lanes = target.lanes(target.physical_cores)
        super().__init__((), target, lanes, folder)
        programs = Programs("turns", target, lanes)
        for number, ways in enumerate(pairs):
            for way, cases in enumerate(ways):
                memory = Memory(target.memory.name)
                half = cases[0].mode.slices
                nodes = [(*case_node(f"pair{number}.{way}{i}", c, memory), half * i * way) for i, c in enumerate(cases)]
                programs.hold(memory)
                programs.add(nodes, memory.footprint)
        self._open(programs, folder)

    def ratio(self, number: int) -> tuple[float, float, float]:
        """Median ns one after the other, side by side, and of the ratio of runs in turn."""
        took: tuple[list[float], list[float]] = ([], [])
        for way in (0, 1):
            self._fill(self._footprints[2 * number + way], 1)
            for _ in range(2):
                self._span(2 * number + way)
        for _ in range(REPETITIONS):
            for way in (0, 1):
                took[way].append(self._span(2 * number + way))
        return median(took[0]), median(took[1]), median(a / b for a, b in zip(*took, strict=True))

    def _span(self, program: int) -> float:
        self._native.run_shifted(self._handle, program, 0)
        spans = [span for lane in self._native.spans(self._handle, program) for span in lane]
        return float(max(end for _, end in spans) - min(start for start, _ in spans))


def measure(graph: Graph, table: CostTable, target: Target) -> tuple[list[dict[str, Any]], CostTable]:
    """A row per distinct pair, and the table with their slow-downs."""
    lanes = target.lanes(target.physical_cores)
    layers, pairs = dict[tuple[str, str], str](), list[tuple[list[Case], list[Case]]]()
    for one, other in gradients(graph):
        signatures = [signature_of(graph, n) for n in (one, other)]
        key = (signatures[0].text, signatures[1].text)
        if key not in layers:
            layers[key] = one.id.rpartition(".")[0]
            pairs.append((cases(table, signatures, len(lanes)), cases(table, signatures, len(lanes) // 2)))
    with tempfile.TemporaryDirectory(prefix="stepplan-turns-") as folder:
        bench = Turns(pairs, target, Path(folder))
        turns = [bench.ratio(number) for number in range(len(pairs))]
        bench.close()
    halves = (sorted(half, key=lambda c: (c.signature.text, c.mode)) for _, half in pairs)
    ordered = [Pair(first, second, (1, 1)) for first, second in halves]
    with tempfile.TemporaryDirectory(prefix="stepplan-pairs-") as folder:
        slow = PairBench(ordered, target, lanes, Path(folder))
        factors = [visit.factors for visit in visit_pairs(slow, len(ordered))]
        slow.close()
    rows, coruns = [], []
    for layer, pair, (serial, together, gain), (one, other) in zip(
        layers.values(), ordered, turns, factors, strict=True
    ):
        coruns.append(CoRun(first=beside(pair.first, one), second=beside(pair.second, other)))
        slower = {pair.first.signature.op: one, pair.second.signature.op: other}
        rows.append(
            {
                "layer": layer,
                "serial_ms": round(serial / 1e6, 3),
                "side_by_side_ms": round(together / 1e6, 3),
                "gain": round(gain, 3),
                "data_slower": round(slower[DATA], 3),
                "weights_slower": round(slower[WEIGHTS], 3),
            }
        )
    return rows, table.with_coruns(coruns)


def cases(table: CostTable, signatures: Sequence[Signature], slices: int) -> list[Case]:
    """The two gradients in their best modes with at most so many slices."""
    found = []
    for signature in signatures:
        fitting = [e for e in table.modes(signature.text) if e.slices <= slices and e.source == "measured"]
        mode = min(fitting, key=lambda e: sum(e.cold_ns)).mode
        found.append(Case(signature, mode, facts(signature, mode)))
    return found


def overlapping(graph: Graph, plan: Plan) -> int:
    """Pairs of gradients of one layer that the plan runs side by side."""
    spans = node_spans(replay(plan, plan.program["train_step"]).rows())
    found = 0
    for one, other in gradients(graph):
        (a, b), (c, d) = spans[one.id], spans[other.id]
        found += min(b, d) - max(a, c) > 0.3 * min(b - a, d - c)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--costs", type=Path, help="a cost table to extend")
    parser.add_argument("--budget", type=float, help="seconds for timing kernels, roughly")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    graph, target = build(chosen.network, chosen.batch), detect(measure=True)
    table = read_costs(chosen.costs) if chosen.costs and chosen.costs.exists() else None
    table = profile([graph], target, table, budget_s=chosen.budget)
    if not any(gradients(graph)):
        parser.error(f"{chosen.network} has no convolution with both gradients")
    rows, larger = measure(graph, table, target)
    if chosen.costs:
        write_costs(larger, chosen.costs)
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True)
    plans = {name: make_plan(graph, target, t, options) for name, t in (("before", table), ("after", larger))}
    document = {
        "network": graph.name,
        "lanes": target.physical_cores,
        "pairs": rows,
        "layers": sum(1 for _ in gradients(graph)),
        "side_by_side_in_plan": {name: overlapping(graph, plan) for name, plan in plans.items()},
        "predicted_ms": {n: round(p.program["train_step"].predicted_ns / 1e6, 2) for n, p in plans.items()},
    }
    if chosen.json:
        print(json.dumps(document))
        return
    for row in rows:
        print(", ".join(f"{k} {v}" for k, v in row.items()))
    gains = sorted(row["gain"] for row in rows)
    print(f"{len(rows)} distinct pairs on {document['lanes']} lanes: gain {gains[0]} to {gains[-1]}")
    before, after = document["side_by_side_in_plan"].values()
    print(f"of {document['layers']} layers' gradients the plan runs {before} side by side before, {after} after")


if __name__ == "__main__":
    script(main)
