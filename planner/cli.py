"""The command line, planning half: thin. Each command parses, calls one function and prints.

codegen/cli.py adds the commands that need a compiler (profile, emit, build, bench, make) to the same application.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.artefact import write_bytes, write_text
from planner.bundle import copy_weights, plan_file, read_bundle, weights_beside, write_bundle
from planner.console import AsJson, app, command, emit_result, friendly_errors, progress, stderr, warn
from planner.costs.table import read_costs
from planner.errors import UserError
from planner.graph.text import read_graph, write_graph
from planner.ops.base import op_named
from planner.pack_csv import document as packing_document
from planner.pack_csv import pack as pack_file
from planner.pack_csv import text as packing_text
from planner.plan.check import check as check_plan
from planner.plan.diff import diff as diff_plans
from planner.plan.diff_model import PlanDiff
from planner.plan.explain import explain as explain_name
from planner.plan.render import printable
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.plan.text import read_plan, write_plan
from planner.report.event_pictures import events_picture
from planner.report.events import Row, co_running, events_text
from planner.report.html import html_page
from planner.report.pareto import pareto_picture, pareto_rows, pareto_table
from planner.report.perfetto import perfetto_trace
from planner.report.step_pictures import step_pictures
from planner.report.table import plan_table
from planner.report.trace_reading import read_runs
from planner.solve.options import ParallelOps, PlanOptions, read_pins
from planner.solve.pipeline import make_pareto, make_plan
from planner.target.detect import detect as detect_target
from planner.target.text import load_target, target_text, write_target
from planner.units import format_ns, parse_bytes

__all__ = ["app", "friendly_errors"]

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print what every pass decided.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan's folder, or its plan.json.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A zoo name, package.module:factory, or an .onnx file.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Samples per step; the model's own by default.")]
ImageSize = Annotated[int | None, typer.Option(min=1, help="Height and width of a zoo network's images.")]
MemoryBudget = Annotated[str | None, typer.Option(help="Such as 2GiB; everything counted.")]
SameBits = Annotated[
    bool | None,
    typer.Option(
        "--same-bits/--other-bits",
        help="Whether a budget must leave every node its mode, so that the results are those without a budget. "
        "Default: yes on processors; on GPUs every node runs in the fastest mode whose scratch fits.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="VALUE", help="Leave this value intact for Executor.value; repeatable, or 'layer1.*'."),
]


ParallelFlag = Annotated[
    bool, typer.Option("--parallel-ops", help="Run siblings side by side, one lane each; auto tries it anyway.")
]
ParallelThreshold = Annotated[int | None, typer.Option(min=2, help="The fewest siblings of a parallel operator.")]
ParallelAlso = Annotated[
    list[str] | None,
    typer.Option("--parallel-op", metavar="OP", help="An op whose nodes may run side by side, too; repeatable."),
]


class Policy(StrEnum):
    SEQUENTIAL = "sequential"
    LIU = "liu"
    AUTO = "auto"


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


PolicyOption = Annotated[Policy, typer.Option(help="Who chooses threads; auto takes the best by simulation.")]


@command
def detect(
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the target file here.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the target; cores and -march by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe this machine: cores, SMT siblings, caches, NUMA nodes, memory."""
    target = detect_target(name, measure=True)
    if out:
        write_target(target, out)
    emit_result(as_json, target.model_dump(mode="json"), f"wrote {out}" if out else target_text(target).rstrip())


@command
def capture(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="The training graph.")] = Path("graph.json"),
    batch: Batch = None,
    image_size: ImageSize = None,
    explain: Annotated[bool, typer.Option("--explain", help="List what becomes of every operator instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a model into a training graph.

    Its initial weights, where it has any, go beside it (graph.weights.npz); plan and emit pass them on.

    With --explain nothing is written: every operator of the model is listed as computed by a library, by code
    generated from a tensor expression or by stepplan's own loops, as folded away, or as unsupported, and why. The exit
    code is 1 where an operator is unsupported.
    """
    from planner.capturing import capture as capture_model
    from planner.capturing import explain_capture
    from planner.frontends.coverage import coverage_text, kind_counts

    if explain:
        uses = explain_capture(model, batch=batch, image_size=image_size)
        counts = kind_counts(uses)
        emit_result(as_json, {"counts": counts, "ops": [u.model_dump(mode="json") for u in uses]}, coverage_text(uses))
        if "unsupported" in counts:
            raise typer.Exit(1)
        return
    captured = capture_model(model, batch=batch, image_size=image_size)
    write_graph(captured.graph, out)
    captured.write_weights(weights_beside(out))
    nodes = {p.name: len(p.nodes) for p in captured.graph.programs}
    text = f"wrote {out}: {captured.graph.name}, " + ", ".join(f"{n} nodes in {p}" for p, n in nodes.items())
    emit_result(as_json, {"graph": captured.graph.name, "file": str(out), "nodes": nodes}, text)


@command
def plan(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A training graph, as capture wrote it.")],
    costs: Annotated[Path, typer.Option(help="The cost table.")],
    target: Annotated[str, typer.Option(help="A target file or a checked-in target's name.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the plan and what it was made from.")] = Path(
        "plan"
    ),
    policy: PolicyOption = Policy.AUTO,
    strategies: Annotated[str, typer.Option(help="Of Liu et al., for policy liu, any of 1,2,3,4.")] = "1",
    uniform: Annotated[
        int | None, typer.Option(min=1, help="For policy liu, instead of strategies 1 and 2: lanes of every node.")
    ] = None,
    lanes: Annotated[int | None, typer.Option(min=1, help="Hardware threads to use; all cores by default.")] = None,
    memory_budget: MemoryBudget = None,
    same_bits: SameBits = None,
    pins: Annotated[Path | None, typer.Option(help="Decisions to honour (pins.toml).")] = None,
    keep: Keep = None,
    parallel_ops: ParallelFlag = False,
    parallel_threshold: ParallelThreshold = None,
    parallel_op: ParallelAlso = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also plan with less and less memory; prints and plots time against it.")
    ] = False,
    strict_costs: Annotated[
        bool, typer.Option("--strict-costs", help="Refuse another machine's cost table instead of warning.")
    ] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Solve the complete static schedule and write it as text."""
    options = PlanOptions(
        policy=policy.value,
        strategies=parse_strategies(strategies) if policy is Policy.LIU else (),
        uniform=uniform if policy is Policy.LIU else None,
        lanes=lanes,
        memory_budget=parse_bytes(memory_budget) if memory_budget is not None else None,
        same_bits=same_bits,
        pins=read_pins(pins) if pins else PlanOptions().pins,
        keep=tuple(keep or ()),
        parallel_ops=parallel_options(parallel_ops, parallel_threshold, parallel_op or []),
    )
    training_graph, hardware, table = read_graph(graph), load_target(target), read_costs(costs)
    compare_machines(table.fingerprint, hardware.fingerprint(), strict_costs)
    with progress() as update:
        update("planning", 0, 1)
        solved = make_plan(training_graph, hardware, table, options, stderr.print if verbose else lambda text: None)
    write_bundle(out, solved, training_graph, hardware)
    copy_weights(weights_beside(graph), out / "weights.npz")
    document: dict[str, Any] = {**summary(solved), "folder": str(out)}
    text = plan_table(solved, training_graph)
    if pareto:
        plans = make_pareto(training_graph, hardware, table, options)
        write_bytes(out / "pareto.png", pareto_picture(plans))
        document["pareto"] = pareto_rows(plans)
        text += f"\n\n{pareto_table(plans)}\nwrote {out / 'pareto.png'}"
    emit_result(as_json, document, f"{text}\n\nwrote {out}")


def parallel_options(wanted: bool, threshold: int | None, also: list[str]) -> ParallelOps | None:
    """None where nothing asks for parallel operators. SP1003: an op that does not exist."""
    if not (wanted or threshold or also):
        return None
    for name in also:
        op_named(name)
    return ParallelOps(threshold=threshold or ParallelOps().threshold, also=tuple(also))


def parse_strategies(text: str) -> tuple[int, ...]:
    """`1,2` -> (1, 2); SP1802 for anything unknown."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        found = (-1,)
    if not found or any(s not in (1, 2, 3, 4) for s in found):
        raise UserError("SP1802", f"strategies {text!r} are not known", "name any of 1,2,3,4")
    return found


def compare_machines(measured_on: str, planned_for: str, strict: bool) -> None:
    """SP1203: the cost table comes from another machine than the target; a warning unless `strict`."""
    if measured_on == planned_for:
        return
    error = UserError(
        "SP1203",
        f"the cost table was measured on {measured_on!r}, the target is {planned_for!r}",
        "profile on the target's machine; predicted times are only as good as their measurements",
    )
    if strict:
        raise error
    warn(str(error))


def summary(solved: Plan) -> dict[str, Any]:
    """The numbers of a plan that scripts want."""
    return {
        "name": solved.name,
        "target": solved.target,
        "policy": solved.policy,
        "arena_bytes": sum(p.arena for p in solved.pools),
        "programs": {
            p.name: {
                "predicted_ns": p.predicted_ns,
                "bound_ns": p.bounds.best_ns,
                "gap": round(p.gap, 4),
                "peak_bytes": p.peak_bytes,
            }
            for p in solved.programs
        },
    }


@command
def check(
    path: PlanArgument,
    accept_edits: Annotated[
        bool, typer.Option("--accept-edits", help="Check a hand-edited plan; where it is safe, renew its digest.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a plan from scratch: order, races, memory, cores, deadlocks. Exit code 1 when it is unsafe."""
    bundle = read_bundle(path, accept_edits=accept_edits)
    findings = check_plan(bundle.graph, bundle.plan, bundle.target)
    text = "\n".join(f.text() for f in findings) or "the plan is safe"
    if accept_edits and findings:
        text += "\nthe file is as you left it: correct it and run this again"
    elif accept_edits:
        write_plan(bundle.plan, bundle.folder / "plan.json")
        text += "; its digest is renewed. Next: stepplan emit"
        stale = stale_predictions(bundle.plan)
        if stale:
            text += "\npredicted times are only stated, not checked: " + ", ".join(stale)
    emit_result(as_json, {"safe": not findings, "findings": [f.model_dump(mode="json") for f in findings]}, text)
    if findings:
        raise typer.Exit(1)


CALL_NS = 100_000
"""What waking the lanes and their signals may add to a prediction: measured, and not part of the plan."""


def stale_predictions(plan: Plan) -> list[str]:
    """The programs whose stated time is not the one that their lanes replay to, as after most edits by hand."""
    found = []
    for program in plan.programs:
        total = replay(plan, program).total_ns
        if abs(total - program.predicted_ns) > max(0.1 * program.predicted_ns, CALL_NS):
            stated = f"{format_ns(program.predicted_ns)}, its slices' times give {format_ns(total)}"
            found.append(f"{printable(program.name)} states {stated}")
    return found


@command
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A plan's folder, or its plan.json.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other plan.")],
    format_: Annotated[Format, typer.Option("--format", help="How to print the difference.")] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """What changed between two plans, ranked by effect. Exit code 1 when they differ."""
    found = _diff(a, b)
    if as_json:
        print(json.dumps(found.document(), sort_keys=True))
    else:
        print(found.render(format_.value))
    if found.changed:
        raise typer.Exit(1)


def _diff(a: Path, b: Path) -> PlanDiff:
    """With ops, origins and hardware where both plans have their graphs and targets beside them: a plan.json alone
    can be compared, too."""
    try:
        one, other = read_bundle(a), read_bundle(b)
    except UserError:
        return diff_plans(read_plan(plan_file(a)), read_plan(plan_file(b)))
    return diff_plans(one.plan, other.plan, one.graph, other.graph, one.target, other.target)


@command
def explain(
    path: PlanArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A node or a value.")],
    costs: Annotated[Path | None, typer.Option(help="The cost table, for what the alternatives cost.")] = None,
    as_json: AsJson = False,
) -> None:
    """Why a node runs as it does, or why a value lies where it lies."""
    bundle = read_bundle(path)
    found = explain_name(name, bundle.graph, bundle.plan, read_costs(costs) if costs else None)
    emit_result(as_json, found.document(), found.text())


@command
def show(
    path: PlanArgument,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto / Chrome trace of the plan.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="Write how many nodes run at every launch and end of one: .svg, else CSV.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The trace of a real run (Executor.trace) to put beside the plan's events.")
    ] = None,
    memory: Annotated[
        Path | None, typer.Option(help="Write pictures of memory over steps, free bytes and the arena to a folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The plan as a table, a page, a trace, or pictures of its memory."""
    bundle = read_bundle(path)
    text, document = plan_table(bundle.plan, bundle.graph), summary(bundle.plan)
    if html:
        write_text(html, html_page(bundle.plan, bundle.graph))
    if trace:
        write_text(trace, perfetto_trace(bundle.plan, bundle.graph))
    if events or run:
        figures = event_figures(bundle.plan, run)
        document["events"] = {name: co_running(rows)._asdict() for name, rows in figures.items()}
        text += "\n" + "\n".join(f"{name}: {co_running(rows).text()}" for name, rows in figures.items())
        if events:
            drawn = events.suffix.lower() == ".svg"
            write_text(events, events_picture(bundle.plan.name, figures) if drawn else events_text(figures))
    pictures = {memory / n: p for n, p in step_pictures(bundle.graph, bundle.plan).items()} if memory else {}
    for file, picture in pictures.items():
        write_bytes(file, picture)
    text += "".join(f"\nwrote {file}" for file in (html, trace, events, *pictures) if file)
    emit_result(as_json, document, text)


def event_figures(plan: Plan, run: Path | None) -> dict[str, Sequence[Row]]:
    """The first program's slices as planned and, with a trace, as its last run ran them."""
    program = plan.programs[0]
    found: dict[str, Sequence[Row]] = {"planned": replay(plan, program).rows()}
    if run is not None:
        found["measured"] = read_runs(run, plan, program.name)[-1]
    return found


@command
def simulate(
    path: PlanArgument,
    noise: Annotated[float, typer.Option(help="Relative noise on every slice, such as 0.1.", min=0, max=10)] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Replay the plan's lane programs against its predicted times."""
    bundle = read_bundle(path)
    lines, document = [], {}
    for program in bundle.plan.programs:
        timeline = replay(bundle.plan, program, noise=noise, seed=seed)
        busy = [round(b / timeline.total_ns, 3) if timeline.total_ns else 0.0 for b in timeline.busy_ns]
        document[program.name] = {
            "total_ns": timeline.total_ns,
            "predicted_ns": program.predicted_ns,
            "busy": busy,
        }
        lanes = ", ".join(f"{100 * b:.1f} %" for b in busy)
        predicted = format_ns(program.predicted_ns)
        lines.append(
            f"{printable(program.name)}: {format_ns(timeline.total_ns)} (planned {predicted}), lanes busy {lanes}"
        )
    emit_result(as_json, document, "\n".join(lines))


@command
def pack(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Columns id,lower,upper,size; half-open lifetimes.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The same rows with an offset column.")] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Such as 1048576 or 1MiB: any packing that fits will do.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Offsets for blocks of memory with lifetimes: as low as possible, or within a capacity."""
    found = pack_file(file, out, capacity=parse_bytes(capacity) if capacity is not None else None)
    wrote = f"\nwrote {out}" if out else ""
    emit_result(as_json, packing_document(found), packing_text(found) + wrote)
