"""The commands that read plans: check, diff, explain, show, simulate."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.artefact import write_bytes, write_text
from planner.cli.options import Format, PlanArgument
from planner.cli.summary import summary
from planner.console import AsJson, command, emit_result
from planner.errors import UserError
from planner.units import format_ns

if TYPE_CHECKING:
    from planner.plan.diff_model import PlanDiff
    from planner.plan.schema import Plan
    from planner.report.events import Row


@command
def check(
    path: PlanArgument,
    accept_edits: Annotated[
        bool, typer.Option("--accept-edits", help="Check a hand-edited plan; where it is safe, renew its digest.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a plan from scratch: order, races, memory, cores, deadlocks. Exit code 1 when it is unsafe."""
    from planner.bundle import read_bundle
    from planner.plan.check import check as check_plan
    from planner.plan.text import write_plan

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


def stale_predictions(plan: "Plan") -> list[str]:
    """The programs whose stated time is not the one that their lanes replay to, as after most edits by hand."""
    from planner.plan.render import printable
    from planner.plan.simulate import replay

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
    from planner.plan.diff_text import render

    found = _diff(a, b)
    if as_json:
        print(json.dumps(found.document(), sort_keys=True))
    else:
        print(render(found, format_.value))
    if found.changed:
        raise typer.Exit(1)


def _diff(a: Path, b: Path) -> "PlanDiff":
    """With ops, origins and hardware where both plans have their graphs and targets beside them: a plan.json alone
    can be compared, too."""
    from planner.bundle import plan_file, read_bundle
    from planner.plan.diff import diff as diff_plans
    from planner.plan.text import read_plan

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
    from planner.bundle import read_bundle
    from planner.costs.table import read_costs
    from planner.plan.check import require_whole
    from planner.plan.explain import explain as explain_name

    bundle = read_bundle(path)
    require_whole(bundle.graph, bundle.plan)
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
    from planner.bundle import read_bundle
    from planner.plan.check import require_whole
    from planner.report.event_pictures import events_picture
    from planner.report.events import co_running, events_text
    from planner.report.html import html_page
    from planner.report.perfetto import perfetto_trace
    from planner.report.step_pictures import step_pictures
    from planner.report.table import plan_table

    bundle = read_bundle(path)
    require_whole(bundle.graph, bundle.plan)
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


def event_figures(plan: "Plan", run: Path | None) -> "dict[str, Sequence[Row]]":
    """The first program's slices as planned and, with a trace, as its last run ran them."""
    from planner.plan.simulate import replay
    from planner.report.trace_reading import read_runs

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
    from planner.bundle import read_bundle
    from planner.plan.check import require_whole
    from planner.plan.render import printable
    from planner.plan.simulate import replay

    bundle = read_bundle(path)
    require_whole(bundle.graph, bundle.plan)
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
