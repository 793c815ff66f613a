"""The commands that make artefacts and need no compiler: detect, capture, plan, pack."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.artefact import write_bytes
from planner.cli.options import (
    Accumulate,
    Batch,
    ClipNorm,
    ImageSize,
    Keep,
    MemoryBudget,
    ModelArgument,
    ParallelAlso,
    ParallelFlag,
    ParallelThreshold,
    Policy,
    PolicyOption,
    Precision,
    PrecisionOption,
    SameBits,
    Verbose,
)
from planner.cli.summary import summary
from planner.console import AsJson, command, emit_result, progress, stderr, warn
from planner.errors import UserError
from planner.units import parse_bytes

if TYPE_CHECKING:
    from planner.solve.options import ParallelOps


@command
def detect(
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the target file here.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the target; cores and -march by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe this machine: cores, SMT siblings, caches, NUMA nodes, memory."""
    from planner.target.detect import detect as detect_target
    from planner.target.text import target_text, write_target

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
    precision: PrecisionOption = Precision.FLOAT32,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = False,
    explain: Annotated[bool, typer.Option("--explain", help="List what becomes of every operator instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a model into a training graph.

    Its initial weights, where it has any, go beside it (graph.weights.npz); plan and emit pass them on.

    With --explain nothing is written: every operator of the model is listed as computed by a library, by code
    generated from a tensor expression or by stepplan's own loops, as folded away, or as unsupported, and why. The exit
    code is 1 where an operator is unsupported.
    """
    from planner.bundle import weights_beside
    from planner.capturing import capture as capture_model
    from planner.capturing import explain_capture
    from planner.frontends.coverage import coverage_text, kind_counts
    from planner.graph.text import write_graph

    if explain:
        uses = explain_capture(model, batch=batch, image_size=image_size)
        counts = kind_counts(uses)
        emit_result(as_json, {"counts": counts, "ops": [u.model_dump(mode="json") for u in uses]}, coverage_text(uses))
        if "unsupported" in counts:
            raise typer.Exit(1)
        return
    captured = capture_model(model, batch=batch, image_size=image_size, clip_norm=clip_norm, accumulate=accumulate)
    captured = captured.in_precision(precision.value)
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
    strategies: Annotated[
        str | None, typer.Option(help="Of Liu et al., for policy liu, any of 1,2,3,4; 1 by default.")
    ] = None,
    uniform: Annotated[
        int | None, typer.Option(min=1, help="For policy liu, instead of strategies 1 and 2: lanes of every node.")
    ] = None,
    lanes: Annotated[int | None, typer.Option(min=1, help="Hardware threads to use; all cores by default.")] = None,
    memory_budget: MemoryBudget = None,
    same_bits: SameBits = None,
    plain_weights: Annotated[
        bool, typer.Option("--plain-weights", help="Store no weights in the layouts that kernels pack them into.")
    ] = False,
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
    from planner.bundle import copy_weights, weights_of, write_bundle
    from planner.costs.table import read_costs
    from planner.graph.text import read_graph
    from planner.report.pareto import pareto_picture, pareto_rows, pareto_table
    from planner.report.table import plan_table
    from planner.solve.options import PlanOptions, read_pins
    from planner.solve.pipeline import make_pareto, make_plan
    from planner.target.text import load_target

    require_liu(policy, {"--strategies": strategies, "--uniform": uniform})
    options = PlanOptions(
        policy=policy.value,
        strategies=parse_strategies("1" if strategies is None else strategies) if policy is Policy.LIU else (),
        uniform=uniform,
        lanes=lanes,
        memory_budget=parse_bytes(memory_budget) if memory_budget is not None else None,
        same_bits=same_bits,
        plain_weights=plain_weights,
        pins=read_pins(pins) if pins else PlanOptions().pins,
        keep=tuple(keep or ()),
        parallel_ops=parallel_options(parallel_ops, parallel_threshold, parallel_op or []),
    )
    training_graph, hardware, table = read_graph(graph), load_target(target), read_costs(costs)
    compare_machines(table.fingerprint, hardware.fingerprint(), strict_costs)
    with progress() as update:
        update("planning", 0, 1)
        solved = make_plan(training_graph, hardware, table, options, stderr().print if verbose else lambda text: None)
    write_bundle(out, solved, training_graph, hardware)
    copy_weights(weights_of(graph, training_graph), out / "weights.npz")
    document: dict[str, Any] = {**summary(solved), "folder": str(out)}
    text = plan_table(solved, training_graph)
    if pareto:
        plans = make_pareto(training_graph, hardware, table, options)
        write_bytes(out / "pareto.png", pareto_picture(plans))
        document["pareto"] = pareto_rows(plans)
        text += f"\n\n{pareto_table(plans)}\nwrote {out / 'pareto.png'}"
    emit_result(as_json, document, f"{text}\n\nwrote {out}")


def parallel_options(wanted: bool, threshold: int | None, also: list[str]) -> "ParallelOps | None":
    """None where nothing asks for parallel operators. SP1003: an op that does not exist."""
    from planner.ops.base import op_named
    from planner.solve.options import ParallelOps

    if not (wanted or threshold or also):
        return None
    for name in also:
        op_named(name)
    return ParallelOps(threshold=threshold or ParallelOps().threshold, also=tuple(also))


def require_liu(policy: Policy, given: Mapping[str, object]) -> None:
    """SP1802: one of the options `given` needs policy liu, and another one was asked for."""
    for name, value in given.items():
        if value is not None and policy is not Policy.LIU:
            what = f"{name} is for policy liu; policy {policy.value} decides that by itself"
            raise UserError("SP1802", what, f"add --policy liu, or leave {name} out")


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
    from planner.pack_csv import document, text
    from planner.pack_csv import pack as pack_file

    found = pack_file(file, out, capacity=parse_bytes(capacity) if capacity is not None else None)
    wrote = f"\nwrote {out}" if out else ""
    emit_result(as_json, document(found), text(found) + wrote)
