"""What templates see of a node: its operands as C++ expressions, its mode, its scratch, its names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from codegen.cpu import shapes
from codegen.cpu.chains import Loop
from codegen.indices import Look
from planner.errors import InternalError, UserError
from planner.graph.model import DType, Graph, Node, Role, TensorType
from planner.ops.base import Mode, Op, Signature, op_named, scratch_offsets
from planner.ops.device import running
from planner.ops.streaming import STREAMED_FAMILIES, block_of
from planner.plan.lifetimes import owners
from planner.plan.schema import NodePlan, Plan
from planner.units import align

CTYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.BFLOAT16: "bfloat16",
    DType.INT64: "int64_t",
    DType.INT32: "int32_t",
    DType.UINT8: "uint8_t",
}


@dataclass(frozen=True)
class Operand:
    """A value as a node uses it; as text, the C++ expression of its address."""

    id: str
    type: TensorType
    expression: str
    place: str = ""
    """The constant in it that says where in the arena; none for the caller's arrays."""

    def __str__(self) -> str:
        return self.expression

    def at(self, place: str) -> "Operand":
        """The same value somewhere else."""
        return replace(self, expression=self.expression.replace(self.place, place), place=place)

    @property
    def ctype(self) -> str:
        return CTYPES[self.type.dtype]


@dataclass(frozen=True)
class NodeView:
    """One node of one program, ready for a template."""

    node: Node
    name: str
    """Its C++ identifier."""
    plan: NodePlan
    line: int
    """Of plan.json."""
    signature: Signature
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    updates: tuple[Operand, ...]
    scratch: Mapping[str, str]
    """Scratch part -> the expression of its byte offset in the arena."""
    scratch_place: str = ""
    """The constant in these expressions."""
    parameter: str = ""
    """The constant that is its number, for nodes that hand out its gradient when only gradients are wanted."""
    lr_factor: float = 1.0
    """This node's learning rate / the executor's."""
    bad_index: int = -1
    """The number with which the node reports a label or index out of range; those of further operands follow it."""
    looks: tuple[Look, ...] = ()
    shapes: Any = field(default=shapes, repr=False)

    @property
    def id(self) -> str:
        return self.node.id

    @property
    def attrs(self) -> Any:
        return self.node.attrs

    @property
    def mode(self) -> Mode:
        return self.plan.mode

    @property
    def slices(self) -> int:
        return self.plan.slices

    @property
    def facts(self) -> dict[str, int]:
        return self.plan.facts

    @property
    def stages(self) -> int:
        return self.plan.stages

    @cached_property
    def op(self) -> Op:
        return op_named(self.node.op)

    @cached_property
    def chain(self) -> Loop:
        """Of a chain: its loop."""
        return Loop(self.signature)

    @property
    def dim(self) -> str:
        """The sliced dimension in the words of the library kernels."""
        return shapes.slice_dim(self.signature, self.mode)

    @property
    def streamed(self) -> int:
        """Elements of the blocks in which results are streamed past the caches; 0: they are not."""
        return block_of(self.plan.implementation) if self.plan.kernel == "loops" else 0

    @property
    def family(self) -> str:
        """The template that renders it. A single element-wise op that streams is a chain of one step, and so is a
        choice among floats on a processor."""
        choice = self.op.family == "choice" and self.plan.kernel == "loops" and self.inputs[0].ctype == "float"
        streams = self.streamed and self.op.family in STREAMED_FAMILIES
        return "chain" if choice or streams else self.op.family

    @property
    def library(self) -> str:
        """A slice's own scratch for the kernel library."""
        if "library" not in self.scratch:
            return "nullptr"
        return f"run.at<char>({self.scratch['library']}) + slice * {align(self.facts['scratch_bytes'])}"

    @property
    def uses_library(self) -> bool:
        return self.plan.kernel in ("onednn", "cudnn", "cublaslt")

    def operand(self, name: str) -> Operand:
        """`in0`, `out1`, `up0`: as ops name them."""
        for prefix, operands in (("in", self.inputs), ("out", self.outputs), ("up", self.updates)):
            if name.startswith(prefix) and name[len(prefix) :].isdecimal():
                return operands[int(name[len(prefix) :])]
        raise InternalError(f"node {self.id} has no operand {name}")


class Addresses:
    """Where every value is: in its pool's arena, or, for what views an input, in the caller's array."""

    def __init__(self, graph: Graph, plan: Plan, values: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        self._graph, self._plan, self._values, self._inputs = graph, plan, values, inputs
        self._pools = {p.name: i for i, p in enumerate(plan.pools)}
        self._owners = owners(plan)

    def root(self, value: str) -> str:
        """The value whose bytes this one uses."""
        return self._owners[value]

    def operand(self, value: str, written: bool = False) -> Operand:
        type_ = self._graph.value[value].type
        root = self.root(value)
        ctype, place = CTYPES[type_.dtype], f"value::{self._values[value]}"
        pool = self._pools[self._plan.placement[root].pool]
        if pool:
            return Operand(value, type_, f"run.at<{ctype}>({place}, {pool})", place)
        if self._graph.value[root].role is not Role.INPUT:
            return Operand(value, type_, f"run.at<{ctype}>({place})", place)
        if written:
            raise UserError(
                "SP1505",
                f"the plan writes {value!r} over the caller's array {root!r}",
                "plan again: inputs are read only",
            )
        return Operand(value, type_, f"run.input<{ctype}>(input::{self._inputs[root]})")


def scratch_expressions(plan: NodePlan, signature: Signature, place: str) -> dict[str, str]:
    """Scratch part -> its offset as an expression. `place`: where the node's scratch begins."""
    parts = running(op_named(signature.op), plan.mode).scratch(signature, plan.mode, plan.facts)
    return {name: place + (f" + {offset}" if offset else "") for name, offset in scratch_offsets(parts).items()}
