"""The gradient of weights that several linear layers share, as the steps of a recurrent network do: one product.

    dw = dy_1' x_1 + dy_2' x_2 + ... = (dy_1; dy_2; ...)' (x_1; x_2; ...)

Step by step, every term is as large as the weights, and is added to those before it: of an LSTM's 32 rows at a time
and 512 features, 12 MB are moved to add what 0.3 MB of operands have made. Joined, the operands are copied once.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from planner.graph.gradient import GradientContext
from planner.graph.model import Node
from planner.ops import op_named

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


class SharedWeights:
    """Which forward nodes share their weights, and the gradients that have arrived at them so far."""

    def __init__(self, builder: "GraphBuilder", forward: Sequence[Node], needed: Collection[str]) -> None:
        found: dict[object, list[Node]] = {}
        for node in forward:
            if op_named(node.op).shares_weights and any(v in needed for v in node.inputs[1:]):
                # Only what has as many features, of the same type, can be joined.
                key = (node.op, node.inputs[1:], builder.type(node.inputs[0]), builder.type(node.outputs[0]))
                found.setdefault(key, []).append(node)
        self._steps = {n.id: steps for steps in found.values() if _worth_joining(builder, steps) for n in steps}
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


def _worth_joining(builder: "GraphBuilder", steps: Sequence[Node]) -> bool:
    """Whether what would be copied is less than what need not be added then."""
    x, weights, *_ = steps[0].inputs
    if len(steps) < 2 or len(builder.shape(x)) < 2:
        return False
    joined = len(steps) * (builder.type(x).elements + builder.type(steps[0].outputs[0]).elements)
    return joined < (len(steps) - 1) * builder.type(weights).elements
