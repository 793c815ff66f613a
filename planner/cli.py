"""The command line, planning half: thin. Each command parses, calls one function and prints.

codegen/cli.py adds the commands that need a compiler (profile, emit, build, make, bench) to the same application.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from planner.artefact import write_text
from planner.bundle import read_bundle, write_bundle
from planner.capture import capture as capture_model
from planner.costs.table import read_costs
from planner.errors import UserError
from planner.graph.text import read_graph, write_graph
from planner.plan.check import check as check_plan
from planner.plan.diff import diff as diff_plans
from planner.plan.explain import explain as explain_name
from planner.plan.simulate import simulate as simulate_program
from planner.plan.text import read_plan, write_plan
from planner.report.html import html_page
from planner.report.perfetto import perfetto_trace
from planner.report.table import plan_table
from planner.solve.options import PlanOptions, read_pins
from planner.solve.pipeline import make_plan
from planner.target.detect import detect as detect_target
from planner.target.text import load_target, target_text, write_target
from planner.units import parse_bytes

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print what every pass decided.")]


class Policy(StrEnum):
    SEQUENTIAL = "sequential"
    LIU = "liu"
    AUTO = "auto"


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def emit_result(as_json: bool, document: dict[str, Any], text: str) -> None:
    """Print a command's result: the object with --json, else the text."""
    print(json.dumps(document, sort_keys=True) if as_json else text)


@contextmanager
def friendly_errors() -> Iterator[None]:
    """A user's mistake is one readable message and exit code 2, never a traceback."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("interrupted; nothing is half-written", file=sys.stderr)
        raise typer.Exit(130) from None


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Register a function as a command with readable errors."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with friendly_errors():
            return function(*args, **kwargs)

    return app.command()(wrapped)


@command
def detect(
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the target file here.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the target.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe this machine: cores, SMT siblings, caches, NUMA nodes, memory."""
    target = detect_target(name, measure=True)
    if out:
        write_target(target, out)
    emit_result(as_json, target.model_dump(mode="json"), target_text(target) if not out else f"wrote {out}")


@command
def capture(
    model: Annotated[str, typer.Argument(help="A zoo name, package.module:factory, or an .onnx file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write graph.json here.")] = Path("graph.json"),
    batch: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a model into a training graph (and its initial weights, where it has any)."""
    captured = capture_model(model, batch=batch)
    write_graph(captured.graph, out)
    captured.write_weights(out.with_name("weights.npz"))
    nodes = {p.name: len(p.nodes) for p in captured.graph.programs}
    text = f"wrote {out}: {captured.graph.name}, " + ", ".join(f"{n} nodes in {p}" for p, n in nodes.items())
    emit_result(as_json, {"graph": captured.graph.name, "nodes": nodes}, text)


@command
def plan(
    graph: Path,
    costs: Annotated[Path, typer.Option(help="The cost table.")],
    target: Annotated[str, typer.Option(help="A target file or a checked-in target's name.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for plan.json, graph.json, target.toml.")] = Path(
        "plan"
    ),
    policy: Policy = Policy.AUTO,
    strategies: Annotated[str, typer.Option(help="Strategies of Liu et al. for policy liu, such as 1,2.")] = "1",
    lanes: Annotated[int | None, typer.Option(help="Hardware threads to use; all cores by default.")] = None,
    memory_budget: Annotated[str | None, typer.Option(help="Such as 2GiB; everything counted.")] = None,
    pins: Annotated[Path | None, typer.Option(help="Decisions to honour (pins.toml).")] = None,
    allow_foreign_costs: Annotated[bool, typer.Option(help="Accept another machine's cost table.")] = True,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Solve the complete static schedule and write it as text."""
    options = PlanOptions(
        policy=policy.value,
        strategies=parse_strategies(strategies) if policy is Policy.LIU else (),
        lanes=lanes,
        memory_budget=parse_bytes(memory_budget) if memory_budget else None,
        pins=read_pins(pins) if pins else PlanOptions().pins,
    )
    training_graph, hardware, table = read_graph(graph), load_target(target), read_costs(costs)
    warn_foreign(table.fingerprint, hardware.fingerprint(), allow_foreign_costs)
    solved = make_plan(training_graph, hardware, table, options, stderr.print if verbose else lambda text: None)
    write_bundle(out, solved, training_graph, hardware)
    emit_result(as_json, summary(solved), plan_table(solved, training_graph))


def parse_strategies(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        found = (-1,)
    if any(s not in (1, 2) for s in found):
        raise UserError("SP1802", f"strategies {text!r} are not known", "name any of 1,2")
    return found


def warn_foreign(measured_on: str, planned_for: str, allowed: bool) -> None:
    """SP1203: the cost table comes from another machine than the target; a warning unless it is forbidden."""
    if measured_on == planned_for:
        return
    error = UserError(
        "SP1203",
        f"the cost table was measured on {measured_on!r}, the target is {planned_for!r}",
        "profile on the target's machine; predicted times are only as good as their measurements",
    )
    if not allowed:
        raise error
    print(f"warning {error}", file=sys.stderr)


def summary(solved: Any) -> dict[str, Any]:
    """The numbers of a plan that scripts want."""
    return {
        "name": solved.name,
        "target": solved.target,
        "policy": solved.policy,
        "arena_bytes": solved.pools[0].arena,
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
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN")],
    accept_edits: Annotated[bool, typer.Option(help="Check a hand-edited plan and renew its digest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a plan from scratch: order, races, memory, cores, deadlocks. Exit code 1 when it is unsafe."""
    bundle = read_bundle(plan_file, accept_edits=accept_edits)
    findings = check_plan(bundle.graph, bundle.plan, bundle.target)
    if not findings and accept_edits:
        write_plan(bundle.plan, bundle.folder / "plan.json")
    text = "\n".join(f.text() for f in findings) or "the plan is safe"
    emit_result(as_json, {"safe": not findings, "findings": [f.model_dump(mode="json") for f in findings]}, text)
    if findings:
        raise typer.Exit(1)


@command
def diff(
    a: Path,
    b: Path,
    format_: Annotated[Format, typer.Option("--format")] = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """What changed between two plans, ranked by effect. Exit code 1 when they differ."""
    before, after = (read_plan(p / "plan.json" if p.is_dir() else p) for p in (a, b))
    found = diff_plans(before, after)
    print(found.render("json" if as_json else format_.value))
    if found.changed:
        raise typer.Exit(1)


@command
def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN")],
    name: Annotated[str, typer.Argument(help="A node or a value.")],
    costs: Annotated[Path | None, typer.Option(help="The cost table, for what the alternatives cost.")] = None,
    as_json: AsJson = False,
) -> None:
    """Why a node runs as it does, or why a value lies where it lies."""
    bundle = read_bundle(plan_file)
    found = explain_name(name, bundle.graph, bundle.plan, read_costs(costs) if costs else None)
    emit_result(as_json, found.document(), found.text())


@command
def show(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto / Chrome trace of the plan.")] = None,
    as_json: AsJson = False,
) -> None:
    """The plan as a table, a page or a trace."""
    bundle = read_bundle(plan_file)
    if html:
        write_text(html, html_page(bundle.plan, bundle.graph))
    if trace:
        write_text(trace, perfetto_trace(bundle.plan, bundle.graph))
    emit_result(as_json, summary(bundle.plan), plan_table(bundle.plan, bundle.graph))


@command
def simulate(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN")],
    noise: Annotated[float, typer.Option(help="Relative noise on every slice, such as 0.1.", min=0)] = 0.0,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Replay the plan's lane programs against its predicted times."""
    bundle = read_bundle(plan_file)
    lines, document = [], {}
    for program in bundle.plan.programs:
        timeline = simulate_program(program, noise=noise, seed=seed)
        busy = [round(b / timeline.total_ns, 3) if timeline.total_ns else 0.0 for b in timeline.busy_ns]
        document[program.name] = {"total_ns": timeline.total_ns, "busy": busy}
        lines.append(f"{program.name}: {timeline.total_ns / 1e6:.3f} ms, lanes busy {busy}")
    emit_result(as_json, document, "\n".join(lines))
