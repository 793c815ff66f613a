"""What each strategy adds (Liu et al., figure 3), and what parallel operators add (MXNet): simulated, for any target.

python examples/ablation.py --network lstm [--batch N] [--target knl7250] [--costs FILE] [--lanes N] [--json]

Without a cost table times are MODELLED. Executed, the same comparison is a part of many_core_study.py.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codegen.facts import facts
from planner.console import script
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable, read_costs
from planner.graph.model import Graph
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.report.events import co_running
from planner.solve.options import ParallelOps, PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.text import load_target
from planner.zoo import build


def ways(lanes: int | None, smt: bool) -> dict[str, PlanOptions]:
    """Name -> options: the recommendation, strategies one after the other, parallel operators, and everything.
    `smt`: cores have second threads, which strategy 4 needs."""

    def liu(*strategies: int, **more: Any) -> PlanOptions:
        return PlanOptions(policy="liu", strategies=strategies, lanes=lanes, **more)

    found = {"sequential": PlanOptions(policy="sequential", lanes=lanes)}
    found |= {"1": liu(1), "1,2": liu(1, 2), "1,2,3": liu(1, 2, 3), "1,3": liu(1, 3)}
    if smt:
        found |= {"1,2,3,4": liu(1, 2, 3, 4), "1,3,4": liu(1, 3, 4)}
    return found | {"1, parallel ops": liu(1, parallel_ops=ParallelOps()), "auto": PlanOptions(lanes=lanes)}


def has_smt(target: Target) -> bool:
    return target.logical_cpus > target.physical_cores


def simulated(graph: Graph, target: Target, costs: CostTable, lanes: int | None = None) -> dict[str, Plan]:
    return {n: make_plan(graph, target, costs, options) for n, options in ways(lanes, has_smt(target)).items()}


def rows_of(plans: Mapping[str, Plan], sync_ns: float) -> list[dict[str, Any]]:
    """Per way: predicted step, factor over sequential, nodes that run at once."""
    base = plans["sequential"].programs[0].predicted_ns
    return [
        {
            "way": name,
            "predicted_ms": plan.programs[0].predicted_ns / 1e6,
            "factor": base / plan.programs[0].predicted_ns,
            "co_running": co_running(replay(plan, plan.programs[0], sync_ns=sync_ns).rows())._asdict(),
        }
        for name, plan in plans.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lstm")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--target", help="a target file or a checked-in target's name; this machine by default")
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    graph = build(chosen.network, chosen.batch)
    target = load_target(chosen.target) if chosen.target else detect()
    costs = read_costs(chosen.costs) if chosen.costs else modelled_costs(graph, target, facts, lanes=chosen.lanes)
    rows = rows_of(simulated(graph, target, costs, chosen.lanes), costs.sync_ns)
    modelled = "" if chosen.costs else " (modelled)"
    if chosen.json:
        print(json.dumps({"network": graph.name, "target": target.name, "modelled": bool(modelled), "ways": rows}))
        return
    print(f"{graph.name} on {target.name}{modelled}")
    for row in rows:
        at_once = row["co_running"]["mean"]
        print(f"  {row['way']:16} {row['predicted_ms']:10.3f} ms, {row['factor']:.2f}x, {at_once:.2f} nodes at once")


if __name__ == "__main__":
    script(main)
