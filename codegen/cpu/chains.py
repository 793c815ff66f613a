"""What templates see of a chain: its operands, how its loop calls them, and a line per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from codegen.cpu.filters import f32
from codegen.cpu.shapes import broadcast
from planner.artefact import sha256
from planner.graph.model import DType
from planner.ops.base import Op, Signature, op_named
from planner.ops.expression import Expression, Step, names
from planner.ops.strides import Strides

C_FLOATS = {DType.FLOAT32: "float", DType.BFLOAT16: "bfloat16"}


class Line(NamedTuple):
    """One step."""

    name: str
    step: Step
    op: Op
    operands: tuple[str, ...]
    """As they are called in the loop."""


class Operand(NamedTuple):
    name: str
    walk: int
    """Its number among the operands that are broadcast, or -1: it is read as the results are written."""
    strides: Strides
    """Over the merged dimensions."""

    @property
    def stride(self) -> int:
        """From one element of a row to the next."""
        return self.strides[-1]


@dataclass(frozen=True)
class Loop:
    signature: Signature

    @cached_property
    def expression(self) -> Expression:
        op: Any = op_named(self.signature.op)
        if op.family != "chain":
            inputs = len(self.signature.inputs)
            step = Step(op.name, self.signature.attrs, tuple(range(inputs)))
            return Expression(inputs, (step,), (inputs,))
        found: Expression = op.expression(self.signature.attrs, self.signature.inputs)
        return found

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the results, merged to as few dimensions as all operands allow."""
        return broadcast(self.signature.outputs[0], *self.signature.inputs)[0]

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        y, inputs = self.signature.outputs[0], self.signature.inputs
        walks = broadcast(y, *inputs)[1]
        found: list[Operand] = []
        for name, type_, strides in zip(names(len(inputs)), inputs, walks, strict=True):
            walk = -1 if type_ == y else sum(o.walk >= 0 for o in found)
            found.append(Operand(name, walk, strides))
        return tuple(found)

    @property
    def walking(self) -> tuple[Operand, ...]:
        """The operands that are broadcast."""
        return tuple(o for o in self.operands if o.walk >= 0)

    @property
    def name(self) -> str:
        """Of a function of its own that runs the loop, the same for all nodes of this signature."""
        return f"chain_{sha256(self.signature.text)[:8]}"

    @property
    def ctype(self) -> str:
        """Of all operands and results."""
        return C_FLOATS[self.signature.outputs[0].dtype]

    @property
    def parameters(self) -> str:
        """Of that function on a GPU."""
        types = [C_FLOATS[t.dtype] for t in (*self.signature.inputs, *self.signature.outputs)]
        operands = [f"const {t}* {o.name}" for t, o in zip(types, self.operands, strict=False)]
        given = [*operands, *(f"{types[-1]}* {r}" for r in self.results)]
        return ", ".join(["gpu::Queue queue", *given])

    @property
    def dense(self) -> tuple[str, ...]:
        """Results, and the operands that lie as they do."""
        return (*self.results, *(o.name for o in self.operands if o.walk < 0))

    @property
    def element_parameters(self) -> str:
        """One element of each of those: what a GPU's thread is given."""
        types = [C_FLOATS[t.dtype] for t in self.signature.inputs]
        result = C_FLOATS[self.signature.outputs[0].dtype]
        operands = [f"{t} {o.name}" for t, o in zip(types, self.operands, strict=True) if o.walk < 0]
        return ", ".join([*(f"{result}& {r}" for r in self.results), *operands])

    @property
    def results(self) -> tuple[str, ...]:
        """The results' names."""
        return tuple(f"y{i or ''}" for i in range(len(self.signature.outputs)))

    def lines(self, elements: Sequence[str]) -> tuple[Line, ...]:
        """The steps, given what the loop calls every operand's element."""
        return tuple(Line(name, step, op_named(step.op), given) for name, step, given in self._called(elements)[1])

    def values(self, elements: Sequence[str]) -> tuple[str, ...]:
        """What the results become."""
        return tuple(self._called(elements)[0][r] for r in self.expression.results)

    def _called(self, elements: Sequence[str]) -> tuple[list[str], list[tuple[str, Step, tuple[str, ...]]]]:
        """What operands and steps are called, and the steps that are computed."""
        called = list(elements)
        found: list[tuple[str, Step, tuple[str, ...]]] = []
        for step in self.expression.steps:
            name = f"u{len(found) + 1}" if step.constant is None else f32(step.constant)
            if step.constant is None:
                found.append((name, step, tuple(called[v] for v in step.operands)))
            called.append(name)
        return called, found
