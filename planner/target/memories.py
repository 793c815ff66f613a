"""The memory pools of a detected machine, the one in which nodes run first."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.target.bandwidth import measure_bandwidth
from planner.target.model import Pool
from planner.target.numa import may_choose, memory_of_nodes
from planner.target.system import Files
from planner.target.topology import Core
from planner.units import Bytes

FASTER = 1.2
"""Times the processors' own memory: what a second memory is worth running in, instead of moving values there."""


class Memory(NamedTuple):
    pool: Pool
    thread_bandwidth: int
    """Bytes per second that one core alone reads plus writes."""


def memories(
    files: Files, cores: Sequence[Core], capacity: Bytes, estimate: tuple[int, int], l3: Bytes | None
) -> list[Memory]:
    """`capacity`: what this process may use of all memory. `estimate`: one core's and all cores' bytes per second,
    instead of measuring them; `l3`: bytes of a cache that buffers must exceed where they are measured, else None."""
    sizes = memory_of_nodes(files)
    near = sorted({c.numa for c in cores} & sizes.keys())
    far = [node for node in sizes if not files.cpus_of_node(node)]
    known = len(sizes) > 1 and bool(near) and may_choose(near)

    def memory(name: str, nodes: Sequence[int]) -> Memory:
        size = Bytes(min(capacity, sum(sizes[n] for n in nodes))) if nodes else capacity
        alone, together = estimate
        if l3 is not None:
            alone, together = measure_bandwidth([c.cpus[0] for c in cores], l3, size, nodes)
        pool = Pool(name=name, kind="dram", capacity=size, bandwidth=together, nodes=tuple(nodes) or None)
        return Memory(pool, alone)

    own = memory("dram", near if known else ())
    if not (known and far and l3 is not None and may_choose(far)):
        return [own]
    other = memory("far", far)
    if other.pool.bandwidth < FASTER * own.pool.bandwidth:
        return [own, other]
    return [other._replace(pool=other.pool.model_copy(update={"name": "hbm", "kind": "hbm"})), own]
