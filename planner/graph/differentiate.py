"""Reverse-mode differentiation: appends backward nodes from each op's gradient rule.

A backward node lists exactly the forward values it needs (relu its output, batch-norm its input and saved
statistics, dropout its mask): memory planning lives on those lists (DESIGN section 4).
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from planner.errors import UserError
from planner.graph.gradient import GradientContext
from planner.graph.model import DType, Node, Role
from planner.graph.own_gradients import OwnGradient, first_places, gradients_where_arrived
from planner.graph.shared_weights import SharedWeights
from planner.ops import op_named
from planner.ops.shape import FillAttrs

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder

_DIFFERENTIABLE = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64})


def append_backward(
    builder: "GraphBuilder",
    forward: Sequence[Node],
    loss: str,
    parameters: Collection[str] | None = None,
    inputs: Collection[str] = (),
) -> dict[str, str]:
    """Append the backward pass of `loss` to the builder. Returns parameter id -> gradient value id.

    `parameters`: the ones to differentiate by; None: all that are trainable. `inputs`: further values, as well.

    A parameter whose gradient is applied sparsely in place (embedding) has no gradient value: its rule marks the
    update itself and it is missing from the result.
    """
    trainable = trainable_parameters(builder)
    if parameters is not None:
        trainable &= set(parameters)
    trainable |= set(inputs)
    needed = changing_with(builder, forward, trainable)
    if loss not in needed:
        raise UserError("SP1006", f"the loss {loss!r} depends on no trainable parameter", "mark parameters trainable")
    seed = _filled(builder, loss, 1.0, "seed")
    arrived: dict[str, list[str]] = {loss: [seed]}
    shared = SharedWeights(builder, forward, needed)
    functions = first_places(forward, builder.own_gradients)
    for place in reversed(range(len(forward))):
        node = forward[place]
        if place in functions:
            context = GradientContext(builder, forward, place, needed, arrived)
            _differentiate_function(builder, forward, functions[place], context, needed)
        elif any(arrived.get(v) for v in node.outputs) and _passes_gradients(node, needed):
            shared.differentiate(GradientContext(builder, forward, place, needed, arrived))
        shared.finish(node)
    return {p: arrived[p][0] for p in sorted(trainable) if arrived.get(p)}


def trainable_parameters(builder: "GraphBuilder") -> set[str]:
    return {v.id for v in builder.values.values() if v.role is Role.PARAMETER and v.id not in builder.frozen}


def changing_with(builder: "GraphBuilder", nodes: Sequence[Node], values: Collection[str]) -> set[str]:
    """The values that have a gradient with respect to some of `values`, these among them."""
    found = set(values)
    for node in nodes:
        own = builder.own_gradients.get(node.outputs[0]) if node.outputs else None
        sources = own.inputs if own else node.inputs
        if op_named(node.op).differentiable and any(v in found for v in sources):
            found.update(v for v in node.outputs if builder.type(v).dtype in _DIFFERENTIABLE)
    return found


def _passes_gradients(node: Node, needed: Collection[str]) -> bool:
    return node.op != "own_gradient" and any(v in needed for v in node.inputs)


def _differentiate_function(
    builder: "GraphBuilder",
    forward: Sequence[Node],
    own: OwnGradient,
    context: GradientContext,
    needed: Collection[str],
) -> None:
    """Nothing more arrives at any result of a function that has a gradient of its own."""
    arrived = [context.arrived_at(v) for v in own.outputs]
    if any(arrived):
        pairs = zip(arrived, own.outputs, strict=True)
        whole = [builder.convert(a or _filled(builder, v, 0.0, "none"), builder.type(v).layout) for a, v in pairs]
        for x, gradient in gradients_where_arrived(builder, forward, own, whole, needed):
            context.deliver(x, gradient)


def _filled(builder: "GraphBuilder", value: str, number: float, name: str) -> str:
    """A gradient of the value that is one number everywhere."""
    attrs = FillAttrs(shape=builder.shape(value), value=number)
    return builder.op("ones", [], attrs, name=f"{value}.{name}", phase="backward", like=value)[0]
