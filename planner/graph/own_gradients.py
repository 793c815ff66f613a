"""Functions whose gradient is not that of their ops, such as a rounding that hands gradients on as they are.

A frontend appends what computes the gradient beside the function, as forward nodes from stand-ins for the gradients
that will arrive. Differentiation appends these nodes again where the gradients have arrived, with those that nothing
else reads: only what a function saves is kept until then. The first ones, which nobody reads then, are dropped with
everything else that nobody reads.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.errors import UserError
from planner.graph.chains import apart
from planner.graph.model import Attrs, Node

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


class OwnGradient(NamedTuple):
    outputs: tuple[str, ...]
    """Views of the function's results, which others read instead of these."""
    stand_ins: tuple[str, ...]
    """One per output: values of its type in place of its gradient."""
    inputs: tuple[str, ...]
    """What the function has gradients for."""
    gradients: tuple[str, ...]
    """One per input, computed from the stand-ins."""


def own_gradient(
    builder: "GraphBuilder",
    results: Sequence[str],
    stand_ins: Sequence[str],
    inputs: Sequence[str],
    gradients: Sequence[str],
    name: str,
) -> tuple[str, ...]:
    """The results as values whose gradients go the function's own way; one stand-in per result, one gradient per
    input."""
    outputs = tuple(builder.op("own_gradient", [result], name=name)[0] for result in results)
    record = OwnGradient(outputs, tuple(stand_ins), tuple(inputs), tuple(gradients))
    builder.own_gradients |= dict.fromkeys(outputs, record)
    return outputs


def values_of(records: Mapping[str, OwnGradient]) -> set[str]:
    """What must stay values of its own until the gradients are there."""
    return {v for record in records.values() for values in record for v in values}


def first_places(forward: Sequence[Node], records: Mapping[str, OwnGradient]) -> dict[int, OwnGradient]:
    """Behind its place in `forward` there is everything that reads any of a record's outputs."""
    places: dict[OwnGradient, int] = {}
    for place, node in enumerate(forward):
        for value in node.outputs:
            if value in records:
                places.setdefault(records[value], place)
    return {place: record for record, place in places.items()}


def gradients_where_arrived(
    builder: "GraphBuilder",
    forward: Sequence[Node],
    record: OwnGradient,
    arrived: Sequence[str],
    wanted: Collection[str],
) -> list[tuple[str, str]]:
    """(input, its gradient) for the inputs that are wanted, of the gradients that have arrived at the record's outputs:
    appended as backward nodes."""
    pairs = [(x, g) for x, g in zip(record.inputs, record.gradients, strict=True) if x in wanted]
    found = dict(zip(record.stand_ins, arrived, strict=True))
    for whole in _between(forward, record.stand_ins, [g for _, g in pairs]):
        if whole.updates:
            fix = "compute the gradient without what changes the model's state"
            raise UserError("SP1024", f"node {whole.id!r} ({whole.op}), part of a gradient, changes a state", fix)
        for node in apart(whole):  # among the other backward nodes there may be longer chains
            inputs, name = [found.get(v, v) for v in node.inputs], f"{node.id}.backward"
            if node.op == "detach":  # of a gradient's gradient, which there is not
                found[node.outputs[0]] = inputs[0]
                continue
            outputs = builder.op(node.op, inputs, node.attrs, name=name, phase="backward", origin=node.origin)
            found.update(zip(node.outputs, outputs, strict=False))
    return [(x, found[g] if g in found else _view(builder, g, x)) for x, g in pairs]


def _between(forward: Sequence[Node], stand_ins: Sequence[str], gradients: Sequence[str]) -> list[Node]:
    """The nodes that make gradients out of stand-ins, and those that only they read, unless these read what the forward
    pass changes."""
    reached, readers = set(stand_ins), dict[str, set[str]]()
    changed = {v for node in forward for v in node.updates}
    for node in forward:
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
        for value in node.reads:
            readers.setdefault(value, set()).add(node.id)
    needed, inside, found = set(gradients) - set(stand_ins), set[str](), list[Node]()
    for node in reversed(forward):
        through = any(v in reached for v in node.inputs)
        alone = changed.isdisjoint(node.reads) and all(readers.get(v, set()) <= inside for v in node.outputs)
        if any(v in needed for v in node.outputs) and (through or alone):
            needed.update(v for v in node.inputs if v not in stand_ins)
            inside.add(node.id)
            found.append(node)
    return found[::-1]


def _view(builder: "GraphBuilder", value: str, of: str) -> str:
    """A forward value as a gradient: one that does not depend on what arrives."""
    return builder.op("detach", [value], Attrs(), name=f"{value}.gradient", phase="backward", like=of)[0]
