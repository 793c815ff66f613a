"""Where a network is not smooth: which side of relu's zero, which element of a pooling window. Needs torch.

A network of smooth ops and such *kinks* is piecewise smooth, and a run's decisions say which piece it was on. An
activation within rounding of a kink falls on either side in a right float32 program, and its whole gradient comes or
goes with it, far more than rounding. So a run is compared with float64 on the run's own piece, where rounding is all
that differs (`Forced`), and its decisions are compared with those that float64 would take there (`Forced.flips`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from codegen.kinks import KINKS, PLAIN, Kink, Operands, Tensor, has_kink
from codegen.torch_ops import TORCH, Outputs
from codegen.torch_twin import Call, unchained
from planner.graph.chains import apart
from planner.graph.model import Graph, Node
from planner.solve.keep import views_of_state

Decisions = dict[str, Tensor]
"""Node id -> what was decided for every element of its output."""


class Watched:
    """Calls for a twin in float32 that remember, step by step, its decisions and what led to them."""

    def __init__(self) -> None:
        self.decisions: Decisions = {}
        self.operands: dict[str, Operands] = {}
        """Of the last step."""

    def calls(self) -> dict[str, Call]:
        return {op: _bound(self._call, kink) for op, kink in KINKS.items()}

    def _call(self, kink: Kink, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Outputs:
        operands = kink.before(node, inputs, updates)
        decision = kink.decide(node, operands)
        self.operands[node.id] = tuple(o.detach().clone() for o in operands)
        self.decisions[node.id] = decision
        # PyTorch's own kernel; a maximum's gradient at a tie is its business, and is half to each as here.
        return PLAIN[node.op](node, operands)


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

    def _call(self, kink: Kink, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Outputs:
        operands = kink.before(node, inputs, updates)
        decision = self.decisions[node.id].to(operands[0].device)
        with torch.no_grad():
            gap = kink.gap(node, operands, decision)
            self.wrong[node.id] = (int((gap > 0).sum()), float(gap.max()))
            if self.operands is not None:
                pairs = zip(self.operands[node.id], operands, strict=True)
                rounded = [(r, x) for r, x in pairs if x.is_floating_point()]
                errors = [float((r - x).abs().max()) for r, x in rounded]
                squares = [float(x.square().mean()) for _, x in rounded]
                self.errors[node.id] = (max(errors), max(squares) ** 0.5)
        return kink.apply(node, operands, decision)


def kinked(graph: Graph) -> list[Node]:
    """The training step's forward nodes with a kink, those that chains stand for among them."""
    return [n for n in unchained(graph.program["train_step"]).nodes if _decides(n)]


def _decides(node: Node) -> bool:
    return node.phase == "forward" and node.op in KINKS and has_kink(node)


def _with_kinks(graph: Graph) -> Iterator[tuple[Node, list[Node]]]:
    """Nodes with kinks, and what they stand for: a chain for several."""
    for node in graph.program["train_step"].nodes:
        parts = apart(node)
        if any(map(_decides, parts)):
            yield node, parts


def decisive_values(graph: Graph) -> tuple[str, ...]:
    """What a plan must keep so that `read_decisions` finds it after a step: of a chain what it computes from. Views of
    parameters are none of it; what they show is there."""
    made = {v for n in graph.program["train_step"].nodes for v in n.outputs} - views_of_state(graph).keys()
    found: dict[str, None] = {}
    for node, parts in _with_kinks(graph):
        wanted = node.inputs if len(parts) > 1 else KINKS[node.op].decisive(node)
        found.update(dict.fromkeys(v for v in wanted if v in made))
    return tuple(found)


def read_decisions(graph: Graph, value: Callable[[str], np.ndarray[Any, Any]]) -> Decisions:
    """A run's decisions from the values that it computed, and from parameters as they were then. What lies within a
    chain is computed again."""
    found: Decisions = {}
    views = views_of_state(graph)
    showing = {v: n for n in graph.program["train_step"].nodes for v in n.outputs if v in views}

    def read(name: str) -> Tensor:
        if name not in showing:
            return torch.from_numpy(value(name))
        node = showing[name]
        made = TORCH[node.op](node.attrs, [read(v) for v in node.inputs])
        assert not isinstance(made, tuple)
        return made

    for node, parts in _with_kinks(graph):
        wanted = node.inputs if len(parts) > 1 else KINKS[node.op].decisive(node)
        held = {v: read(v) for v in wanted}
        for part in parts:
            if len(parts) > 1:
                made = TORCH[part.op](part.attrs, [held[v] for v in part.inputs])
                assert not isinstance(made, tuple)
                held[part.outputs[0]] = made
            if _decides(part):
                kink = KINKS[part.op]
                found[part.id] = kink.read(part, [held[v] for v in kink.decisive(part)])
    return found


def _bound(call: Callable[..., Outputs], kink: Kink) -> Call:
    def bound(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Outputs:
        if not has_kink(node):
            return PLAIN[node.op](node, kink.before(node, inputs, updates))
        return call(kink, node, inputs, updates)

    return bound
