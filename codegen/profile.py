"""Measures the cost table: hill climbing over slices, on the kernels and lanes that executors use.

Two rounds, each one generated executor. The first times every implementation of every library op on all lanes, cold,
and keeps the best two per slice dimension; the second times what is left at every slice count that hill climbing
asks for, warm and cold. Finished signatures are handed to `save` as they come, so an interrupted run resumes.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from codegen.facts import facts, implementations
from codegen.instructions import usable
from codegen.load import require_processor
from codegen.measure import Bench, Sampled
from codegen.profile_cases import Case
from codegen.smt import smt_gain
from planner.costs.hill_climb import counts_to_try, default_interval, hill_climb, interpolate
from planner.costs.table import CostEntry, CostTable, started
from planner.graph.model import Graph
from planner.ops.base import Mode, Signature, op_named
from planner.ops.signature import signatures_of
from planner.plan.crossing import Crossing
from planner.target.model import Target

KEPT = 2
"""Implementations per (signature, dimension) that survive the first round,"""
CLOSE = 1.15
"""unless they take this many times as long as the quickest."""
HOPELESS = 1.6
"""An implementation that takes this many times as long as the best so far runs once."""

SHARE_STREAMED = 4
"""Loops are also timed with results that bypass the caches where these fill at least that part of the outermost one."""

MEASURABLE_BYTES = 2**26
"""A loop over fewer bytes says nothing about memory bandwidth."""

Progress = Callable[[str, int, int], None]
"""(what, done, total)"""


def profile(
    graphs: Sequence[Graph],
    target: Target,
    table: CostTable | None = None,
    *,
    lanes: int | None = None,
    interval: int | None = None,
    every_count: bool = False,
    budget_s: float | None = None,
    progress: Progress = lambda what, done, total: None,
    save: Callable[[CostTable], None] = lambda table: None,
) -> CostTable:
    """Times for every signature of the graphs that `table` lacks, ns.

    `budget_s` divides evenly over the signatures: less time means fewer repetitions, never a missing signature.
    `every_count`: time all slice counts, where climbing would have stopped too (for studies of what it misses).
    SP1204: the table was measured on another machine. SP1609: this machine cannot run the target's code.
    """
    require_processor(target)
    cpus = target.lanes(lanes)
    table = _with_wishes(started(table, target), signatures_of(graphs))
    todo = [s for s in signatures_of(graphs) if not _complete(table, s, len(cpus))]
    if not todo:
        save(table)
        return table
    case_budget = (budget_s or 1.0 * len(todo)) / len(todo) / 12
    finalists = _first_round(todo, target, cpus, case_budget, progress)
    steps = 1 if every_count else interval or default_interval(len(cpus))
    search = _everything if every_count else hill_climb
    for affinity, order in _affinities(target, cpus):
        table = _second_round(finalists, target, order, affinity, steps, search, case_budget, table, progress, save)
    table = _with_peaks(table, todo)
    gain = smt_gain(target, table, todo)
    return table if gain is None else table.model_copy(update={"smt_gain": round(gain, 3)})


def _with_wishes(table: CostTable, signatures: Sequence[Signature]) -> CostTable:
    """The table with the blocks into which kernels pack weights, which older ones lack; nothing has to be timed."""
    asked = [
        entry.model_copy(update={"facts": dict(facts(signature, entry.mode))})
        for signature in signatures
        for entry in table.modes(signature.text)
        if entry.facts.get("packed_bytes") and not {"packs_o", "packs_i"} & entry.facts.keys()
    ]
    return table.with_entries(asked) if asked else table


def _complete(table: CostTable, signature: Signature, lanes: int) -> bool:
    """Whether the signature was measured at one slice and at as many as these lanes allow."""
    counts = {e.slices for e in table.modes(signature.text) if e.source == "measured"}
    widest = max(min(lanes, limit) for limit in op_named(signature.op).dims(signature).values())
    return {1, widest} <= counts


def _affinities(target: Target, cpus: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Compact, and spread where it pins some prefix of the lanes to other processors."""
    compact = target.lanes(len(cpus), affinity="compact")
    spread = target.lanes(len(cpus), affinity="spread")
    yield "compact", compact
    if spread != compact:
        yield "spread", spread


def _first_round(
    todo: Sequence[Signature], target: Target, cpus: Sequence[int], budget_s: float, progress: Progress
) -> list[tuple[Signature, Mode]]:
    """(signature, mode on as many lanes as it can use) worth a closer look."""
    contenders: dict[tuple[str, str, str], list[Case]] = {}
    finalists: list[tuple[Signature, Mode]] = []
    for signature in todo:
        for (kernel, dim), limit in sorted(op_named(signature.op).dims(signature).items()):
            mode = Mode(kernel, dim, min(limit, len(cpus)))
            names = _worth_timing(usable(implementations(signature, mode), target))
            if kernel == "loops" and not _may_stream(signature, target):
                names = []
            found = [mode._replace(implementation=name) for name in names] or [mode]
            cases = [Case(signature, m, facts(signature, m)) for m in found]
            if len(cases) <= KEPT:
                finalists += [(signature, c.mode) for c in cases]
            else:
                contenders[signature.text, kernel, dim] = cases
    flat = [case for cases in contenders.values() for case in cases]
    with tempfile.TemporaryDirectory(prefix="stepplan-profile-") as folder:
        bench = Bench(flat, target, cpus, Path(folder) / "round1")
        times: dict[tuple[str, Mode], float] = {}
        number = 0
        for cases in contenders.values():
            best = math.inf
            for case in cases:  # the library lists what it thinks fastest first
                progress("choosing implementations", number, len(flat))
                time_ns = bench.quickest(number, budget_s, HOPELESS * best)
                times[case.signature.text, case.mode], best = time_ns, min(best, time_ns)
                number += 1
        bench.close()
    for cases in contenders.values():
        ranked = sorted(((times[c.signature.text, c.mode], c) for c in cases), key=lambda r: r[0])
        kept = [c for time, c in ranked[:KEPT] if time <= CLOSE * ranked[0][0]]
        # A loop that streams serves only where its results are read from memory: the plain one stays.
        kept += [c for _, c in ranked if c.mode.kernel == "loops" and not c.mode.implementation and c not in kept]
        finalists += [(c.signature, c.mode) for c in kept]
    return finalists


def _may_stream(signature: Signature, target: Target) -> bool:
    """Whether results are so large that others may push them out of the caches before they are read."""
    caches = target.cpu.caches
    return SHARE_STREAMED * sum(t.bytes for t in signature.outputs) >= (caches.l3 or caches.l2 or MEASURABLE_BYTES)


def _worth_timing(names: Sequence[str]) -> list[str]:
    """Without reference code, and without narrower vectors where wider ones are on offer; only ours has no colon."""
    real = [n for n in names if "ref" not in n.split("/")[-1].split(":")] or list(names)
    wide = [n for n in real if "avx512" in n or "gemm" in n or ":" not in n]
    return [n for n in wide if "avx2" not in n and "sse41" not in n] or real


def _second_round(
    finalists: Sequence[tuple[Signature, Mode]],
    target: Target,
    cpus: Sequence[int],
    affinity: str,
    interval: int,
    search: Callable[[Sequence[int], Callable[[int], float]], object],
    budget_s: float,
    table: CostTable,
    progress: Progress,
    save: Callable[[CostTable], None],
) -> CostTable:
    index: dict[tuple[str, Mode], int] = {}
    cases: list[Case] = []
    for signature, widest in finalists:
        for count in counts_to_try(widest.slices, len(cpus), interval):
            mode = widest._replace(slices=count)
            index[signature.text, mode] = len(cases)
            cases.append(Case(signature, mode, facts(signature, mode)))
    with tempfile.TemporaryDirectory(prefix="stepplan-profile-") as folder:
        bench = Bench(cases, target, cpus, Path(folder) / "round2")
        last_save, handoffs, crossings = time.monotonic(), list[float](), list[Crossing]()
        for number, (signature, widest) in enumerate(finalists):
            progress(f"timing {signature.op}", number, len(finalists))
            sampled: dict[int, Sampled] = {}
            handoffs.append(bench.handoff_ns())
            crossings.append(bench.crossing())

            def total(
                count: int,
                signature: Signature = signature,
                widest: Mode = widest,
                sampled: dict[int, Sampled] = sampled,
            ) -> float:
                case = index[signature.text, widest._replace(slices=count)]
                sampled[count] = bench.sample(case, budget_s)
                return sum(sampled[count].cold_ns)

            counts = counts_to_try(widest.slices, len(cpus), interval)
            search(counts, total)
            table = table.with_entries(_entries(signature, widest, sampled, cases, index, affinity))
            if time.monotonic() - last_save > 5:
                save(table)
                last_save = time.monotonic()
        bench.close()
    if bench.sync_ns:
        latencies = {"sync_ns": median(bench.sync_ns), "launch_ns": median(bench.launch_ns)}
        latencies["handoff_ns"] = median(handoffs)
        latencies["fetch_ns"] = median(c.fetch_ns for c in crossings)
        latencies["reclaim_ns"] = median(c.reclaim_ns for c in crossings)
        latencies["stream_ns"] = median(c.stream_ns for c in crossings)
        table = table.model_copy(update={k: round(float(v), 1) for k, v in latencies.items()})
    save(table)
    return table


def _everything(counts: Sequence[int], measure: Callable[[int], float]) -> None:
    for count in counts:
        measure(count)


def _with_peaks(table: CostTable, signatures: Sequence[Signature]) -> CostTable:
    """Measured peaks: the most bytes per second that a cold loop moved, on any number of lanes and on one, and the most
    FLOP/s that a core reached in a library kernel. Never lower than what the table already has."""
    bandwidth, thread, flops = table.bandwidth, table.thread_bandwidth, table.flops
    for signature in signatures:
        op = op_named(signature.op)
        for entry in table.modes(signature.text):
            seconds = max(1e-9, sum(entry.cold_ns) / 1e9)
            if entry.kernel == "onednn":
                flops = max(flops, op.flops(signature) / (entry.slices * seconds))
            elif op.bytes_moved(signature) > MEASURABLE_BYTES:
                rate = op.bytes_moved(signature) / seconds
                bandwidth, thread = max(bandwidth, rate), max(thread, rate if entry.slices == 1 else 0.0)
    peaks = {"bandwidth": bandwidth, "thread_bandwidth": thread, "flops": flops}
    return table.model_copy(update={name: float(round(peak)) for name, peak in peaks.items()})


def _entries(
    signature: Signature,
    widest: Mode,
    sampled: Mapping[int, Sampled],
    cases: Sequence[Case],
    index: Mapping[tuple[str, Mode], int],
    affinity: str,
) -> Iterator[CostEntry]:
    """The measured counts, and linear interpolations for those between them."""
    for count in range(1, max(sampled) + 1):
        mode = widest._replace(slices=count)
        measured = sampled.get(count)
        near = sampled[count] if measured else sampled[max(c for c in sampled if c < count)]
        if measured:
            sizes = cases[index[signature.text, mode]].facts
            warm, cold = measured.warm_ns, measured.cold_ns
        else:
            sizes = facts(signature, mode)
            stages = range(len(near.warm_ns))
            warm = tuple(interpolate({c: s.warm_ns[i] for c, s in sampled.items()}, count) for i in stages)
            cold = tuple(interpolate({c: s.cold_ns[i] for c, s in sampled.items()}, count) for i in stages)
        if len(warm) != op_named(signature.op).stage_count(signature, mode, sizes):
            continue  # one slice needs no reduction, so its stages cannot be interpolated with the others'
        yield CostEntry(
            signature=signature.text,
            kernel=mode.kernel,
            dim=mode.dim,
            slices=count,
            implementation=mode.implementation,
            affinity=affinity,
            warm_ns=warm,
            cold_ns=cold,
            spread=round(near.spread, 3),
            facts=dict(sizes),
            source="measured" if measured else "interpolated",
        )
