"""Ops that are not smooth: relu beside zero, the largest element of a pooling window (see codegen/branches.py). Needs
torch.

Per op with a kink: the operands it compares, the decision, the op with a decision given, and the *gap*: by how much,
in exact arithmetic, a decision is wrong; 0 where it is right.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F

from codegen.torch_ops import ACTIVATIONS, TORCH, Outputs, segment_max, share_of, straightened
from planner.graph.model import Node
from planner.ops.rectifier import EluAttrs, SoftplusAttrs

Tensor: TypeAlias = torch.Tensor
Operands = tuple[Tensor, ...]


class Kink(NamedTuple):
    decisive: Callable[[Node], tuple[str, ...]]
    """Values of the graph from which a decision can be read after a step."""
    read: Callable[[Node, Sequence[Tensor]], Tensor]
    """Those values -> decision."""
    before: Callable[[Node, list[Tensor], list[Tensor]], Operands]
    """The op's inputs and updates -> what is compared."""
    decide: Callable[[Node, Operands], Tensor]
    apply: Callable[[Node, Operands, Tensor], Outputs]
    """What the op returns under a decision; the first output is smooth in the operands."""
    gap: Callable[[Node, Operands, Tensor], Tensor]
    compared: int = 1
    """How many rounded numbers a gap lies between: 1 beside a constant 0, or 2."""


def has_kink(node: Node) -> bool:
    """A batch or group norm has one where an activation with kinks is fused into it, softplus where its threshold
    leaves a gap that float32 sees."""
    if isinstance(node.attrs, SoftplusAttrs):
        return node.attrs.bound < 17
    return getattr(node.attrs, "activation", "relu") not in ("none", "silu")


# -- relu, leaky relu ------------------------------------------------------------------------
def _input(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    return (inputs[0],)


# -- clamp, batch and group norms with relu, relu6 or hard-swish ------------------------------------------------------
def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    """Without its activation."""
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    return (y + inputs[3] if a.residual else y,)


def _group_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    """Likewise."""
    a: Any = node.attrs
    return (F.group_norm(inputs[0], a.groups, inputs[1], inputs[2], a.eps),)


def _slope(node: Node) -> float:
    return float(getattr(node.attrs, "slope", 0.0))


def _positive(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return operands[0].detach() > 0


def _rectify(node: Node, operands: Operands, positive: Tensor) -> Tensor:
    (x,) = operands
    return torch.where(positive, x, _slope(node) * x)


def _beside_zero(node: Node, operands: Operands, positive: Tensor) -> Tensor:
    (x,) = operands
    return torch.where(positive != (x > 0), x.abs(), 0.0)


def _bounds(node: Node) -> tuple[float, float]:
    a: Any = node.attrs
    if node.op in NORMS:
        return {"relu": (0.0, inf), "relu6": (0.0, 6.0), "hard_swish": (-3.0, 3.0)}[a.activation]
    return -inf if a.low is None else a.low, inf if a.high is None else a.high


def _side(node: Node, operands: Sequence[Tensor]) -> Tensor:
    """-1 at or below the lower bound, 1 at or above the upper one, else 0; of the output as of the input. In clip,
    bounds themselves are between."""
    x, (low, high) = operands[0].detach(), _bounds(node)
    if node.op == "clip":
        return (x > high).to(torch.int8) - (x < low).to(torch.int8)
    return (x >= high).to(torch.int8) - (x <= low).to(torch.int8)


def _side_of_output(node: Node, outputs: Sequence[Tensor]) -> Tensor:
    """The same of what a norm returns. Hard-swish is minus zero where it is flat."""
    if not _is_swish(node):
        return _side(node, outputs)
    y = outputs[0].detach()
    return (y >= 3).to(torch.int8) - ((y == 0) & y.signbit()).to(torch.int8)


def _is_swish(node: Node) -> bool:
    return getattr(node.attrs, "activation", "") == "hard_swish"


def _clamped(node: Node, operands: Operands, side: Tensor) -> Tensor:
    (x,), (low, high) = operands, _bounds(node)
    return torch.where(side == 0, x, torch.where(side < 0, x.new_tensor(low), x.new_tensor(high)))


def _activated(node: Node, operands: Operands, side: Tensor) -> Tensor:
    if not _is_swish(node):
        return _clamped(node, operands, side)
    (x,) = operands
    return torch.where(side == 0, x * (x + 3) / 6, torch.where(side < 0, x.new_tensor(0.0), x))


def _beyond(node: Node, operands: Operands, side: Tensor) -> Tensor:
    (x,), (low, high) = operands, _bounds(node)
    outside = torch.maximum(low - x, x - high).clamp(min=0)
    return torch.where(side == 0, outside, torch.where(side < 0, x - low, high - x).clamp(min=0))


# -- elu, softplus with a threshold -----------------------------------------------------------------------------------
def _curved(node: Node, operands: Operands, positive: Tensor) -> Tensor:
    a, (x,) = node.attrs, operands
    assert isinstance(a, EluAttrs)
    return a.scale * torch.where(positive, x, a.alpha * torch.expm1(a.input_scale * x))


def _above(node: Node, operands: Sequence[Tensor]) -> Tensor:
    assert isinstance(node.attrs, SoftplusAttrs)
    return node.attrs.beta * operands[0].detach() > node.attrs.bound


def _straightened(node: Node, operands: Operands, above: Tensor) -> Tensor:
    assert isinstance(node.attrs, SoftplusAttrs)
    return straightened(operands[0], node.attrs.beta, above)


def _beside_threshold(node: Node, operands: Operands, above: Tensor) -> Tensor:
    assert isinstance(node.attrs, SoftplusAttrs)
    distance = (operands[0] - node.attrs.bound / node.attrs.beta).abs()
    return torch.where(above != _above(node, operands), distance, 0.0)


# -- max pool ------------------------------------------------------------------------------------------------------
def _window_places(node: Node, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Which element of its window each output chose -> its row and column in the input."""
    a: Any = node.attrs
    top, _, left, _ = a.padding
    down = torch.arange(chosen.shape[2], device=chosen.device)[:, None] * a.stride[0] - top
    right = torch.arange(chosen.shape[3], device=chosen.device)[None, :] * a.stride[1] - left
    return down + chosen // a.kernel[1] * a.dilation[0], right + chosen % a.kernel[1] * a.dilation[1]


def _choose(node: Node, operands: Operands) -> Tensor:
    """The first of a window's largest elements, counted row by row."""
    a: Any = node.attrs
    (x,) = (o.detach() for o in operands)
    best: Tensor = TORCH["max_pool2d"](a, [x])
    found = torch.full(best.shape, -1, dtype=torch.int64, device=x.device)
    for number in reversed(range(a.kernel[0] * a.kernel[1])):
        found[_at(node, x, torch.full_like(found, number)) == best] = number
    return found


def _at(node: Node, x: Tensor, chosen: Tensor) -> Tensor:
    """The chosen elements; minus infinity outside the input."""
    row, column = _window_places(node, chosen)
    inside = (row >= 0) & (row < x.shape[2]) & (column >= 0) & (column < x.shape[3])
    places = torch.where(inside, row * x.shape[3] + column, 0).flatten(2)
    return torch.where(inside, x.flatten(2).gather(2, places).reshape(chosen.shape), float("-inf"))


def _pooled(node: Node, operands: Operands, chosen: Tensor) -> Tensor:
    return _at(node, operands[0], chosen.long())


def _behind_best(node: Node, operands: Operands, chosen: Tensor) -> Tensor:
    return TORCH["max_pool2d"](node.attrs, [operands[0]]) - _pooled(node, operands, chosen)


# -- segment max ---------------------------------------------------------------------------------------------------
def _entries(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    """Rows, their sources and targets."""
    return (inputs[0], inputs[1], inputs[2])


def _rows_of(node: Node, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of entries that count, their targets, and which entries these are."""
    x, sources, targets = operands[:3]
    a: Any = node.attrs
    counted = ((sources >= 0) & (sources < len(x)) & (targets >= 0) & (targets < a.rows)).nonzero()[:, 0]
    return x[sources[counted]], targets[counted], counted


def _largest_rows(node: Node, operands: Sequence[Tensor]) -> Tensor:
    """Of each entry and column, whether it is as large as any of its target; operands may end with the maxima."""
    y = operands[3] if len(operands) > 3 else segment_max(node.attrs, [o.detach() for o in operands])[0]
    rows, targets, counted = _rows_of(node, [o.detach() for o in operands])
    found = torch.zeros((len(operands[1]), rows.shape[1]), dtype=torch.bool, device=rows.device)
    found[counted] = rows == y[targets]
    return found


def _of_largest_rows(node: Node, operands: Operands, largest: Tensor) -> Outputs:
    """The mean of those that were chosen."""
    rows, targets, counted = _rows_of(node, operands)
    y, _ = segment_max(node.attrs, list(operands))
    chosen = largest[counted]
    share = share_of(y, targets, chosen)
    mean = torch.zeros_like(y).index_add(0, targets, torch.where(chosen, rows, 0.0)) * share
    return torch.where(share > 0, mean, y.detach()), share


def _behind_largest(node: Node, operands: Operands, largest: Tensor) -> Tensor:
    rows, targets, counted = _rows_of(node, operands)
    y, _ = segment_max(node.attrs, list(operands))
    return torch.where(largest[counted], y[targets] - rows, 0.0)


# -- maximum, minimum, abs -----------------------------------------------------------------------------------------
def _both(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    a, b = torch.broadcast_tensors(*inputs)
    return (a, b)


def _first_share(node: Node, operands: Sequence[Tensor]) -> Tensor:
    """How much of the first operand the result takes: 0, 1, or half where both are equal."""
    a, b = torch.broadcast_tensors(*(o.detach() for o in operands))
    return ((a - b if node.op == "maximum" else b - a).sign() + 1) / 2


def _mixed(node: Node, operands: Operands, share: Tensor) -> Tensor:
    a, b = operands
    return share.to(a.dtype) * a + (1 - share.to(a.dtype)) * b


def _apart(node: Node, operands: Operands, share: Tensor) -> Tensor:
    a, b = operands
    return torch.where(share != _first_share(node, operands), (a - b).abs(), 0.0)


def _sign(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return operands[0].detach().sign()


def _signed(node: Node, operands: Operands, sign: Tensor) -> Tensor:
    return sign.to(operands[0].dtype) * operands[0]


def _sign_gap(node: Node, operands: Operands, sign: Tensor) -> Tensor:
    return torch.where(sign != operands[0].sign(), operands[0].abs(), 0.0)


def _output(node: Node) -> tuple[str, ...]:
    return node.outputs[:1]


def _inputs(node: Node) -> tuple[str, ...]:
    return node.inputs


def _activate(attrs: Any, y: Tensor) -> Tensor:
    return ACTIVATIONS[attrs.activation](y)


NORMS = ("batch_norm", "group_norm")
"""Ops with an activation fused into them."""
_RECTIFIER = Kink(_output, _positive, _input, _positive, _rectify, _beside_zero)
_CLAMP = Kink(_output, _side, _input, _side, _clamped, _beyond)
_ACTIVATED = _CLAMP._replace(read=_side_of_output, apply=_activated)
_EXTREMUM = Kink(_inputs, _first_share, _both, _first_share, _mixed, _apart, 2)
KINKS: Mapping[str, Kink] = {
    "abs": Kink(_inputs, _sign, _input, _sign, _signed, _sign_gap),
    "batch_norm": _ACTIVATED._replace(before=_batch_norm),
    "clamp": _CLAMP,
    "clip": _CLAMP._replace(decisive=_inputs),
    "elu": _RECTIFIER._replace(decisive=_inputs, apply=_curved),
    "group_norm": _ACTIVATED._replace(before=_group_norm),
    "leaky_relu": _RECTIFIER,
    "max_pool2d": Kink(lambda n: n.outputs[1:2], lambda n, t: t[0].long(), _input, _choose, _pooled, _behind_best, 2),
    "maximum": _EXTREMUM,
    "minimum": _EXTREMUM,
    "relu": _RECTIFIER,
    "segment_max": Kink(
        lambda n: (*n.inputs, n.outputs[0]),
        _largest_rows,
        _entries,
        _largest_rows,
        _of_largest_rows,
        _behind_largest,
        2,
    ),
    "softplus": Kink(_inputs, _above, _input, _above, _straightened, _beside_threshold),
}
"""Every differentiable op that has one."""

PLAIN: dict[str, Callable[[Node, Operands], Outputs]] = {
    **{op: lambda node, operands: TORCH[node.op](node.attrs, operands) for op in KINKS},
    **{op: lambda node, operands: _activate(node.attrs, operands[0]) for op in NORMS},
}
"""The same ops as PyTorch has them, of what is compared."""
