"""A plan with what it was made from: plan.json, graph.json and target.toml in one folder.

Every command that takes a PLAN finds the other two beside it, so that a plan can be checked, explained and emitted
by whoever receives the folder.
"""

import os
from pathlib import Path
from typing import NamedTuple

from planner.artefact import write_bytes, write_text
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


def plan_file(path: Path | str) -> Path:
    """The plan.json that a command's PLAN argument means: the file itself, or the one in a folder."""
    file = Path(path)
    return file / "plan.json" if file.is_dir() else file


def read_bundle(path: Path | str, *, accept_edits: bool = False) -> Bundle:
    """`path` is the folder or its plan.json. SP1403, SP1404: graph or target are not those of the plan."""
    file = plan_file(path)
    plan = read_plan(file, accept_edits=accept_edits)
    graph = read_graph(file.parent / "graph.json")
    target = read_target(file.parent / "target.toml")
    for code, what, expected, found in (
        ("SP1403", "graph.json", plan.graph_hash, graph_hash(graph)),
        ("SP1404", "target.toml", plan.target_hash, target_hash(target)),
    ):
        if expected != found:
            raise UserError(
                code,
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


def weights_beside(graph: Path) -> Path:
    """Where `capture` puts a graph's initial weights: graph.json -> graph.weights.npz."""
    return graph.with_name(f"{graph.stem}.weights.npz")


def weights_of(file: Path, graph: Graph) -> Path:
    """Where the initial weights of a graph's file are: as `capture` puts them, or, where it lies in a plan's folder
    and has contents of its own, as they lie there."""
    captured, planned = weights_beside(file), file.with_name("weights.npz")
    own = any(v.init is not None and v.init.kind == "data" for v in graph.values)
    return planned if own and not captured.is_file() else captured


def copy_weights(source: Path, to: Path) -> None:
    """Pass initial weights on. Where there are none, a file left by another model is removed: it would be taken for
    this one's."""
    if os.path.realpath(source) == os.path.realpath(to):
        return
    if source.is_file():
        write_bytes(to, source.read_bytes())
    else:
        to.unlink(missing_ok=True)
