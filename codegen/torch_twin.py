"""The same network as a PyTorch module: what executors are compared with, in truth and in speed.

Built from the graph's forward nodes, unfused where the graph is fused, with in-place relu as torchvision has it, so
that eager mode and torch.compile run what a PyTorch user would write. Needs torch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.graph.model import Graph, Node, Role

Tensor = torch.Tensor


class Twin(nn.Module):
    """`forward(*inputs) -> (loss, prediction)`; parameters and buffers under their names, dots as in PyTorch."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        program = graph.program["train_step"]
        self.graph = graph
        self.nodes = [n for n in program.nodes if n.phase == "forward"]
        self.inputs, self.loss = program.inputs, program.outputs[0]
        self.prediction = _training_value(graph)
        trained = {v for n in program.nodes if n.phase == "update" for v in n.updates}
        for value in graph.values:
            slot = _slot(value.id)
            if value.role is Role.PARAMETER:
                self.register_parameter(slot, nn.Parameter(torch.empty(value.type.shape), value.id in trained))
            elif value.role is Role.STATE and any(value.id in n.reads for n in self.nodes):
                self.register_buffer(slot, torch.empty(value.type.shape))
        for node in self.nodes:
            if node.op not in _CALLS:
                raise UserError("SP1513", f"no PyTorch twin for op {node.op!r}", "compare without --against torch")

    def load(self, state: dict[str, Any]) -> "Twin":
        """Take parameters and running statistics from an executor's state_dict."""
        with torch.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                tensor.copy_(torch.as_tensor(state[_name(name)]))
        return self

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        held: dict[str, Tensor] = dict(zip(self.inputs, inputs, strict=True))

        def get(value: str) -> Tensor:
            return held[value] if value in held else getattr(self, _slot(value))

        for node in self.nodes:
            held[node.outputs[0]] = _CALLS[node.op](node, [get(v) for v in node.inputs], [get(v) for v in node.updates])
        return held[self.loss], held[self.prediction]

    def gradients(self) -> dict[str, Tensor]:
        return {_name(n): p.grad for n, p in self.named_parameters() if p.grad is not None}


def optimizer_for(graph: Graph, module: Twin) -> torch.optim.Optimizer:
    """The optimizer of the graph's update nodes."""
    update = next(n for n in graph.program["train_step"].nodes if n.phase == "update")
    parameters, a = [p for p in module.parameters() if p.requires_grad], update.attrs.model_dump()
    if update.op == "adam_update":
        kind = torch.optim.AdamW if a["decoupled"] else torch.optim.Adam
        return kind(parameters, a["lr"], (a["beta1"], a["beta2"]), a["eps"], a["weight_decay"])
    return torch.optim.SGD(
        parameters,
        a["lr"],
        momentum=a.get("momentum", 0.0),
        weight_decay=a.get("weight_decay", 0.0),
        nesterov=a.get("nesterov", False),
    )


def _slot(value: str) -> str:
    return value.replace(".", "__")


def _name(slot: str) -> str:
    return slot.replace("__", ".")


def _training_value(graph: Graph) -> str:
    """The training step's value that corresponds to what `predict` returns."""
    predict = graph.program["predict"].outputs[0]
    return predict.removeprefix("predict.")


def _pad(x: Tensor, padding: tuple[int, int, int, int], value: float = 0.0) -> tuple[Tensor, tuple[int, int]]:
    """Symmetric padding goes to the op; anything else is padded before."""
    top, bottom, left, right = padding
    if (top, left) == (bottom, right):
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom), value=value), (0, 0)


def _conv2d(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    x, padding = _pad(inputs[0], a.padding)
    bias = inputs[2] if len(inputs) > 2 else None
    return F.conv2d(x, inputs[1], bias, a.stride, padding, a.dilation, a.groups)


def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    if a.residual:
        y += inputs[3]
    return F.relu_(y) if a.activation == "relu" else y


def _max_pool(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    x, padding = _pad(inputs[0], a.padding, float("-inf"))
    return F.max_pool2d(x, a.kernel, a.stride, padding, a.dilation, a.ceil_mode)


def _avg_pool(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    x, padding = _pad(inputs[0], a.padding)
    return F.avg_pool2d(x, a.kernel, a.stride, padding, a.ceil_mode, a.count_include_pad)


def _cross_entropy(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    return F.cross_entropy(
        inputs[0], inputs[1], reduction=a.reduction, ignore_index=a.ignore_index, label_smoothing=a.label_smoothing
    )


Call = Callable[[Node, list[Tensor], list[Tensor]], Tensor]
_CALLS: dict[str, Call] = {
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "cross_entropy": _cross_entropy,
    "adaptive_avg_pool2d": lambda n, x, u: F.adaptive_avg_pool2d(x[0], n.attrs.output),  # type: ignore[attr-defined]
    "linear": lambda n, x, u: F.linear(*x),
    "relu": lambda n, x, u: F.relu(x[0]),
    "sigmoid": lambda n, x, u: torch.sigmoid(x[0]),
    "tanh": lambda n, x, u: torch.tanh(x[0]),
    "add": lambda n, x, u: x[0] + x[1],
    "sub": lambda n, x, u: x[0] - x[1],
    "mul": lambda n, x, u: x[0] * x[1],
    "reshape": lambda n, x, u: x[0].reshape(n.attrs.shape),  # type: ignore[attr-defined]
    "convert_layout": lambda n, x, u: x[0],
    "dropout": lambda n, x, u: F.dropout(x[0], n.attrs.p),  # type: ignore[attr-defined]
    "lrn": lambda n, x, u: F.local_response_norm(x[0], n.attrs.size, n.attrs.alpha, n.attrs.beta, n.attrs.k),  # type: ignore[attr-defined]
}
