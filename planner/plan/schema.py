"""The plan: everything an executor needs to know, as frozen models. Written as plan.json (see plan/text.py).

Names used in lane programs: a **slice** is `node/stage#index`, for instance `layer1.0.conv1/1#0`. A lane entry runs
one slice after waiting for others; a lane's entries run in order, so only waits that lane order does not already
imply are listed. A wait names a slice of another lane that must have finished, or with `node/stage#*` all slices of a
stage: one counter instead of as many waits as there are lanes.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from planner.graph.model import Frozen, valid_id
from planner.ops.base import Mode

SCHEMA = 1

BEYOND = 2**128
"""Larger numbers than any plan has. Below it sums and products of several are still floats; which sizes are too large
to be safe is `check`'s business."""

Natural = Annotated[int, Field(ge=0, lt=BEYOND)]


class PoolUse(Frozen):
    """One memory pool and the single allocation that the executor makes in it."""

    name: str
    capacity: Natural
    """Bytes that the plan may use: the pool's size, or the memory budget where that is smaller."""
    arena: Natural
    """Bytes of the allocation: no placed byte lies at or behind it."""


class Lane(Frozen):
    """One hardware thread, a GPU's stream, or a thread or stream that only copies between pools."""

    id: Natural
    cpu: Natural = 0
    """Logical processor that a core lane's thread is pinned to. Other lanes are pinned to none."""
    kind: Literal["core", "stream", "copy"] = "core"


class Placement(Frozen):
    """Where a value lies. Persistent values (parameters, states) keep their bytes over all programs."""

    value: str
    pool: str
    offset: Natural
    bytes: Natural
    shares: str = ""
    """The value whose bytes this one takes over in place (or views); empty when it has its own."""
    layout: Annotated[str, Field(pattern=r"^([a-z]{4}([0-9]{1,4}[a-z])?)?$")] = ""
    """How a convolution's weights lie there, where kernels are to find them packed (ops/stored.py); empty: plainly."""


MOST_STRAINED: Final = 1e6
"""No kernel is slower on bytes out of the caches than so many plain loops."""


class Crossed(Frozen):
    """Bytes of a slice that lie in another lane's caches (solve/crossing.py)."""

    fetched: Natural
    """Read or written over, and written by another lane last."""
    reclaimed: Natural
    """Written over, and read by another lane since they were written."""
    factor: Annotated[float, Field(ge=1, le=MOST_STRAINED)] = 1.0
    """How many times as much a byte out of the caches costs this kernel as a plain loop."""


class NodePlan(Frozen):
    """How one node runs."""

    node: str
    kernel: str
    dim: str
    slices: Annotated[int, Field(ge=1, lt=BEYOND)]
    implementation: Annotated[str, Field(pattern=r"^[A-Za-z0-9_:/.+\-]{0,80}$")] = ""
    """The kernel library's name of the implementation; empty when there is only one."""
    stage_ns: tuple[Natural, ...] = ()
    """Predicted time of one slice in each stage, in its place in the step; empty for a node that is only a view."""
    scratch_offset: Natural = 0
    scratch_bytes: Natural = 0
    facts: dict[str, int] = Field(default_factory=dict)
    """Sizes that the kernel library asked for: packed_bytes, scratch_bytes (per slice), partial_bytes; and how weights
    are stored and wanted (ops/stored.py)."""
    traffic: Natural = 0
    """Bytes per ms that it moves to and from memory when it runs alone: what nodes beside it will miss."""
    crossed: tuple[Crossed, ...] = ()
    """Per stage, what one slice finds in other lanes' caches; `stage_ns` has what that costs. Empty: nothing."""

    @property
    def stages(self) -> int:
        return len(self.stage_ns)

    @property
    def predicted_ns(self) -> int:
        """From the first slice's start to the last slice's end, on lanes that are free."""
        return sum(self.stage_ns)

    @property
    def mode(self) -> Mode:
        return Mode(self.kernel, self.dim, self.slices, self.implementation)


class Recompute(Frozen):
    """A forward node runs a second time, for readers that come too late to find its first results in memory.

    How it runs again is its op's business (Op.again): with the same bits, and without updating anything twice.
    """

    node: str
    """Id of the second run: a node of the expanded graph (plan/expand.py)."""
    of: str
    """Node of the graph."""
    makes: Annotated[tuple[str, ...], Field(min_length=1)]
    """The values it makes, one per result of `Op.again`, which are further instances of the node's outputs."""


class Transfer(Frozen):
    """A copy of a value from one pool to another."""

    node: str
    """Id of the copy: a node of the expanded graph."""
    kind: Literal["offload", "prefetch"]
    """offload: out of the pool in which nodes run (the plan's first); prefetch: back into it."""
    value: str
    """What is copied: a value of the graph, or an instance of one."""
    makes: str
    """The instance that is made in `to_pool`."""
    from_pool: str
    to_pool: str


class Read(Frozen):
    """A node reads an instance of a value instead of the value itself."""

    node: str
    """A node of the graph, or a recomputation."""
    value: str
    """Value of the graph."""
    instance: str


class Rewrite(Frozen):
    """How a program of the graph is changed to need less memory; see plan/expand.py for its meaning."""

    recomputes: tuple[Recompute, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    reads: tuple[Read, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.recomputes or self.transfers)


class Entry(Frozen):
    """One slice in a lane program."""

    run: str
    wait: tuple[str, ...] = ()


class Slowdown(Frozen):
    """A measured pair of nodes: how much longer `node` takes while `beside` runs."""

    node: str
    beside: str
    factor: Annotated[float, Field(gt=0, le=1e6)]
    refused: bool = False
    """Together they would do less than one after the other, so the schedule keeps them apart."""


class Sharing(Frozen):
    """What lanes share, as the predicted times assume it (plan/contention.py). Bandwidths in bytes per second."""

    bandwidth: Natural = 0
    """Of all lanes together, read plus written; 0: not known, and nothing is predicted from it."""
    thread_bandwidth: Natural = 0
    """Of one lane alone."""
    smt_gain: Annotated[float, Field(ge=1, le=16)] = 1.03
    """Work per time of two compute-bound slices on one core, against one alone."""
    fetch_ns: Annotated[float, Field(ge=0, lt=1e15)] = 0.0
    """What a KiB costs more to read or write that another lane wrote last (plan/crossing.py)."""
    reclaim_ns: Annotated[float, Field(ge=0, lt=1e15)] = 0.0
    """What a KiB costs more to write that another lane read since it was written."""
    cores: tuple[Natural, ...] = ()
    """The physical core of every lane; empty where every lane has its own."""


class ParallelOp(Frozen):
    """Sibling nodes that start together, each with one slice on one lane (MXNet's parallel operators)."""

    op: str
    nodes: tuple[str, ...]
    """In the order in which they start."""
    source: str = ""
    """The node that they come from, or the first one of a parallel operator; empty: several."""
    target: str = ""
    """The node that they go to, likewise."""
    alone_ns: Natural
    """Predicted time of running them one after the other, each in the mode that it would have then."""
    together_ns: Natural


class Bounds(Frozen):
    """Lower bounds on a program's time, each in ns, and what they say about the plan."""

    critical_path_ns: Natural
    """Longest dependent chain, every node at its best measured time."""
    work_ns: Natural
    """Sum over nodes of the least core time (slices x time) / cores."""
    bandwidth_ns: Natural
    """Bytes that must move at least once / the pool's bandwidth."""

    @property
    def best_ns(self) -> int:
        """The tightest of the bounds."""
        return max(self.critical_path_ns, self.work_ns, self.bandwidth_ns)


class ProgramPlan(Frozen):
    name: str
    nodes: tuple[NodePlan, ...]
    """In the order in which the schedule starts them."""
    lanes: tuple[tuple[Entry, ...], ...]
    predicted_ns: Natural
    """One call as its caller sees it: the replayed lane programs plus the time to wake lanes and caller."""
    peak_bytes: Natural
    """The most bytes live at once in the first pool: persistent values, activations, scratch."""
    bounds: Bounds
    slowdowns: tuple[Slowdown, ...] = ()
    """Measured pairs that this schedule runs side by side, or would have."""
    rewrite: Rewrite = Rewrite()
    """What runs besides the graph's own nodes. `nodes` and `lanes` are those of the expanded program."""
    least_again_ns: Natural = 0
    """Where nodes run again: whatever is dropped, in this order and in these modes, it takes at least so long within
    the budget. Proven by a linear program (solve/memory/budget_bound.py); 0 where values may move to another pool."""
    parallel: tuple[ParallelOp, ...] = ()
    """In the order in which they start."""

    @cached_property
    def node(self) -> Mapping[str, NodePlan]:
        return {n.node: n for n in self.nodes}

    def waited(self, name: str) -> tuple[str, ...]:
        """The slices that a wait names."""
        node, stage, index = parse_wait(name)
        if index is not None:
            return (name,)
        return tuple(slice_name(node, stage, i) for i in range(self.node[node].slices))

    @property
    def gap(self) -> float:
        """predicted / lower bound - 1: at most this much is left to gain by scheduling."""
        return self.predicted_ns / self.bounds.best_ns - 1 if self.bounds.best_ns else 0.0


class Plan(Frozen):
    name: str
    """The graph's. It stands in comments of emitted code, and plans come from strangers."""
    policy: str
    strategies: tuple[int, ...] = ()
    target: str
    graph_hash: str
    target_hash: str
    costs_hash: str
    keep: tuple[str, ...] = ()
    """Values that nothing overwrites until their program ends, beside its outputs."""
    pools: tuple[PoolUse, ...]
    """The first is the one in which nodes run."""
    lanes: tuple[Lane, ...]
    placements: tuple[Placement, ...]
    programs: tuple[ProgramPlan, ...]
    sharing: Sharing = Sharing()

    @field_validator("name")
    @classmethod
    def _valid_name(cls, text: str) -> str:
        return valid_id(text)

    @cached_property
    def placement(self) -> Mapping[str, Placement]:
        return {p.value: p for p in self.placements}

    @cached_property
    def program(self) -> Mapping[str, ProgramPlan]:
        return {p.name: p for p in self.programs}

    @cached_property
    def pool(self) -> Mapping[str, PoolUse]:
        return {p.name: p for p in self.pools}


def slice_name(node: str, stage: int, index: int) -> str:
    return f"{node}/{stage}#{index}"


def stage_name(node: str, stage: int) -> str:
    """A wait for all slices of a stage."""
    return f"{node}/{stage}#*"


def parse_wait(name: str) -> tuple[str, int, int | None]:
    """As `parse_slice`; None for all slices of the stage."""
    if not name.endswith("#*"):
        return parse_slice(name)
    node, _, stage = name[:-2].rpartition("/")
    if not node:
        raise ValueError(f"{name!r} is not node/stage#*")
    return node, int(stage), None


def parse_slice(name: str) -> tuple[str, int, int]:
    """`conv1/1#0` -> ("conv1", 1, 0); ValueError when it is not a slice name."""
    node, _, rest = name.rpartition("/")
    stage, _, index = rest.partition("#")
    if not node:
        raise ValueError(f"{name!r} is not node/stage#slice")
    return node, int(stage), int(index)
