"""The gradient of weights that several linear layers share, as the steps of a recurrent network do: one product.

    dw = dy_1' x_1 + dy_2' x_2 + ... = (dy_1; dy_2; ...)' (x_1; x_2; ...)

Step by step, every term is as large as the weights, and is added to those before it: of an LSTM's 32 rows at a time
and 512 features, 12 MB are moved to add what 0.3 MB of operands have made. Joined, the operands are copied once. Long
sequences are joined block by block, so that not all steps' operands and their copies are in memory together.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from planner.graph.gradient import GradientContext
from planner.graph.model import Node
from planner.ops import op_named

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder

LEAST_ROWS = 256
LEAST_OPERANDS = 4
"""Joined rows of a block, and their elements by those of the weights: adding a block's term moves three times the
weights, copying the operands and reading them three times these."""


def steps_of_blocks(steps: int, rows: int, features: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """How many steps of so many rows each are joined at a time. `features`: the shapes of the weights."""
    least = max(LEAST_ROWS, *(LEAST_OPERANDS * m * k // (m + k) for m, k in features))
    blocks = max(1, steps * rows // least)
    return tuple(steps * (b + 1) // blocks - steps * b // blocks for b in range(blocks))


class SharedWeights:
    """Which forward nodes share their weights, and the gradients that have arrived at them so far."""

    def __init__(self, builder: "GraphBuilder", forward: Sequence[Node], needed: Collection[str]) -> None:
        found: dict[object, list[Node]] = {}
        for node in forward:
            if op_named(node.op).shares_weights and any(v in needed for v in node.inputs[1:]):
                # Only what has as many features, of the same type, can be joined.
                key = (node.op, node.inputs[1:], builder.type(node.inputs[0]), builder.type(node.outputs[0]))
                found.setdefault(key, []).append(node)
        self._steps = {n.id: block for steps in found.values() for block in _blocks(builder, steps) for n in block}
        self._arrived: dict[str, list[GradientContext]] = {}

    def differentiate(self, context: GradientContext) -> None:
        """Apply a node's gradient rule, but for the gradient of weights that it shares."""
        op, node = op_named(context.node.op), context.node
        if node.id in self._steps:
            self._arrived.setdefault(self._steps[node.id][0].id, []).append(context)
            op.gradient_of_data(context)
        else:
            op.gradient(context)

    def finish(self, node: Node) -> None:
        """Nothing that runs behind this forward node is still to be differentiated: the gradient of its weights is made
        if none of those that share them runs before it."""
        steps = self._arrived.pop(node.id, [])[::-1]
        if steps:
            xs, dys = [s.node.inputs[0] for s in steps], [s.grad for s in steps]
            x, dy = (steps[0].joined(values, suffix) for values, suffix in ((xs, "rows"), (dys, "gradient_rows")))
            op_named(node.op).gradient_of_weights(steps[0], x, dy)


def _blocks(builder: "GraphBuilder", steps: Sequence[Node]) -> Iterable[Sequence[Node]]:
    """The steps that are joined with each other; none where adding is less than copying."""
    x, weights, *_ = (builder.type(v) for v in steps[0].inputs)
    if len(steps) < 2 or len(x.shape) < 2:
        return
    operands = x.elements + builder.type(steps[0].outputs[0]).elements
    if len(steps) * operands >= (len(steps) - 1) * weights.elements:
        return
    pending = iter(steps)
    for size in steps_of_blocks(len(steps), x.elements // weights.shape[1], [weights.shape]):
        yield list(islice(pending, size))
