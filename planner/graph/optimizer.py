"""Update nodes: one per parameter, so that a gradient dies as soon as it is applied."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from planner.errors import UserError
from planner.graph.model import Attrs, Init, Role, Settings

if TYPE_CHECKING:
    from planner.graph.builder import GraphBuilder


Positive = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class _Hyper(Settings):
    """Hyper-parameters with PyTorch's meaning and bounds. SP1023: one that is none."""

    code = "SP1023"

    lr: Positive = 0.1
    momentum: Positive = 0.0
    nesterov: bool = False
    weight_decay: Positive = 0.0
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8
    alpha: Positive = 0.99
    centered: bool = False
    lr_decay: Positive = 0.0
    initial_accumulator_value: Positive = 0.0


class ParameterGroup(_Hyper):
    """Settings of some parameters, by the framework's names."""

    parameters: tuple[str, ...]


class Optimizer(_Hyper):
    """`lr` is where training starts: executors can change it later, and the rates of groups with it, by the same
    factor. SP1023: nesterov without momentum."""

    kind: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"] = "sgd"
    groups: tuple[ParameterGroup, ...] = ()
    """Where there are any, they list everything that is trained, and their settings go before the others."""

    @model_validator(mode="after")
    def _with_momentum(self) -> Self:
        if any(own.nesterov and not own.momentum for own in self.groups or (self,)):
            raise UserError("SP1023", "nesterov is about the momentum, which is 0", "set momentum, such as 0.9")
        return self

    def of(self, parameter: str) -> _Hyper:
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
    if clip_norm is None and not accumulate:
        gradients = _apply_sparsely(builder, gradients, optimizer)
    from planner.ops.optimizer import AdagradAttrs

    ready = {value: position for position, node in enumerate(builder.nodes) for value in node.outputs}
    ordered = [
        (parameter, builder.convert(gradient, builder.type(parameter).layout))
        for parameter, gradient in sorted(gradients.items(), key=lambda item: (ready[item[1]], item[0]))
    ]
    if accumulate:
        ordered = [(parameter, _gradient_sum(builder, parameter, gradient)) for parameter, gradient in ordered]
    factor = [_clip_factor(builder, ordered, clip_norm)] if clip_norm is not None and ordered else []
    for parameter, gradient in ordered:
        named = builder.values[parameter].name
        op, attrs, slots = _update(optimizer.kind, optimizer.of(named or parameter))
        start = Init(kind="constant", value=attrs.initial) if isinstance(attrs, AdagradAttrs) else Init(kind="zeros")
        states = [
            builder.state(f"{parameter}.{slot}", builder.shape(parameter), start, name=f"{named}.{slot}")
            for slot in slots
        ]
        inputs, name = [gradient, *factor], f"{parameter}.update"
        builder.op(op, inputs, attrs, name=name, updates=[parameter, *states], phase="update")
    assert all(builder.values[p].role is Role.PARAMETER for p in gradients)


def _update(kind: str, own: _Hyper) -> tuple[str, Attrs, list[str]]:
    """The op that updates a parameter, and the names of what it keeps besides."""
    from planner.ops.optimizer import AdagradAttrs, AdamAttrs, RmspropAttrs, SgdAttrs

    known = own.model_dump()

    def of(attrs: type[Attrs], **more: object) -> Attrs:
        return attrs.model_validate({k: known[k] for k in attrs.model_fields if k in known} | more)

    if kind == "sgd":
        return "sgd_update", of(SgdAttrs), ["momentum"] * bool(own.momentum)
    if kind == "rmsprop":
        more = ["grad_avg"] * own.centered + ["momentum"] * bool(own.momentum)
        return "rmsprop_update", of(RmspropAttrs), ["square_avg", *more]
    if kind == "adagrad":
        return "adagrad_update", of(AdagradAttrs, initial=own.initial_accumulator_value), ["sum"]
    return "adam_update", of(AdamAttrs, decoupled=kind == "adamw"), ["exp_avg", "exp_avg_sq"]


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
