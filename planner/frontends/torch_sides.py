"""Code with both sides of a branch, one behind the other, by its source. Of

    if CONDITION:
        y = f(x)
    else:
        y = g(x)

and of `y = f(x) if CONDITION else g(x)` becomes `y = f(x)`, then `y = g(x)` with all names as they were before, then
what CONDITION chooses. A side that ends in `return` has the rest of the function as its other side. That is the same
where sides do no more than compute and give names: they write to tensors (which torch_branches.py looks after), to
lists and dicts that they have made, and call functions."""

import ast
import copy
from collections.abc import Sequence, Set
from types import CodeType, FunctionType
from typing import TypeGuard

from planner.frontends.torch_checked import Span, given_names, span_of, tree_of
from planner.frontends.torch_slots import codes_of

SIDES = "_stepplan_sides"
"""The global name of what is asked for which sides to run."""
_RESULT = "_stepplan_result"
_CHANGING = frozenset({
    "append", "appendleft", "clear", "extend", "insert", "pop", "popitem", "popleft", "remove", "setdefault", "update",
})  # fmt: skip
"""Methods that change lists and dicts."""
_MADE = ast.List | ast.Dict | ast.ListComp | ast.DictComp
_LOOP = ast.For | ast.While
_UNKNOWN = ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await | ast.Lambda | ast.Try

Function = ast.FunctionDef
Block = list[ast.stmt]


class Refused(Exception):
    """There is more in a side than can be run and not chosen."""


def with_both_sides(function: FunctionType, spans: frozenset[Span], changeable: Set[str]) -> CodeType:
    """The code of a function that runs both sides of the branches whose conditions are there. `changeable`: names of
    tensors, and of what `+=` makes anew. Refused: there is no such code."""
    original = function.__code__
    tree = copy.deepcopy(tree_of(original.co_filename))
    if tree is None:
        raise Refused
    for node in ast.walk(tree):
        if (
            isinstance(node, Function)
            and node.name == original.co_name
            and _first_line(node) == original.co_firstlineno
        ):
            # Assertions may have been rewritten by who runs tests.
            if not any(isinstance(n, ast.Assert) for n in ast.walk(node)) and _compiled(tree, original) != original:
                raise Refused  # the file is another one by now
            node.body = _Writer(node, spans, changeable).block(node.body, True, False)
            made = _compiled(ast.fix_missing_locations(tree), original)
            if made is None or made.co_freevars != original.co_freevars:
                raise Refused
            return made
    raise Refused


def _compiled(tree: ast.Module, like: CodeType) -> CodeType | None:
    """The code in a file that has the name and place of another."""
    made = compile(tree, like.co_filename, "exec", dont_inherit=True)
    same = [c for c in codes_of(made) if (c.co_qualname, c.co_firstlineno) == (like.co_qualname, like.co_firstlineno)]
    return same[0] if same else None


def _first_line(node: Function) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


class _Writer:
    def __init__(self, function: Function, spans: frozenset[Span], changeable: Set[str]) -> None:
        self._spans, self._changeable = spans, changeable
        shared = [n for n in ast.walk(function) if isinstance(n, ast.Global | ast.Nonlocal)]
        self._shared = {name for n in shared for name in n.names}
        loaded = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        self._read = {id(n): n for n in loaded}
        """By the ids of the nodes that read them."""
        owners = [n.value for n in ast.walk(function) if isinstance(n, ast.Subscript | ast.Attribute)]
        self._of_parts = {id(n) for n in owners}
        """Those that read no more than a part of what a name holds."""
        self._lambdas: dict[int, ast.Lambda] = {}
        """Those that are made here, by id."""

    def block(self, block: Block, last: bool, looped: bool) -> Block:
        """`last`: whether the function ends behind it; `looped`: whether it is in a loop."""
        written: Block = []
        for place, statement in enumerate(block):
            rest = block[place + 1 :]
            chosen = self._expression(statement, looped)
            if chosen:
                written += chosen
                continue
            if isinstance(statement, ast.If) and self._is_asked(statement.test):
                body, orelse = statement.body, statement.orelse
                returns = _returns(body) or _returns(orelse)
                if returns:
                    if not last or not (_ends(body) or _ends(orelse)):
                        raise Refused
                    body = body if _ends(body) else body + rest
                    orelse = orelse if _ends(orelse) else orelse + rest
                    body, orelse = (_settled(self.block(side, True, looped)) for side in (body, orelse))
                else:
                    body, orelse = (self.block(side, False, looped) for side in (body, orelse))
                written += self._choice(statement, body, orelse, looped)
                if returns:
                    written.append(ast.copy_location(ast.Return(ast.Name(_RESULT, ast.Load())), statement.test))
                    return written
                continue
            if isinstance(statement, _LOOP) and any(self._skips(n) for n in ast.walk(statement)):
                statement.body = _turn(statement.body)
            for name in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(statement, name, None), list) and not isinstance(statement, Function):
                    ends = last and not rest and isinstance(statement, ast.If)
                    setattr(statement, name, self.block(inner, ends, looped or isinstance(statement, _LOOP)))
            written.append(statement)
        return written

    def _expression(self, statement: ast.stmt, looped: bool) -> Block:
        """Of `y = a if CONDITION else b`, and of what returns that."""
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        if not isinstance(value, ast.IfExp) or not self._is_asked(value.test):
            return []
        if isinstance(statement, ast.Return):
            made = ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], value), statement)
            return [
                *self._expression(made, looped),
                ast.copy_location(ast.Return(ast.Name(_RESULT, ast.Load())), statement),
            ]
        assert isinstance(statement, ast.Assign)
        sides = [ast.copy_location(ast.Assign(statement.targets, x), x) for x in (value.body, value.orelse)]
        branch = ast.copy_location(ast.If(value.test, [sides[0]], [sides[1]]), statement)
        body, orelse = (self.block([side], False, looped) for side in sides)
        return self._choice(branch, body, orelse, looped)

    def _skips(self, node: ast.AST) -> bool:
        """Whether it is a branch with both sides of which one goes on to the next turn."""
        return isinstance(node, ast.If) and self._is_asked(node.test) and _goes_on([node])

    def _is_asked(self, test: ast.expr) -> bool:
        parts = [n for n in ast.walk(test) if isinstance(n, ast.expr)]
        return any(span_of(n) in self._spans for n in parts if _asks(test, n))

    def _choice(self, statement: ast.If, body: Block, orelse: Block, looped: bool) -> Block:
        for side in (body, orelse):
            self._require_plain(side, set(), set())
        names = sorted({n for n in given_names(*body, *orelse) if not n.startswith(SIDES)})
        if self._shared & set(names) or any(
            n.startswith("__") for n in names
        ):  # which may have another name in classes
            raise Refused
        inner = {id(n) for s in (*body, *orelse) for n in ast.walk(s)}
        behind = [n for key, n in self._read.items() if looped or key not in inner]
        read, whole = ({n.id for n in found} | {_RESULT} for found in (behind, self._whole(behind)))
        sides = f"{SIDES}_{statement.lineno}_{statement.col_offset}"
        (call,) = _parsed(f"{sides} = {SIDES}(None, locals())", statement.test)
        assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
        self._require_no_effects(statement.test, set())
        call.value.args[0] = self._condition(statement.test)
        written: Block = [call]
        for number, block in enumerate((body, orelse)):
            (run,) = _parsed(f"if {sides}.runs({number}):\n pass", statement.test)
            assert isinstance(run, ast.If)
            run.body = block or run.body
            given = [
                f"if {n!r} in {sides}: {n} = {sides}.given({n!r}, {number == 0 or n in whole})"
                for n in names
                if number == 0 or n in read
            ]
            written += [run, *_parsed("\n".join([f"{sides}.leave(locals())", *given]), statement.test)]
        return written

    def _condition(self, test: ast.expr) -> ast.expr:
        """With a call for what would ask parts of it."""
        if isinstance(test, ast.Compare) and len(test.ops) > 1:
            ends = [test.left, *test.comparators]
            if not all(isinstance(n, ast.Name | ast.Constant) for n in ends[1:-1]):
                raise Refused
            pairs = zip(ends, test.ops, ends[1:], strict=False)
            parts: list[ast.expr] = [ast.Compare(left, [op], [right]) for left, op, right in pairs]
            test = ast.copy_location(ast.BoolOp(ast.And(), [ast.copy_location(p, test) for p in parts]), test)
        inner = test.values if isinstance(test, ast.BoolOp) else [test.operand] if _is_not(test) else []
        if not inner:
            return test
        name = "nor" if _is_not(test) else "any" if isinstance(test.op, ast.Or) else "all"  # type: ignore[attr-defined]
        (call,) = _parsed(f"{SIDES}.{name}({', '.join('lambda: 0' for _ in inner)})", test)
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        for part, made in zip(inner, call.value.args, strict=True):
            assert isinstance(made, ast.Lambda)
            self._lambdas[id(made)] = made
            made.body = self._condition(part)
        return call.value

    def _whole(self, names: Sequence[ast.Name]) -> list[ast.Name]:
        return [n for n in names if id(n) not in self._of_parts]

    def _require_plain(self, block: Block, made: set[str], own: set[str]) -> None:
        """`made`: names of lists and dicts that are made within the side; `own`: all that it gives."""
        for node in block:
            self._require_no_effects(node, made)
            self._require_plain_statement(node, made, own)
            own |= given_names(node)

    def _require_no_effects(self, node: ast.AST, made: set[str]) -> None:
        for n in ast.walk(node):
            called = n.func if isinstance(n, ast.Call) else None
            changes = isinstance(called, ast.Attribute) and called.attr in _CHANGING
            if (isinstance(n, _UNKNOWN) and id(n) not in self._lambdas) or (
                isinstance(called, ast.Name) and called.id == "next"
            ):
                raise Refused
            if isinstance(called, ast.Attribute) and changes and not _is_named(called.value, made):
                raise Refused

    def _require_plain_statement(self, node: ast.stmt, made: set[str], own: set[str]) -> None:
        def changed(target: ast.expr) -> bool:
            """Whether it is what the side may write to, or a part of that."""
            inner = target.value if isinstance(target, ast.Subscript) else target
            return _is_named(inner, made | own | self._changeable)

        match node:
            case ast.Assign(targets=targets, value=value):
                flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
                if not all(isinstance(t, ast.Name) or (isinstance(t, ast.Subscript) and changed(t)) for t in flat):
                    raise Refused
                named = {t.id for t in flat if isinstance(t, ast.Name)}
                made -= named
                made |= named if isinstance(value, _MADE) else set()
            case ast.AnnAssign(target=ast.Name()):
                pass
            case ast.AugAssign(target=target) if changed(target):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name.startswith(SIDES):
                pass  # of a branch within the side
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))):
                in_place = method.endswith("_") and not method.endswith("__") and changed(target)
                if not in_place and method not in _CHANGING:  # of what is made within the side
                    raise Refused
            case ast.If(body=body, orelse=orelse) | ast.For(body=body, orelse=orelse):
                self._require_plain(body, made, own)
                self._require_plain(orelse, made, own)
            case ast.With(body=body):
                self._require_plain(body, made, own)
            case ast.Pass() | ast.Assert() | ast.Raise() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise Refused


def _parsed(text: str, at: ast.expr) -> Block:
    """Statements that are at a node's place."""
    made = ast.parse(text).body
    for statement in made:
        for node in ast.walk(statement):
            ast.copy_location(node, at)
    return made


def _asks(test: ast.expr, part: ast.expr) -> bool:
    """Whether the truth of the whole is asked of this part."""
    inner = test.values if isinstance(test, ast.BoolOp) else [test.operand] if _is_not(test) else []
    return part is test if not inner else any(_asks(n, part) for n in inner)


def _is_not(node: ast.expr) -> TypeGuard[ast.UnaryOp]:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _returns(block: Sequence[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for s in block for n in ast.walk(s))


def _goes_on(block: Sequence[ast.stmt]) -> bool:
    """Whether there is a `continue` of the loop that it stands in."""
    return any(
        isinstance(s, ast.Continue)
        or (
            not isinstance(s, _LOOP) and any(_goes_on(getattr(s, name, [])) for name in ("body", "orelse", "finalbody"))
        )
        for s in block
    )


def _turn(block: Block) -> Block:
    """The same turn of a loop without `continue`: what it skips is the other side."""
    for place, statement in enumerate(block):
        if isinstance(statement, ast.Continue):
            return block[:place]
        if _goes_on([statement]):
            if not isinstance(statement, ast.If):
                raise Refused
            rest = block[place + 1 :]
            body, orelse = _turn(statement.body + rest), _turn(statement.orelse + copy.deepcopy(rest))
            made = ast.If(statement.test, body or [ast.Pass()], orelse)
            return [*block[:place], ast.copy_location(made, statement)]
    return block


def _ends(block: Sequence[ast.stmt]) -> bool:
    """Whether it always ends in `return`."""
    end = block[-1] if block else None
    return isinstance(end, ast.Return) or (isinstance(end, ast.If) and _ends(end.body) and _ends(end.orelse))


def _settled(block: Block) -> Block:
    """With an assignment in the place of every `return`, and nothing behind it."""
    for place, statement in enumerate(block):
        rest = block[place + 1 :]
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(None)
            made = ast.Assign([ast.Name(_RESULT, ast.Store())], value)
            return [*block[:place], ast.copy_location(made, statement)]
        if _returns([statement]):
            if not isinstance(statement, ast.If) or not (_ends(statement.body) or _ends(statement.orelse)):
                raise Refused
            body = statement.body if _ends(statement.body) else statement.body + rest
            orelse = statement.orelse if _ends(statement.orelse) else statement.orelse + rest
            made_of = ast.If(statement.test, _settled(body), _settled(orelse))
            return [*block[:place], ast.copy_location(made_of, statement)]
    raise Refused  # it ends without one


def _is_named(node: ast.expr, names: Set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names
