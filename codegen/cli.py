"""The command line, building half: the commands that need a compiler, added to planner.cli's application."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import app
from planner.cli.options import (
    Accumulate,
    Batch,
    ClipNorm,
    ImageSize,
    Keep,
    MemoryBudget,
    ModelArgument,
    PlanArgument,
    Policy,
    PolicyOption,
    Precision,
    PrecisionOption,
    SameBits,
)
from planner.cli.summary import summary
from planner.console import AsJson, command, emit_result, friendly_errors, progress, stderr
from planner.errors import UserError
from planner.units import format_bytes, parse_bytes

Modelled = Annotated[
    bool, typer.Option("--modelled", help="Estimate times from the target file, for a machine that is not at hand.")
]
Tf32 = Annotated[bool, typer.Option("--tf32", help="On a GPU: matrix units may round operands to 10 bits.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A generated folder, as emit wrote it.")]


@command
def profile(
    graphs: Annotated[list[Path], typer.Argument(metavar="GRAPH...", help="Training graphs; each time once for all.")],
    target: Annotated[str, typer.Option(help="A target file or a checked-in target's name.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The cost table; an existing one is extended.")] = Path(
        "costs.json"
    ),
    budget: Annotated[float | None, typer.Option(min=0.1, help="Seconds to spend, roughly, on both visits.")] = None,
    interval: Annotated[int | None, typer.Option(min=1, help="Step of the hill climbing over slices.")] = None,
    pairs: Annotated[bool, typer.Option(help="Time the pairs of nodes that a plan would run side by side.")] = True,
    modelled: Modelled = False,
    tf32: Tf32 = False,
    as_json: AsJson = False,
) -> None:
    """Measure every signature of the graphs on this machine. Can be interrupted and resumed."""
    from codegen.cost_table import fill
    from planner.costs.table import read_costs, write_costs
    from planner.graph.text import read_graph
    from planner.target.text import load_target

    table = read_costs(out) if out.exists() else None
    before, pairs_before = (len(table.entries), len(table.coruns)) if table else (0, 0)
    with progress() as update:
        table = fill(
            [read_graph(g) for g in graphs],
            load_target(target),
            table,
            modelled=modelled,
            tf32=tf32,
            pairs=pairs,
            interval=interval,
            budget_s=budget,
            progress=update,
            save=lambda t: write_costs(t, out),
        )
    new, new_pairs = len(table.entries) - before, len(table.coruns) - pairs_before
    document = {"file": str(out), "entries": len(table.entries), "new": new, "new_pairs": new_pairs}
    text = f"wrote {out}: {len(table.entries)} entries, {new} of them new; {new_pairs} new pairs side by side"
    emit_result(as_json, document, text)


@command
def emit(
    path: PlanArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the executor's sources.")],
    as_json: AsJson = False,
) -> None:
    """Check a plan and render its executor."""
    from codegen.emit import emit as emit_plan
    from planner.bundle import copy_weights, read_bundle

    bundle = read_bundle(path)
    files = emit_plan(bundle.plan, bundle.graph, bundle.target, out)
    copy_weights(bundle.folder / "weights.npz", out / "weights.npz")
    text = f"wrote {len(files)} files to {out}; next: stepplan build {out}"
    emit_result(as_json, {"folder": str(out), "files": [f.name for f in files]}, text)


@command
def build(
    folder: Folder,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compilers at once; one per processor by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile an emitted executor."""
    from codegen.build import build as build_folder
    from codegen.build import unverified

    with progress() as update:
        built = build_folder(folder, jobs=jobs, progress=lambda done, total, what: update("compiling", done, total))
    text = f"built {folder / built.name}\n{how_to_import(folder)}"
    why = unverified(folder)
    if why:
        text += f"\nwhat it computes is not what `check` verified: {why}"
    emit_result(as_json, {"folder": str(folder), "module": built.name, "unverified": why}, text)


def how_to_import(folder: Path) -> str:
    """The lines that load a generated folder: an import where its path can be one, else by its path."""
    parts = folder.parts
    if not folder.is_absolute() and parts and all(part.isidentifier() for part in parts):
        return f"from {'.'.join(parts)} import Executor"
    return f"from codegen.load import executor_class\nExecutor = executor_class({str(folder)!r})"


REPLACED = (
    "it replaced a package of another graph; models whose classes have the same name are told apart by "
    '{"name": ...} among the options that a factory returns, or by -o'
)


@command
def make(
    model: ModelArgument,
    batch: Batch = None,
    image_size: ImageSize = None,
    precision: PrecisionOption = Precision.FLOAT32,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = False,
    target: Annotated[str | None, typer.Option(help="A target file or name; this machine by default.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where generated packages go.")] = Path("generated"),
    policy: PolicyOption = Policy.AUTO,
    memory_budget: MemoryBudget = None,
    same_bits: SameBits = None,
    keep: Keep = None,
    budget: Annotated[float | None, typer.Option(min=0.1, help="Seconds to spend on profiling, roughly.")] = None,
    modelled: Modelled = False,
    tf32: Tf32 = False,
    as_json: AsJson = False,
) -> None:
    """Everything: detect, capture, profile, plan, check, emit, build."""
    from codegen.make import make as make_model
    from planner.report.table import summary_lines
    from planner.solve.options import PlanOptions

    options = PlanOptions(
        policy=policy.value,
        memory_budget=parse_bytes(memory_budget) if memory_budget is not None else None,
        same_bits=same_bits,
        keep=tuple(keep or ()),
    )
    with progress() as update:
        made = make_model(
            model,
            batch=batch,
            image_size=image_size,
            precision=precision.value,
            clip_norm=clip_norm,
            accumulate=accumulate,
            target=target,
            out=out,
            options=options,
            budget_s=budget,
            modelled=modelled,
            tf32=tf32,
            progress=update,
        )
    lines = [
        f"{made.plan.name} on {made.plan.target}, {len(made.plan.lanes)} lanes, policy {made.plan.policy}, "
        f"{format_bytes(made.plan.pools[0].arena)} of memory{', times estimated' if modelled else ''}",
        *summary_lines(made.plan),
        "",
        f"the package is {made.folder}; stepplan show {made.folder} prints its plan",
        *([REPLACED] if made.replaced else []),
        how_to_import(made.folder),
    ]
    result = {**summary(made.plan), "folder": str(made.folder), "replaced": made.replaced}
    emit_result(as_json, result, "\n".join(lines))


@command
def bench(
    folder: Folder,
    against: Annotated[str | None, typer.Option(help="`torch`: alternate with eager and compiled PyTorch.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Steps of each contender.")] = 10,
    costs: Annotated[Path | None, typer.Option(help="The cost table, for the floor.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time a built executor: against its plan, its kernels, its memory, and PyTorch."""
    from codegen.bench import bench as bench_folder
    from codegen.bench_text import bench_text
    from planner.costs.table import read_costs

    if against not in (None, "torch"):
        raise UserError("SP1803", f"cannot compare against {against!r}", "name torch")
    table = read_costs(costs) if costs else None
    with stderr().status("warming up") as status:
        result = bench_folder(folder, against=against, repetitions=repetitions, costs=table, say=status.update)
    emit_result(as_json, result, bench_text(result))


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name need not be of the terminal's characters
    try:
        with friendly_errors():
            app(prog_name="stepplan")
    except typer.Exit as ended:  # not of a command, which ends by itself: help that cannot be printed
        sys.exit(ended.exit_code)
