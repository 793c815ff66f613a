"""SuperNeurons' three recomputation strategies against `auto`, each at the memory that the strategy needs.

python examples/strategies_study.py [NETWORK ...] [--target cpu2] [--json]

Without networks: the whole zoo. Costs are modelled, nothing runs: what is compared are the planner's estimates of peak
and extra time, which the plans' replays confirm (tests/solve/memory/test_published.py). Then what `auto` pays at shares
of the unbudgeted peak.
"""

import argparse
import json
from typing import Any

from codegen.facts import facts
from planner.console import script
from planner.costs.model import modelled_costs
from planner.solve.assemble import Setting
from planner.solve.memory.frontier import Frontier, exact_state, frontier
from planner.solve.memory.published import published
from planner.solve.options import PlanOptions
from planner.solve.scheduling import base_schedules
from planner.target.text import load_target
from planner.zoo import NETWORKS, build

SHARES = (0.8, 0.6, 0.5, 0.4)


def compare(name: str, target_name: str) -> dict[str, Any]:
    graph, target = build(name), load_target(target_name)
    costs = modelled_costs(graph, target, facts)
    setting = Setting(graph, target, costs, PlanOptions(policy="sequential"), lambda text: None)
    schedules = base_schedules(setting)
    choice = frontier(setting, schedules)
    row: dict[str, Any] = {"network": name, "peak_bytes": choice.states[0].peak, "strategies": {}, "auto": {}}
    for strategy, decisions in published(graph, graph.program["train_step"], choice.material).items():
        state = exact_state(setting, schedules, choice, decisions)
        auto = at(choice, state.peak)
        row["strategies"][strategy] = {
            "peak_bytes": state.peak,
            "overhead": state.extra_ns / choice.base_ns,
            "auto_overhead": auto,
        }
        assert auto is not None and auto <= state.extra_ns / choice.base_ns
    row["auto"] = {str(share): at(choice, share * choice.states[0].peak) for share in SHARES}
    return row


def at(choice: Frontier, peak: float) -> float | None:
    """Extra time of the fastest state within `peak` bytes, as a share of the step; None: there is none."""
    return next((s.extra_ns / choice.base_ns for s in choice.states if s.peak <= peak), None)


def text(row: dict[str, Any]) -> str:
    parts = [
        f"{strategy} {100 * s['peak_bytes'] / row['peak_bytes']:.0f} %: {100 * s['overhead']:+.1f} / "
        f"{100 * s['auto_overhead']:+.1f} %"
        for strategy, s in row["strategies"].items()
    ]
    shares = [f"{float(k):.0%} " + ("-" if v is None else f"{100 * v:+.1f} %") for k, v in row["auto"].items()]
    return f"{row['network']:<14} {'; '.join(parts)} | auto {', '.join(shares)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=sorted(NETWORKS))
    parser.add_argument("--target", default="cpu2")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.networks:
        row = compare(name, arguments.target)
        print(json.dumps(row) if arguments.json else text(row), flush=True)


if __name__ == "__main__":
    script(main)
