"""One training step within a pool of any size: recomputation, then a tensor cache over everything that remains.

All of SuperNeurons in one plan, in real accounting (block_accesses.py): outputs between checkpoints are recomputed
(recompute.py); everything else that memory is too short for leaves for the slow pool and comes back
(tensor_cache.py). The fast pool must hold the largest step, which no plan at node granularity can avoid; the slow pool
must hold what has left.
"""

from dataclasses import dataclass, replace
from typing import Literal

from planner.errors import UserError
from planner.graph.model import Graph, Program
from planner.solve.offsets import QUICK, Packing, pack
from planner.solve.route import route
from planner.solve.superneurons.block_accesses import BlockAccesses, block_accesses
from planner.solve.superneurons.recompute import Recomputation, Step, Strategy, expand, plan, work_of
from planner.solve.superneurons.tensor_cache import Access, Policy, Schedule, residencies, schedule, smallest_capacity
from planner.target.model import Target
from planner.units import Bytes, format_bytes

MOST_PLACINGS = 6
"""Plans with less and less of the pool that are tried until offsets fit it."""
LOOKAHEAD = 16
"""Steps by which a prefetch may start early: enough to overlap, cheap to search."""


@dataclass(frozen=True)
class Pools:
    """Capacities in bytes and the link between them in bytes per second."""

    fast: int
    slow: int
    link: int

    @staticmethod
    def of(target: Target) -> "Pools":
        """A GPU's memory with the pinned host pool behind it. SP1351: the target has no GPU or no pinned pool."""
        pinned = [p for p in target.pools if p.kind == "pinned"]
        if not target.gpus or not pinned:
            raise UserError("SP1351", f"target {target.name} has no pool to offload to", "use a target like k40c")
        gpu = target.gpus[0]
        fast = next(p for p in target.pools if p.name == gpu.memory)
        return Pools(fast.capacity, pinned[0].capacity, min(gpu.copy_in, gpu.copy_out))


@dataclass(frozen=True)
class Prepared:
    """A training step as it will run, and its bytes: everything that does not depend on a capacity."""

    steps: tuple[Step, ...]
    recomputations: tuple[Recomputation, ...]
    blocks: BlockAccesses
    accesses: tuple[Access, ...]
    """Without what is always resident."""
    resident: Bytes
    """Bytes that are always in the fast pool."""
    smallest: Bytes
    """The fast pool that would do, and the step that binds."""
    binding: str


@dataclass(frozen=True)
class StepPlan:
    prepared: Prepared
    schedule: Schedule

    @property
    def peak(self) -> Bytes:
        return Bytes(self.prepared.resident + max(self.schedule.resident, default=0))

    @property
    def moved(self) -> Bytes:
        """Bytes over the link without the batch's own arrival."""
        blocks = self.prepared.blocks
        return Bytes(self.schedule.moved - sum(blocks.sizes[b] for b in blocks.inputs))


def prepare(
    graph: Graph, program: Program, strategy: Strategy = "cost", persistent: Literal["resident", "cached"] = "resident"
) -> Prepared:
    """Order, recomputations and bytes of one program.

    persistent: whether parameters, momentum and running statistics stay in the fast pool or leave it like others.
    """
    order = route(graph, program)
    work = work_of(graph, program, order)
    largest = max(sum(graph.value[v].type.bytes for v in {*n.reads, *n.writes}) for n in order)
    recomputations = plan(work, strategy, largest)
    steps = expand(work, recomputations)
    found = block_accesses(graph, program, steps)
    fixed = found.persistent if persistent == "resident" else frozenset()
    accesses = tuple(_without(a, fixed) for a in found.accesses)
    resident = sum(found.sizes[b] for b in fixed)
    need, binding = smallest_capacity(accesses, found.sizes)
    return Prepared(steps, recomputations, found, accesses, Bytes(resident), Bytes(resident + need), binding)


def _without(access: Access, blocks: frozenset[str]) -> Access:
    reads, writes = (tuple(b for b in side if b not in blocks) for side in (access.reads, access.writes))
    return Access(access.step, reads, writes)


def solve(prepared: Prepared, pools: Pools, policy: Policy | Literal["best"] = "best") -> StepPlan:
    """Transfers under the given pools; `best` takes the rule that moves fewer bytes.

    SP1301: the fast pool cannot hold the largest step, or the slow pool what leaves.
    """
    if prepared.smallest > pools.fast:
        raise UserError(
            "SP1301",
            f"step {prepared.binding} needs {prepared.smallest} bytes but the budget is {pools.fast}",
            f"the smallest budget is {prepared.smallest} bytes ({format_bytes(prepared.smallest)})",
        )
    home = prepared.blocks.inputs | (frozenset() if prepared.resident else prepared.blocks.persistent)
    policies: tuple[Policy, ...] = ("belady", "lru") if policy == "best" else (policy,)
    capacity, sizes = pools.fast - prepared.resident, prepared.blocks.sizes
    made = [schedule(prepared.accesses, sizes, capacity, p, home=home, lookahead=LOOKAHEAD) for p in policies]
    found = min(made, key=lambda s: (s.slow > pools.slow, s.moved, s.slow))
    if found.slow > pools.slow:
        raise UserError(
            "SP1301",
            f"the slow pool needs {found.slow} bytes but has {pools.slow}",
            f"give it {found.slow} bytes ({format_bytes(found.slow)}), or use a smaller batch",
        )
    return StepPlan(prepared, found)


def placed(prepared: Prepared, pools: Pools, policy: Policy | Literal["best"] = "best") -> tuple[StepPlan, Packing]:
    """A plan whose blocks also have offsets within the fast pool, behind what is always there.

    Where gaps between blocks take too much, more leaves the pool: the transfers are planned again for less.
    SP1301 as `solve`, or when offsets do not fit after MOST_PLACINGS plans.
    """
    room = pools.fast - prepared.resident
    less = pools
    for _ in range(MOST_PLACINGS):
        found = solve(prepared, less, policy)
        spans = residencies(prepared.accesses, found.schedule.transfers, prepared.blocks.sizes)
        packing = pack(spans, capacity=room, effort=QUICK)
        if packing.height <= room:
            return found, packing
        less = replace(less, fast=less.fast - (packing.height - room))
    raise UserError(
        "SP1301",
        f"offsets need {prepared.resident + packing.height} bytes but the budget is {pools.fast}",
        "give it more, or use a smaller batch",
    )
