"""A plan with what it was made from: plan.json, graph.json and target.toml in one folder.

Every command that takes a PLAN finds the other two beside it, so that a plan can be checked, explained and emitted
by whoever receives the folder.
"""

from pathlib import Path
from typing import NamedTuple

from planner.artefact import write_text
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_hash, graph_text, read_graph
from planner.plan.schema import Plan
from planner.plan.text import plan_text, read_plan
from planner.target.model import Target
from planner.target.text import read_target, target_hash, target_text


class Bundle(NamedTuple):
    plan: Plan
    graph: Graph
    target: Target
    folder: Path


def read_bundle(path: Path | str, *, accept_edits: bool = False) -> Bundle:
    """`path` is the folder or its plan.json. SP1403: graph or target are not those of the plan."""
    file = Path(path)
    file = file / "plan.json" if file.is_dir() else file
    plan = read_plan(file, accept_edits=accept_edits)
    graph = read_graph(file.parent / "graph.json")
    target = read_target(file.parent / "target.toml")
    for what, expected, found in (
        ("graph.json", plan.graph_hash, graph_hash(graph)),
        ("target.toml", plan.target_hash, target_hash(target)),
    ):
        if expected != found:
            raise UserError(
                "SP1403",
                f"{what} beside the plan is not the one it was made for ({found}, not {expected})",
                "put the original back or plan again",
            )
    return Bundle(plan, graph, target, file.parent)


def write_bundle(folder: Path | str, plan: Plan, graph: Graph, target: Target) -> None:
    """Write the three files, each atomically, the plan last: it names the hashes of the other two."""
    where = Path(folder)
    write_text(where / "graph.json", graph_text(graph))
    write_text(where / "target.toml", target_text(target))
    write_text(where / "plan.json", plan_text(plan))
