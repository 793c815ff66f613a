"""What a branch on numbers of data is for, by its source. A plan has one order, so none can be taken; but where one
side only checks (an assertion, a branch that raises, or that prints), forward goes on along the other."""

import ast
import dis
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import NamedTuple

from planner.frontends.torch_places import OURS

_TELLING = frozenset({
    "breakpoint", "critical", "debug", "error", "exception", "exit", "info", "log", "print", "set_trace", "warn",
    "warn_once", "warning", "warning_once",
})  # fmt: skip
"""Functions and methods that compute nothing, as those do whose names end in _warn or _warning (rank_zero_warn)."""
_THROUGH = frozenset({"all", "any", "bool"})
"""Builtins that ask their arguments what they are asked."""
_ON_TRUTH = frozenset({"CACHE", "COPY", "SWAP", "TO_BOOL", "UNARY_NOT"})
"""Instructions between what computes an expression and what branches on its truth, besides jumps."""

Span = tuple[int, int, int, int]
"""First line and column, last line and column."""


def asking(frame: FrameType | None) -> FrameType | None:
    """The innermost of these frames that is not ours."""
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


def unchecked(frame: FrameType | None) -> bool | None:
    """The truth of what is asked at a frame with which forward goes on past a check; None where it is no check, or
    there is no source."""
    asked = expression_of(frame)
    if frame is None or asked is None:
        return None
    for test, wanted in _checks(frame.f_code.co_filename):
        if within(asked.span, test):
            return _wanted(test, wanted, asked)
    return None


class Expression(NamedTuple):
    """An expression. `by_call`: whether its truth is not asked, but that of an argument of the call that it is."""

    span: Span
    by_call: bool


def expression_of(frame: FrameType | None) -> Expression | None:
    """The one whose truth is asked at a frame; None where its source does not say."""
    if frame is None:
        return None
    before = [i for i in dis.get_instructions(frame.f_code) if i.offset <= frame.f_lasti]
    # A branch has its statement's span, or none of its own: what computed the expression has the expression's.
    asked = next((i for i in reversed(before) if "JUMP" not in i.opname and i.opname not in _ON_TRUTH), None)
    at = asked.positions if asked is not None else None
    if asked is None or at is None or None in at:
        return None
    first, last, column, end = (int(part or 0) for part in at)
    return Expression((first, column, last, end), asked is before[-1] and asked.opname.startswith("CALL"))


@cache
def tree_of(file: str) -> ast.Module | None:
    try:
        with open(file, "rb") as opened:
            return ast.parse(opened.read())
    except (OSError, SyntaxError, ValueError):
        return None


@cache
def _checks(file: str) -> tuple[tuple[ast.expr, bool], ...]:
    """(test, what it is where all is well) of all checks in a file."""
    tree = tree_of(file)
    found: list[tuple[ast.expr, bool]] = []
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append((node.test, True))
        elif isinstance(node, ast.If) and _only_tells(node.body):
            found.append((node.test, False))
    return tuple(found)


def _only_tells(body: Sequence[ast.stmt]) -> bool:
    """It ends in an error, or does nothing but tell."""
    return isinstance(body[-1], ast.Raise) or all(
        isinstance(s, ast.Import | ast.ImportFrom | ast.Pass) or (isinstance(s, ast.Expr) and _tells(s.value))
        for s in body
    )


def _tells(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in _TELLING or name.endswith(("_warn", "_warning"))


def given_names(*nodes: ast.AST) -> set[str]:
    """Those to which something is assigned there."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def span_of(node: ast.expr) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def within(span: Span, node: ast.expr) -> bool:
    outer = span_of(node)
    return outer[:2] <= span[:2] and span[2:] <= outer[2:]


def _wanted(node: ast.expr, wanted: bool, asked: Expression) -> bool | None:
    """What the asked part of a test is to be for the whole to be `wanted`."""
    whole = span_of(node) == asked.span
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and not whole:
        return _wanted(node.operand, not wanted, asked)
    through = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _THROUGH
    if whole:
        denied = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn)  # `in` is asked, then denied
        return wanted is not denied if through or not asked.by_call else None
    parts = node.values if isinstance(node, ast.BoolOp) else node.args if isinstance(node, ast.Call) and through else ()
    part = next((p for p in parts if within(asked.span, p)), None)
    return None if part is None else _wanted(part, wanted, asked)
