"""Half of 1 + tanh(u) is sigmoid(2 u): fewer steps, forward and backward, and no digits lost where tanh(u) is near -1.

gelu as GPT-2 spells it   a * 0.5 * (tanh((a + a ** 3.0 * 0.044715) * 0.7978846) + 1.0)
                          a * sigmoid((a + a ** 3.0 * 0.044715) * 1.5957692)
"""

from planner.graph.model import Attrs
from planner.ops.expression import Expression, Step
from planner.ops.scalar import ScalarAttrs


def with_sigmoids(expression: Expression) -> Expression:
    """The expression with sigmoids where it can have them; itself where it cannot."""
    known = _Known(expression)
    steps: list[Step] = []
    place: dict[int, int] = {v: v for v in range(expression.inputs)}
    """Where a value of the expression is in the new one."""

    def add(op: str, operands: tuple[int, ...], attrs: Attrs) -> int:
        steps.append(Step(op, attrs, operands))
        return expression.inputs + len(steps) - 1

    for number, step in enumerate(expression.steps, start=expression.inputs):
        found = known.sigmoid(step)
        if found is None:
            place[number] = add(step.op, tuple(place[v] for v in step.operands), step.attrs)
            continue
        inside, factor, times = found
        value = add("sigmoid", (add("scale", (place[inside],), ScalarAttrs(value=factor)),), Attrs())
        place[number] = value if times is None else add("mul", (place[times], value), Attrs())
    results = tuple(place[r] for r in expression.results)
    return _needed(Expression(expression.inputs, tuple(steps), results))


class _Known:
    """The steps of an expression, and which of them one other step alone reads."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        read = [*(v for s in expression.steps for v in s.operands), *expression.results]
        self._once = {v for v in read if read.count(v) == 1}

    def sigmoid(self, step: Step) -> tuple[int, float, int | None] | None:
        """(u, k, x) where the step is x * sigmoid(k u), or sigmoid(k u) where x is None."""
        if step.op == "scale" and step.attrs == ScalarAttrs(value=0.5):
            inside = self._one_and_tanh(step.operands[0])
            return (*self._doubled(inside), None) if inside is not None else None
        if step.op == "mul":
            for half, other in (step.operands, step.operands[::-1]):
                x, inside = self._operand(half, "scale", 0.5), self._one_and_tanh(other)
                if x is not None and inside is not None:
                    return (*self._doubled(inside), x)
        return None

    def _one_and_tanh(self, value: int) -> int | None:
        """u where the value is tanh(u) + 1."""
        inner = self._operand(value, "add_scalar", 1.0)
        return None if inner is None else self._operand(inner, "tanh")

    def _doubled(self, inside: int) -> tuple[int, float]:
        """2 u as a value and its factor."""
        step = self._step(inside)
        if step is not None and step.op == "scale" and isinstance(step.attrs, ScalarAttrs) and inside in self._once:
            return step.operands[0], 2 * step.attrs.value
        return inside, 2.0

    def _operand(self, value: int, op: str, number: float | None = None) -> int | None:
        """What a step that nothing else reads is made of, where it is of that op, with that number."""
        step = self._step(value)
        attrs = Attrs() if number is None else ScalarAttrs(value=number)
        if step is None or value not in self._once or step.op != op or step.attrs != attrs:
            return None
        return step.operands[0]

    def _step(self, value: int) -> Step | None:
        return self._expression.steps[value - self._expression.inputs] if value >= self._expression.inputs else None


def _needed(expression: Expression) -> Expression:
    """Without the steps that no result needs."""
    first, needed = expression.inputs, set(expression.results)
    for number, step in reversed(list(enumerate(expression.steps, start=first))):
        if number in needed:
            needed.update(step.operands)
    place = {v: v for v in range(first)}
    steps: list[Step] = []
    for number, step in enumerate(expression.steps, start=first):
        if number in needed:
            place[number] = first + len(steps)
            steps.append(step._replace(operands=tuple(place[v] for v in step.operands)))
    return Expression(first, tuple(steps), tuple(place[r] for r in expression.results))
