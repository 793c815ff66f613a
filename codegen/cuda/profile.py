"""Costs of a graph's nodes on the GPU at hand: the table that planning for it takes.

Convolutions and matrix products: every algorithm of the library with its time and workspace (SuperNeurons, section
3.5); those that a faster one with as little workspace beats are left out. Everything else: an executor of the graph is
built, runs on random inputs, and every node is timed by events, alone, stepplan's own kernels in several shapes
(launches.py). All times are medians of warm repetitions.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from codegen.build import build
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import WORKSPACE_SLACK, differing, facts
from codegen.cuda.launches import Launch, search, worth_keeping
from codegen.cuda.probe import Algorithm, algorithms, is_exact, probe
from codegen.cuda.toolchain import require_driver
from codegen.cuda.turns import turn
from codegen.emit import emit
from codegen.initial import with_drawn_data
from codegen.load import executor_class
from codegen.steps import random_inputs
from planner.costs.model import modelled_costs
from planner.costs.table import CostEntry, CostTable, started
from planner.errors import UserError
from planner.graph.model import Graph
from planner.ops.base import Mode, Signature, op_named
from planner.ops.device import device_mode
from planner.ops.signature import signature_of, signatures_of
from planner.plan.schema import NodePlan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target

Progress = Callable[[str, int, int], None]

REPETITIONS = 20
COPY_BYTES = 2**28
MOST_AT_WORK = 8
"""Threads that prepare a library's algorithms."""
PRODUCTS = "cublaslt"
"""The kernel of nodes that are products, or made of them."""


def profile(
    graphs: Sequence[Graph],
    target: Target,
    table: CostTable | None = None,
    *,
    tf32: bool = False,
    own_kernels: bool = True,
    brief: bool = False,
    device: int = 0,
    null_device: bool = False,
    progress: Progress = lambda what, done, total: None,
    save: Callable[[CostTable], None] = lambda table: None,
) -> CostTable:
    """Measure what `table` lacks of the graphs' signatures.

    `tf32`: whether the matrix units may round operands to 10 bits; a table is for one precision. `own_kernels=False`:
    only the libraries' algorithms are timed, for which nothing is built; the others' times are modelled.
    `brief`: few of the libraries' algorithms, roughly, for plans that are to be right, not fast.
    `null_device`: a dry run, whose times mean nothing. SP1204: the table is another machine's. SP1205: the GPU is not
    the target's. SP1851: there is no driver.
    """
    if not null_device:
        require_driver()
    table = _of_these_kernels(started(table, target), signatures_of(graphs))
    arch = target.gpus[0].arch
    module = probe(arch, null_device)
    found = module.describe(device)
    if found["devices"] and found["arch"] != arch:
        raise UserError(
            "SP1205",
            f"target {target.name} is {arch}, GPU {device} ({found['name']}) is {found['arch']}",
            "profile for a target that describes this GPU",
        )
    known = {e.signature for e in table.entries if e.source == "measured"}
    library = [s for s in signatures_of(graphs) if _by_library(s) and s.text not in known]
    ways_of = partial(algorithms, arch=arch, tf32=tf32, device=device, null_device=null_device, brief=brief)
    # What one prepares takes longer than the GPU needs for it; meanwhile others are timed, one at a time.
    with ThreadPoolExecutor(1 if null_device else min(MOST_AT_WORK, len(os.sched_getaffinity(0)))) as pool:
        waiting = [pool.submit(ways_of, signature) for signature in library]
        try:
            for number, (signature, ways) in enumerate(zip(library, waiting, strict=True)):
                progress("timing the library's algorithms", number, len(library))
                table = table.with_entries(entry_of(signature, way) for way in _worth_keeping(ways.result()))
                save(table)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for number, graph in enumerate(graphs):
        progress("timing kernels", number, len(graphs))
        if not own_kernels:
            table = table.with_entries(_guessed(graph, target, table, tf32))
        elif any(s.text not in known and not _by_library(s) for s in signatures_of([graph])):
            table = table.with_entries(_timed(graph, target, table, tf32, device, null_device))
            save(table)
    if table.bandwidth:
        return table
    with turn(device, null_device):
        bandwidth = module.copy_bandwidth(device, "inside", COPY_BYTES if not null_device else 2**16, REPETITIONS)
    return table.model_copy(update={"bandwidth": float(bandwidth)})


def _of_these_kernels(table: CostTable, signatures: Sequence[Signature]) -> CostTable:
    """Without times of kernels that another version had, which wanted other scratch: they are measured again."""
    of = {s.text: s for s in signatures}
    kept = [e for e in table.entries if e.signature not in of or not differing(of[e.signature], e.mode, e.facts)]
    return table.model_copy(update={"entries": tuple(kept)})


def copy_bandwidths(target: Target, device: int = 0, null_device: bool = False) -> dict[str, float]:
    """Bytes per second of copies `in`, `out` and `inside`."""
    module = probe(target.gpus[0].arch, null_device)
    size = COPY_BYTES if not null_device else 2**16
    return {d: float(module.copy_bandwidth(device, d, size, REPETITIONS)) for d in ("in", "out", "inside")}


def _by_library(signature: Signature) -> bool:
    return op_named(signature.op).family in ("conv", "matmul")


def _worth_keeping(ways: Sequence[Algorithm]) -> list[Algorithm]:
    """Each needs less workspace than every faster one."""
    kept: list[Algorithm] = []
    for way in sorted(ways, key=lambda w: (w.ns, w.workspace)):
        if not kept or way.workspace < kept[-1].workspace:
            kept.append(way)
    return kept


def entry_of(signature: Signature, way: Algorithm) -> CostEntry:
    """What a table has of a library's algorithm."""
    mode = device_mode(op_named(signature.op), way.name)
    sizes = dict(facts(signature, mode))
    if way.workspace:
        sizes["scratch_bytes"] = way.workspace + WORKSPACE_SLACK
    return _measured(signature.text, mode, way.ns, sizes)


def _measured(signature: str, mode: Mode, ns: float, sizes: dict[str, int]) -> CostEntry:
    return CostEntry(
        signature=signature,
        kernel=mode.kernel,
        dim=mode.dim,
        slices=mode.slices,
        implementation=mode.implementation,
        warm_ns=(round(ns, 1),),
        cold_ns=(round(ns, 1),),
        facts=sizes,
    )


def _timed(
    graph: Graph, target: Target, table: CostTable, tf32: bool, device: int, null_device: bool
) -> list[CostEntry]:
    """Every node of one executor by events. Library nodes have their own entries already, without what stepplan's
    kernels add to them (packing, bias): here the whole node is timed, in the algorithm that was the fastest, and with
    weights as the plan stores them."""
    graph = with_drawn_data(graph)
    guessed = table.with_entries(_guessed(graph, target, table, tf32))
    plan = make_plan(graph, target, guessed, PlanOptions(policy="sequential"))
    with tempfile.TemporaryDirectory(prefix="stepplan-profile-") as folder:
        emit(plan, graph, target, folder)
        build(Path(folder), null_device=null_device)
        entries: dict[tuple[str, Mode], CostEntry] = {}
        searched: set[str] = set()
        with executor_class(folder)(seed=0, device=device, null_device=null_device) as executor:  # type: ignore[call-arg]
            inputs = random_inputs(graph)
            if "train_step" in graph.program:
                float(executor.step(*inputs))
            assert isinstance(executor, CudaExecutor)
            repetitions = 1 if null_device else REPETITIONS
            for program in plan.programs:
                nodes = graph.program[program.name].node
                signatures = {n.node: signature_of(graph, nodes[n.node]) for n in program.nodes}
                for node, ns in executor.node_times(program.name, repetitions).items():
                    signature, planned = signatures[node], program.node[node]
                    entry = _measured(signature.text, planned.mode, ns, _sizes(signature, planned))
                    entries[signature.text, planned.mode] = entry
                own = {
                    signatures[n.node].text: n
                    for n in program.nodes
                    if n.kernel == "cuda" and n.stage_ns and not op_named(nodes[n.node].op).joint_launch
                }
                new = [n for s, n in own.items() if s not in searched]
                searched |= own.keys()
                for planned, tried in zip(
                    new, _searched(executor, program.name, new, target, repetitions), strict=True
                ):
                    for launch, ns in worth_keeping(tried).items():
                        mode, signature = planned.mode._replace(implementation=launch.text), signatures[planned.node]
                        entry = _measured(signature.text, mode, ns, _sizes(signature, planned))
                        entries[signature.text, mode] = entry
        return list(entries.values())


def _guessed(graph: Graph, target: Target, table: CostTable, tf32: bool) -> list[CostEntry]:
    """Modelled costs of what the table lacks. Products within other nodes take the library's first choice."""
    found = [e for e in modelled_costs(graph, target, facts).entries if not table.modes(e.signature)]
    if not tf32:
        return found
    exact = {s.text for s in signatures_of([graph]) if is_exact(s)}
    rounding = [e.kernel == PRODUCTS and e.signature not in exact for e in found]
    return [e.model_copy(update={"implementation": ":tf32"}) if r else e for e, r in zip(found, rounding, strict=True)]


def _sizes(signature: Signature, planned: NodePlan) -> dict[str, int]:
    """What a table says of a planned node's kernels: how weights are stored is each plan's decision."""
    found = dict(facts(signature, planned.mode))
    return found | {k: v for k, v in planned.facts.items() if k == "scratch_bytes"}


def _searched(
    executor: CudaExecutor, program: str, nodes: Sequence[NodePlan], target: Target, repetitions: int
) -> list[dict[Launch, float]]:
    """Per node: threads per block and blocks that were tried, and their times."""

    def time_all(launches: Sequence[Launch]) -> list[float]:
        wanted = {n.node: launch for n, launch in zip(nodes, launches, strict=True)}
        times = executor.node_times(program, repetitions, wanted)
        return [times[n.node] for n in nodes]

    return search(time_all, len(nodes), target.gpus[0].sms) if nodes else []
