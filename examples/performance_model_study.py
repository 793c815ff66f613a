"""How well hill climbing predicts the slice counts that it skips, and how regression compares (Liu et al., tables IV
and V).

python examples/performance_model_study.py [--network resnet50 ...] [--costs FILE] [--budget SECONDS] [--json]

Times every slice count of every signature on this machine, then replays hill climbing at intervals 2, 4, 8 and 16 on
those curves. The regression baselines train on all networks but one and are tested on that one, as in the paper; their
features are not hardware counters (planner/costs/regression.py says why). On a machine with few cores most intervals
skip nothing: such rows are left out.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codegen.profile import profile
from planner.console import script
from planner.costs.curves import Curve, climb, curves
from planner.costs.regression import Work, scores
from planner.costs.table import CostTable, read_costs, write_costs
from planner.graph.model import Graph
from planner.ops.base import op_named
from planner.ops.signature import signatures_of
from planner.target.detect import detect
from planner.zoo import build

NETWORKS = ("resnet50", "dcgan", "inception_v3", "lstm")
INTERVALS = (2, 4, 8, 16)
PUBLISHED = {
    "resnet50": (0.9813, 0.9545, 0.8342, 0.3112),
    "dcgan": (0.9716, 0.9443, 0.5154, 0.1014),
    "inception_v3": (0.9791, 0.9422, 0.7321, 0.2121),
    "lstm": (0.9556, 0.9045, 0.4134, 0.1103),
}
"""Table V, on 68 cores."""


def table_5(table: CostTable, graphs: Mapping[str, Graph]) -> list[dict[str, Any]]:
    rows = []
    for name, graph in graphs.items():
        known = curves(table, [s.text for s in signatures_of([graph])])
        for column, interval in enumerate(INTERVALS):
            found = climb(known, interval)
            if found.accuracy is not None:
                published = PUBLISHED[name][column] if name in PUBLISHED else None
                rows.append({"network": name, "interval": interval, "published": published, **found._asdict()})
    return rows


def table_4(table: CostTable, graphs: Mapping[str, Graph], test: str) -> list[dict[str, Any]]:
    """Scores of regressions trained on the other networks, by number of samples."""
    work: dict[str, Work] = {}
    parts: dict[bool, list[Curve]] = {False: [], True: []}
    widest = max(e.slices for e in table.entries)
    for name, graph in graphs.items():
        signatures = signatures_of([graph])
        work |= {s.text: Work(op_named(s.op).flops(s), op_named(s.op).bytes_moved(s)) for s in signatures}
        for curve in curves(table, [s.text for s in signatures]):
            if len(curve.times) == widest:
                parts[name == test].append(curve)
    if not all(parts.values()):
        return []
    return [
        {"samples": n, **score._asdict()}
        for n in (1, 4, 8, 16)
        if n < widest
        for score in scores(parts[False], parts[True], work, n)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", help="default: " + ", ".join(NETWORKS))
    parser.add_argument("--batch", type=int, help="default: each network's own")
    parser.add_argument("--costs", type=Path, help="a cost table to extend; every count it lacks is timed")
    parser.add_argument("--budget", type=float, help="seconds for timing, roughly")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    graphs = {name: build(name, chosen.batch) for name in chosen.network or NETWORKS}
    target = detect()
    table = read_costs(chosen.costs) if chosen.costs and chosen.costs.exists() else None
    table = profile(list(graphs.values()), target, table, every_count=True, budget_s=chosen.budget)
    if chosen.costs:
        write_costs(table, chosen.costs)
    test = "dcgan" if "dcgan" in graphs else list(graphs)[-1]
    document = {
        "target": target.name,
        "cores": target.physical_cores,
        "table_5": table_5(table, graphs),
        "table_4": table_4(table, graphs, test),
    }
    if chosen.json:
        print(json.dumps(document))
        return
    print(f"{target.name}, {target.physical_cores} cores")
    for part in ("table_5", "table_4"):
        print(part + ("" if document[part] else ": these cores leave no count to predict"))
        for row in document[part]:
            cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  " + ", ".join(cells))


if __name__ == "__main__":
    script(main)
