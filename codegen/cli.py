"""The command line, building half: the commands that need a compiler, added to planner.cli's application."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from codegen.bench import bench as bench_folder
from codegen.build import build as build_folder
from codegen.cpu.emit import emit as emit_plan
from codegen.make import make as make_model
from codegen.profile import profile as profile_graphs
from planner.bundle import read_bundle
from planner.cli import AsJson, Policy, app, command, emit_result, stderr, summary
from planner.costs.table import read_costs, write_costs
from planner.graph.text import read_graph
from planner.report.table import plan_table
from planner.solve.options import PlanOptions
from planner.target.text import load_target
from planner.units import format_bytes, parse_bytes


def progress_bar() -> Progress:
    """Shown on the error stream, so that results can be piped."""
    return Progress(
        TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=stderr
    )


@command
def profile(
    graph: list[Path],
    target: Annotated[str, typer.Option(help="A target file or a checked-in target's name.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The cost table; an existing one is extended.")] = Path(
        "costs.json"
    ),
    budget: Annotated[float | None, typer.Option(help="Seconds to spend.")] = None,
    interval: Annotated[int | None, typer.Option(help="Step of the hill climbing over slices.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every signature of the graphs on this machine. Can be interrupted and resumed."""
    table = read_costs(out) if out.exists() else None
    with progress_bar() as bar:
        table = profile_graphs(
            [read_graph(g) for g in graph],
            load_target(target),
            table,
            interval=interval,
            budget_s=budget,
            progress=bar_updates(bar),
            save=lambda t: write_costs(t, out),
        )
    write_costs(table, out)
    emit_result(as_json, {"entries": len(table.entries)}, f"wrote {out}: {len(table.entries)} entries")


def bar_updates(bar: Progress) -> Any:
    """Turn (what, done, total) into one bar per kind of work."""
    tasks: dict[str, Any] = {}

    def update(what: str, done: int, total: int) -> None:
        kind = what.split()[0]
        if kind not in tasks:
            tasks[kind] = bar.add_task(what, total=total)
        bar.update(tasks[kind], description=what, completed=done + 1, total=total)

    return update


@command
def emit(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the executor's sources.")],
    as_json: AsJson = False,
) -> None:
    """Check a plan and render its executor."""
    bundle = read_bundle(plan_file)
    files = emit_plan(bundle.plan, bundle.graph, bundle.target, out)
    emit_result(as_json, {"files": [f.name for f in files]}, f"wrote {len(files)} files to {out}")


@command
def build(folder: Path, as_json: AsJson = False) -> None:
    """Compile an emitted executor."""
    built = build_folder(folder)
    emit_result(as_json, {"module": built.name}, f"built {folder / built.name}")


@command
def make(
    model: Annotated[str, typer.Argument(help="A zoo name, package.module:factory, or an .onnx file.")],
    batch: Annotated[int | None, typer.Option(min=1)] = None,
    target: Annotated[str | None, typer.Option(help="A target file or name; this machine by default.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where generated packages go.")] = Path("generated"),
    policy: Policy = Policy.AUTO,
    memory_budget: Annotated[str | None, typer.Option(help="Such as 2GiB; everything counted.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds to spend on profiling.")] = None,
    as_json: AsJson = False,
) -> None:
    """Everything: detect, capture, profile, plan, check, emit, build."""
    options = PlanOptions(policy=policy.value, memory_budget=parse_bytes(memory_budget) if memory_budget else None)
    with progress_bar() as bar:
        made = make_model(
            model, batch=batch, target=target, out=out, options=options, budget_s=budget, progress=bar_updates(bar)
        )
    text = f"{plan_table(made.plan, made.graph)}\nfrom {'.'.join(made.folder.parts)} import Executor"
    emit_result(as_json, {**summary(made.plan), "folder": str(made.folder)}, text)


@command
def bench(
    folder: Path,
    against: Annotated[str | None, typer.Option(help="`torch`: alternate with eager and compiled PyTorch.")] = None,
    repetitions: Annotated[int, typer.Option(min=1)] = 10,
    costs: Annotated[Path | None, typer.Option(help="The cost table, for the floor.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time a built executor: against its plan, its kernels, its memory, and PyTorch."""
    table = read_costs(costs) if costs else None
    result = bench_folder(folder, against=against, repetitions=repetitions, costs=table, say=stderr.print)
    emit_result(as_json, result, bench_text(result))


def bench_text(result: dict[str, Any]) -> str:
    memory = result["memory"]
    lines = [
        f"{result['name']} on {result['target']}, {result['lanes']} lanes",
        f"step        {result['step_ms']:.3f} ms (spread {result['spread']:.1%})",
        f"predicted   {result['predicted_ms']:.3f} ms (measured / predicted {result['measured_over_predicted']:.3f})",
        f"overhead    {result['overhead']:.2%} over the kernels of the busiest lane",
        f"memory      {format_bytes(memory['planned_bytes'])} planned, {format_bytes(memory['gained_bytes'])} gained",
    ]
    if "floor_ms" in result:
        lines.append(f"floor       {result['floor_ms']:.3f} ms (step / floor {result['over_floor']:.3f})")
    for name, against in result.get("against", {}).items():
        lines.append(f"{name:14} {against['ms']:.3f} ms, ratio {against['ratio']:.3f}")
    return "\n".join(lines)


def main() -> None:
    app()
