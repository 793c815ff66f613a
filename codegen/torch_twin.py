"""The same network as a PyTorch module: what executors are compared with, in truth and in speed.

Built from the graph's forward nodes, unfused where the graph is fused, chains as the ops that they stand for, with
in-place relu as torchvision has it, so that eager mode and torch.compile run what a PyTorch user would write. Needs
torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from codegen.torch_ops import ACTIVATIONS, TORCH, Outputs
from planner.errors import UserError
from planner.graph.chains import apart
from planner.graph.model import Graph, Layout, Node, Program, Role

Tensor: TypeAlias = torch.Tensor


class Twin(nn.Module):  # type: ignore[misc]
    """`forward(*inputs) -> (loss, prediction)`; parameters and buffers under the names of `state_dict`.

    `calls`: op -> what its nodes do instead of PyTorch's own, for instance to draw the executor's random numbers.
    """

    def __init__(self, graph: Graph, calls: "Mapping[str, Call] | None" = None) -> None:
        super().__init__()
        self.calls = {**_CALLS, **(calls or {})}
        program = unchained(graph.program["train_step"])
        self.graph = graph
        self.parts = parts_of(program)
        self.nodes = [n for n in program.nodes if n.phase == "forward"]
        carrying = [n for n in program.nodes if n.op == "state_update"]
        self.carried = [(n.updates[0], n.inputs[0]) for n in carrying]
        """(state, the value that it has in the next step)"""
        self.inputs, self.loss = program.inputs, program.outputs[0]
        self.prediction = _training_value(graph, program)
        trained = {v for n in program.nodes if n.phase == "update" for v in n.updates}
        self.slots = {v.id: f"tensor{number}" for number, v in enumerate(graph.values)}
        """Value -> the attribute that holds it: an id may hold dots, or be that of something else here."""
        self.value = {self.slots[v.id]: v for v in graph.values}
        for value in graph.values:
            slot = self.slots[value.id]
            if value.role is Role.PARAMETER:
                self.register_parameter(slot, nn.Parameter(torch.empty(value.type.shape), value.id in trained))
            elif value.role is Role.STATE and any(value.id in n.reads for n in (*self.nodes, *carrying)):
                self.register_buffer(slot, torch.empty(value.type.shape, dtype=getattr(torch, value.type.dtype)))
        for node in self.nodes:
            if node.op not in self.calls:
                raise UserError("SP1513", f"no PyTorch twin for op {node.op!r}", "compare without --against torch")

    def load(self, state: dict[str, Any]) -> "Twin":
        """Take parameters and running statistics from an executor's state_dict."""
        with torch.no_grad():
            for name, tensor in self.named_values():
                given = torch.asarray(state[name], copy=True)  # PyTorch shares no read-only array
                tensor.copy_(torch.view_as_real(given) if given.is_complex() else given)
        return self

    def of_images(self, format_: torch.memory_format) -> "Twin":
        """With what has four dimensions in this memory order; `Module.to` would refuse what has five."""
        for _, tensor in self.named_values():
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=format_)
        return self

    def named_values(self) -> list[tuple[str, Tensor]]:
        """Parameters and buffers under the names of `state_dict`."""
        return [(self._name(slot), tensor) for slot, tensor in [*self.named_parameters(), *self.named_buffers()]]

    def _name(self, slot: str) -> str:
        """The framework's name, which differs from the id where that must begin with a letter."""
        return self.value[slot].name or self.value[slot].id

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        held = self.run(self.nodes, dict(zip(self.inputs, inputs, strict=True)))
        for state, value in self.carried:
            self._buffers[self.slots[state]] = held[value].detach()
        return held[self.loss], held[self.prediction]

    def run(self, nodes: Sequence[Node], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`held` and what the nodes make of it."""
        found = dict(held)

        def get(value: str) -> Tensor:
            return found[value] if value in found else getattr(self, self.slots[value])

        for node in nodes:
            given, updated = [get(v) for v in node.inputs], [get(v) for v in node.updates]
            # What is made out of nothing is like a parameter: a product takes no other precision, or device.
            result = self.calls[node.op](node, given or [next(self.parameters())], updated)
            results = result if isinstance(result, tuple) else (result,)
            found.update(zip(node.outputs, map(self._exact, results), strict=False))
        return found

    def _exact(self, result: Tensor) -> Tensor:
        """In a twin in float64, masks and casts that are float32 by name are that, too."""
        wide = result.dtype is torch.float32 and next(self.parameters()).dtype is torch.float64
        return result.double() if wide else result

    def alternating(self, compile_: Callable[[Any], Any] = lambda call: call) -> Callable[..., Tensor]:
        """A whole step of several losses that train different parameters, as a user writes it for a generative
        adversarial network: what a later loss needs of an earlier part runs first and reaches the earlier loss
        detached. `call(*inputs)` -> the first loss."""
        optimizers = [optimizer_for(self.graph, self, number) for number in range(len(self.parts))]
        runs = [(compile_(_Section(self, p.shared)), compile_(_Section(self, p.own))) for p in self.parts]

        def step(*inputs: Tensor) -> Tensor:
            held: dict[str, Tensor] = dict(zip(self.inputs, inputs, strict=True))
            losses = []
            for part, optimizer, (shared, own) in zip(self.parts, optimizers, runs, strict=True):
                held = shared(held)
                detached = {v: t.detach() for v, t in held.items()} if part.shared else held
                losses.append(own(detached)[part.loss])
                optimizer.zero_grad(set_to_none=True)
                losses[-1].backward(inputs=[p for group in optimizer.param_groups for p in group["params"]])
                optimizer.step()
            return losses[0].detach()

        return step

    def gradients(self) -> dict[str, Tensor]:
        return {self._name(n): p.grad for n, p in self.named_parameters() if p.grad is not None}


class _Section(nn.Module):  # type: ignore[misc]
    """Some nodes of a twin as a module of their own, which torch.compile takes whole."""

    def __init__(self, twin: Twin, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.twin, self.nodes = twin, nodes

    def forward(self, held: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.twin.run(self.nodes, held)


def unchained(program: Program) -> Program:
    """The program with the ops that its chains stand for."""
    return program.model_copy(update={"nodes": tuple(part for node in program.nodes for part in apart(node))})


class Part(NamedTuple):
    """What one loss of a step computes and trains."""

    loss: str
    shared: tuple[Node, ...]
    """Forward nodes that later parts build on."""
    own: tuple[Node, ...]
    updates: tuple[Node, ...]


def parts_of(program: Program) -> tuple[Part, ...]:
    """A program's parts in their order: each ends where a forward node follows an update."""
    sections: list[list[Node]] = [[]]
    for node in program.nodes:
        if node.phase == "forward" and any(n.phase == "update" for n in sections[-1]):
            sections.append([])
        sections[-1].append(node)
    parts: list[Part] = []
    needed: set[str] = set()
    for loss, section in zip(reversed(program.outputs[: len(sections)]), reversed(sections), strict=True):
        forward = [n for n in section if n.phase == "forward"]
        shared: list[Node] = []
        for node in reversed(forward):
            if needed.intersection(node.outputs):
                shared.insert(0, node)
                needed.update(node.inputs)
        own = tuple(n for n in forward if n not in shared)
        needed.update(v for n in own for v in n.inputs)
        parts.insert(0, Part(loss, tuple(shared), own, tuple(n for n in section if n.phase == "update")))
    return tuple(parts)


OPTIONS = ("lr", "momentum", "nesterov", "weight_decay", "eps", "alpha", "centered", "lr_decay")
"""Of updates and of PyTorch's optimizers alike."""


def optimizer_for(graph: Graph, module: Twin, part: int = 0) -> torch.optim.Optimizer:
    """The optimizer of a part's update nodes, for the parameters that they train. Where the plan clips gradients, so
    does its `step`, before anything else."""
    updates = [n for n in module.parts[part].updates if n.op not in ("state_update", "gradient_sum")]
    settings = {v: n.attrs.model_dump() for n in updates for v in n.updates}
    groups: list[dict[str, Any]] = []
    for slot, parameter in module.named_parameters():
        own = settings.get(module.value[slot].id)
        if own is None or not parameter.requires_grad:
            continue
        group: dict[str, Any] = {k: own[k] for k in OPTIONS if k in own}
        if "beta1" in own:
            group["betas"] = (own["beta1"], own["beta2"])
        known = next((g for g in groups if {k: v for k, v in g.items() if k != "params"} == group), None)
        if known is None:
            groups.append({"params": [parameter], **group})
        else:
            known["params"].append(parameter)
    made = _optimizer(updates[0], groups)
    most = _clipped_to(graph, updates[0])
    if most is not None:
        trained, norm = [p for group in groups for p in group["params"]], most

        def clip(*_: Any) -> None:
            nn.utils.clip_grad_norm_(trained, norm)

        made.register_step_pre_hook(clip)
    return made


def _optimizer(update: Node, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    attrs: Any = update.attrs
    if update.op == "adam_update":
        return (torch.optim.AdamW if attrs.decoupled else torch.optim.Adam)(groups)
    if update.op == "adagrad_update":
        return torch.optim.Adagrad(groups, initial_accumulator_value=attrs.initial)
    return (torch.optim.RMSprop if update.op == "rmsprop_update" else torch.optim.SGD)(groups)


def _clipped_to(graph: Graph, update: Node) -> float | None:
    """The norm that an update's factor keeps its gradients to."""
    for node in graph.program["train_step"].nodes:
        attrs: Any = node.attrs
        if node.op == "clip_factor" and node.outputs[0] in update.inputs:
            return float(attrs.max_norm)
    return None


def _training_value(graph: Graph, training: Program) -> str:
    """The training step's value that corresponds to what `predict` returns, or from which only `predict` goes on: a
    softmax that ends an ONNX model is no part of training, where the loss takes the logits. The loss, where `predict`
    is a computation of its own."""
    predict = graph.program["predict"]
    made = {v for n in training.nodes for v in n.outputs}
    source = {v: n.inputs[0] for n in predict.nodes for v in n.outputs if n.inputs}
    value = predict.outputs[0]
    while value.removeprefix("predict.") not in made and value in source:
        value = source[value]
    value = value.removeprefix("predict.")
    return value if value in made else training.outputs[0]


def _conv2d(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    """Symmetric padding goes to PyTorch's convolution, as a user would write it."""
    a: Any = node.attrs
    top, bottom, left, right = a.padding
    if (top, left) != (bottom, right):
        return TORCH["conv2d"](a, inputs)
    return F.conv2d(*inputs, stride=a.stride, padding=(top, left), dilation=a.dilation, groups=a.groups)


def _batch_norm(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    mean, var = updates if updates else (None, None)
    y = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, a.momentum, a.eps)
    if a.residual:
        y += inputs[3]
    in_place = {"relu": F.relu_, "relu6": lambda y: F.relu6(y, inplace=True)}
    return in_place.get(a.activation, ACTIVATIONS[a.activation])(y)


def _lrn(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    return F.local_response_norm(inputs[0], a.size, a.alpha, a.beta, a.k)


def _filled(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    return inputs[0].new_full(a.shape, a.value)


def _random(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    """In the executor's memory order, so that who reads it finds it as there."""
    a: Any = node.attrs
    options = {"dtype": inputs[0].dtype, "device": inputs[0].device}
    if a.distribution == "exponential":
        found = torch.empty(a.physical_shape, **options).exponential_()
    else:
        found = (torch.rand if a.distribution == "uniform" else torch.randn)(a.physical_shape, **options)
    return found.permute(0, 3, 1, 2) if a.layout is Layout.CHANNELS_LAST else found


def _random_whole(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    a: Any = node.attrs
    return torch.randint(a.low, a.high, a.shape, device=inputs[0].device)


def _plain(call: Callable[[Any, Sequence[Tensor]], Outputs]) -> "Call":
    return lambda node, inputs, updates: call(node.attrs, inputs)


Call = Callable[[Node, list[Tensor], list[Tensor]], Outputs]
_CALLS: dict[str, Call] = {name: _plain(call) for name, call in TORCH.items()} | {
    "batch_norm": _batch_norm,
    "conv2d": _conv2d,
    "convert_layout": lambda node, inputs, updates: inputs[0],
    "dropout": lambda node, inputs, updates: F.dropout(inputs[0], node.attrs.p),
    "lrn": _lrn,
    "ones": _filled,
    "random": _random,
    "random_whole": _random_whole,
}
