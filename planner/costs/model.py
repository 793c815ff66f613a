"""Modelled costs: times from FLOPs and bytes where nothing was measured.

For planning past the machine at hand and for tests. Every entry says so (`source = "modelled"`), and so does whatever
shows them. Compute scales with slices up to an efficiency; memory traffic up to the target's bandwidth.
"""

from collections.abc import Callable, Iterator, Mapping

from planner.costs.table import LONGEST_NS, CostEntry, CostTable
from planner.errors import UserError
from planner.graph.model import DType, Graph
from planner.ops.base import Facts, Mode, Op, Signature, op_named
from planner.ops.device import device_mode
from planner.ops.signature import signature_of
from planner.target.model import Target

START_NS = 300.0
"""Time of a slice that computes nothing: the call and its bookkeeping."""

LOW_SPEED = 2
"""Products of bfloat16 numbers that a core makes in the time of one of float32 numbers, at least."""

PARTIAL = ("batch", "rows")
"""Dimensions whose slices each have a partial gradient of all weights."""

FactsOf = Callable[[Signature, Mode], Facts]


def modelled_costs(graph: Graph, target: Target, facts: FactsOf | None = None, lanes: int | None = None) -> CostTable:
    """A cost table for every signature of the graph at 1 and all lanes (and powers of two between)."""
    if target.gpus:
        return _device_costs(graph, target, facts)
    count = len(target.lanes(lanes))
    entries = {}
    for program in graph.programs:
        for node in program.nodes:
            signature = signature_of(graph, node)
            op = op_named(node.op)
            if op.alias(signature) is None:
                for mode in candidate_modes(op, signature, count):
                    known = facts(signature, mode) if facts else modelled_facts(op, signature, mode)
                    entries[signature.text, mode] = _entry(op, signature, mode, known, target, count)
    return CostTable(
        target=target.name, fingerprint=target.fingerprint(), entries=tuple(entries[k] for k in sorted(entries))
    )


def candidate_modes(op: Op, signature: Signature, lanes: int) -> Iterator[Mode]:
    """Every (kernel, dim) with 1, 2, 4, ... slices and with as many as there are lanes."""
    counts = sorted({1, lanes, *(2**i for i in range(lanes.bit_length()) if 2**i <= lanes)})
    for (kernel, dim), limit in sorted(op.dims(signature).items()):
        for count in counts:
            if count <= limit and not op.redundant(signature, mode := Mode(kernel, dim, count)):
                yield mode


def modelled_facts(op: Op, signature: Signature, mode: Mode) -> Facts:
    """Sizes that the kernel library would ask for, roughly: one packed copy of the weights, or one partial of them
    where sums over the batch are split."""
    if mode.kernel != "onednn":
        return {}
    smallest = min((t.bytes for t in (*signature.inputs, *signature.outputs) if len(t.shape) > 1), default=0)
    wanted = {"packed": smallest, "partial": smallest if mode.dim in PARTIAL and mode.slices > 1 else 0}
    asked = {f"{part}_bytes": size for part, size in wanted.items() if size}
    used = {part.name for part in op.scratch(signature, mode, asked)}
    return {**{f"{part}_bytes": size for part, size in wanted.items() if part in used}, "scratch_bytes": 4096}


def _entry(op: Op, signature: Signature, mode: Mode, facts: Facts, target: Target, lanes: int) -> CostEntry:
    low = mode.kernel == "onednn" and signature.inputs[0].dtype is DType.BFLOAT16
    compute = op.flops(signature) / (mode.slices * target.cpu.flops_per_core * (LOW_SPEED if low else 1))
    bandwidth = target.memory_bandwidth * min(1.0, mode.slices / max(1, lanes) * 2)
    memory = op.bytes_moved(signature) / bandwidth
    cold, warm = max(compute, memory) * 1e9, max(compute, memory / 4) * 1e9
    _require_possible(signature, cold)
    copied = 2 * max(facts.get("packed_bytes", 0), facts.get("partial_bytes", 0)) / bandwidth * 1e9
    shares = _stage_shares(op.stage_count(signature, mode, facts), facts, copied / max(cold, 1.0))
    return CostEntry(
        signature=signature.text,
        kernel=mode.kernel,
        dim=mode.dim,
        slices=mode.slices,
        warm_ns=tuple(round(warm * share + START_NS, 1) for share in shares),
        cold_ns=tuple(round(cold * share + START_NS, 1) for share in shares),
        facts=dict(facts),
        source="modelled",
    )


def _require_possible(signature: Signature, took: float) -> None:
    """SP1206: longer than any cost table has it."""
    if took >= LONGEST_NS / 2:
        problem = f"{signature.text[:100]} would take {took / 1e9:.0f} s, which is no use"
        raise UserError("SP1206", problem, "capture the model with a smaller batch")


def _stage_shares(stages: int, facts: Facts, copied: float) -> tuple[float, ...]:
    """Of a node's time. A stage that packs, before the others, or adds partial sums, behind them, takes what copying
    those bytes takes, `copied`, at most half; others take equal parts."""
    if stages != 2 or not (facts.get("packed_bytes") or facts.get("partial_bytes")):
        return (1 / stages,) * stages
    beside = min(0.5, copied)
    return (beside, 1 - beside) if facts.get("packed_bytes") else (1 - beside, beside)


LAUNCH_NS = 3000.0
"""Time of a GPU kernel that computes nothing."""
LIBRARY_SHARE = 0.5
"""Share of a GPU's peak that its matrix kernels reach."""
DEVICE_ALGORITHMS: Mapping[str, str] = {
    "conv2d": "implicit_precomp_gemm",
    "conv2d_backward_data": "algo_1",
    "conv_transpose2d": "algo_1",
    "conv2d_backward_weights": "algo_1",
    # Of volumes the library has engines alone, which are named for a shape and a GPU: this one computes any, slowly.
    **dict.fromkeys(("conv3d", "conv3d_backward_data", "conv_transpose3d", "conv3d_backward_weights"), "plain"),
}
"""Op -> the algorithm of the GPU's library that is assumed where none was measured."""


def _device_costs(graph: Graph, target: Target, facts: FactsOf | None) -> CostTable:
    """Every signature once, whole, at the larger of its arithmetic at the library's share of the peak and its bytes at
    the memory's bandwidth."""
    gpu, entries = target.gpus[0], {}
    for program in graph.programs:
        for node in program.nodes:
            signature, op = signature_of(graph, node), op_named(node.op)
            if op.alias(signature) is not None:
                continue
            mode = device_mode(op, DEVICE_ALGORITHMS.get(node.op, ""))
            compute = op.flops(signature) / (LIBRARY_SHARE * gpu.flops)
            took = round(max(compute, op.bytes_moved(signature) / target.memory_bandwidth) * 1e9 + LAUNCH_NS, 1)
            _require_possible(signature, took)
            entries[signature.text] = CostEntry(
                signature=signature.text,
                kernel=mode.kernel,
                dim=mode.dim,
                slices=mode.slices,
                implementation=mode.implementation,
                warm_ns=(took,),
                cold_ns=(took,),
                facts=dict(facts(signature, mode)) if facts else {},
                source="modelled",
            )
    return CostTable(
        target=target.name, fingerprint=target.fingerprint(), entries=tuple(entries[k] for k in sorted(entries))
    )
