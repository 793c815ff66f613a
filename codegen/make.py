"""`stepplan make`: the whole way from a model to an importable executor."""

from pathlib import Path
from typing import NamedTuple

from codegen.build import build
from codegen.cost_table import fill
from codegen.emit import emit
from codegen.measure import Progress
from planner.artefact import sha256
from planner.capturing import capture
from planner.costs.table import read_costs, write_costs
from planner.graph.model import Graph
from planner.graph.precision import require_precision
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.text import load_target


class Made(NamedTuple):
    folder: Path
    plan: Plan
    graph: Graph
    target: Target
    replaced: bool
    """The folder held an executor of another graph: of this model before it was changed, or of another model of the
    same name and batch."""

    def __repr__(self) -> str:
        """Short, for notebooks: a plan's and a graph's have every node."""
        return f"<Made {self.folder}: plan {self.plan.name} for {self.target.name}>"


def make(
    model: object,
    *,
    batch: int | None = None,
    image_size: int | None = None,
    precision: str = "float32",
    clip_norm: float | None = None,
    accumulate: bool = False,
    target: str | Path | Target | None = None,
    out: Path | str = "generated",
    options: PlanOptions | None = None,
    budget_s: float | None = None,
    modelled: bool = False,
    tf32: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Made:
    """Detect, capture, profile, plan, check, emit and build into `out/<graph>_<target>`.

    The cost table lies in `out/costs/<target>.json`, where it can be reviewed, and is shared by all models of that
    target: only new signatures are measured. What `options.keep` names is not fused with its readers. `precision`: see
    Captured.in_precision. `clip_norm`, `accumulate`: as in `capture`. `modelled`, `tf32`: see codegen.cost_table.fill.
    A folder that is there is replaced.
    """
    hardware = target if isinstance(target, Target) else load_target(target) if target else detect(measure=True)
    kept = options.keep if options else ()
    captured = capture(model, batch=batch, image_size=image_size, keep=kept, clip_norm=clip_norm, accumulate=accumulate)
    captured = captured.in_precision(precision)
    require_precision(captured.graph, hardware.name, hardware.bfloat16)
    costs_file = Path(out) / "costs" / f"{hardware.name}.json"
    table = fill(
        [captured.graph],
        hardware,
        read_costs(costs_file) if costs_file.exists() else None,
        modelled=modelled,
        tf32=tf32,
        options=options,
        budget_s=budget_s,
        progress=progress,
        save=lambda t: write_costs(t, costs_file),
    )
    progress("planning", 0, 1)
    plan = make_plan(captured.graph, hardware, table, options)
    folder = Path(out) / f"{captured.graph.name}_{hardware.name}"
    before = folder / "graph.json"
    replaced = before.is_file() and sha256(before.read_text(errors="replace")) != plan.graph_hash
    emit(plan, captured.graph, hardware, folder)
    captured.write_weights(folder / "weights.npz")
    progress("planning", 1, 1)
    build(folder, progress=lambda done, total, what: progress("compiling", done, total))
    return Made(folder, plan, captured.graph, hardware, replaced)
