"""The gradient of an expression as another expression: what a chain's backward node computes of every element.

It computes the values between the steps again from the chain's inputs, so none of them is kept; where it is enough to
know the chain's result (relu, sigmoid, tanh as the last step), that is read instead.

    y = a * sigmoid(b)        u = sigmoid(b); dy * u, sigmoid_backward(dy * a, u)
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.graph.model import Attrs
from planner.ops.activation import Unary
from planner.ops.base import op_named
from planner.ops.binary import BinaryGradAttrs
from planner.ops.expression import Expression, Step, constant

Ref = str | int
"""A leaf's name (`dy`, `y`, an input's number as text) or a step's number."""
DY, Y = "dy", "y"


class Backward(NamedTuple):
    """The gradient of an expression by some of its inputs."""

    expression: Expression
    reads: tuple[str, ...]
    """Its operands: `dy`, the forward inputs by number, `y`."""
    result: Mapping[int, int]
    """Forward input -> which result is its gradient; -1: dy itself."""


@dataclass
class _Steps:
    """Steps as they are needed, each once."""

    made: list[tuple[str, Attrs, tuple[Ref, ...]]] = field(default_factory=list)
    _known: dict[tuple[str, Attrs, tuple[Ref, ...]], int] = field(default_factory=dict)

    def add(self, op: str, operands: Sequence[Ref], attrs: Attrs | None = None) -> int:
        key = (op, attrs if attrs is not None else Attrs(), tuple(operands))
        if key not in self._known:
            self._known[key] = len(self.made)
            self.made.append(key)
        return self._known[key]


def backward_of(forward: Expression, wanted: Collection[int], sizes: Sequence[int]) -> Backward:
    """The gradient of an expression with one result by the inputs `wanted`. `sizes`: elements of every input, by which
    reading the result is weighed against computing it again; the result has as many as the largest."""
    choices = [_backward(forward, wanted, from_result) for from_result in (True, False)]

    def weight(choice: Backward) -> int:
        return sum(max(sizes) if leaf == Y else sizes[int(leaf)] for leaf in choice.reads if leaf != DY)

    return min(choices, key=weight)


def _backward(forward: Expression, wanted: Collection[int], from_result: bool) -> Backward:
    """`from_result`: the expression's result is read and not computed."""
    steps = _Steps()
    (result,) = forward.results
    value: list[Ref] = [str(i) for i in range(forward.inputs)]
    for number, step in enumerate(forward.steps, start=forward.inputs):
        if number == result and from_result:
            value.append(Y)
        else:
            value.append(steps.add(step.op, [value[v] for v in step.operands], step.attrs))
    arrived: dict[int, Ref] = {result: DY}
    for number in reversed(range(forward.inputs, len(value))):
        if number not in arrived:
            continue
        step = forward.steps[number - forward.inputs]
        operands = [value[v] for v in step.operands]
        parts = _gradients(steps, step, arrived[number], operands, value[number])
        for operand, part in zip(step.operands, parts, strict=False):
            if part is None:
                continue
            before = arrived.get(operand)
            arrived[operand] = part if before is None else steps.add("add", [before, part])
    return _pruned(steps, {i: arrived[i] for i in sorted(wanted) if i in arrived})


def _gradients(steps: _Steps, step: Step, dy: Ref, x: Sequence[Ref], y: Ref) -> Sequence[Ref | None]:
    """The gradient by every operand of one step; none where it is flat."""
    rule = _RULES.get(step.op)
    if rule is not None:
        return rule(steps, dy, x)
    op = op_named(step.op)
    if not op.differentiable or step.constant is not None:
        return []
    if isinstance(op, Unary):
        return [steps.add(f"{step.op}_backward", [dy, x[0] if op.needs == "x" else y], step.attrs)]
    if step.op == "scale":
        return [steps.add("scale", [dy], step.attrs)]
    if step.op == "add_scalar":
        return [dy]
    if step.op == "pow_scalar":
        return [steps.add("pow_scalar_backward", [dy, x[0]], step.attrs)]
    return [steps.add(f"{step.op}_backward", [dy, *x], BinaryGradAttrs(operand=i)) for i in (0, 1)]


def _where(steps: _Steps, dy: Ref, x: Sequence[Ref]) -> Sequence[Ref | None]:
    """dy where an operand is chosen, else 0: whatever dy is there, infinite or NaN."""
    zero = steps.add("ones", [], constant(0.0).attrs)
    return [None, steps.add("where", [x[0], dy, zero]), steps.add("where", [x[0], zero, dy])]


_RULES: Mapping[str, Callable[[_Steps, Ref, Sequence[Ref]], Sequence[Ref | None]]] = {
    "add": lambda s, dy, x: [dy, dy],
    "sub": lambda s, dy, x: [dy, s.add("neg", [dy])],
    "mul": lambda s, dy, x: [s.add("mul", [dy, x[1]]), s.add("mul", [dy, x[0]])],
    "div": lambda s, dy, x: [s.add("div", [dy, x[1]]), s.add("div_backward", [dy, *x], BinaryGradAttrs(operand=1))],
    "remainder": lambda s, dy, x: [dy, s.add("remainder_backward", [dy, *x], BinaryGradAttrs(operand=1))],
    "fmod": lambda s, dy, x: [dy, s.add("fmod_backward", [dy, *x], BinaryGradAttrs(operand=1))],
    "neg": lambda s, dy, x: [s.add("neg", [dy])],
    "where": _where,
}


def differentiable(op: str) -> bool:
    """Whether `backward_of` knows the op."""
    return (
        op in _RULES
        or isinstance(op_named(op), Unary)
        or op in ("scale", "add_scalar", "pow", "pow_scalar", "maximum", "minimum", "compare")
    )


def _pruned(steps: _Steps, gradients: Mapping[int, Ref]) -> Backward:
    """Only what the gradients need, numbered; gradients that are the same value are one result."""
    needed: set[Ref] = set()
    pending = list(gradients.values())
    while pending:
        ref = pending.pop()
        if ref not in needed:
            needed.add(ref)
            pending += steps.made[ref][2] if isinstance(ref, int) else ()
    forward = sorted((r for r in needed if isinstance(r, str) and r not in (DY, Y)), key=int)
    reads = (DY, *forward, *((Y,) if Y in needed else ()))
    number: dict[Ref, int] = {leaf: i for i, leaf in enumerate(reads)}
    kept: list[Step] = []
    for position, (op, attrs, operands) in enumerate(steps.made):
        if position in needed:
            number[position] = len(reads) + len(kept)
            kept.append(Step(op, attrs, tuple(number[o] for o in operands)))
    results = tuple(dict.fromkeys(number[g] for g in gradients.values() if g != DY))
    given = {i: -1 if g == DY else results.index(number[g]) for i, g in gradients.items()}
    return Backward(Expression(len(reads), tuple(kept), results), reads, given)
