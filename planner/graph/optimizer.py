"""Update nodes: one per parameter, so that a gradient dies as soon as it is applied."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from planner.graph.model import Attrs, Frozen, Init, Role

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


class _Settings(Frozen):
    """Hyper-parameters with PyTorch's meaning."""

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


class ParameterGroup(_Settings):
    """Settings of some parameters, by the framework's names."""

    parameters: tuple[str, ...]


class Optimizer(_Settings):
    """`lr` is where training starts: executors can change it later, and the rates of groups with it, by the same
    factor."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    groups: tuple[ParameterGroup, ...] = ()
    """Where there are any, they list everything that is trained, and their settings go before the others."""

    def of(self, parameter: str) -> _Settings:
        """The settings of a parameter, by the framework's name."""
        return next((g for g in self.groups if parameter in g.parameters), self)


def append_updates(
    builder: "GraphBuilder",
    gradients: dict[str, str],
    optimizer: Optimizer,
    clip_norm: float | None = None,
    accumulate: bool = False,
) -> None:
    """Append an update for every (parameter, gradient), in the order in which the gradients become ready. `clip_norm`:
    what the norm of all these gradients together is scaled down to where it is larger. `accumulate`: gradients of
    several batches are added up before parameters are updated with their mean."""
    from planner.ops.optimizer import AdamAttrs, SgdAttrs

    if clip_norm is None and not accumulate:
        gradients = _apply_sparsely(builder, gradients, optimizer)
    ready = {value: position for position, node in enumerate(builder.nodes) for value in node.outputs}
    ordered = [
        (parameter, builder.convert(gradient, builder.type(parameter).layout))
        for parameter, gradient in sorted(gradients.items(), key=lambda item: (ready[item[1]], item[0]))
    ]
    if accumulate:
        ordered = [(parameter, _gradient_sum(builder, parameter, gradient)) for parameter, gradient in ordered]
    factor = [_clip_factor(builder, ordered, clip_norm)] if clip_norm is not None and ordered else []
    for parameter, gradient in ordered:
        shape, named = builder.shape(parameter), builder.values[parameter].name
        own = optimizer.of(named or parameter)

        def slot(name: str, parameter: str = parameter, shape: tuple[int, ...] = shape, named: str = named) -> str:
            return builder.state(f"{parameter}.{name}", shape, Init(kind="zeros"), name=f"{named}.{name}")

        if optimizer.kind == "sgd":
            attrs = SgdAttrs(lr=own.lr, momentum=own.momentum, nesterov=own.nesterov, weight_decay=own.weight_decay)
            updates = [parameter] + ([slot("momentum")] if own.momentum else [])
            builder.op(
                "sgd_update", [gradient, *factor], attrs, name=f"{parameter}.update", updates=updates, phase="update"
            )
        else:
            adam = AdamAttrs(
                lr=own.lr,
                beta1=own.beta1,
                beta2=own.beta2,
                eps=own.eps,
                weight_decay=own.weight_decay,
                decoupled=optimizer.kind == "adamw",
            )
            updates = [parameter, slot("exp_avg"), slot("exp_avg_sq")]
            builder.op(
                "adam_update", [gradient, *factor], adam, name=f"{parameter}.update", updates=updates, phase="update"
            )
    assert all(builder.values[p].role is Role.PARAMETER for p in gradients)


def _gradient_sum(builder: "GraphBuilder", parameter: str, gradient: str) -> str:
    """What holds the sum of a parameter's gradients, a state: it outlives the steps that add to it."""
    held = f"{parameter}.gradient_sum"
    name = f"{builder.values[parameter].name or parameter}.gradient_sum"
    total = builder.state(held, builder.shape(parameter), Init(kind="zeros"), name=name)
    builder.op("gradient_sum", [gradient], name=f"{parameter}.sum", updates=[total], phase="update")
    return total


def _clip_factor(builder: "GraphBuilder", gradients: Sequence[tuple[str, str]], clip_norm: float) -> str:
    """What all of them are multiplied by. Node `clip` has the norm as its second output."""
    from planner.ops.concat import ConcatAttrs
    from planner.ops.optimizer import ClipAttrs

    def append(op: str, inputs: list[str], attrs: Attrs | None, name: str) -> str:
        return builder.op(op, inputs, attrs, name=name, phase="backward")[0]

    sums = [append("square_sum", [gradient], None, f"{parameter}.squares") for parameter, gradient in gradients]
    joined = append("concat", sums, ConcatAttrs(axis=0), "clip.squares") if len(sums) > 1 else sums[0]
    return append("clip_factor", [joined], ClipAttrs(max_norm=clip_norm), "clip")


def _apply_sparsely(builder: "GraphBuilder", gradients: dict[str, str], optimizer: Optimizer) -> dict[str, str]:
    """Replace `embedding_backward` and the dense update by an update of the picked rows, where that is the same:
    plain SGD, and nothing else contributes to the table's gradient or reads it. Returns the other gradients."""
    from planner.ops.embedding import EmbeddingGradAttrs, EmbeddingSgdAttrs

    if optimizer.kind != "sgd":
        return gradients
    writer = {value: node for node in builder.nodes for value in node.outputs}
    read = {value for node in builder.nodes for value in node.reads}
    dense = {}
    for parameter, gradient in gradients.items():
        node = writer[gradient]
        own = optimizer.of(builder.values[parameter].name or parameter)
        if node.op != "embedding_backward" or gradient in read or own.momentum or own.weight_decay:
            dense[parameter] = gradient
            continue
        assert isinstance(node.attrs, EmbeddingGradAttrs)
        builder.nodes.remove(node)
        del builder.values[gradient]
        attrs = EmbeddingSgdAttrs(padding_index=node.attrs.padding_index, lr=own.lr)
        builder.op(
            "embedding_sgd_update",
            node.inputs,
            attrs,
            name=f"{parameter}.update",
            updates=[parameter],
            phase="update",
            origin=node.origin,
        )
    return dense
