"""Where a network is not smooth: which side of relu's zero, which element of a pooling window. Needs torch.

A network of smooth ops and such *kinks* is piecewise smooth, and a run's decisions say which piece it was on. An
activation within rounding of a kink falls on either side in a right float32 program, and its whole gradient comes or
goes with it, far more than rounding. So a run is compared with float64 on the run's own piece, where rounding is all
that differs (`Forced`), and its decisions are compared with those that float64 would take there (`Forced.flips`).

Per op with a kink: the operands it compares, the decision, the op with a decision given, and the *gap*: by how much,
in exact arithmetic, a decision is wrong; 0 where it is right.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from codegen.torch_ops import ACTIVATIONS, TORCH, straightened
from codegen.torch_twin import Call, unchained
from planner.graph.chains import apart
from planner.graph.model import Graph, Node
from planner.ops.rectifier import EluAttrs, SoftplusAttrs

Tensor: TypeAlias = torch.Tensor
Operands = tuple[Tensor, ...]
Decisions = dict[str, Tensor]
"""Node id -> what was decided for every element of its output."""


class Kink(NamedTuple):
    decisive: Callable[[Node], tuple[str, ...]]
    """Values of the graph from which a decision can be read after a step."""
    read: Callable[[Node, Sequence[Tensor]], Tensor]
    """Those values -> decision."""
    before: Callable[[Node, list[Tensor], list[Tensor]], Operands]
    """The op's inputs and updates -> what is compared."""
    decide: Callable[[Node, Operands], Tensor]
    apply: Callable[[Node, Operands, Tensor], Tensor]
    """The op's output under a decision; smooth in the operands."""
    gap: Callable[[Node, Operands, Tensor], Tensor]
    compared: int = 1
    """How many rounded numbers a gap lies between: 1 beside a constant 0, or 2."""


class Watched:
    """Calls for a twin in float32 that remember, step by step, its decisions and what led to them."""

    def __init__(self) -> None:
        self.decisions: Decisions = {}
        self.operands: dict[str, Operands] = {}
        """Of the last step."""

    def calls(self) -> dict[str, Call]:
        return {op: _bound(self._call, kink) for op, kink in KINKS.items()}

    def _call(self, kink: Kink, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        operands = kink.before(node, inputs, updates)
        decision = kink.decide(node, operands)
        self.operands[node.id] = tuple(o.detach().clone() for o in operands)
        self.decisions[node.id] = decision
        # PyTorch's own kernel; a maximum's gradient at a tie is its business, and is half to each as here.
        return _PLAIN[node.op](node, operands)


class Forced:
    """Calls for a twin in float64 that takes the decisions of another run."""

    def __init__(self) -> None:
        self.decisions: Decisions = {}
        """Of the coming step."""
        self.wrong: dict[str, tuple[int, float]] = {}
        """Node id -> how many decisions of the last step exact arithmetic would not have taken, and the largest gap."""
        self.operands: dict[str, Operands] | None = None
        """Of the run whose decisions these are, for `errors`; None: not known."""
        self.errors: dict[str, tuple[float, float]] = {}
        """Node id -> largest error of an operand's element, and their root mean square."""

    def calls(self) -> dict[str, Call]:
        return {op: _bound(self._call, kink) for op, kink in KINKS.items()}

    def _call(self, kink: Kink, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        operands, decision = kink.before(node, inputs, updates), self.decisions[node.id]
        with torch.no_grad():
            gap = kink.gap(node, operands, decision)
            self.wrong[node.id] = (int((gap > 0).sum()), float(gap.max()))
            if self.operands is not None:
                errors = [float((r - x).abs().max()) for r, x in zip(self.operands[node.id], operands, strict=True)]
                squares = [float(x.square().mean()) for x in operands]
                self.errors[node.id] = (max(errors), max(squares) ** 0.5)
        return kink.apply(node, operands, decision)


def kinked(graph: Graph) -> list[Node]:
    """The training step's forward nodes with a kink, those that chains stand for among them."""
    return [n for n in unchained(graph.program["train_step"]).nodes if _decides(n)]


def _decides(node: Node) -> bool:
    return node.phase == "forward" and node.op in KINKS and _has_kink(node)


def _with_kinks(graph: Graph) -> Iterator[tuple[Node, list[Node]]]:
    """Nodes with kinks, and what they stand for: a chain for several."""
    for node in graph.program["train_step"].nodes:
        parts = apart(node)
        if any(map(_decides, parts)):
            yield node, parts


def decisive_values(graph: Graph) -> tuple[str, ...]:
    """What a plan must keep so that `read_decisions` finds it after a step: of a chain what it computes from."""
    made = {v for n in graph.program["train_step"].nodes for v in n.outputs}
    found: dict[str, None] = {}
    for node, parts in _with_kinks(graph):
        wanted = node.inputs if len(parts) > 1 else KINKS[node.op].decisive(node)
        found.update(dict.fromkeys(v for v in wanted if v in made))
    return tuple(found)


def read_decisions(graph: Graph, value: Callable[[str], np.ndarray[Any, Any]]) -> Decisions:
    """A run's decisions from the values that it computed. What lies within a chain is computed again."""
    found: Decisions = {}
    for node, parts in _with_kinks(graph):
        wanted = node.inputs if len(parts) > 1 else KINKS[node.op].decisive(node)
        held = {v: torch.from_numpy(value(v)) for v in wanted}
        for part in parts:
            if len(parts) > 1:
                made = TORCH[part.op](part.attrs, [held[v] for v in part.inputs])
                assert not isinstance(made, tuple)
                held[part.outputs[0]] = made
            if _decides(part):
                kink = KINKS[part.op]
                found[part.id] = kink.read(part, [held[v] for v in kink.decisive(part)])
    return found


def _bound(call: Callable[..., Tensor], kink: Kink) -> Call:
    def bound(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        if not _has_kink(node):
            return _PLAIN[node.op](node, kink.before(node, inputs, updates))
        return call(kink, node, inputs, updates)

    return bound


def _has_kink(node: Node) -> bool:
    """A batch norm has one where an activation with kinks is fused into it, softplus where its threshold leaves a gap
    that float32 sees."""
    if isinstance(node.attrs, SoftplusAttrs):
        return node.attrs.bound < 17
    return getattr(node.attrs, "activation", "relu") not in ("none", "silu")


# -- relu, leaky relu ------------------------------------------------------------------------
def _input(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    return (inputs[0],)


# -- clamp, batch norm with relu, relu6 or hard-swish ---------------------------------------------------------------
def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Operands:
    """Without its activation."""
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    return (y + inputs[3] if a.residual else y,)


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
    if node.op == "batch_norm":
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
    """The same of what a batch norm returns. Hard-swish is minus zero where it is flat."""
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
    down = torch.arange(chosen.shape[2])[:, None] * a.stride[0] - top
    right = torch.arange(chosen.shape[3])[None, :] * a.stride[1] - left
    return down + chosen // a.kernel[1] * a.dilation[0], right + chosen % a.kernel[1] * a.dilation[1]


def _choose(node: Node, operands: Operands) -> Tensor:
    """The first of a window's largest elements, counted row by row."""
    a: Any = node.attrs
    (x,) = (o.detach() for o in operands)
    best: Tensor = TORCH["max_pool2d"](a, [x])
    found = torch.full(best.shape, -1, dtype=torch.int64)
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


_RECTIFIER = Kink(_output, _positive, _input, _positive, _rectify, _beside_zero)
_CLAMP = Kink(_output, _side, _input, _side, _clamped, _beyond)
_EXTREMUM = Kink(_inputs, _first_share, _both, _first_share, _mixed, _apart, 2)
KINKS: Mapping[str, Kink] = {
    "abs": Kink(_inputs, _sign, _input, _sign, _signed, _sign_gap),
    "batch_norm": _CLAMP._replace(read=_side_of_output, before=_batch_norm, apply=_activated),
    "clamp": _CLAMP,
    "clip": _CLAMP._replace(decisive=_inputs),
    "elu": _RECTIFIER._replace(decisive=_inputs, apply=_curved),
    "leaky_relu": _RECTIFIER,
    "max_pool2d": Kink(lambda n: n.outputs[1:2], lambda n, t: t[0].long(), _input, _choose, _pooled, _behind_best, 2),
    "maximum": _EXTREMUM,
    "minimum": _EXTREMUM,
    "relu": _RECTIFIER,
    "softplus": Kink(_inputs, _above, _input, _above, _straightened, _beside_threshold),
}
"""Every differentiable op that has one."""

_PLAIN: dict[str, Callable[[Node, Operands], Tensor]] = {
    "batch_norm": lambda node, operands: _activate(node.attrs, operands[0]),
    **{op: lambda node, operands: TORCH[node.op](node.attrs, operands) for op in KINKS if op != "batch_norm"},
}
