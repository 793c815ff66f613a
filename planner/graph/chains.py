"""Joins element-wise nodes into chains: one pass over memory instead of one per node.

A node is joined with the ones that read its result if nobody else does; where no gradient is asked for, also if all
its readers can compute it again from no more operands, and then it is gone when all of them do. In the forward pass
this happens before differentiation, so that the chain's gradient rule computes what lies between its steps again
instead of keeping it; in the backward pass afterwards, where sums of gradients and small factors meet.

    hard-swish   add_scalar -> clamp -> mul -> scale     chain "a * clamp(a + 3.0, 0.0, 6.0) * 0.16666667"

The chain takes the id and the outputs of its last node, so nothing behind it changes. Left alone are:
- nodes whose result is smaller than the chain's: they would be computed once per place that they are broadcast to;
- nodes far ahead of the last one, where joining keeps more alive than their result;
- nodes whose result is all that the backward pass needs, where a chain needs several operands: gelu(a + b);
- powers that the processor has no fast way for.
"""

from collections.abc import Collection, Mapping, Sequence

from planner.graph.model import DType, Node, Role, Value
from planner.ops.base import Signature, find_op, op_named
from planner.ops.chain import ChainAttrs
from planner.ops.expression import (
    FAMILIES,
    MOST_CHARACTERS,
    MOST_INPUTS,
    MOST_RESULTS,
    Expression,
    Step,
    constant,
    parse,
    takes_numbers,
)
from planner.ops.expression_gradient import DY, Y, backward_of, differentiable
from planner.ops.expression_sigmoid import with_sigmoids
from planner.ops.scalar import ScalarAttrs
from planner.ops.shape import FillAttrs
from planner.units import Bytes

MOST_STEPS = 40
"""Of one chain: beyond, values no longer stay in registers, and the text no longer reads well."""

CHEAP = 2
"""Operations per element of what may be computed again rather than read."""

_FAST_POWERS = frozenset({-1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0})


def join(
    nodes: Sequence[Node],
    values: Mapping[str, Value],
    wanted: Collection[str],
    phase: str,
    differentiated: bool = True,
) -> list[Node]:
    """The nodes with every chain of the phase as one. `wanted`: values that must stay. `differentiated`: whether
    gradients of the forward phase are asked for afterwards."""
    return _Joiner(nodes, values, wanted, phase, differentiated and phase == "forward").joined()


def apart(node: Node) -> list[Node]:
    """The nodes that a chain stands for; any other node as it is."""
    if not isinstance(node.attrs, ChainAttrs):
        return [node]
    expression = parse(node.attrs.expression, len(node.inputs))
    called, nodes = list(node.inputs), []
    for number, step in enumerate(expression.steps):
        place = len(node.inputs) + number
        result = (
            node.outputs[expression.results.index(place)] if place in expression.results else f"{node.id}.u{number}"
        )
        called.append(result)
        update = {"id": f"{node.id}.{number}", "op": step.op, "attrs": step.attrs, "outputs": (result,)}
        nodes.append(node.model_copy(update={**update, "inputs": tuple(called[v] for v in step.operands)}))
    return nodes


class _Joiner:
    def __init__(
        self,
        nodes: Sequence[Node],
        values: Mapping[str, Value],
        wanted: Collection[str],
        phase: str,
        differentiated: bool,
    ) -> None:
        self._nodes, self._values, self._wanted, self._phase = nodes, values, wanted, phase
        self._differentiated = differentiated
        self._place = {n.id: i for i, n in enumerate(nodes)}
        self._maker = {v: n for n in nodes for v in n.outputs}
        self._readers: dict[str, set[str]] = {}
        for node in nodes:
            for value in node.reads:
                self._readers.setdefault(value, set()).add(node.id)
        self._moved = {v for n in nodes if n.phase == "forward" for v in n.updates}
        """Running statistics: a chain's gradient would read them when they have changed."""
        self._taken: set[str] = set()
        self._shared: set[str] = set()
        """Nodes that are in a chain and stay for others."""

    def joined(self) -> list[Node]:
        replaced: dict[str, Node] = {}
        for node in reversed(self._nodes):
            self._leave_out_unread(node.id)
            if node.id not in self._taken and self._joinable(node):
                members = self._members(node)
                if len(members) > 1 or any(self._constant(node, v) is not None for v in node.inputs):
                    replaced[node.id] = self._chain(members)
                    self._take(members, node)
        gone = self._taken - set(replaced)
        nodes = [replaced.get(n.id, n) for n in self._nodes if n.id not in gone]
        read = {v for n in nodes for v in n.reads}
        return [n for n in nodes if n.op != "ones" or not read.isdisjoint(n.outputs) or n.outputs[0] in self._wanted]

    def _take(self, members: set[str], last: Node) -> None:
        """From now on the members are read as the chain that ends with `last`, but for those that others read as well:
        they stay until the last of these has them in its own chain."""
        own = {last.id}
        for member in sorted(members - own, key=self._place.__getitem__, reverse=True):
            if self._readers[self._result(member)] <= own:
                own.add(member)
        shared, inputs = members - own, self._inputs(members)
        self._taken |= own
        self._drop(own)
        for value in inputs:
            self._readers[value].add(last.id)
        self._shared |= shared
        for member in sorted(shared, key=self._place.__getitem__, reverse=True):
            self._leave_out_unread(member)

    def _leave_out_unread(self, node: str) -> None:
        """A node that all its readers have in chains of their own."""
        if node in self._shared - self._taken and not self._readers[self._result(node)]:
            self._taken.add(node)
            self._drop({node})

    def _drop(self, readers: Collection[str]) -> None:
        """They read nothing any more."""
        for reader in readers:
            for value in self._nodes[self._place[reader]].inputs:
                self._readers[value].discard(reader)

    def _result(self, node: str) -> str:
        return self._nodes[self._place[node]].outputs[0]

    def _constant(self, node: Node, value: str) -> float | None:
        """The number that a node's operand is, where a chain can have it in its text."""
        attrs = self._maker[value].attrs if value in self._maker and takes_numbers(node.op) else None
        return attrs.value if isinstance(attrs, FillAttrs) and attrs.shape == () else None

    def _joinable(self, node: Node) -> bool:
        op = find_op(node.op)
        if op is None or node.phase != self._phase or node.updates or len(node.outputs) != 1:
            return False
        if not self._moved.isdisjoint(node.inputs):
            return False
        if any(self._values[v].type.dtype is not DType.FLOAT32 for v in node.inputs):
            return False
        if all(self._constant(node, v) is not None for v in node.inputs):
            return False
        if op.family not in FAMILIES or (self._differentiated and not differentiable(node.op)):
            return False
        if isinstance(node.attrs, ScalarAttrs) and node.op.startswith("pow_scalar"):
            return node.attrs.value in _FAST_POWERS
        return True

    def _members(self, last: Node) -> set[str]:
        """The largest chain that ends with this node and keeps no more for its gradient than its nodes apart; where
        the largest of all does, the one found by adding only nodes that do not. Without gradients, also with nodes
        that others read, where it has no more operands with them."""
        members = self._grown(last)
        if not self._differentiated:
            wider = self._grown(last, again=True)
            return wider if self._reads(wider, last) <= self._reads(members, last) else members
        if self._keeps_no_more(members, [{m} for m in members]):
            return members
        return self._grown(last, careful=True)

    def _reads(self, members: Collection[str], last: Node) -> int:
        """How many operands of the result's size a chain of these nodes has."""
        size = self._values[last.outputs[0]].type.bytes
        return sum(self._values[v].type.bytes >= size for v in self._inputs(members))

    def _grown(self, last: Node, *, careful: bool = False, again: bool = False) -> set[str]:
        """`careful`: only by nodes with which no more is kept. `again`: also by nodes that others read, too."""
        members, own, refused = {last.id}, {last.id}, set[str]()
        type_ = self._values[last.outputs[0]].type
        while len(members) < MOST_STEPS:
            inputs = self._inputs(members)
            makers = {self._maker[v].id for v in inputs if v in self._maker} - refused
            near = max(makers, key=self._place.__getitem__, default=None)
            if near is None:
                break
            node = self._nodes[self._place[near]]
            (value,) = node.outputs if len(node.outputs) == 1 else ("",)
            fits = (
                self._joinable(node)
                and value not in self._wanted
                and self._values[value].type == type_
                and len(self._inputs({*members, near})) <= MOST_INPUTS
                and (self._readers[value] <= own or (again and self._cheap_for_all(node)))
                and not self._changes(node, last)
                and (again or self._lasts_no_longer(node, last, members))
                and (not careful or self._keeps_no_more({*members, near}, [members, {near}]))
                and self._has_gradient({*members, near})
            )
            (members if fits else refused).add(near)
            if fits and self._readers[value] <= own:
                own.add(near)
        return members

    def _inputs(self, members: Collection[str]) -> list[str]:
        """What a chain reads from outside, in order."""
        nodes = sorted((self._nodes[self._place[m]] for m in members), key=lambda n: self._place[n.id])
        made = {v for n in nodes for v in n.outputs}
        read = dict.fromkeys(v for n in nodes for v in n.inputs if self._constant(n, v) is None)
        return [v for v in read if v not in made]

    def _lasts_no_longer(self, node: Node, last: Node, members: Collection[str]) -> bool:
        """Joining reads a node's operands where the chain ends. It keeps more alive than the node's result would,
        unless nothing else runs in between or there is one operand of that size."""
        between = self._nodes[self._place[node.id] + 1 : self._place[last.id]]
        if all(n.id in members for n in between):
            return True
        size = self._values[node.outputs[0]].type.bytes
        return len([v for v in dict.fromkeys(node.inputs) if self._is_made(v, size)]) <= 1

    def _changes(self, node: Node, last: Node) -> bool:
        """Whether an operand of the node changes before the chain ends, which then reads it."""
        between = self._nodes[self._place[node.id] + 1 : self._place[last.id]]
        return any(v in n.updates for n in between for v in node.inputs)

    def _cheap_for_all(self, node: Node) -> bool:
        """Whether every reader may have the node in its own chain, at little cost."""
        op, types = op_named(node.op), [self._values[v].type for v in (*node.inputs, *node.outputs)]
        signature = Signature(node.op, node.attrs, tuple(types[:-1]), tuple(types[-1:]))
        if op.flops(signature) > CHEAP * types[-1].elements:
            return False
        readers = [self._nodes[self._place[r]] for r in self._readers[node.outputs[0]]]
        return all(self._joinable(r) and self._values[r.outputs[0]].type == types[-1] for r in readers)

    def _is_made(self, value: str, size: Bytes) -> bool:
        """Whether it takes that much memory for a time: not an input or a parameter, which stay."""
        return value in self._maker and self._values[value].type.bytes >= size

    def _has_gradient(self, members: Collection[str]) -> bool:
        """Whether the gradient of a chain of these nodes is a chain, too: of few nodes and inputs it always is."""
        if not self._differentiated or max(len(members), len(self._inputs(members))) <= MOST_RESULTS:
            return True
        inputs, expression, _ = self._expression(members)
        wanted = [i for i, v in enumerate(inputs) if self._values[v].role is not Role.STATE]
        backward = backward_of(expression, wanted, [self._values[v].type.elements for v in inputs])
        results, text = backward.expression.results, backward.expression.text
        return len(results) <= MOST_RESULTS and len(backward.reads) <= MOST_INPUTS and len(text) <= MOST_CHARACTERS

    def _keeps_no_more(self, members: Collection[str], parts: Sequence[Collection[str]]) -> bool:
        return len(self._needs(members)) <= len({v for part in parts for v in self._needs(part)})

    def _needs(self, members: Collection[str]) -> set[str]:
        """What a chain of these nodes would keep for its gradient, of the size of its result."""
        inputs, expression, last = self._expression(members)
        wanted = [i for i, v in enumerate(inputs) if self._values[v].role is not Role.INPUT]
        result, size = last.outputs[0], self._values[last.outputs[0]].type.bytes
        backward = backward_of(expression, wanted, [self._values[v].type.elements for v in inputs])
        read = {result if leaf == Y else inputs[int(leaf)] for leaf in backward.reads if leaf != DY}
        return {v for v in read if self._is_made(v, size)}

    def _expression(self, members: Collection[str]) -> tuple[list[str], Expression, Node]:
        """The operands of a chain, what it computes, and its last node."""
        inputs = self._inputs(members)
        number: dict[str | float, int] = {v: i for i, v in enumerate(inputs)}
        steps: list[Step] = []
        nodes = [self._nodes[self._place[m]] for m in sorted(members, key=self._place.__getitem__)]
        for node in nodes:
            operands: list[int] = []
            for value in node.inputs:
                given = self._constant(node, value)
                if given is not None and given not in number:
                    number[given] = len(inputs) + len(steps)
                    steps.append(constant(given))
                operands.append(number[value if given is None else given])
            number[node.outputs[0]] = len(inputs) + len(steps)
            steps.append(Step(node.op, node.attrs, tuple(operands)))
        result = len(inputs) + len(steps) - 1
        return inputs, with_sigmoids(Expression(len(inputs), tuple(steps), (result,))), nodes[-1]

    def _chain(self, members: Collection[str]) -> Node:
        inputs, expression, last = self._expression(members)
        attrs = ChainAttrs(expression=expression.text)
        return last.model_copy(update={"op": "chain", "inputs": tuple(inputs), "attrs": attrs})
