"""What to measure: one tiny program per (signature, mode), all in one executor that is built like any other.

The kernels that are timed are therefore exactly the kernels that steps run, on the same pinned lanes. Every program
starts at byte 0 of the arena; running it at a shifted arena base gives it other, cold memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.graph.model import DType, Graph, Init, Node, Program, Role, TensorType, Value
from planner.graph.text import graph_hash
from planner.ops.base import Facts, Mode, Signature, op_named, scratch_bytes
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
)
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import align

_NO_BOUNDS = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)


class Case(NamedTuple):
    """One measurement to make."""

    signature: Signature
    mode: Mode
    facts: Facts


class Footprint(NamedTuple):
    """Where a case's tensors lie: what has to be filled before it runs."""

    bytes: int
    tensors: tuple[tuple[int, TensorType], ...]


class _Memory:
    """Lays out one case's tensors one after the other from byte 0."""

    def __init__(self, node: str, pool: str) -> None:
        self.node, self.pool, self.top = node, pool, 0
        self.values: list[Value] = []
        self.placements: list[Placement] = []
        self.tensors: list[tuple[int, TensorType]] = []

    def place(self, kind: str, types: Sequence[TensorType], role: Role) -> tuple[str, ...]:
        ids = tuple(f"{self.node}.{kind}{index}" for index in range(len(types)))
        for name, type_ in zip(ids, types, strict=True):
            named = {"name": name, "init": Init(kind="zeros")} if role is Role.PARAMETER else {}
            self.values.append(Value(id=name, type=type_, role=role, **named))
            self.placements.append(Placement(value=name, pool=self.pool, offset=self.top, bytes=type_.bytes))
            self.tensors.append((self.top, type_))
            self.top += align(type_.bytes)
        return ids


def cases_plan(
    cases: Sequence[Case], target: Target, cpus: Sequence[int], arena: int
) -> tuple[Graph, Plan, list[Footprint]]:
    """A graph with one single-node program per case, its plan, and every case's memory. `arena`: bytes to reserve."""
    values: list[Value] = []
    programs: list[Program] = []
    plans: list[ProgramPlan] = []
    placements: list[Placement] = []
    footprints: list[Footprint] = []
    pool = target.memory.name
    for number, case in enumerate(cases):
        signature, mode, facts = case
        memory = _Memory(f"case{number}", pool)
        op = op_named(signature.op)
        node = Node(
            id=memory.node,
            op=signature.op,
            inputs=memory.place("in", signature.inputs, Role.ACTIVATION),
            outputs=memory.place("out", signature.outputs, Role.ACTIVATION),
            updates=memory.place("up", signature.updates, Role.PARAMETER),
            attrs=signature.attrs,
            phase=("forward", "backward")[number % 2],  # only says in which of two files the case is compiled
        )
        scratch = scratch_bytes(op.scratch(signature, mode, facts))
        stages = op.stage_count(signature, mode, facts)
        node_plan = NodePlan(
            node=memory.node,
            kernel=mode.kernel,
            dim=mode.dim,
            slices=mode.slices,
            implementation=mode.implementation,
            stage_ns=(1,) * stages,
            scratch_offset=memory.top,
            scratch_bytes=scratch,
            facts=dict(facts),
        )
        values += memory.values
        placements += memory.placements
        footprints.append(Footprint(memory.top + align(scratch), tuple(memory.tensors)))
        programs.append(Program(name=f"program{number}", nodes=(node,), inputs=(), outputs=()))
        plans.append(
            ProgramPlan(
                name=f"program{number}",
                nodes=(node_plan,),
                lanes=_lanes(memory.node, stages, mode.slices, len(cpus)),
                predicted_ns=1,
                peak_bytes=footprints[-1].bytes,
                bounds=_NO_BOUNDS,
            )
        )
    graph = Graph(name="profile", values=tuple(values), programs=tuple(programs))
    plan = Plan(
        name="profile",
        policy="profile",
        target=target.name,
        graph_hash=graph_hash(graph),
        target_hash=target_hash(target),
        costs_hash="",
        pools=(PoolUse(name=pool, capacity=arena, arena=arena),),
        lanes=tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(cpus)),
        placements=tuple(placements),
        programs=tuple(plans),
    )
    return graph, plan, footprints


def _lanes(node: str, stages: int, slices: int, lanes: int) -> tuple[tuple[Entry, ...], ...]:
    """Slice i on lane i; between two stages everybody waits for everybody."""

    def wait(stage: int, lane: int) -> tuple[str, ...]:
        return tuple(slice_name(node, stage - 1, i) for i in range(slices) if i != lane) if stage else ()

    return tuple(
        tuple(Entry(run=slice_name(node, s, lane), wait=wait(s, lane)) for s in range(stages)) if lane < slices else ()
        for lane in range(lanes)
    )


INDEX_TYPES = (DType.INT64, DType.INT32)
"""Filled with zeros: a valid label or index whatever the op."""
