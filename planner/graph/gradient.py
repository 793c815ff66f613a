"""What an op's gradient rule sees of one forward node, and what it may do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.graph.model import Attrs, Node, TensorType

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


class GradientContext:
    """What a gradient rule sees of one forward node."""

    def __init__(self, builder: "GraphBuilder", node: Node, needed: set[str], arrived: dict[str, list[str]]) -> None:
        self._builder = builder
        self._needed = needed
        self._arrived = arrived
        self.node = node
        self.grad_outputs: tuple[str | None, ...] = tuple(
            arrived[v][0] if arrived.get(v) else None for v in node.outputs
        )

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    def type(self, value: str) -> TensorType:
        return self._builder.type(value)

    def needs(self, index: int) -> bool:
        """Whether the gradient w.r.t. input `index` is wanted."""
        return index < len(self.node.inputs) and self.node.inputs[index] in self._needed

    @property
    def grad(self) -> str:
        """Gradient w.r.t. the first output, in that output's layout."""
        value = self.grad_outputs[0]
        assert value is not None, self.node.id
        return self._builder.convert(value, self.type(self.node.outputs[0]).layout)

    def summands(self) -> tuple[str, ...]:
        """`grad` as one or two values that add up to it: an addition that was appended for it alone is taken back, for
        ops that add on the way."""
        total, nodes = self.grad, self._builder.nodes
        elsewhere = sum(total in values for values in self._arrived.values()) > 1
        # Found from the end: it was appended not long ago, and who reads it stands behind it.
        place = next((i for i in range(len(nodes) - 1, -1, -1) if total in nodes[i].outputs), None)
        if place is None or elsewhere or any(total in n.inputs for n in nodes[place + 1 :]):
            return (total,)
        sum_node = nodes[place]
        if sum_node.op != "add" or sum_node.phase != "backward":
            return (total,)
        del nodes[place]
        del self._builder.values[total]
        return sum_node.inputs

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Attrs | None = None,
        suffix: str = "backward",
        of: int = 0,
    ) -> tuple[str, ...]:
        """Append a backward node `<node>.<suffix>`; its first output is the gradient of input `of`."""
        return self._builder.op(
            op,
            inputs,
            attrs,
            name=f"{self.node.id}.{suffix}",
            phase="backward",
            origin=self.node.origin,
            like=self.node.inputs[of] if self.node.inputs else "",
        )

    def give(self, index: int, gradient: str) -> None:
        """Deliver the gradient w.r.t. input `index`; several deliveries to one value are added up."""
        target = self.node.inputs[index]
        if target not in self._needed:
            return
        gradient = self._builder.convert(gradient, self.type(target).layout)
        if self.type(gradient).shape != self.type(target).shape:
            raise AssertionError(f"{self.node.id}: gradient {gradient} does not have the shape of {target}")
        if not self._builder.values[gradient].gradient_of:  # a second result: db, dgamma
            value = self._builder.values[gradient]
            self._builder.values[gradient] = value.model_copy(update={"gradient_of": target})
        pending = self._arrived.setdefault(target, [])
        if pending:
            (total,) = self._builder.op(
                "add", [pending.pop(), gradient], name=f"{target}.grad_sum", phase="backward", like=target
            )
            gradient = total
        pending.append(gradient)
