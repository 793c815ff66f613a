"""Semantic difference of two plans: what changed for whoever runs the step, ranked by effect.

Compared are decisions and predictions, never texts: two plans that only differ in the version of the tool that wrote
them, or in a cost table that led to the same plan, are the same. Nodes and values are matched by their ids, which
are the layers' names. `diff_text.py` renders the result.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal

from planner.graph.model import Graph, Node
from planner.plan.diff_model import (
    NodeChange,
    NodeSide,
    ParallelChange,
    PlacementDiff,
    PlanDiff,
    ProgramDiff,
    Schedule,
    Setting,
    ValueChange,
)
from planner.plan.schema import NodePlan, ParallelOp, Placement, Plan, ProgramPlan
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import format_bytes


def diff(
    a: Plan,
    b: Plan,
    graph_a: Graph | None = None,
    graph_b: Graph | None = None,
    target_a: Target | None = None,
    target_b: Target | None = None,
) -> PlanDiff:
    """From plan `a` to plan `b`. With the graphs, changes also name ops and where layers come from; with the targets,
    settings say what differs between them."""
    names = [*a.program, *(n for n in b.program if n not in a.program)]
    programs = [
        _program(name, a.program.get(name), b.program.get(name), _nodes(name, graph_a) | _nodes(name, graph_b))
        for name in names
    ]
    return PlanDiff(
        before=a.name,
        after=b.name,
        settings=_settings(a, b, target_a, target_b),
        programs=tuple(sorted(programs, key=lambda p: (-abs(p.predicted_after - p.predicted_before), p.name))),
        placement=_placement(a, b),
    )


def _nodes(program: str, graph: Graph | None) -> dict[str, Node]:
    return dict(graph.program[program].node) if graph and program in graph.program else {}


def _settings(a: Plan, b: Plan, target_a: Target | None, target_b: Target | None) -> tuple[Setting, ...]:
    def pools(plan: Plan, size: Callable[[int], str]) -> str:
        return ", ".join(f"{p.name} arena {size(p.arena)} of {size(p.capacity)}" for p in plan.pools)

    sizes = {format_bytes(p.arena) for plan in (a, b) for p in plan.pools}
    alike = len(sizes) < len({p.arena for plan in (a, b) for p in plan.pools})
    # A budget that is a little smaller would look the same.
    hidden = a.pools != b.pools and pools(a, format_bytes) == pools(b, format_bytes)
    size: Callable[[int], str] = "{} bytes".format if alike or hidden else format_bytes

    pairs = [
        ("name", a.name, b.name),
        ("target", a.target, b.target),
        ("lanes", _lanes(a), _lanes(b)),
        ("numbers of lanes", _ids(x.id for x in a.lanes), _ids(x.id for x in b.lanes)),
        ("processors", _ids(x.cpu for x in a.lanes), _ids(x.cpu for x in b.lanes)),
        ("policy", a.policy, b.policy),
        ("strategies", _ids(a.strategies), _ids(b.strategies)),
        ("memory", pools(a, size), pools(b, size)),
        ("kept values", ", ".join(a.keep), ", ".join(b.keep)),
        ("graph", a.graph_hash, b.graph_hash),
        ("target description", a.target_hash, b.target_hash),
    ]
    if sorted(a.program) == sorted(b.program):
        pairs.insert(0, ("order of programs", ", ".join(a.program), ", ".join(b.program)))
    if target_a and target_b:
        pairs[-1:] = [(n, x, y) for (n, x), (_, y) in zip(_hardware(target_a), _hardware(target_b), strict=True)]
    return tuple(Setting(name=n, before=x, after=y) for n, x, y in pairs if x != y)


def _lanes(plan: Plan) -> str:
    """`2 core, 1 copy`, in the lanes' order; of processors alone only how many."""
    kinds = [(kind, len(list(lanes))) for kind, lanes in groupby(plan.lanes, lambda lane: lane.kind)]
    return ", ".join(f"{n} {kind}" for kind, n in kinds) if {k for k, _ in kinds} != {"core"} else str(len(plan.lanes))


def _hardware(target: Target) -> list[tuple[str, str]]:
    """What of a target decides about plans."""
    cpu = target.cpu
    caches = cpu.caches.model_dump(exclude_none=True)
    return [
        ("processor", cpu.model),
        ("march", cpu.march),
        ("cores", f"{target.physical_cores}, {len(target.lanes())} lanes"),
        ("caches", ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(caches.items()))),
        ("memory bandwidth", f"{cpu.memory_bandwidth / 1e9:.1f} GB/s, {cpu.thread_bandwidth / 1e9:.1f} per thread"),
        ("arithmetic", f"{cpu.flops_per_core / 1e9:.1f} GFLOP/s per core"),
        ("instruction sets", " ".join(cpu.isa)),
        ("pools", ", ".join(f"{p.name} {format_bytes(p.capacity)}" for p in target.pools)),
        ("target description", target_hash(target)),
    ]


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers)) or "none"


def _program(name: str, a: ProgramPlan | None, b: ProgramPlan | None, known: Mapping[str, Node]) -> ProgramDiff:
    before = a.node if a else {}
    after = b.node if b else {}

    def change(node: str) -> NodeChange:
        graph_node = known.get(node)
        return NodeChange(
            node=node,
            op=graph_node.op if graph_node else "",
            origin=graph_node.origin if graph_node and graph_node.origin != node else "",
            before=_side(before.get(node)),
            after=_side(after.get(node)),
        )

    common = [n for n in before if n in after]
    modes = [n for n in common if before[n].mode != after[n].mode]
    same = [n for n in common if before[n].mode == after[n].mode]
    times = [n for n in same if before[n].stage_ns != after[n].stage_ns]
    scratch = [n for n in same if _asked(before[n]) != _asked(after[n])]
    found = ProgramDiff(
        name=name,
        status="added" if not a else "removed" if not b else "changed",
        predicted_before=a.predicted_ns if a else 0,
        predicted_after=b.predicted_ns if b else 0,
        peak_before=a.peak_bytes if a else 0,
        peak_after=b.peak_bytes if b else 0,
        bound_before=a.bounds.best_ns if a else 0,
        bound_after=b.bounds.best_ns if b else 0,
        added=_ranked(change(n) for n in after if n not in before),
        removed=_ranked(change(n) for n in before if n not in after),
        modes=_ranked(map(change, modes)),
        times=_ranked(map(change, times)),
        scratch=tuple(sorted(map(change, scratch), key=lambda c: (-abs(c.delta_scratch), c.node))),
        parallel=_parallel(a, b),
        schedule=_schedule(a, b),
    )
    if a and b and _without_offsets(a) == _without_offsets(b):
        return found.model_copy(update={"status": "same"})
    return found


def _without_offsets(program: ProgramPlan) -> ProgramPlan:
    """Where scratch lies is counted with the placement."""
    nodes = tuple(n.model_copy(update={"scratch_offset": 0}) for n in program.nodes)
    return program.model_copy(update={"nodes": nodes})


def _side(plan: NodePlan | None) -> NodeSide | None:
    if plan is None:
        return None
    return NodeSide(
        mode=plan.mode.text(),
        kind=f"{plan.kernel}/{plan.dim}",
        implementation=plan.implementation,
        slices=plan.slices,
        predicted_ns=plan.predicted_ns,
        scratch_bytes=plan.scratch_bytes,
    )


def _asked(plan: NodePlan) -> tuple[int, dict[str, int]]:
    return plan.scratch_bytes, plan.facts


def _ranked(changes: Iterable[NodeChange]) -> tuple[NodeChange, ...]:
    """By effect on time, then on bytes, then by name."""
    return tuple(sorted(changes, key=lambda c: (-abs(c.delta_ns), -abs(c.delta_scratch), c.node)))


def _parallel(a: ProgramPlan | None, b: ProgramPlan | None) -> tuple[ParallelChange, ...]:
    """Matched by op and by where the members come from and go to; of several alike in their order."""
    sides: list[dict[tuple[str, str, str, int], ParallelOp]] = []
    for plan in (a, b):
        seen: Counter[tuple[str, str, str]] = Counter()
        found = {}
        for group in plan.parallel if plan else ():
            key = (group.op, group.source, group.target)
            found[*key, seen[key]] = group
            seen[key] += 1
        sides.append(found)
    before, after = sides
    keys = [*before, *(k for k in after if k not in before)]
    changes = [ParallelChange(before=before.get(k), after=after.get(k)) for k in keys]
    changed = [c for c in changes if c.before != c.after]
    return tuple(sorted(changed, key=lambda c: (-abs(c.delta_ns), _first(c))))


def _first(change: ParallelChange) -> tuple[str, ...]:
    group = change.after or change.before
    return group.nodes[:1] if group else ()


def _schedule(a: ProgramPlan | None, b: ProgramPlan | None) -> Schedule:
    lanes_a, lanes_b = (p.lanes if p else () for p in (a, b))
    waits_a, waits_b = ({e.run: e.wait for lane in lanes for e in lane} for lanes in (lanes_a, lanes_b))
    at_a, at_b = ({e.run: i for i, lane in enumerate(lanes) for e in lane} for lanes in (lanes_a, lanes_b))
    reordered = 0
    for lane, (old, new) in enumerate(zip(lanes_a, lanes_b, strict=False)):
        kept_old = [e.run for e in old if at_b.get(e.run) == lane]
        kept_new = [e.run for e in new if at_a.get(e.run) == lane]
        reordered += kept_old != kept_new
    moved = _moved([n.node for n in a.nodes], [n.node for n in b.nodes]) if a and b else []
    return Schedule(
        moved_nodes=tuple(sorted(moved, key=lambda n: (-b.node[n].predicted_ns, n))) if b else (),
        other_lane=sum(at_b[s] != lane for s, lane in at_a.items() if s in at_b),
        reordered_lanes=reordered,
        waits_before=sum(map(len, waits_a.values())),
        waits_after=sum(map(len, waits_b.values())),
        changed_waits=sum(set(w) != set(waits_b[s]) for s, w in waits_a.items() if s in waits_b),
    )


def _moved(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The fewest nodes whose moves turn one order into the other: all that are not on a longest common
    subsequence (ids are unique, so that is a longest increasing subsequence)."""
    position = {n: i for i, n in enumerate(after)}
    common = [n for n in before if n in position]
    tails: list[int] = []
    ends: list[str] = []
    previous: dict[str, str] = {}
    for name in common:
        at = bisect_left(tails, position[name])
        if at:
            previous[name] = ends[at - 1]
        tails[at : at + 1] = [position[name]]
        ends[at : at + 1] = [name]
    kept: set[str] = set()
    step: str | None = ends[-1] if ends else None
    while step is not None:
        kept.add(step)
        step = previous.get(step)
    return [n for n in common if n not in kept]


def _placement(a: Plan, b: Plan) -> PlacementDiff:
    changes: list[ValueChange] = []
    moved = moved_bytes = 0
    for value in [*a.placement, *(v for v in b.placement if v not in a.placement)]:
        old, new = a.placement.get(value), b.placement.get(value)
        change = _value_change(value, old, new)
        if change:
            changes.append(change)
        elif old and new and old.offset != new.offset:
            moved += 1
            moved_bytes += new.bytes
    for name in [n for n in a.program if n in b.program]:
        earlier = a.program[name].node
        for node, plan in b.program[name].node.items():
            same_size = node in earlier and earlier[node].scratch_bytes == plan.scratch_bytes
            if same_size and earlier[node].scratch_offset != plan.scratch_offset:
                moved += 1
                moved_bytes += plan.scratch_bytes
    changes.sort(key=lambda c: (-c.bytes, c.value))
    reordered = [v for v in a.placement if v in b.placement] != [v for v in b.placement if v in a.placement]
    return PlacementDiff(changes=tuple(changes), moved=moved, moved_bytes=moved_bytes, reordered=reordered)


def _value_change(value: str, old: Placement | None, new: Placement | None) -> ValueChange | None:
    if new is None or old is None:
        there = new or old
        assert there is not None
        kind: Literal["added", "removed"] = "added" if new else "removed"
        words = f"{there.bytes} bytes"
        return ValueChange(
            value=value, change=kind, before="" if new else words, after=words if new else "", bytes=there.bytes
        )
    if old.bytes != new.bytes:
        size = abs(new.bytes - old.bytes)
        return ValueChange(value=value, change="resized", before=str(old.bytes), after=str(new.bytes), bytes=size)
    if old.pool != new.pool:
        return ValueChange(value=value, change="pool", before=old.pool, after=new.pool, bytes=new.bytes)
    if old.shares != new.shares:
        before, after = old.shares or "its own bytes", new.shares or "its own bytes"
        return ValueChange(value=value, change="shares", before=before, after=after, bytes=new.bytes)
    if old.layout != new.layout:
        before, after = old.layout or "plain", new.layout or "plain"
        return ValueChange(value=value, change="layout", before=before, after=after, bytes=new.bytes)
    return None
