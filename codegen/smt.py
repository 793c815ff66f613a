"""What the second thread of a core is worth: one kernel alone on a core, and two of them on its two threads.

The measured `smt_gain` of a cost table: work per time of both threads against one alone (Liu et al., table III: 1.03).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from codegen.facts import facts
from codegen.pairs import Pair, PairBench, visit_pairs
from codegen.profile_cases import Case
from planner.costs.table import CostEntry, CostTable
from planner.ops.base import Signature, op_named
from planner.target.model import Target

LEAST_NS, MOST_NS = 2e5, 5e7
"""Kernels shorter than that start too far apart, longer ones take too long to repeat."""


def smt_gain(target: Target, table: CostTable, signatures: Sequence[Signature]) -> float | None:
    """Measured on the library kernel that computes most per time; None where no core has a second thread, or no
    kernel lasts long enough."""
    core = next((c for c in target.cpu.cores if len(c.cpus) > 1), None)
    busiest = _busiest(table, signatures)
    if core is None or busiest is None:
        return None
    signature, entry = busiest
    case = Case(signature, entry.mode, facts(signature, entry.mode))
    with tempfile.TemporaryDirectory(prefix="stepplan-smt-") as folder:
        bench = PairBench([Pair(case, case, (1, 1))], target, core.cpus[:2], Path(folder))
        (both,) = visit_pairs(bench, 1)
        bench.close()
    return max(1.0, sum(1 / factor for factor in both.factors))


def _busiest(table: CostTable, signatures: Sequence[Signature]) -> tuple[Signature, CostEntry] | None:
    found = [
        (op_named(signature.op).flops(signature) / sum(entry.cold_ns), signature, entry)
        for signature in signatures
        for entry in table.modes(signature.text)
        if entry.slices == 1 and entry.kernel == "onednn" and LEAST_NS <= sum(entry.cold_ns) <= MOST_NS
    ]
    best = max(found, key=lambda f: f[0], default=None)
    return None if best is None else (best[1], best[2])
