"""What to measure: one tiny program per (signature, mode), all in one executor that is built like any other.

The kernels that are timed are therefore exactly the kernels that steps run, on the same pinned lanes. Every program
starts at byte 0 of the arena; running it at a shifted arena base gives it other, cold memory.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from codegen.indices import index_operands, index_range
from planner.graph.model import DType, Graph, Init, Node, Program, Role, TensorType, Value
from planner.graph.text import graph_hash
from planner.ops.base import Array, Facts, Mode, Signature, op_named, scratch_bytes
from planner.plan.schema import (
    Bounds,
    Entry,
    Lane,
    NodePlan,
    Placement,
    Plan,
    PoolUse,
    ProgramPlan,
    slice_name,
    stage_name,
)
from planner.solve.clocks import COMPACT
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import align

NO_INDICES: Mapping[int, int] = {}
NO_NUMBERS: Mapping[int, Array] = {}
_NO_BOUNDS = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)


class Case(NamedTuple):
    """One measurement to make."""

    signature: Signature
    mode: Mode
    facts: Facts


class Room(NamedTuple):
    """Where a tensor lies, and what may be in it."""

    offset: int
    type: TensorType
    end: int = 1
    """Labels and indices: the last valid one + 1."""
    numbers: tuple[int, ...] = ()
    """Whole numbers that it holds instead, where they decide how much there is to do."""


class Footprint(NamedTuple):
    """Where a case's tensors lie: what has to be filled before it runs."""

    bytes: int
    tensors: tuple[Room, ...]


class Memory:
    """Lays out the tensors of the nodes of one program, one after the other from byte 0."""

    def __init__(self, pool: str) -> None:
        self.pool, self.top = pool, 0
        self.values: list[Value] = []
        self.placements: list[Placement] = []
        self.tensors: list[Room] = []

    def place(
        self,
        node: str,
        kind: str,
        types: Sequence[TensorType],
        role: Role,
        ends: Mapping[int, int] = NO_INDICES,
        numbers: Mapping[int, Array] = NO_NUMBERS,
    ) -> tuple[str, ...]:
        """`ends`: number of a tensor of indices -> the last valid one + 1. `numbers`: likewise, what it is to hold."""
        ids = tuple(f"{node}.{kind}{index}" for index in range(len(types)))
        for number, (name, type_) in enumerate(zip(ids, types, strict=True)):
            value = Value(id=name, type=type_, role=role)
            if role is Role.PARAMETER:
                value = value.model_copy(update={"name": name, "init": Init(kind="zeros")})
            self.values.append(value)
            self.placements.append(Placement(value=name, pool=self.pool, offset=self.top, bytes=type_.bytes))
            held = tuple(map(int, numbers[number])) if number in numbers else ()
            self.tensors.append(Room(self.top, type_, ends.get(number, 1), held))
            self.top += align(type_.bytes)
        return ids

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.top, tuple(self.tensors))


def case_node(name: str, case: Case, memory: Memory, phase: str = "forward") -> tuple[Node, NodePlan]:
    """A node that runs the case, with its tensors and scratch in `memory`."""
    signature, mode, facts = case
    op = op_named(signature.op)
    ends = {i: index_range(signature, i)[0] for i in index_operands(signature.op)}
    numbers = op.measured_with(signature)
    node = Node(
        id=name,
        op=signature.op,
        inputs=memory.place(name, "in", signature.inputs, Role.ACTIVATION, ends, numbers),
        outputs=memory.place(name, "out", signature.outputs, Role.ACTIVATION),
        updates=memory.place(name, "up", signature.updates, Role.PARAMETER),
        attrs=signature.attrs,
        phase=phase,
    )
    scratch = scratch_bytes(op.scratch(signature, mode, facts))
    planned = NodePlan(
        node=name,
        kernel=mode.kernel,
        dim=mode.dim,
        slices=mode.slices,
        implementation=mode.implementation,
        stage_ns=(1,) * op.stage_count(signature, mode, facts),
        scratch_offset=memory.top,
        scratch_bytes=scratch,
        facts=dict(facts),
    )
    memory.top += align(scratch)
    return node, planned


def stage_entries(planned: NodePlan) -> list[list[Entry]]:
    """What each slice's lane runs, stage after stage; between two stages everybody waits for everybody, as plans write
    it: for as many slices as on a large machine, lists of them would take compilers minutes."""

    def wait(stage: int, own: int) -> tuple[str, ...]:
        others = [i for i in range(planned.slices) if i != own]
        if stage and len(others) >= COMPACT:
            return (stage_name(planned.node, stage - 1),)
        return tuple(slice_name(planned.node, stage - 1, i) for i in others) if stage else ()

    stages = range(planned.stages)
    return [
        [Entry(run=slice_name(planned.node, s, index), wait=wait(s, index)) for s in stages]
        for index in range(planned.slices)
    ]


class Programs:
    """Programs that share an arena on purpose, collected into a graph and its plan."""

    def __init__(self, name: str, target: Target, cpus: Sequence[int]) -> None:
        self.name, self.target, self.cpus = name, target, cpus
        self.footprints: list[Footprint] = []
        self._values: list[Value] = []
        self._placements: list[Placement] = []
        self._programs: list[Program] = []
        self._plans: list[ProgramPlan] = []

    def hold(self, memory: Memory) -> None:
        """The tensors of programs that follow."""
        self._values += memory.values
        self._placements += memory.placements

    def add(self, nodes: Sequence[tuple[Node, NodePlan, int]], footprint: Footprint) -> None:
        """A program of nodes, each with the lane of its first slice."""
        name = f"program{len(self._programs)}"
        lanes: list[list[Entry]] = [[] for _ in self.cpus]
        for _, planned, first in nodes:
            for index, entries in enumerate(stage_entries(planned)):
                lanes[first + index] += entries
        self._programs.append(Program(name=name, nodes=tuple(n for n, _, _ in nodes), inputs=(), outputs=()))
        self._plans.append(
            ProgramPlan(
                name=name,
                nodes=tuple(p for _, p, _ in nodes),
                lanes=tuple(map(tuple, lanes)),
                predicted_ns=1,
                peak_bytes=footprint.bytes,
                bounds=_NO_BOUNDS,
            )
        )
        self.footprints.append(footprint)

    def plan(self, arena: int) -> tuple[Graph, Plan]:
        """`arena`: bytes to reserve."""
        graph = Graph(name=self.name, values=tuple(self._values), programs=tuple(self._programs))
        pool = self.target.memory.name
        plan = Plan(
            name=self.name,
            policy="profile",
            target=self.target.name,
            graph_hash=graph_hash(graph),
            target_hash=target_hash(self.target),
            costs_hash="",
            pools=(PoolUse(name=pool, capacity=arena, arena=arena),),
            lanes=tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(self.cpus)),
            placements=tuple(self._placements),
            programs=tuple(self._plans),
        )
        return graph, plan


def case_programs(cases: Sequence[Case], target: Target, cpus: Sequence[int]) -> Programs:
    """One single-node program per case, slice i on lane i."""
    programs = Programs("profile", target, cpus)
    for number, case in enumerate(cases):
        memory = Memory(target.memory.name)
        # The phase only says in which of two files the case is compiled.
        node, planned = case_node(f"case{number}", case, memory, ("forward", "backward")[number % 2])
        programs.hold(memory)
        programs.add([(node, planned, 0)], memory.footprint)
    return programs


INDEX_TYPES = (DType.INT64, DType.INT32)
"""Filled with random valid labels and indices: rows all over a table, as in a step. Groups are equally large."""
