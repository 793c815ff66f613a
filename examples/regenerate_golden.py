"""Write generated/ again: `python examples/regenerate_golden.py`, after a change that is meant to alter plans or code.

The cost table is modelled (planner.costs.model), not measured, so that the same files come out on every machine. Only
the sizes that oneDNN asks for depend on the processor that it runs on; regenerate on one with AVX-512.
"""

from collections.abc import Mapping
from pathlib import Path

from codegen.cpu.emit import render
from codegen.facts import facts
from planner.artefact import write_text
from planner.console import script
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable, costs_text, read_costs
from planner.graph.model import Graph
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from planner.zoo import build

GENERATED = Path(__file__).parent.parent / "generated"
COSTS = GENERATED / "costs" / "cpu2.json"
NETWORKS = {"digits_cnn": 64, "mlp": 64}
"""zoo name -> batch"""
TARGET = "cpu2"


def graphs() -> list[Graph]:
    return [build(name, batch) for name, batch in NETWORKS.items()]


def golden_costs() -> CostTable:
    """One table for all examples, as a profile would make it."""
    tables = [modelled_costs(graph, load_target(TARGET), facts=facts) for graph in graphs()]
    return tables[0].with_entries(entry for table in tables[1:] for entry in table.entries)


def golden_files(costs: CostTable) -> Mapping[Path, str]:
    """Path below generated/ -> text of every plan and source."""
    target, found = load_target(TARGET), {}
    for graph in graphs():
        plan = make_plan(graph, target, costs)
        for name, text in render(plan, graph, target).items():
            found[Path(f"{graph.name}_{target.name}") / name] = text
    return found


def main() -> None:
    write_text(COSTS, costs_text(golden_costs()))
    files = golden_files(read_costs(COSTS))
    for path, text in files.items():
        write_text(GENERATED / path, text)
    print(f"wrote {len(files) + 1} files below {GENERATED.name}/")


if __name__ == "__main__":
    script(main)
