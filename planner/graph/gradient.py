"""What an op's gradient rule sees of one forward node, and what it may do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.graph.model import Attrs, Node, TensorType

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


class GradientContext:
    """What a gradient rule sees of one forward node."""

    def __init__(
        self,
        builder: "GraphBuilder",
        forward: Sequence[Node],
        place: int,
        needed: set[str],
        arrived: dict[str, list[str]],
    ) -> None:
        self._builder = builder
        self._needed = needed
        self._arrived = arrived
        self._forward, self._place = forward, place
        self.node = node = forward[place]
        self.grad_outputs: tuple[str | None, ...] = tuple(map(self.arrived_at, node.outputs))

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def earlier(self) -> Sequence[Node]:
        """Forward nodes that run before this one: their gradient rules come after its own."""
        return self._forward[: self._place]

    def type(self, value: str) -> TensorType:
        return self._builder.type(value)

    def arrived_at(self, value: str) -> str | None:
        """The gradient w.r.t. any value that runs no later than this node."""
        return self._arrived[value][0] if self._arrived.get(value) else None

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
        total = self.grad
        node = self._taken_back("add", total, gradient_of=1)
        return node.inputs if node else (total,)

    def _taken_back(self, op: str, value: str, gradient_of: int) -> Node | None:
        """The backward node of this op that was appended to make the value, removed; None: there is none, or the value
        is read by a node or the gradient of more values than so many."""
        nodes = self._builder.nodes
        # Found from the end: it was appended not long ago, and who reads it stands behind it.
        place = next((i for i in range(len(nodes) - 1, -1, -1) if value in nodes[i].outputs), None)
        if place is None or nodes[place].op != op or nodes[place].phase != "backward":
            return None
        elsewhere = sum(value in values for values in self._arrived.values()) > gradient_of
        if elsewhere or any(value in n.inputs for n in nodes[place + 1 :]):
            return None
        del self._builder.values[value]
        return nodes.pop(place)

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

    def joined(self, values: Sequence[str], suffix: str = "backward", axis: int = 0) -> str:
        """Gradients, or what gradients are made of, one after the other along an axis; joined once and reused."""
        from planner.ops.concat import ConcatAttrs

        if len(values) == 1:
            return values[0]
        attrs, name, origin = ConcatAttrs(axis=axis), f"{self.node.id}.{suffix}", self.node.origin
        for node in self._builder.nodes:
            if (node.op, node.phase, node.inputs, node.attrs) == ("concat", "backward", tuple(values), attrs):
                return node.outputs[0]
        return self._builder.op("concat", values, attrs, name=name, phase="backward", origin=origin)[0]

    def give(self, index: int, gradient: str) -> None:
        """Deliver the gradient w.r.t. input `index`; several deliveries to one value are added up."""
        self.deliver(self.node.inputs[index], gradient)

    def give_part(self, target: str, attrs: Attrs, suffix: str) -> None:
        """Deliver a slice of `grad` to a value that has these elements: an input, or one that was made of inputs before
        this node ran. Where another gradient has arrived there, the two are added without writing the slice."""
        if target not in self._needed:
            return
        whole, pending = self.grad, self._arrived.setdefault(target, [])
        if pending and self.type(whole).layout == self.type(target).layout:
            pending.append(self._sum("add_slice", [pending.pop(), whole], target, attrs))
        else:
            name, origin = f"{self.node.id}.{suffix}", self.node.origin
            (part,) = self._builder.op("slice", [whole], attrs, name=name, phase="backward", origin=origin, like=target)
            self.deliver(target, part)

    def deliver(self, target: str, gradient: str) -> None:
        """Deliver the gradient of any earlier value."""
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
            gradient = self._added(pending.pop(), gradient, target)
        pending.append(gradient)

    def _added(self, one: str, other: str, target: str) -> str:
        cut = self._taken_back("slice", one, gradient_of=0) if one != other else None
        if cut is None:
            return self._sum("add", [one, other], target)
        return self._sum("add_slice", [other, *cut.inputs], target, cut.attrs)

    def _sum(self, op: str, inputs: Sequence[str], target: str, attrs: Attrs | None = None) -> str:
        (total,) = self._builder.op(op, inputs, attrs, name=f"{target}.grad_sum", phase="backward", like=target)
        return total
