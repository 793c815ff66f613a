"""Cores, and the order in which lanes take them: neighbours that share a cache, or that don't (Liu et al., III-A)."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Annotated, Literal

from pydantic import Field

from planner.errors import InternalError
from planner.graph.model import Frozen

Affinity = Literal["compact", "spread"]
Index = Annotated[int, Field(ge=0, le=65535)]


class Core(Frozen):
    """One physical core."""

    id: Index
    cpus: Annotated[tuple[Index, ...], Field(min_length=1)]
    """Logical processors as the operating system numbers them: the primary first, then its SMT siblings."""
    tile: Index
    """The cluster of cores that shares an L2 cache with this one."""
    l3: Index = 0
    """The group of cores that shares an L3 cache with this one."""
    numa: Index = 0


def lane_order(cores: Sequence[Core], smt: bool = False, affinity: Affinity = "compact") -> tuple[int, ...]:
    """All logical processors (without `smt`: one per core) in lane order; see `Target.lanes`.

    Two tiles of two cores, 0 1 and 2 3: compact is 0 1 2 3, spread is 0 2 1 3.
    """
    compact = sorted(cores, key=lambda c: (c.numa, c.l3, c.tile, c.id))
    if affinity not in ("compact", "spread"):
        raise InternalError(f"affinity {affinity!r} is neither compact nor spread")
    order = compact if affinity == "compact" else _spread(compact)
    width = max(len(c.cpus) for c in order) if smt else 1
    return tuple(c.cpus[turn] for turn in range(width) for c in order if turn < len(c.cpus))


def _spread(compact: Sequence[Core]) -> list[Core]:
    order = _alternate(compact, (lambda c: c.numa, lambda c: c.l3, lambda c: c.tile))
    # Where NUMA nodes or L3 groups have different numbers of tiles, alternating alone would put two cores of a
    # small group's tile before the first core of a large group's last tile.
    before: dict[int, int] = {}
    turn: dict[int, int] = {}
    for core in order:
        turn[core.id] = before.get(core.tile, 0)
        before[core.tile] = turn[core.id] + 1
    return sorted(order, key=lambda c: turn[c.id])


def _alternate(cores: Sequence[Core], levels: Sequence[Callable[[Core], int]]) -> list[Core]:
    """One core of each group in turn, the groups of the first level outermost: a a a b b -> a b a b a."""
    if not levels:
        return list(cores)
    groups: dict[int, list[Core]] = {}
    for core in cores:
        groups.setdefault(levels[0](core), []).append(core)
    columns = [_alternate(group, levels[1:]) for group in groups.values()]
    return [core for row in zip_longest(*columns) for core in row if core is not None]
