"""Measures the cost table: hill climbing over slices, on the kernels and lanes that executors use.

Two rounds, each one generated executor. The first (contenders.py) times every implementation of every library op on all
lanes, cold, and keeps the best two per slice dimension; the second (visits.py) times what is left at every slice count
that hill climbing asks for, warm and cold. Finished signatures are handed to `save` as they come, so an interrupted run
resumes.

Both come back when they have been everywhere. On a virtual machine there are minutes when the host runs two virtual
processors on one core, or something else beside them: two slices then take as long as one. Such episodes last from
seconds to a minute, so they may cover all repetitions of a kernel, which take some tenth of a second, and then no
statistic of these can tell. Measured: two profiles of ResNet-50 minutes apart on two idle virtual processors differ by
more than 30 % in 33 of 186 entries for two slices, some by a factor of two, and that decides what co-runs. Disturbances
only lengthen times. So the quicker of two visits is the better one; between them lies everything else, which in large
graphs takes minutes (a small one's second visits may meet the same episode, but cost next to nothing). Where an episode
was as long, what it leaves looks strange, and is visited further times (visits.py). A visit is kept with all its
stages: those of two never ran together.
"""

from collections.abc import Callable, Iterator, Sequence

from codegen.contenders import MEASURABLE_BYTES, choose
from codegen.facts import facts
from codegen.load import require_processor
from codegen.measure import Progress
from codegen.smt import smt_gain
from codegen.visits import visit_all
from planner.costs.hill_climb import counts_to_try, default_interval, hill_climb
from planner.costs.table import CostTable, started
from planner.graph.model import Graph
from planner.graph.precision import is_mixed
from planner.ops.base import Signature, op_named
from planner.ops.signature import signatures_of
from planner.target.model import Target

VISITS = 2
VISIT_S = 1.0
"""Seconds for a visit of a signature where no budget is given."""
MEASUREMENTS = 12
"""Among which a signature's time is divided: a few modes at FEW_COUNTS slice counts each, warm and cold."""
FEW_COUNTS = 2
"""Where lanes are more, or have two orders, so are measurements, and a budget is divided among those."""


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
    """Times for every signature of the graphs that `table` lacks, ns; second visits to what an interrupted profile
    visited once.

    `budget_s` divides evenly over the signatures and both visits of each: less time means fewer repetitions, never a
    missing signature nor a single visit.
    `every_count`: time all slice counts, where climbing would have stopped too (for studies of what it misses).
    SP1204: the table was measured on another machine. SP1609: this machine cannot run the target's code.
    """
    require_processor(target, any(map(is_mixed, graphs)))
    cpus = target.lanes(lanes)
    table = _with_wishes(started(table, target), signatures_of(graphs))
    todo = [s for s in signatures_of(graphs) if not _complete(table, s, len(cpus))]
    unfinished = to_visit(graphs, table, len(cpus))
    if not unfinished:
        save(table)
        return table
    steps = 1 if every_count else interval or default_interval(len(cpus))
    affinities = list(_affinities(target, cpus))
    seconds = VISIT_S / MEASUREMENTS
    if budget_s:
        climbs = len(affinities) * len(counts_to_try(len(cpus), len(cpus), steps)) / FEW_COUNTS
        seconds = budget_s / len(unfinished) / VISITS / MEASUREMENTS / max(1, climbs)
    finalists = choose(todo, target, cpus, seconds, progress)
    search = _everything if every_count else hill_climb
    for affinity, order in affinities:
        table = visit_all(finalists, unfinished, target, order, affinity, steps, search, seconds, table, progress, save)
    table = _with_peaks(table, unfinished)
    gain = smt_gain(target, table, unfinished)
    return table if gain is None else table.model_copy(update={"smt_gain": round(gain, 3)})


def to_visit(graphs: Sequence[Graph], table: CostTable, lanes: int) -> list[Signature]:
    """Signatures of the graphs that the table lacks, or that an interrupted profile visited once."""
    return [s for s in signatures_of(graphs) if not _complete(table, s, lanes) or _visited_once(table, s, lanes)]


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


def _visited_once(table: CostTable, signature: Signature, lanes: int) -> bool:
    """Whether an interrupted profile left times that these lanes can visit again."""
    return any(e.provisional and e.slices <= lanes for e in table.modes(signature.text))


def _affinities(target: Target, cpus: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Compact, and spread where it pins some prefix of the lanes to other processors."""
    compact = target.lanes(len(cpus), affinity="compact")
    spread = target.lanes(len(cpus), affinity="spread")
    yield "compact", compact
    if spread != compact:
        yield "spread", spread


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
