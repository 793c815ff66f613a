"""Recomputation as published (SuperNeurons, section 3.4): which forward tasks run again before which backward task.

It decides on a `Work`, a bare list of tasks and values, so that the paper's layers (layer_accounting.py) and the
nodes of a real graph (`work_of`) go through the same functions. Outputs of checkpoints (convolutions, fully connected
layers, joins, ...) are kept; a segment is a run of other tasks between two checkpoints, whose outputs are dropped
after the forward pass.

    conv1 -> relu1 -> lrn1 -> pool1 -> conv2          segment (relu1, lrn1, pool1)
    speed-centric    before conv2's backward: relu1 lrn1 pool1, kept                                         3 again
    memory-centric   before conv2's: relu1 lrn1 pool1, pool1's: relu1 lrn1, lrn1's: relu1                    6 again
    cost-aware       memory-centric where the segment's inputs and outputs exceed the largest layer, else speed-centric

A recomputed node reads what it read before (parameters are updated after it, dropout masks are kept), draws the same
random numbers, and must not update running statistics a second time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from planner.graph.model import PERSISTENT, Graph, Node, Program, Role
from planner.ops.base import op_named
from planner.ops.signature import signature_of

Strategy = Literal["none", "speed", "memory", "cost"]

CHEAP_OPS = frozenset(
    {
        "adaptive_avg_pool2d",
        "avg_pool2d",
        "batch_norm",
        "chain",
        "convert_layout",
        "dropout",
        "gelu",
        "group_norm",
        "layer_norm",
        "leaky_relu",
        "lrn",
        "max_pool2d",
        "random",
        "random_whole",
        "relu",
        "reshape",
        "sigmoid",
        "silu",
        "tanh",
    }
)
"""Ops between checkpoints: quick to run again (POOL, ACT, LRN, BN, Dropout of the paper) or mere copies."""


@dataclass(frozen=True)
class Task:
    """A forward or backward computation. A backward task reads exactly the forward values that it needs."""

    id: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """What one training step computes, in execution order."""

    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    """Everything after the forward pass, updates included."""
    checkpoints: frozenset[str]
    """Forward tasks whose outputs are kept."""
    bytes: Mapping[str, int]
    """Of every value that counts; others are parameters and the like."""
    saved: frozenset[str] = frozenset()
    """Outputs of other tasks that are kept all the same: masks, argmax, batch statistics."""

    @cached_property
    def producer(self) -> Mapping[str, Task]:
        return {v: t for t in self.forward for v in t.writes}

    @cached_property
    def droppable(self) -> frozenset[str]:
        """Values that only recomputation brings back."""
        return frozenset(
            v for t in self.forward if t.id not in self.checkpoints for v in t.writes if v not in self.saved
        )


@dataclass(frozen=True)
class Segment:
    """Forward tasks between checkpoints, in execution order; `bytes` sums their inputs and outputs."""

    tasks: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Recomputation:
    """Run `tasks` again before backward task `before`."""

    before: str
    tasks: tuple[str, ...]
    kept_until: Mapping[str, str]
    """Recomputed value -> the last backward task that reads this copy, or for which another recomputation does. Values
    that only serve this recomputation are missing: they end with it."""


@dataclass(frozen=True)
class Step:
    """One task as it runs. Copies of a recomputed value are told apart: `relu1.y`, `relu1.y@1`, `relu1.y@2`."""

    task: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    before: str = ""
    """For a recomputation: the backward task that it is for."""


def segments(work: Work) -> tuple[Segment, ...]:
    """Connected runs of tasks that are no checkpoints."""
    leader: dict[str, str] = {}

    def find(task: str) -> str:
        while leader[task] != task:
            leader[task] = task = leader[leader[task]]
        return task

    cheap = [t for t in work.forward if t.id not in work.checkpoints]
    for task in cheap:
        leader[task.id] = task.id
        for value in task.reads:
            source = work.producer.get(value)
            if source is not None and source.id in leader and value in work.droppable:
                leader[find(source.id)] = find(task.id)
    members: dict[str, list[Task]] = {}
    for task in cheap:
        members.setdefault(find(task.id), []).append(task)
    return tuple(
        Segment(tuple(t.id for t in tasks), sum(work.bytes.get(v, 0) for t in tasks for v in (*t.reads, *t.writes)))
        for tasks in members.values()
    )


def plan(work: Work, strategy: Strategy, largest_layer: int = 0) -> tuple[Recomputation, ...]:
    """The recomputations of every segment under one published strategy, in the order of the backward tasks.

    largest_layer: bytes of l_peak, for `cost`.
    """
    if strategy == "none":
        return ()
    careful = {
        segment: strategy == "memory" or (strategy == "cost" and segment.bytes > largest_layer)
        for segment in segments(work)
    }
    return plan_segments(work, careful)


def plan_segments(work: Work, careful: Mapping[Segment, bool]) -> tuple[Recomputation, ...]:
    """The recomputations of the given segments: memory-centric where `careful`, else speed-centric."""
    forward = {t.id: t for t in work.forward}
    owner: dict[str, _Segment] = {}
    for s, c in careful.items():
        owns = frozenset(v for t in s.tasks for v in forward[t].writes) & work.droppable
        owner.update(dict.fromkeys(owns, _Segment(s, c, owns)))
    for task in work.backward:
        for value in task.reads:
            if value in owner:
                owner[value].wanted[value] = task.id
    found: list[Recomputation] = []
    for task in work.backward:
        needed: dict[_Segment, list[str]] = {}
        for value in dict.fromkeys(task.reads):
            if value in owner:
                needed.setdefault(owner[value], []).append(value)
        for segment, values in needed.items():
            again = segment.recompute(work, values)
            if again:
                found.append(Recomputation(task.id, again, {}))
    return _kept(work, found)


@dataclass(eq=False)
class _Segment:
    segment: Segment
    careful: bool
    owns: frozenset[str]
    wanted: dict[str, str] = field(default_factory=dict)
    """Value -> the last backward task that needs it."""
    here: set[str] = field(default_factory=set)
    """Values that are in memory again."""

    def recompute(self, work: Work, needed: Sequence[str]) -> tuple[str, ...]:
        """Tasks to run before a backward task that needs `needed`; keeps what the strategy keeps."""
        if not self.careful:
            missing = [] if self.here else sorted(self.wanted)
            again = self._closure(work, missing)
            self.here.update(self.wanted)
            return again
        again = self._closure(work, [v for v in needed if v not in self.here])
        self.here = set(needed)
        return again

    def _closure(self, work: Work, missing: Sequence[str]) -> tuple[str, ...]:
        """Tasks that bring `missing` back from checkpoints and from what is here, in execution order."""
        tasks: set[str] = set()
        stack = list(missing)
        while stack:
            task = work.producer[stack.pop()]
            if task.id not in tasks:
                tasks.add(task.id)
                stack += [v for v in task.reads if v in self.owns and v not in self.here]
        return tuple(t for t in self.segment.tasks if t in tasks)


def _kept(work: Work, found: Sequence[Recomputation]) -> tuple[Recomputation, ...]:
    """Fill in until when each copy is read, from the steps themselves."""
    until: dict[str, str] = {}
    made: dict[str, list[str]] = {}
    """Backward task -> the copies made for it"""
    for step in expand(work, found):
        if step.before:
            made.setdefault(step.before, []).extend(step.writes)
        for value in step.reads:
            if not step.before or value not in made[step.before]:
                until[value] = step.before or step.task
    forward = {t.id: t for t in work.forward}
    result = []
    for r in found:
        own = {v for task in r.tasks for v in forward[task].writes}
        kept = {original(c): until[c] for c in made[r.before] if c in until and original(c) in own}
        result.append(replace(r, kept_until=kept))
    return tuple(result)


def expand(work: Work, recomputations: Sequence[Recomputation]) -> tuple[Step, ...]:
    """All tasks as they run, recomputations included."""
    forward = {t.id: t for t in work.forward}
    before: dict[str, list[str]] = {}
    for r in recomputations:
        before.setdefault(r.before, []).extend(r.tasks)
    now: dict[str, str] = {}
    """value -> its newest copy"""
    copies: dict[str, int] = {}
    steps = [Step(t.id, t.reads, t.writes) for t in work.forward]
    for task in work.backward:
        for again in before.get(task.id, ()):
            source = forward[again]
            reads = tuple(now.get(v, v) for v in source.reads)
            writes = []
            for value in source.writes:
                if value in work.droppable:
                    copies[value] = copies.get(value, 0) + 1
                    now[value] = f"{value}@{copies[value]}"
                    writes.append(now[value])
            steps.append(Step(again, reads, tuple(writes), task.id))
        steps.append(Step(task.id, tuple(now.get(v, v) for v in task.reads), task.writes))
    return tuple(steps)


def original(copy: str) -> str:
    """`relu1.y@2` -> `relu1.y`."""
    return copy.partition("@")[0]


def work_of(graph: Graph, program: Program, order: Sequence[Node] | None = None) -> Work:
    """A real graph's program as work; `order`: as it will run, the program's own by default.

    A value that several forward nodes read is a fork, and as a real graph makes no copy for a fork, the node before it
    is the checkpoint. Saved outputs (argmax, masks, statistics) are kept.
    """
    nodes = tuple(order or program.nodes)
    forward = [n for n in nodes if n.phase == "forward"]
    readers: dict[str, int] = {}
    for node in forward:
        for value in node.inputs:
            readers[value] = readers.get(value, 0) + 1
    whole = {v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs)
    counted = {v.id: v.type.bytes for v in graph.values if v.id not in whole}
    checkpoints: set[str] = set()
    made_by = {v: n.id for n in forward for v in n.outputs}
    for node in forward:
        fork = any(readers.get(v, 0) > 1 or v in program.outputs for v in node.outputs)
        # A view of a checkpoint's output is that output.
        view = op_named(node.op).alias(signature_of(graph, node)) is not None
        viewed = view and made_by.get(node.inputs[0], "") in checkpoints
        given = bool(node.inputs) and all(v in whole for v in node.inputs)
        if node.op not in CHEAP_OPS or fork or viewed or given:
            checkpoints.add(node.id)
    return Work(
        tuple(Task(n.id, n.reads, n.outputs) for n in forward),
        tuple(Task(n.id, n.reads, n.outputs) for n in nodes if n.phase != "forward"),
        frozenset(checkpoints),
        counted,
        frozenset(v.id for v in graph.values if v.role is not Role.ACTIVATION),
    )
