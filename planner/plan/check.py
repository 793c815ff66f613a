"""Is a plan safe to execute? An independent validator: it shares no code with the solvers and reads only the graph,
the target and the plan (and from `planner.ops` what each slice touches).

Meaning of a plan. Programs never overlap in time, and all lanes of a program start together and end together. Every
lane runs its entries in order; an entry starts when all slices in its `wait` have finished. Nothing else is known
about timing, so one slice certainly comes before another only if lane order and waits, chained, say so.

The plan is safe when, under every timing,
- every slice of every node runs exactly once, in a mode that its op offers, and no slices wait for each other,
- every slice reads what the graph says: writers come before readers, readers before those that overwrite in place,
- values and scratch that lie on the same bytes take turns, and parameters, states and inputs keep theirs,
- everything lies aligned inside its arena, and every arena is within the capacity,
- lanes have processors of their own, and the stated peak is true,
- weights are stored in the layout that every node takes them for,
- what a rewrite adds (recomputations, transfers) leaves the graph's meaning as it is. All of the above is asked of the
  expanded program (plan/expand.py).

Each part is a module: check_structure, check_memory, check_order, check_touches, check_dependencies, check_races,
check_peak, check_storage, check_rewrites, check_parallel. Later parts run only where the earlier ones found nothing
to stumble over.
Plans come from strangers: whatever a parsed plan holds, the outcome is a list of findings.
"""

from collections.abc import Mapping, Sequence

from planner.errors import UserError
from planner.graph.dependencies import view_roots
from planner.graph.model import Graph
from planner.graph.text import graph_hash, validate
from planner.malformed import shown
from planner.ops.device import DEVICE_KERNELS
from planner.plan.check_dependencies import check_dependencies
from planner.plan.check_memory import (
    check_placements,
    check_pools,
    check_protected,
    check_scratch,
    check_shares,
)
from planner.plan.check_order import happens_before
from planner.plan.check_parallel import check_parallel
from planner.plan.check_peak import check_peak
from planner.plan.check_races import Races
from planner.plan.check_rewrites import check_copy_lanes, check_meaning, check_modes, check_pool_use
from planner.plan.check_storage import check_storage
from planner.plan.check_structure import LARGEST, Slices, check_lanes, check_programs, check_slices
from planner.plan.check_touches import touches
from planner.plan.expand import expanded
from planner.plan.findings import Finding, Report, shown_number
from planner.plan.schema import Placement, Plan
from planner.target.model import Target
from planner.target.text import target_hash

__all__ = ["Finding", "check", "require_safe", "require_whole"]

TOLD = 5
"""Findings that an error lists."""


def check(graph: Graph, plan: Plan, target: Target | None = None) -> list[Finding]:
    """Every reason why the plan is not safe to execute; an empty list when it is safe."""
    report = Report()
    if not _is_sound(graph, report):
        return report.findings()
    _check_identity(graph, plan, report)
    larger = _expand(graph, plan, report)
    if larger is None:
        return report.findings()
    graph = larger
    roots = {p.name: view_roots(graph, p) for p in graph.programs}
    if target is not None:
        _check_target(plan, target, report)
    check_lanes(plan, report)
    check_pools(plan, report)
    programs = [
        check_slices(graph, program, planned, report) for program, planned in check_programs(graph, plan, report)
    ]
    complete = [slices for slices in programs if slices is not None]
    for slices in complete:
        check_scratch(plan, slices, report)
        check_parallel(slices, report)
        check_modes(slices, report)
        check_copy_lanes(plan, slices, report)
    placements = check_placements(graph, plan, roots, report)
    memory_known = placements is not None and plan.pools and not _stumbles(report)
    if placements is not None and memory_known:
        for slices in complete:
            check_shares(slices, placements, roots[slices.program.name], report)
        check_protected(graph, plan, placements, roots, complete, report)
        check_storage(graph, plan, complete, report)
        if len(complete) == len(plan.programs):
            check_pool_use(graph, plan, placements, report)
    for slices in complete:
        known = placements if memory_known else None
        _check_execution(graph, plan, slices, known, roots[slices.program.name], report)
    return report.findings()


def require_whole(graph: Graph, plan: Plan) -> None:
    """For commands that tell of a plan which nobody has checked, as one with a race: raise the first findings as
    `require_safe` does unless it has every program, node, slice and value of its graph once, and nothing else."""
    report = Report()
    if _is_sound(graph, report) and (larger := _expand(graph, plan, report)):
        check_lanes(plan, report)
        check_pools(plan, report)
        for program, planned in check_programs(larger, plan, report):
            check_slices(larger, program, planned, report)
        check_placements(larger, plan, {p.name: view_roots(larger, p) for p in larger.programs}, report)
    _raise(plan, "is not whole", report.findings())


def require_safe(graph: Graph, plan: Plan, target: Target | None = None) -> None:
    """Raise the first findings as one `UserError`, under the first one's code, unless the plan is safe."""
    _raise(plan, "is not safe", check(graph, plan, target))


def _raise(plan: Plan, what: str, found: Sequence[Finding]) -> None:
    if not found:
        return
    first = found[0]
    lines = [f"plan {shown(plan.name)} {what}: {first.message}"]
    lines += [f"{f.code}: {f.message}" for f in found[1:TOLD]]
    if len(found) > TOLD:
        lines.append(f"... and {len(found) - TOLD} more; `stepplan check` lists them")
    raise UserError(first.code, "\n  ".join(lines), first.fix)


def _is_sound(graph: Graph, report: Report) -> bool:
    """Whether the graph can be relied on; findings if not."""
    try:
        validate(graph)
        _check_views({p.name: view_roots(graph, p) for p in graph.programs})
    except UserError as error:
        report.add("SP1403", "", f"the graph is not valid: {error.problem}", fix=error.fix)
    except Exception as error:  # an op that trusts its node's inputs
        report.add("SP1403", "", f"the graph is not valid ({type(error).__name__})")
    else:
        for value in graph.values:
            if value.type.bytes >= LARGEST:
                report.add("SP1431", "", f"value {value.id} has {shown_number(value.type.bytes)} bytes")
    return not len(report)


def _expand(graph: Graph, plan: Plan, report: Report) -> Graph | None:
    """The graph whose nodes the plan runs, or None after findings."""
    before = len(report)
    if not any(p.rewrite for p in plan.programs):
        return graph
    try:
        larger = expanded(graph, plan)
        validate(larger)
    except UserError as error:
        report.add("SP1434", "", error.problem, fix=error.fix)
        return None
    except Exception as error:  # an op that trusts its node's inputs
        report.add("SP1434", "", f"the plan's rewrite makes no sense ({type(error).__name__})")
        return None
    for program in plan.programs:
        if program.rewrite and program.name in graph.program:
            check_meaning(graph, larger, program, report)
    return larger if len(report) == before else None


def _check_views(roots: Mapping[str, Mapping[str, str]]) -> None:
    """A value is a view of the same value in every program, or what one protects another could overwrite."""
    merged: dict[str, str] = {}
    for used in roots.values():
        for value, root in used.items():
            if merged.setdefault(value, root) != root:
                problem = f"value {value} is a view of {merged[value]} and, in another program, of {root}"
                raise UserError("SP1009", problem, "let every program make its own values")


def _stumbles(report: Report) -> bool:
    """Whether numbers may be too large to compute with."""
    return any(f.code in ("SP1431", "SP1419") for f in report.findings())


def _check_identity(graph: Graph, plan: Plan, report: Report) -> None:
    if plan.graph_hash != graph_hash(graph):
        made = f"graph {graph.name} has hash {graph_hash(graph)}"
        report.add("SP1403", "", f"the plan was made for a graph with hash {shown(plan.graph_hash)}; {made}")


def _check_target(plan: Plan, target: Target, report: Report) -> None:
    if plan.target != target.name:
        report.add("SP1404", "", f"the plan was made for target {shown(plan.target)}, not {target.name}")
    elif plan.target_hash != target_hash(target):
        made = f"target {target.name} has hash {target_hash(target)}"
        report.add("SP1404", "", f"the plan was made for a target with hash {shown(plan.target_hash)}; {made}")
    for lane in plan.lanes:
        if lane.kind == ("core" if target.gpus else "stream"):
            report.add(
                "SP1427", "", f"lane {shown_number(lane.id)} is a {lane.kind}: nodes run elsewhere on {target.name}"
            )
        elif lane.kind == "core" and lane.cpu not in target.core_of:
            report.add(
                "SP1427",
                "",
                f"lane {shown_number(lane.id)} is pinned to processor {shown_number(lane.cpu)}, "
                f"which target {target.name} does not have",
            )
    for program in plan.programs:
        for node in program.nodes:
            if node.stage_ns and (node.kernel in DEVICE_KERNELS) != bool(target.gpus):
                what = f"node {shown(node.node)} runs as {shown(node.kernel)}, which target {target.name} does not"
                report.add("SP1407", program.name, what)
    if plan.pools and plan.pools[0].name != target.memory.name:
        wrong = f"nodes run in pool {target.memory.name} of target {target.name}, not in {shown(plan.pools[0].name)}"
        report.add("SP1428", "", wrong)
    for pool in plan.pools:
        if pool.name not in target.pool:
            report.add("SP1428", "", f"target {target.name} has no pool {shown(pool.name)}")
        elif target.gpus and pool.name != target.memory.name and target.pool[pool.name].kind != "pinned":
            report.add("SP1428", "", f"target {target.name} does not copy to pool {pool.name}, which is not pinned")
        elif pool.capacity > target.pool[pool.name].capacity:
            room = target.pool[pool.name].capacity
            message = f"pool {pool.name} has {room} bytes but the plan counts on {shown_number(pool.capacity)}"
            report.add("SP1428", "", message)


def _check_execution(
    graph: Graph,
    plan: Plan,
    slices: Slices,
    placements: Mapping[str, Placement] | None,
    roots: Mapping[str, str],
    report: Report,
) -> None:
    """Order, dependencies and, where placements are sound, races and the peak of one program."""
    touched = touches(graph, slices, roots, report)
    order = happens_before(slices, report)
    if touched is None or order is None:
        return
    check_dependencies(slices, touched, order, report)
    if placements is not None:
        Races(graph, plan, slices, roots, placements, touched, order).run(report)
        check_peak(graph, plan, slices, placements, roots, touched, order, report)
