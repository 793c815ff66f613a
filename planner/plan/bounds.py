"""Lower bounds on a program's time: no schedule of these nodes, on these cores, can be faster.

Three bounds, each on its own (their largest is `Bounds.best_ns`):

* **critical path**: the longest dependent chain. Every node takes its best measured time with its operands in
  cache, over all modes that fit the cores. Stages are followed one by one, because a node's first stage may run
  before all its inputs are there (a convolution packs its weights while its image is still being computed) and an
  in-place update may start once the stage that reads the old contents is done.
* **work**: every node's least core time, slices x time, over its modes; spread evenly over the cores.
* **bandwidth**: bytes that must cross between memory and caches at least once, over the pool's bandwidth.

Signals between lanes are free here, and times are cut to whole ns, so that what `simulate` finds for a valid plan
is never below. Chains are of nodes: where an op passes on only part of what another wrote (one half of a
concatenation), slices may wait for less than the chain says.

Example, two cores: a (100 ns on one core or 60 ns on two) -> b (50 ns on one core, no other mode):
critical path 60 + 50 = 110; work (min(1 x 100, 2 x 60) + 50) / 2 = 75.
"""

from collections.abc import Mapping
from typing import NamedTuple

from planner.costs.table import CostEntry, CostTable
from planner.graph.model import PERSISTENT, Graph, Node, Program
from planner.ops.base import Op, Signature, op_named
from planner.ops.device import limit, running
from planner.ops.signature import signature_of
from planner.ops.stored import PLAIN, unpacked, wanted
from planner.plan.schema import Bounds


class _Way(NamedTuple):
    """One way to run a signature, reduced to what bounds need. Operands are numbered reads first, then outputs."""

    stage_ns: tuple[int, ...]
    reads: tuple[int, ...]
    """Per input and update: the first stage that touches it."""
    writes: tuple[int, ...]
    """Per output and update: the last stage that writes it."""


class _Facts(NamedTuple):
    """What is known of a signature."""

    ways: tuple[_Way, ...]
    """Empty for a view, and for what was never measured: it counts no time."""
    core_ns: int
    """Least slices x time."""
    moved: int
    """Bytes that the op moves at least: less than its operands' sizes where it gathers rows."""


def bounds(
    graph: Graph, program_name: str, costs: CostTable, cores: int, bandwidth: float, *, cache_bytes: int = 0
) -> Bounds:
    """Bounds of one program on `cores` lanes; `bandwidth` in bytes per second, read plus written.

    `cache_bytes`: what all caches together may carry over from one step to the next. A model that fits into them
    need not move at all; with 0 it is taken to be larger. A node without a usable cost entry counts no time.
    """
    key = ("bounds", program_name, id(costs), cores, bandwidth, cache_bytes)
    if key not in graph.memo:  # with the table itself, so that no other one can get its id
        graph.memo[key] = (costs, _bounds(graph, program_name, costs, cores, bandwidth, cache_bytes))
    found: Bounds = graph.memo[key][1]
    return found


def _bounds(
    graph: Graph, program_name: str, costs: CostTable, cores: int, bandwidth: float, cache_bytes: int
) -> Bounds:
    program = graph.program[program_name]
    known = _all_facts(graph, program, costs, cores)
    work = sum(known[n.id].core_ns for n in program.nodes)
    moved = max(0, least_traffic(graph, program, {n.id: known[n.id].moved for n in program.nodes}) - 2 * cache_bytes)
    return Bounds(
        critical_path_ns=_critical_path(program, known),
        work_ns=work // max(1, cores),
        bandwidth_ns=int(moved * 1e9 / bandwidth) if bandwidth else 0,
    )


def least_traffic(graph: Graph, program: Program, moved: Mapping[str, int]) -> int:
    """Bytes that a step moves at least once, when nothing stays in a cache from one step to the next.

    Inputs, parameters and states that a node reads are read once; parameters and states that a node updates are
    written once as well, and so are the program's outputs. Activations and gradients may live and die in a cache:
    they count nothing. A node that touches only part of a value (rows of an embedding table) counts at most the
    bytes that its op says it moves (`moved`: node id -> bytes).
    """
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    lasting = {v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs)
    for node in program.nodes:
        for value in node.reads:
            if value in lasting:
                read[value] = max(read.get(value, 0), min(moved[node.id], graph.value[value].type.bytes))
        for value in node.updates:
            written[value] = max(written.get(value, 0), min(moved[node.id], graph.value[value].type.bytes))
    made = sum(graph.value[v].type.bytes for v in set(program.outputs) - lasting)
    return sum(read.values()) + sum(written.values()) + made


def _critical_path(program: Program, known: Mapping[str, _Facts]) -> int:
    """Earliest end of the program with a core for everything that is ready."""
    ready: dict[str, int] = {}
    """value -> earliest time at which its contents are complete"""
    released: dict[str, int] = {}
    """value -> earliest time at which everybody has read its present contents"""
    end = 0
    for node in program.nodes:
        needed = [ready.get(v, 0) for v in node.inputs]
        needed += [max(ready.get(v, 0), released.pop(v, 0)) for v in node.updates]
        ways = known[node.id].ways
        if not ways:
            done = max(needed, default=0)
            released.update((v, max(released.get(v, 0), done)) for v in node.inputs)
            ready.update(dict.fromkeys(node.writes, done))
            continue
        runs = [_run(way, needed) for way in ways]
        for position, value in enumerate(node.inputs):
            free = min(r[w.reads[position]] for r, w in zip(runs, ways, strict=True))
            released[value] = max(released.get(value, 0), free)
        for position, value in enumerate(node.writes):
            ready[value] = min(r[w.writes[position]] for r, w in zip(runs, ways, strict=True))
        end = max(end, min(r[-1] for r in runs))
    return end


def _run(way: _Way, needed: list[int]) -> list[int]:
    """When each stage ends, if operand i is there at needed[i]."""
    now, ends = 0, []
    for stage, took in enumerate(way.stage_ns):
        for time, first in zip(needed, way.reads, strict=True):
            if first == stage and time > now:
                now = time
        now += took
        ends.append(now)
    return ends


def _all_facts(graph: Graph, program: Program, costs: CostTable, cores: int) -> dict[str, _Facts]:
    """node id -> facts; a signature is looked at once, however many nodes have it."""
    by_signature: dict[str, _Facts] = {}
    found: dict[str, _Facts] = {}
    for node in program.nodes:
        signature = signature_of(graph, node)
        if signature.text not in by_signature:
            by_signature[signature.text] = _facts(op_named(node.op), signature, node, costs, cores)
        found[node.id] = by_signature[signature.text]
    return found


def _facts(op: Op, signature: Signature, node: Node, costs: CostTable, cores: int) -> _Facts:
    moved = op.bytes_moved(signature)
    if op.alias(signature) is not None:
        return _Facts((), 0, moved)
    modes = costs.modes(signature.text)
    able = (e for e in modes if e.slices <= min(cores, limit(op, signature, e.kernel, e.dim)))
    entries = [_stored(op, signature, e) for e in able]
    core_ns = min((e.slices * sum(map(int, e.warm_ns)) for e in entries), default=0)
    return _Facts(_undominated({_way(op, signature, node, e) for e in entries}), core_ns, moved)


def _stored(op: Op, signature: Signature, entry: CostEntry) -> CostEntry:
    """As it runs where weights are stored as the kernel wants them: without packing them first."""
    if wanted(entry.facts) == PLAIN:
        return entry
    facts = unpacked(entry.facts)
    stages = running(op, entry.mode).stage_count(signature, entry.mode, facts)
    times = {"warm_ns": entry.warm_ns[-stages:], "cold_ns": entry.cold_ns[-stages:]}
    return entry.model_copy(update={"facts": facts, **times})


def _way(op: Op, signature: Signature, node: Node, entry: CostEntry) -> _Way:
    """Single-stage nodes touch everything in their only stage; otherwise the op's own access lists say when.

    Where the first and the last slice touch an operand nowhere, the assumption that gives the lower bound holds:
    read in the last stage, written in the first."""
    stages = len(entry.warm_ns)
    reads = [f"in{i}" for i in range(len(node.inputs))]
    writes = [f"out{i}" for i in range(len(node.outputs))]
    updates = [f"up{i}" for i in range(len(node.updates))]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage in range(stages if stages > 1 else 0):
        for index in {0, entry.slices - 1}:
            for access in op.accesses(signature, entry.mode, stage, index, entry.facts):
                first.setdefault(access.operand, stage)
                if access.write:
                    last[access.operand] = stage
    return _Way(
        tuple(map(int, entry.warm_ns)),
        tuple(first.get(o, stages - 1) for o in reads + updates),
        tuple(last.get(o, 0) for o in writes + updates),
    )


def _undominated(ways: set[_Way]) -> tuple[_Way, ...]:
    """Without the ways that another one beats in every stage, at the same structure: they cannot set a bound."""
    kept: list[_Way] = []
    for way in sorted(ways, key=lambda w: (sum(w.stage_ns), w)):
        if not any(
            other.reads == way.reads
            and other.writes == way.writes
            and len(other.stage_ns) == len(way.stage_ns)
            and all(a <= b for a, b in zip(other.stage_ns, way.stage_ns, strict=True))
            for other in kept
        ):
            kept.append(way)
    return tuple(kept)
