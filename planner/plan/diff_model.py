"""The semantic difference of two plans, as data: what `diff.py` finds and `diff_text.py` renders."""

from typing import Literal

from planner.graph.model import Frozen
from planner.plan.schema import ParallelOp


class Setting(Frozen):
    """One thing that holds for the whole plan: target, lanes, policy, budget, inputs."""

    name: str
    before: str
    after: str


class NodeSide(Frozen):
    """How one of the two plans runs a node."""

    mode: str
    kind: str
    """Kernel and dimension."""
    implementation: str
    slices: int
    predicted_ns: int
    scratch_bytes: int


class NodeChange(Frozen):
    """A node that runs in another way or is predicted to take another time; `before` or `after` is None for one that
    only one of the plans has."""

    node: str
    op: str = ""
    origin: str = ""
    before: NodeSide | None
    after: NodeSide | None

    @property
    def delta_ns(self) -> int:
        return (self.after.predicted_ns if self.after else 0) - (self.before.predicted_ns if self.before else 0)

    @property
    def delta_scratch(self) -> int:
        return (self.after.scratch_bytes if self.after else 0) - (self.before.scratch_bytes if self.before else 0)


class ParallelChange(Frozen):
    """A parallel operator that only one plan has, or that has other members or times."""

    before: ParallelOp | None
    after: ParallelOp | None

    @property
    def delta_ns(self) -> int:
        """Against running the members one after the other where there is no parallel operator."""
        before = self.before.together_ns if self.before else self.after.alone_ns if self.after else 0
        return (self.after.together_ns if self.after else self.before.alone_ns if self.before else 0) - before


class Schedule(Frozen):
    """What changed in who runs what when."""

    moved_nodes: tuple[str, ...]
    """Nodes that start earlier or later than before, relative to the rest; the most time-consuming first."""
    other_lane: int
    """Slices that run on another lane."""
    reordered_lanes: int
    """Lanes that run the slices which both plans give them in another order."""
    waits_before: int
    waits_after: int
    changed_waits: int
    """Slices of both plans that wait for others than before."""


class ProgramDiff(Frozen):
    name: str
    status: Literal["changed", "added", "removed", "same"]
    predicted_before: int
    predicted_after: int
    peak_before: int
    peak_after: int
    bound_before: int
    bound_after: int
    added: tuple[NodeChange, ...]
    removed: tuple[NodeChange, ...]
    modes: tuple[NodeChange, ...]
    """Nodes with another kernel, dimension, slice count or implementation."""
    times: tuple[NodeChange, ...]
    """Nodes of the same mode with another predicted time."""
    scratch: tuple[NodeChange, ...]
    """Nodes of the same mode with other scratch bytes or kernel facts."""
    parallel: tuple[ParallelChange, ...]
    schedule: Schedule


class ValueChange(Frozen):
    value: str
    change: Literal["added", "removed", "resized", "pool", "shares", "layout"]
    before: str
    after: str
    bytes: int


class PlacementDiff(Frozen):
    changes: tuple[ValueChange, ...]
    """All but values that merely moved; the largest first."""
    moved: int
    """Values and scratch blocks that lie at another offset, and nothing else."""
    moved_bytes: int
    reordered: bool
    """Whether the plans list the values of both in another order: nothing runs by it, but the executor's plan is
    another one."""


class PlanDiff(Frozen):
    before: str
    after: str
    settings: tuple[Setting, ...]
    programs: tuple[ProgramDiff, ...]
    placement: PlacementDiff

    @property
    def changed(self) -> bool:
        return bool(
            self.settings
            or self.placement.changes
            or self.placement.moved
            or self.placement.reordered
            or any(p.status != "same" for p in self.programs)
        )

    def document(self) -> dict[str, object]:
        """Everything, for `--json`."""
        return {"changed": self.changed, **self.model_dump(mode="json")}
