"""Part of `check`: where values and scratch lie. Pools, sizes, alignment, shares, and bytes that nothing may share.

Everything here holds whatever the order of slices; values that take turns on the same bytes are check_races.py's.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.graph.model import PERSISTENT, Graph
from planner.malformed import shown
from planner.plan.check_structure import LARGEST, PlannedNode, Slices
from planner.plan.findings import Report, shown_number
from planner.plan.schema import Placement, Plan
from planner.units import ALIGNMENT


class Span(NamedTuple):
    """Bytes of a pool that `what` occupies; spans of one `owner` are the same tensor."""

    pool: str
    lo: int
    hi: int
    owner: str
    what: str


def check_pools(plan: Plan, report: Report) -> None:
    for name, count in Counter(p.name for p in plan.pools).items():
        if count > 1:
            report.add("SP1428", "", f"pool {shown(name)} is listed {count} times")
    if not plan.pools:
        report.add("SP1428", "", "the plan has no pool")
    for pool in plan.pools:
        if not 0 <= pool.arena < LARGEST:
            report.add("SP1431", "", f"the arena of pool {shown(pool.name)} has {shown_number(pool.arena)} bytes")
        elif pool.arena > pool.capacity:
            room = shown_number(pool.capacity)
            report.add("SP1420", "", f"pool {shown(pool.name)} needs {pool.arena} bytes but may use only {room}")


def check_placements(
    graph: Graph, plan: Plan, roots: Mapping[str, Mapping[str, str]], report: Report
) -> dict[str, Placement] | None:
    """The placement of every value that a program uses, or None after findings. `roots`: program -> value -> the
    value that it is a view of."""
    before = len(report)
    for value, count in Counter(p.value for p in plan.placements).items():
        if value not in graph.value:
            report.add("SP1417", "", f"the graph has no value {shown(value)} to place")
        elif count > 1:
            report.add("SP1417", "", f"value {value} is placed {count} times")
    for placement in plan.placements:
        if placement.value in graph.value:
            _check_bounds(graph, plan, placement, report)
    for value in plan.keep:
        if value not in graph.value:
            report.add("SP1417", "", f"the graph has no value {shown(value)} to keep")
    for name, used in roots.items():
        for value in used:
            if value not in plan.placement:
                report.add("SP1417", name, f"value {value} is not placed")
    return {p.value: p for p in plan.placements} if len(report) == before else None


def _check_bounds(graph: Graph, plan: Plan, placement: Placement, report: Report) -> None:
    value, offset, size = placement.value, placement.offset, placement.bytes
    need = graph.value[value].type.bytes
    if placement.pool not in plan.pool:
        report.add("SP1419", "", f"value {value} lies in pool {shown(placement.pool)}, which the plan does not have")
        return
    if offset % ALIGNMENT or offset < 0:
        report.add("SP1418", "", f"value {value} starts at {shown_number(offset)}, not a multiple of {ALIGNMENT}")
    if size != need:
        report.add("SP1418", "", f"value {value} has {need} bytes but {shown_number(size)} are placed")
    arena = plan.pool[placement.pool].arena
    if offset + size > arena:
        end = shown_number(offset + size)
        pool = f"{shown_number(arena)} bytes in pool {placement.pool}"
        report.add("SP1419", "", f"value {value} ends at byte {end}, behind its arena of {pool}")


def check_scratch(plan: Plan, slices: Slices, report: Report) -> None:
    """Scratch lies in the first pool, the one in which nodes run."""
    for planned in slices.nodes:
        offset, size = planned.plan.scratch_offset, planned.plan.scratch_bytes
        if not size or not plan.pools:
            continue
        if offset % ALIGNMENT or offset < 0:
            at = shown_number(offset)
            message = f"the scratch of node {planned.node.id} starts at {at}, not a multiple of {ALIGNMENT}"
            report.add("SP1418", slices.plan.name, message)
        if offset + size > plan.pools[0].arena:
            end, arena = shown_number(offset + size), shown_number(plan.pools[0].arena)
            pool = f"{arena} bytes in pool {shown(plan.pools[0].name)}"
            message = f"the scratch of node {planned.node.id} ends at byte {end}, behind its arena of {pool}"
            report.add("SP1419", slices.plan.name, message)


def inplace_inputs(planned: PlannedNode, output: int, placement: Placement) -> tuple[int, ...]:
    """Which inputs' bytes the op may overwrite with this output, if that is what the placement says."""
    pairs = planned.op.inplace(planned.signature, planned.plan.mode)
    allowed = tuple(source for target, source in pairs if target == output and source < len(planned.node.inputs))
    return allowed if placement.shares in {planned.node.inputs[i] for i in allowed} else ()


def check_shares(slices: Slices, placements: Mapping[str, Placement], roots: Mapping[str, str], report: Report) -> None:
    """Every value made by this program that shares does so with an input of its node that its op views or may
    overwrite, byte for byte; every view shares."""
    program = slices.plan.name
    for planned in slices.nodes:
        alias = planned.op.alias(planned.signature)
        for output, value in enumerate(planned.node.outputs):
            placement = placements[value]
            shares = placement.shares
            if alias is not None and alias[0] == output:
                source = planned.node.inputs[alias[1]]
                if shares != source:
                    message = f"value {value} is only a view of {source} but shares {_quoted(shares)}"
                    report.add("SP1421", program, message)
                    continue
            elif not shares:
                continue
            elif not inplace_inputs(planned, output, placement):
                message = f"node {planned.node.id} ({planned.node.op}) cannot make {value} in place of {shown(shares)}"
                report.add("SP1421", program, message)
                continue
            below = placements[shares]
            if (placement.pool, placement.offset, placement.bytes) != (below.pool, below.offset, below.bytes):
                message = f"value {value} shares {shares} but lies on {_bytes(placement)}, {shares} on {_bytes(below)}"
                report.add("SP1421", program, message)
    made = {v for n in slices.program.nodes for v in n.outputs}
    for value in roots:
        if value not in made and placements[value].shares:
            report.add("SP1421", program, f"value {value} is made by no node, so it can share nothing")


def _bytes(placement: Placement) -> str:
    return f"bytes {placement.offset} to {placement.offset + placement.bytes} of pool {shown(placement.pool)}"


def _quoted(shares: str) -> str:
    return shown(shares) if shares else "nothing"


def protected(graph: Graph) -> set[str]:
    """Values whose bytes nothing else may ever use: parameters, states and every program's inputs."""
    return {v.id for v in graph.values if v.role in PERSISTENT} | {v for p in graph.programs for v in p.inputs}


def check_protected(
    graph: Graph,
    plan: Plan,
    placements: Mapping[str, Placement],
    roots: Mapping[str, Mapping[str, str]],
    programs: Sequence[Slices],
    report: Report,
) -> None:
    """SP1422: whoever lies over a persistent value or an input, in any program, at any time."""
    owners: dict[str, str] = {}
    for used in roots.values():
        owners |= used
    keep = protected(graph)
    kept_owners = {owners.get(v, v) for v in keep}
    kept: dict[tuple[str, str], Span] = {}
    others: list[tuple[str, Span]] = []
    for placement in placements.values():
        owner = owners.get(placement.value, placement.value)
        lo, hi = placement.offset, placement.offset + placement.bytes
        span = Span(placement.pool, lo, hi, owner, f"value {placement.value}")
        if owner in kept_owners:
            kept[owner, placement.value] = span
        elif placement.value in owners:
            others.append(("", span))
    for slices in programs:
        for planned in slices.nodes:
            lo, size = planned.plan.scratch_offset, planned.plan.scratch_bytes
            if size:
                what = f"the scratch of node {planned.node.id}"
                others.append((slices.plan.name, Span(plan.pools[0].name, lo, lo + size, "", what)))
    _report_overlaps(list(kept.values()), others, report)


def _report_overlaps(kept: list[Span], others: list[tuple[str, Span]], report: Report) -> None:
    """Kept spans may overlap only their own owner's; the rest may overlap none of them."""
    union: dict[str, list[Span]] = {}
    for span in sorted(kept, key=lambda s: (s.pool, s.lo, s.hi)):
        held = union.setdefault(span.pool, [])
        if held and held[-1].hi > span.lo:
            if held[-1].owner != span.owner:
                report.add("SP1422", "", _lies_over(span, held[-1]))
            # Whichever of the two reaches further guards the bytes behind.
            if span.hi > held[-1].hi:
                held.append(span._replace(lo=held[-1].hi))
        else:
            held.append(span)
    starts = {pool: [s.lo for s in held] for pool, held in union.items()}
    for program, span in others:
        guard = _meeting(union.get(span.pool, []), starts.get(span.pool, []), span)
        if guard:
            report.add("SP1422", program, _lies_over(span, guard))


def _lies_over(span: Span, kept: Span) -> str:
    where = f"bytes {max(span.lo, kept.lo)} to {min(span.hi, kept.hi)} of pool {shown(span.pool)}"
    return f"{span.what} lies over {kept.what}, which keeps its bytes, on {where}"


def _meeting(held: Sequence[Span], starts: Sequence[int], span: Span) -> Span | None:
    """Of disjoint sorted spans, the first that overlaps `span`."""
    at = max(0, bisect_right(starts, span.lo) - 1)
    return next((h for h in held[at : at + 2] if h.lo < span.hi and span.lo < h.hi), None)
