"""A planner as simple as possible, for tests of `check`: nodes one after the other, waits from brute force.

It shares nothing with planner/solve, nor with planner/plan/check: what must wait for what is found by comparing every
slice with every earlier one.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.graph.model import PERSISTENT, Graph, Node, Program
from planner.graph.text import graph_hash
from planner.ops.base import Access, Mode, Signature, op_named, scratch_bytes, scratch_offsets
from planner.plan.schema import Bounds, Entry, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan, slice_name
from planner.units import align

BOUNDS = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)


@dataclass
class Choices:
    """What a plan may look like; `rng` decides everything that is left open."""

    lanes: int = 2
    reuse: bool = True
    """Values whose lifetimes are apart may share bytes."""
    inplace: bool = True
    barrier: bool = False
    """Every stage waits for all of the one before, instead of only where bytes are in conflict."""
    reduced: bool = True
    """Leave out waits that lane order or other waits imply."""
    rng: random.Random | None = None
    slices: int = 0
    """Slices per node where the op allows as many; 0: as many as lanes."""


@dataclass
class Touch:
    """One access of one slice, with its absolute bytes."""

    slice: str
    node: int
    stage: int
    tensor: str
    write: bool
    access: Access
    lo: int
    hi: int
    itemsize: int
    operand: str


@dataclass
class Memory:
    """What the bytes mean: root of every view, offsets of values and scratch."""

    roots: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)


def signature_of(graph: Graph, node: Node) -> Signature:
    return Signature(
        node.op, node.attrs, graph.types(node.inputs), graph.types(node.outputs), graph.types(node.updates)
    )


def facts_for(node: Node, signature: Signature, slices: int) -> dict[str, int]:
    """Invented sizes, as a kernel library would ask for."""
    if node.op.endswith("backward_weights"):
        return {"partial_bytes": slices * signature.outputs[0].bytes, "scratch_bytes": 100}
    if node.op.startswith("conv2d"):
        return {"packed_bytes": 192 * slices, "scratch_bytes": 70} if len(node.id) % 2 else {}
    return {}


def view_of(graph: Graph, node: Node) -> tuple[str, str] | None:
    alias = op_named(node.op).alias(signature_of(graph, node))
    return None if alias is None else (node.outputs[alias[0]], node.inputs[alias[1]])


def roots_of(graph: Graph, program: Program) -> dict[str, str]:
    roots: dict[str, str] = {}
    for node in program.nodes:
        view = view_of(graph, node)
        if view:
            roots[view[0]] = roots.get(view[1], view[1])
    return roots


def touches_of(graph: Graph, program: Program, planned: NodePlan, plan: Plan) -> list[Touch]:
    """Everything that a node's slices touch, in stage and slice order."""
    index, node = next((i, n) for i, n in enumerate(program.nodes) if n.id == planned.node)
    op, signature = op_named(node.op), signature_of(graph, node)
    roots = roots_of(graph, program)
    offsets = scratch_offsets(op.scratch(signature, planned.mode, planned.facts))
    sizes = {p.name: p.bytes for p in op.scratch(signature, planned.mode, planned.facts)}
    found = []
    for stage in range(planned.stages):
        for part in range(planned.slices):
            for access in op.accesses(signature, planned.mode, stage, part, planned.facts):
                lo, hi = access.hull
                if lo == hi:
                    continue
                name = slice_name(node.id, stage, part)
                if access.operand in offsets:
                    if not sizes[access.operand]:
                        continue
                    base = planned.scratch_offset + offsets[access.operand]
                    span = (base, base + sizes[access.operand])
                    tensor, itemsize = f"{node.id}/{access.operand}", 1
                else:
                    kind = access.operand.rstrip("0123456789")
                    values = {"in": node.inputs, "out": node.outputs, "up": node.updates}[kind]
                    value = values[int(access.operand[len(kind) :])]
                    itemsize, base = graph.value[value].type.dtype.itemsize, plan.placement[value].offset
                    span = (base + lo * itemsize, base + hi * itemsize)
                    tensor = roots.get(value, value)
                found.append(Touch(name, index, stage, tensor, access.write, access, *span, itemsize, access.operand))
    return found


def make(graph: Graph, choices: Choices | None = None, order: Callable[[Program], list[Node]] | None = None) -> Plan:
    choices = choices or Choices()
    orders = {p.name: order(p) if order else list(p.nodes) for p in graph.programs}
    nodes = {p.name: [_mode(graph, n, choices) for n in orders[p.name]] for p in graph.programs}
    memory = _place(graph, orders, nodes, choices)
    placements = tuple(
        Placement(
            value=v.id,
            pool="dram",
            offset=memory.offsets[memory.roots.get(v.id, v.id)],
            bytes=v.type.bytes,
            shares=memory.shares.get(v.id, ""),
        )
        for v in graph.values
        if memory.roots.get(v.id, v.id) in memory.offsets
    )
    for name, planned in nodes.items():
        nodes[name] = [
            n.model_copy(update={"scratch_offset": memory.offsets.get(f"{name}:{n.node}", 0)}) for n in planned
        ]
    arena = max(
        [p.offset + align(p.bytes) for p in placements]
        + [n.scratch_offset + n.scratch_bytes for planned in nodes.values() for n in planned]
    )
    plan = Plan(
        name=graph.name,
        policy="test",
        target="machine",
        graph_hash=graph_hash(graph),
        target_hash="",
        costs_hash="",
        pools=(PoolUse(name="dram", capacity=arena, arena=arena),),
        lanes=tuple(Lane(id=i, cpu=i) for i in range(choices.lanes)),
        placements=placements,
        programs=tuple(
            ProgramPlan(
                name=name,
                nodes=tuple(planned),
                lanes=((),) * choices.lanes,
                predicted_ns=0,
                peak_bytes=arena,
                bounds=BOUNDS,
            )
            for name, planned in nodes.items()
        ),
    )
    programs = tuple(
        p.model_copy(update={"lanes": _lanes(graph, graph.program[p.name], p, plan, choices)}) for p in plan.programs
    )
    return plan.model_copy(update={"programs": programs})


def _mode(graph: Graph, node: Node, choices: Choices) -> NodePlan:
    op, signature = op_named(node.op), signature_of(graph, node)
    offered = sorted(op.dims(signature).items())
    (kernel, dim), limit = choices.rng.choice(offered) if choices.rng else offered[0]
    slices = min(limit, choices.slices or choices.lanes)
    if choices.rng and choices.rng.random() < 0.3:
        slices = choices.rng.randint(1, min(limit, 2 * choices.lanes))
    if op.alias(signature) is not None:
        return NodePlan(node=node.id, kernel=kernel, dim=dim, slices=1)
    facts = facts_for(node, signature, slices)
    mode = Mode(kernel, dim, slices)
    return NodePlan(
        node=node.id,
        kernel=kernel,
        dim=dim,
        slices=slices,
        stage_ns=(1000,) * op.stage_count(signature, mode, facts),
        scratch_bytes=scratch_bytes(op.scratch(signature, mode, facts)),
        facts=facts,
    )


def _place(graph: Graph, orders: dict[str, list[Node]], nodes: dict[str, list[NodePlan]], choices: Choices) -> Memory:
    """First fit over lifetimes in node order."""
    memory = Memory()
    spans: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    untouchable = {v.id for v in graph.values if v.role in PERSISTENT} | {v for p in graph.programs for v in p.inputs}
    clock = 0
    forever = 10**9

    def use(block: str, time: int, size: int) -> None:
        lo, hi = spans.get(block, (time, time))
        spans[block], sizes[block] = (min(lo, time), max(hi, time)), size

    for program in graph.programs:
        order = orders[program.name]
        planned = {n.node: n for n in nodes[program.name]}
        last = {v: i for i, n in enumerate(order) for v in n.reads}
        last |= dict.fromkeys(program.outputs, len(order))
        for index, node in enumerate(order):
            view = view_of(graph, node)
            signature = signature_of(graph, node)
            if view:
                memory.shares[view[0]] = view[1]
                memory.roots[view[0]] = memory.roots.get(view[1], view[1])
            elif choices.inplace:
                taken: set[str] = set()
                for out, source in op_named(node.op).inplace(signature, planned[node.id].mode):
                    target, below = node.outputs[out], node.inputs[source]
                    root = memory.roots.get(below, below)
                    family = [v for v in last if memory.roots.get(v, v) == root and v != target]
                    dead = all(last[v] < index or v == below for v in family) and last[below] == index
                    alone = node.inputs.count(below) == 1 and all(
                        memory.roots.get(v, v) != root for v in node.reads if v != below
                    )
                    fits = graph.value[target].type.bytes == graph.value[below].type.bytes
                    if dead and alone and fits and root not in untouchable | taken and target not in memory.shares:
                        memory.shares[target] = below
                        memory.roots[target] = root
                        taken.add(root)
            for value in (*node.reads, *node.writes):
                root = memory.roots.get(value, value)
                use(root, clock + index, graph.value[root].type.bytes)
            if planned[node.id].scratch_bytes:
                use(f"{program.name}:{node.id}", clock + index, planned[node.id].scratch_bytes)
        for value in program.outputs:
            root = memory.roots.get(value, value)
            use(root, clock + len(order), graph.value[root].type.bytes)
        clock += len(order) + 1
    for value in untouchable:
        spans[value], sizes[value] = (0, forever), graph.value[value].type.bytes
    placed: list[str] = []
    for block in sorted(spans, key=lambda b: (-sizes[b], b)):
        lo, hi = spans[block]
        busy = sorted(
            (memory.offsets[o], memory.offsets[o] + align(sizes[o]))
            for o in placed
            if not choices.reuse or (spans[o][0] <= hi and lo <= spans[o][1])
        )
        at = 0
        for start, end in busy:
            if start >= at + align(sizes[block]):
                break
            at = max(at, end)
        memory.offsets[block] = at
        placed.append(block)
    return memory


def _lanes(
    graph: Graph, program: Program, planned: ProgramPlan, plan: Plan, choices: Choices
) -> tuple[tuple[Entry, ...], ...]:
    lanes: list[list[Entry]] = [[] for _ in range(choices.lanes)]
    history: list[Touch] = []
    previous: list[str] = []
    known: dict[str, set[str]] = {}
    for node in planned.nodes:
        touches = touches_of(graph, program, node, plan)
        for stage in range(node.stages):
            own = [t for t in touches if t.stage == stage]
            started = [slice_name(node.node, stage, i) for i in range(node.slices)]
            for index, name in enumerate(started):
                lane = choices.rng.randrange(choices.lanes) if choices.rng else index % choices.lanes
                mine = [t for t in own if t.slice == name]
                wait = previous if choices.barrier else _needed(mine, history)
                before = lanes[lane][-1].run if lanes[lane] else ""
                known[name] = {before} | known.get(before, set())
                if choices.reduced:
                    newest_first = sorted(wait, key=list(known).index, reverse=True)
                    wait = [w for w in newest_first if _learn(known, name, w)]
                lanes[lane].append(Entry(run=name, wait=tuple(wait)))
            history += own
            previous = started
    return tuple(map(tuple, lanes))


def _learn(known: dict[str, set[str]], name: str, wait: str) -> bool:
    """Whether waiting tells `name` anything; if so it now knows."""
    if wait in known[name]:
        return False
    known[name] |= {wait} | known[wait]
    return True


def _needed(mine: list[Touch], history: list[Touch]) -> list[str]:
    """Every earlier slice that touched the same bytes when one of the two writes, or the same scratch part."""
    found: dict[str, None] = {}
    for touch in mine:
        for other in history:
            if in_conflict(touch, other):
                found[other.slice] = None
    return list(found)


def in_conflict(a: Touch, b: Touch) -> bool:
    """Whether the order of two accesses of different slices matters."""
    if not (a.write or b.write):
        return False
    if a.tensor == b.tensor:
        return a.access.overlaps(b.access._replace(operand=a.access.operand))
    return a.lo < b.hi and b.lo < a.hi
