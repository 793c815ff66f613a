"""Does it pay to run a convolution's two gradients side by side, and does the planner find out? Measured here.

python examples/pair_study.py [--network resnet50] [--batch N] [--costs FILE] [--budget SECONDS] [--json]

Every convolution's gradient w.r.t. its input and the one w.r.t. its weights are ready at the same time. For each pair:
one after the other, each on all lanes in its best mode, against side by side, each on half of the lanes, with the
slow-downs that they were measured to cause each other. The measured pairs go into the cost table; the same plan before
and after says what the planner makes of them.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from codegen.facts import facts
from codegen.pairs import Pair, PairBench, beside
from codegen.profile import profile
from codegen.profile_cases import Case
from planner.costs.table import CoRun, CostEntry, CostTable, read_costs, write_costs
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


def gradients(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """(gradient w.r.t. the input, w.r.t. the weights) of every convolution that has both."""
    by_layer: dict[str, dict[str, Node]] = {}
    for node in graph.program["train_step"].nodes:
        if node.op in (DATA, WEIGHTS):
            by_layer.setdefault(node.id.rpartition(".")[0], {})[node.op] = node
    for found in by_layer.values():
        if len(found) == 2:
            yield found[DATA], found[WEIGHTS]


def best(table: CostTable, signature: Signature, slices: int) -> CostEntry | None:
    """The fastest mode with at most so many slices, cold."""
    fitting = [e for e in table.modes(signature.text) if e.slices <= slices and e.source == "measured"]
    return min(fitting, key=lambda e: sum(e.cold_ns), default=None)


def measure(graph: Graph, table: CostTable, target: Target) -> tuple[list[dict[str, Any]], CostTable]:
    """A row per distinct pair, and the table with what was measured."""
    lanes = target.lanes(target.physical_cores)
    wanted: dict[tuple[str, str], tuple[Node, list[Signature]]] = {}
    for one, other in gradients(graph):
        signatures = [signature_of(graph, n) for n in (one, other)]
        wanted.setdefault((signatures[0].text, signatures[1].text), (one, signatures))
    pairs, told = [], []
    for node, signatures in wanted.values():
        half = [best(table, s, len(lanes) // 2) for s in signatures]
        whole = [best(table, s, len(lanes)) for s in signatures]
        if None in half or None in whole:
            continue
        cases = [Case(s, e.mode, facts(s, e.mode)) for s, e in zip(signatures, half, strict=True)]  # type: ignore[union-attr]
        pairs.append(Pair(*sorted(cases, key=lambda c: (c.signature.text, c.mode)), (1, 1)))
        told.append((node, [sum(e.cold_ns) for e in whole], [sum(e.cold_ns) for e in half]))  # type: ignore[union-attr]
    rows, coruns = [], []
    with tempfile.TemporaryDirectory(prefix="stepplan-pairs-") as folder:
        bench = PairBench(pairs, target, lanes, Path(folder))
        for number, (pair, (node, serial, alone)) in enumerate(zip(pairs, told, strict=True)):
            factors = bench.factors(number)
            coruns.append(CoRun(first=beside(pair.first, factors[0]), second=beside(pair.second, factors[1])))
            slow = dict(zip((pair.first.signature.op, pair.second.signature.op), factors, strict=True))
            together = side_by_side((alone[0], slow[DATA]), (alone[1], slow[WEIGHTS]))
            rows.append(
                {
                    "layer": node.id,
                    "serial_ms": round(sum(serial) / 1e6, 3),
                    "side_by_side_ms": round(together / 1e6, 3),
                    "gain": round(sum(serial) / together, 3),
                    "data_slower": round(slow[DATA], 3),
                    "weights_slower": round(slow[WEIGHTS], 3),
                }
            )
        bench.close()
    return rows, table.with_coruns(coruns)


def side_by_side(one: tuple[float, float], other: tuple[float, float]) -> float:
    """ns until both (time alone, factor beside the other) have ended; what is left of the longer one runs alone."""
    first, second = sorted((one, other), key=lambda part: part[0] * part[1])
    overlap = first[0] * first[1]
    return overlap + second[0] - overlap / second[1]


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
    main()
