"""Times finalists at the slice counts that hill climbing asks for, warm and cold: all of them, then all of them again.

Of the two visits of a mode the quicker one stays; why, see codegen/profile.py. What was visited once is saved as
provisional, so that a profile that goes on from there makes up for the second visit. Where the runs of the quicker
visit still differ from each other, something ran beside some of them, and where two slices take as long as one, they
may have run on one core: that is visited again.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from codegen.contenders import Finalist
from codegen.facts import Refused, facts
from codegen.measure import Bench, Progress, Sampled, quicker
from codegen.profile_cases import Case
from planner.costs.hill_climb import counts_to_try, interpolate
from planner.costs.table import CostEntry, CostTable
from planner.ops.base import Facts, Mode, Signature, op_named
from planner.plan.crossing import Crossing
from planner.target.model import Target

SAVE_EVERY_S = 5
RESTLESS, RESTLESS_NS = 0.15, 30_000
"""The interquartile range / median of cold runs from which on they were disturbed, if they take this long; shorter ones
vary by themselves. On two slices 6 of 131 kernels of ResNet-18 were above while little else ran, 79 of 222 of ResNet-50
in a restless hour; one of these then took 2.4 times as long as in the best of 25 steps."""
CROWDED, CROWDED_NS = 0.9, 300_000
"""The share of the time of one slice from which on the next larger number of slices ran on too few cores, if one slice
takes this long. On two virtual processors 36 of 204 kernels of ResNet-50 were above after two visits, 30 of them with
hardly any spread; of ResNet-18's, in a quiet hour, 1 of 105."""
MORE_VISITS = 3
"""At most, of what was disturbed."""
MOST_PROBES = 24
"""Of what lanes cost each other, about so many, or half as many as visits: each takes longer than small kernels do."""

Search = Callable[[Sequence[int], Callable[[int], float]], object]
"""Asks for the times (ns) of as many of the counts as it likes; hill_climb is one."""


def visit_all(
    finalists: Sequence[Finalist],
    signatures: Sequence[Signature],
    target: Target,
    cpus: Sequence[int],
    affinity: str,
    interval: int,
    search: Search,
    budget_s: float,
    table: CostTable,
    progress: Progress,
    save: Callable[[CostTable], None],
) -> CostTable:
    """The table with the finalists' times on these lanes, and with second visits to whatever of the `signatures` an
    interrupted profile visited once. Finalists of a signature follow each other. `budget_s`: for one measurement."""
    first = _left_over(table, signatures, affinity, len(cpus), finalists)
    tried = {f: counts_to_try(f.widest.slices, len(cpus), interval) for f in (*first, *finalists)}
    tried |= {f: tuple(sorted({*tried[f], *sampled})) for f, sampled in first.items()}
    counts = {f: tuple(c for c in t if _facts(f.signature, f.at(c)) is not None) for f, t in tried.items()}
    index: dict[tuple[str, Mode], int] = {}
    cases: list[Case] = []
    for finalist, offered in counts.items():
        for count in offered:
            mode = finalist.at(count)
            index[finalist.signature.text, mode] = len(cases)
            cases.append(Case(finalist.signature, mode, _facts(finalist.signature, mode) or {}))
    with tempfile.TemporaryDirectory(prefix="stepplan-profile-") as folder:
        bench = Bench(cases, target, cpus, Path(folder) / "round2")
        last_save, handoffs, crossings = time.monotonic(), list[float](), list[Crossing]()
        found: list[CostEntry] = []
        for visits, number in _visits(finalists, tuple(counts), first):
            finalist, again = visits[number]
            signature = finalist.signature
            progress(f"timing {signature.op}{' again' if again else ''}", number, len(visits))
            if number % max(2, len(visits) // MOST_PROBES) == 0:
                handoffs.append(bench.handoff_ns())
                crossings.append(bench.crossing())
            case_of = {count: index[signature.text, finalist.at(count)] for count in counts[finalist]}
            sampled = _visit(bench, case_of, search, budget_s, first[finalist] if again else {})
            first[finalist] = sampled
            found += _entries(finalist, sampled, affinity, provisional=not again)
            # A signature of which a part was saved would pass for a measured one when profiling goes on.
            whole = number + 1 == len(visits) or visits[number + 1][0].signature != signature
            if whole and time.monotonic() - last_save > SAVE_EVERY_S:
                save(table.with_entries(found))
                last_save = time.monotonic()
        bench.close()
    table = table.with_entries(found)
    # Where no two stages were seen: in a tight loop.
    signals: list[float] = [*bench.sync_ns] or [h for h in handoffs if h > 0]
    if signals:
        latencies = {"sync_ns": median(signals), "launch_ns": median(bench.launch_ns)}
        latencies["handoff_ns"] = median(handoffs)
        latencies["fetch_ns"] = median(c.fetch_ns for c in crossings)
        latencies["reclaim_ns"] = median(c.reclaim_ns for c in crossings)
        latencies["stream_ns"] = median(c.stream_ns for c in crossings)
        table = table.model_copy(update={k: round(float(v), 1) for k, v in latencies.items()})
    save(table)
    return table


def _visits(
    finalists: Sequence[Finalist], again: Sequence[Finalist], sampled: Mapping[Finalist, Mapping[int, Sampled]]
) -> Iterator[tuple[Sequence[tuple[Finalist, bool]], int]]:
    """(a round of visits, the number of one of them): (finalist, whether it is visited again). `sampled`: what was
    found so far."""
    rounds = [[(f, False) for f in finalists] + [(f, True) for f in again]]
    for visits in rounds:
        yield from ((visits, number) for number in range(len(visits)))
        disturbed = [f for f in again if _is_disturbed(sampled[f])]
        if len(rounds) <= MORE_VISITS and disturbed:
            rounds.append([(f, True) for f in disturbed])


def _is_disturbed(sampled: Mapping[int, Sampled]) -> bool:
    took = {count: sum(times.cold_ns) for count, times in sorted(sampled.items())}
    if any(sampled[count].spread > RESTLESS and ns > RESTLESS_NS for count, ns in took.items()):
        return True
    fewest, more = [*took.values(), 0.0, 0.0][:2]
    return min(took) == 1 and fewest > CROWDED_NS and more > CROWDED * fewest


def _left_over(
    table: CostTable, signatures: Sequence[Signature], affinity: str, lanes: int, finalists: Sequence[Finalist]
) -> dict[Finalist, Mapping[int, Sampled]]:
    """What an interrupted profile visited once, by number of slices; without finalists, which begin anew."""
    anew = {(f.signature.text, f.at(1)) for f in finalists}
    visited: dict[tuple[str, Mode], dict[int, Sampled]] = {}
    for entry in (e for s in signatures for e in table.modes(s.text)):
        key = (entry.signature, entry.mode._replace(slices=1))
        own = entry.provisional and entry.source == "measured" and entry.affinity == affinity
        if own and entry.slices <= lanes and key not in anew:
            visited.setdefault(key, {})[entry.slices] = Sampled(entry.warm_ns, entry.cold_ns, entry.spread)
    known = {s.text: s for s in signatures}
    return {Finalist(known[text], m._replace(slices=max(v))): v for (text, m), v in visited.items()}


@functools.cache
def _facts(signature: Signature, mode: Mode) -> Facts | None:
    """None: the library has this implementation for slices of other sizes only. Asked again for every affinity."""
    try:
        return facts(signature, mode)
    except Refused:
        if not mode.implementation:
            raise
        return None


def _visit(
    bench: Bench, case_of: Mapping[int, int], search: Search, budget_s: float, earlier: Mapping[int, Sampled]
) -> dict[int, Sampled]:
    """The times of the counts that the search asks for, and of all that were visited earlier: the quicker visit's.

    The search goes by the quicker visits, so where a disturbance had ended the climb it now goes on. The counts that it
    reaches only then are visited once: going there again at once would meet the same disturbance."""
    sampled: dict[int, Sampled] = {}

    def total(count: int) -> float:
        now = bench.sample(case_of[count], budget_s)
        sampled[count] = quicker(earlier[count], now) if count in earlier else now
        return sum(sampled[count].cold_ns)

    search(tuple(case_of), total)
    for count in sorted(earlier.keys() - sampled.keys()):
        total(count)
    return sampled


def _entries(
    finalist: Finalist, sampled: Mapping[int, Sampled], affinity: str, provisional: bool
) -> Iterator[CostEntry]:
    """The measured counts, and linear interpolations for those between them, of as many stages: one slice needs no
    reduction, and others more pieces. Counts that no kernel offers, or that lie beyond those of as many stages, are
    left out."""
    signature = finalist.signature
    for count in range(min(sampled), max(sampled) + 1):
        mode = finalist.at(count)
        measured, sizes = sampled.get(count), _facts(signature, mode)
        if sizes is None:
            continue
        stages = range(op_named(signature.op).stage_count(signature, mode, sizes))
        alike = {c: s for c, s in sampled.items() if len(s.warm_ns) == len(stages)}
        if not alike or not min(alike) <= count <= max(alike):
            continue
        near = alike[max(c for c in alike if c <= count)]
        warm = tuple(interpolate({c: s.warm_ns[i] for c, s in alike.items()}, count) for i in stages)
        cold = tuple(interpolate({c: s.cold_ns[i] for c, s in alike.items()}, count) for i in stages)
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
            provisional=provisional,
        )
