"""What a chain computes of every element, as text and as steps: `u = sigmoid(b); a * u + c`.

The text is a small part of Python's grammar: statements `name = expression`, separated by semicolons, the last of them
the results, separated by commas. The operands are a, b, c, ... Functions are the element-wise ops by name, with their
attributes behind the operands (`clamp(a, 0.0, 6.0)`); `+ - * /` are the ops add, sub, mul and div, or add_scalar and
scale where one side is a number, and `a ** 2.0` is pow_scalar. A number as a function's operand is a constant
(`where(compare(a, 0.0, 'gt'), a, -1.0)`). It is parsed, never run.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from string import ascii_lowercase
from typing import Any, NamedTuple

from pydantic import ValidationError

from planner.graph.model import Attrs
from planner.ops.base import Op, find_op, misfit
from planner.ops.shape import FillAttrs

FAMILIES = frozenset({"elementwise", "binary", "choice"})
"""Of the ops that compute an element of their result from the operands' elements at the same place."""

MOST_INPUTS, MOST_RESULTS, MOST_CHARACTERS = 12, 8, 4000

_ALLOWED = re.compile(r"[A-Za-z0-9_ ,.;=+\-*/()']*")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow_scalar": "**"}
_BINARY: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "add_scalar"),
    ast.Sub: ("sub", "add_scalar"),
    ast.Mult: ("mul", "scale"),
    ast.Div: ("div", ""),
    ast.Pow: ("", "pow_scalar"),
}
"""Operator -> (op of two tensors, op of a tensor and a number)."""
_COMMUTES = frozenset({ast.Add, ast.Mult})
_SUM, _PRODUCT, _SIGN, _POWER, _CALL = range(1, 6)
"""How tightly an expression binds."""


class Step(NamedTuple):
    """One op. `operands`: the expression's inputs are 0, 1, ..., behind them come the steps."""

    op: str
    attrs: Attrs
    operands: tuple[int, ...]

    @property
    def constant(self) -> float | None:
        """The number that this step is."""
        return self.attrs.value if isinstance(self.attrs, FillAttrs) else None


def constant(value: float) -> Step:
    """A number among the operands."""
    return Step("ones", FillAttrs(shape=(), value=value), ())


@dataclass(frozen=True)
class Expression:
    """Steps in order, and which values are the results."""

    inputs: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @cached_property
    def text(self) -> str:
        """The text that parses to this expression: a step that is used once stands where it is used."""
        uses = [0] * (self.inputs + len(self.steps))
        for value in (*(v for s in self.steps for v in s.operands), *self.results):
            uses[value] += 1
        printed: list[tuple[str, int]] = [(name, _CALL) for name in names(self.inputs)]
        statements: list[str] = []
        for number, step in enumerate(self.steps):
            shown = _printed(step, [printed[v] for v in step.operands])
            if uses[self.inputs + number] > 1 and step.constant is None:
                name = f"u{len(statements) + 1}"
                statements.append(f"{name} = {shown[0]}")
                shown = (name, _CALL)
            printed.append(shown)
        return "; ".join([*statements, ", ".join(printed[v][0] for v in self.results)])


def names(inputs: int) -> tuple[str, ...]:
    """What the text calls its operands, and a loop over i its own."""
    return tuple(ascii_lowercase.replace("i", "")[:inputs])


def function_of(op: Op) -> tuple[str, ...]:
    """The names of the attributes behind the operands; SP1002 where the op is none of single elements."""
    if op.family not in FAMILIES:
        raise misfit(f"{op.name} is no function of single elements", "use element-wise ops in a chain")
    return tuple(op.attrs_type.model_fields)


def takes_numbers(op: str) -> bool:
    """Whether the text can have a number where the op has an operand."""
    return op not in _INFIX


def _printed(step: Step, operands: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """A step's text, and how tightly it binds."""

    def side(index: int, least: int) -> str:
        text, binds = operands[index]
        return text if binds >= least else f"({text})"

    if step.constant is not None:
        return repr(step.constant), _CALL
    if step.op in ("add", "sub"):
        return f"{side(0, _SUM)} {_INFIX[step.op]} {side(1, _PRODUCT)}", _SUM
    if step.op in ("mul", "div"):
        return f"{side(0, _PRODUCT)} {_INFIX[step.op]} {side(1, _SIGN)}", _PRODUCT
    if step.op == "neg":
        return f"-{side(0, _POWER)}", _SIGN
    fields = step.attrs.model_dump(mode="json")
    if step.op == "scale":
        return f"{side(0, _PRODUCT)} * {fields['value']!r}", _PRODUCT
    if step.op == "add_scalar":
        value = fields["value"]
        return f"{side(0, _SUM)} {f'- {-value!r}' if value < 0 else f'+ {value!r}'}", _SUM
    if step.op == "pow_scalar":
        return f"{side(0, _CALL)} ** {fields['value']!r}", _POWER
    defaults = {k: f.default for k, f in type(step.attrs).model_fields.items()}
    numbers = list(fields.items())
    while numbers and numbers[-1][1] == defaults[numbers[-1][0]]:
        numbers.pop()
    given = ", ".join([*(text for text, _ in operands), *(repr(v) for _, v in numbers)])
    return f"{step.op}({given})", _CALL


@lru_cache(maxsize=4096)
def parse(text: str, inputs: int) -> Expression:
    """The steps of an expression of `inputs` operands. SP1002: it is none."""
    if len(text) > MOST_CHARACTERS or not _ALLOWED.fullmatch(text):
        raise misfit(f"{text[:80]!r} is no expression of a chain", "write names, numbers and + - * / ** ( ) , ; =")
    if not 1 <= inputs <= MOST_INPUTS:
        raise misfit(f"a chain of {inputs} operands", f"give it 1 to {MOST_INPUTS}")
    try:
        return _Parser(text, inputs).expression()
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise misfit(f"{text[:80]!r} is no expression of a chain: {error}", "correct the graph") from None


class _Parser:
    def __init__(self, text: str, inputs: int) -> None:
        self._text = text
        self._inputs = inputs
        self._known = {name: i for i, name in enumerate(names(inputs))}
        self._steps: list[Step] = []
        self._constants: dict[float, int] = {}

    def expression(self) -> Expression:
        statements = ast.parse(self._text.strip()).body
        for statement in statements[:-1]:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if not isinstance(target, ast.Name) or target.id in self._known or len(statement.targets) > 1:  # type: ignore[attr-defined]
                raise self._wrong("an assignment to a new name", statement)
            self._known[target.id] = self._value(statement.value)  # type: ignore[attr-defined]
        last = statements[-1] if statements else None
        if not isinstance(last, ast.Expr):
            raise misfit(f"the chain {self._text[:80]!r} has no result", "end it with an expression")
        results = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        if not 1 <= len(results) <= MOST_RESULTS:
            raise misfit(f"a chain of {len(results)} results", f"let it have 1 to {MOST_RESULTS}")
        found = tuple(self._value(r) for r in results)
        return Expression(inputs=self._inputs, steps=tuple(self._steps), results=found)

    def _wrong(self, wanted: str, node: ast.AST) -> Exception:
        return misfit(f"in the chain {self._text[:80]!r} stands {ast.unparse(node)[:40]!r}, not {wanted}", "correct it")

    def _add(self, op: str, operands: Sequence[int], given: Sequence[Any] = ()) -> int:
        definition = find_op(op)
        if definition is None:
            raise misfit(f"the chain {self._text[:80]!r} uses the unknown op {op[:40]!r}", "use element-wise ops")
        fields = function_of(definition)
        if len(operands) not in definition.input_counts or len(given) > len(fields):
            raise misfit(f"{op} has other operands than in the chain {self._text[:80]!r}", "give it what it takes")
        try:
            attrs = definition.attrs_type.model_validate(dict(zip(fields, given, strict=False)))
        except ValidationError as error:
            raise misfit(f"{op} in a chain: {error.errors()[0]['msg']}", "give it the attributes it takes") from None
        return self._append(Step(op, attrs, tuple(operands)))

    def _append(self, step: Step) -> int:
        self._steps.append(step)
        return self._inputs + len(self._steps) - 1

    def _operand(self, node: ast.expr) -> int:
        """Of a function: a number, too."""
        if not _is_constant(node):
            return self._value(node)
        value = ast.literal_eval(node)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self._wrong("a number", node)
        if value not in self._constants:
            self._constants[value] = self._append(constant(float(value)))
        return self._constants[value]

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Name(id=name) if name in self._known:
                return self._known[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._add("neg", [self._value(operand)])
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
                return self._operation(type(operator), left, right)
            case ast.Call(func=ast.Name(id=op), args=arguments, keywords=[]):
                definition = find_op(op)
                count = max(definition.input_counts, default=0) if definition else 0
                given = [ast.literal_eval(a) for a in arguments[count:]]
                return self._add(op, [self._operand(a) for a in arguments[:count]], given)
        raise self._wrong("an operand, an operation or a function", node)

    def _operation(self, operator: type[ast.operator], left: ast.expr, right: ast.expr) -> int:
        both, with_number = _BINARY[operator]
        if _is_constant(left) and operator in _COMMUTES:
            left, right = right, left
        if _is_constant(right) and not _is_constant(left) and with_number:
            number = float(ast.literal_eval(right))
            return self._add(with_number, [self._value(left)], [-number if operator is ast.Sub else number])
        if not both:
            raise self._wrong("a number as exponent", right)
        return self._add(both, [self._value(left), self._value(right)])


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant)
