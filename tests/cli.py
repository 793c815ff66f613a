"""Running commands in tests, and a small model that all of them use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from codegen.cli import app
from codegen.facts import facts
from planner.bundle import write_bundle
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable, write_costs
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.text import write_graph
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.text import write_target

RUNNER = CliRunner()


def run(*arguments: object) -> Any:
    """A finished command: exit_code, stdout, stderr."""
    return RUNNER.invoke(app, [str(a) for a in arguments])


def succeeds(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def fails(code: str, *arguments: object, exit_code: int = 2) -> str:
    """The command ends in one clear error with that code; returns its text."""
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    text = str(result.stderr)
    assert "Traceback" not in text and result.stdout == "", result.output
    errors = [line for line in text.splitlines() if line.startswith("SP")]
    assert len(errors) == 1 and errors[0].startswith(f"{code}: "), text
    assert text.count("  fix: ") == 1 and f"docs/errors.md#{code.lower()}" in text
    assert all(c.isprintable() or c == "\n" for c in text), "no control character reaches the terminal"
    assert len(text) < 2000, "short enough to read"
    return text


def tiny(batch: int = 8) -> Graph:
    """Two linear layers."""
    b = GraphBuilder(f"tiny_b{batch}")
    x = b.input("x", TensorType(shape=(batch, 12)))
    labels = b.input("labels", TensorType(shape=(batch,), dtype=DType.INT64))
    y = layers.relu(b, layers.linear(b, x, 16, name="fc1"), name="relu")
    logits = layers.linear(b, y, 4, name="fc2")
    return b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(lr=0.1, momentum=0.9))


class Files(NamedTuple):
    """A workspace: what the commands before `plan` would have written, and a plan."""

    folder: Path
    graph: Path
    target: Path
    costs: Path
    plan: Path


def this_machine() -> Target:
    """At most two lanes of it."""
    found = detect("here")
    return found.restrict(min(2, found.physical_cores))


def workspace(folder: Path) -> Files:
    """Modelled costs that pass for measured ones, so that nothing is profiled."""
    graph, target = tiny(), this_machine()
    table = modelled_costs(graph, target, facts)
    entries = tuple(e.model_copy(update={"source": "measured"}) for e in table.entries)
    table = table.model_copy(update={"entries": entries})
    files = Files(folder, folder / "graph.json", folder / "target.toml", folder / "costs.json", folder / "plan")
    write_graph(graph, files.graph)
    write_target(target, files.target)
    write_costs(table, files.costs)
    write_bundle(files.plan, plan_of(graph, target, table), graph, target)
    return files


def plan_of(graph: Graph, target: Target, table: CostTable) -> Any:
    return make_plan(graph, target, table, PlanOptions(policy="sequential"))


def everything_below(folder: Path) -> dict[str, bytes]:
    """Path -> contents; temporary files included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
