"""What nodes that run at the same time cost each other: memory bandwidth, shared cores, and measured pairs.

Three effects, multiplied:

* **Bandwidth.** A node moves `traffic` bytes per ns when it runs alone. Where the sum over what runs exceeds what the
  memory delivers, the memory-bound part of every node stretches by as much. How much of a node is memory-bound is its
  traffic against the most that its lanes could have: 0 for a convolution in cache, 1 for a large copy.
* **SMT.** Two slices on one core share its units. Together two compute-bound ones do `smt_gain` times the work of
  one (table III of Liu et al.: 1.03); a memory-bound one leaves half of the core to its sibling.
* **Pairs.** Where two nodes were timed side by side, their measured factors replace the bandwidth rule for that pair.

Units: bytes, ns, bytes per ns (= GB/s).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.plan.schema import ProgramPlan, Sharing

MEMORY_BOUND_BUSY = 0.5
"""Share of a core's units that a slice keeps busy while it waits for memory."""


class Load(NamedTuple):
    """What a running node asks of the resources that all lanes share."""

    traffic: float
    """Bytes per ns while it runs alone."""
    bound: float
    """Memory-bound part of its time, 0..1."""


def load_of(traffic: float, slices: int, sharing: Sharing) -> Load:
    """`traffic`: bytes per ns of all slices together."""
    if not sharing.bandwidth:
        return Load(traffic, 0.0)
    most = sharing.bandwidth
    if sharing.thread_bandwidth:
        most = min(most, slices * sharing.thread_bandwidth)
    return Load(traffic, min(1.0, traffic / (most / 1e9)))


def bandwidth_factor(own: Load, total: float, sharing: Sharing) -> float:
    """How much longer a node takes while all that runs asks for `total` bytes per ns, itself included."""
    if not sharing.bandwidth or not own.bound:
        return 1.0
    most = max(sharing.bandwidth / 1e9, own.traffic)  # what it reached alone is there
    return 1.0 + own.bound * max(0.0, total / most - 1.0)


def smt_factor(own: float, sibling: float, sharing: Sharing) -> float:
    """How much longer a slice takes whose core's other thread is busy; both given by their memory-bound parts."""
    return max(1.0, _busy(own, sharing) + _busy(sibling, sharing))


def _busy(bound: float, sharing: Sharing) -> float:
    return (1.0 - bound) / max(1.0, sharing.smt_gain) + bound * MEMORY_BOUND_BUSY


@dataclass(frozen=True)
class Contention:
    """The rules applied to one program of a plan."""

    sharing: Sharing
    loads: Mapping[str, Load]
    pairs: Mapping[tuple[str, str], float]
    """(node, beside) -> how much longer the first takes."""

    def factors(self, running: Sequence[str]) -> dict[str, float]:
        """How much longer each of the running nodes takes; without SMT, which is a matter of single slices."""
        total = sum(self.loads[n].traffic for n in running)
        found = {}
        for node in running:
            seen, measured = total, 1.0
            if self.pairs:
                for other in running:
                    factor = self.pairs.get((node, other))
                    if factor is not None:
                        measured *= factor
                        seen -= self.loads[other].traffic
            found[node] = measured * bandwidth_factor(self.loads[node], seen, self.sharing)
        return found

    def sibling_lanes(self, lanes: int) -> tuple[tuple[int, ...], ...]:
        """Per lane: the other lanes on its core."""
        cores = self.sharing.cores[:lanes]
        return tuple(
            tuple(j for j, other in enumerate(cores) if other == core and j != i) for i, core in enumerate(cores)
        ) + ((),) * (lanes - len(cores))


def contention_of(sharing: Sharing, program: ProgramPlan) -> Contention | None:
    """None where nothing that runs side by side can matter, so that a replay may take the plain way."""
    loads = {n.node: load_of(n.traffic / 1e6, n.slices, sharing) for n in program.nodes}
    pairs = {(s.node, s.beside): s.factor for s in program.slowdowns if not s.refused}
    if not pairs and not sharing.cores and not any(load.bound for load in loads.values()):
        return None
    return Contention(sharing, loads, pairs)
