"""Reverse-mode differentiation: appends backward nodes from each op's gradient rule.

A backward node lists exactly the forward values it needs (relu its output, batch-norm its input and saved
statistics, dropout its mask): memory planning lives on those lists (DESIGN section 4).
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from planner.errors import UserError
from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Node, Role, TensorType
from planner.graph.shared_weights import SharedWeights
from planner.ops import op_named

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
    arrived: dict[str, list[str]] = {}
    shared = SharedWeights(builder, forward, needed)
    for place in reversed(range(len(forward))):
        node = forward[place]
        seeded = loss in node.outputs
        if (seeded or any(arrived.get(v) for v in node.outputs)) and any(v in needed for v in node.inputs):
            if seeded:
                (one,) = builder.op(
                    "ones", [], _ones_attrs(builder.type(loss)), name=f"{loss}.seed", phase="backward", like=loss
                )
                arrived[loss] = [one]
            shared.differentiate(GradientContext(builder, forward, place, needed, arrived))
        shared.finish(node)
    return {p: arrived[p][0] for p in sorted(trainable) if arrived.get(p)}


def trainable_parameters(builder: "GraphBuilder") -> set[str]:
    return {v.id for v in builder.values.values() if v.role is Role.PARAMETER and v.id not in builder.frozen}


def changing_with(builder: "GraphBuilder", nodes: Sequence[Node], values: Collection[str]) -> set[str]:
    """The values that have a gradient with respect to some of `values`, these among them."""
    found = set(values)
    for node in nodes:
        if op_named(node.op).differentiable and any(v in found for v in node.inputs):
            found.update(v for v in node.outputs if builder.type(v).dtype in _DIFFERENTIABLE)
    return found


def _ones_attrs(type_: TensorType) -> Attrs:
    from planner.ops.shape import FillAttrs

    return FillAttrs(shape=type_.shape)
