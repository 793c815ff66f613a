"""Captured modules against PyTorch in float64: the loss, the prediction, every gradient, every buffer that is saved."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Graph, Role
from planner.graph.optimizer import Optimizer
from planner.graph.text import validate
from tests.interpreter import run_program
from tests.torch_modules import in_dtype, in_pairs

STEP = Optimizer(lr=1.0)
"""An update that moves a parameter by exactly its gradient."""


def graph_values(graph: Graph, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = (v for v in graph.values if v.name in weights)
    return {
        v.id: weights[v.name].astype(np.float64) if weights[v.name].dtype.kind == "f" else weights[v.name]
        for v in named
    }


def double(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.double() if data.is_floating_point() else data
    if isinstance(data, dict):
        return {k: double(v) for k, v in data.items()}
    return tuple(double(d) for d in data)


def agree(
    module: nn.Module,
    inputs: Any,
    loss: str | Callable[..., Tensor] | None = "cross_entropy",
    labels: Tensor | None = None,
    fuse: bool = True,
    others: Sequence[Any] = (),
) -> Graph:
    """Capture, run the training step and `predict` with the ops' NumPy references, compare with the module: on these
    inputs, and on others of their shapes."""
    graph, weights = capture_module(
        module, inputs, CaptureOptions(loss=loss, labels=labels, optimizer=STEP, name="net", fuse=fuse)
    )
    validate(graph)
    assert all(weights[v.name].dtype in (np.float32, np.int64) for v in graph.values if v.name in weights)
    for given in (inputs, *others):
        _compare(graph, weights, module, given, loss, labels)
    return graph


def _compare(
    graph: Graph,
    weights: dict[str, np.ndarray],
    module: nn.Module,
    inputs: Any,
    loss: str | Callable[..., Tensor] | None,
    labels: Tensor | None,
) -> None:
    values = graph_values(graph, weights)
    reference = in_dtype(copy.deepcopy(module), torch.float64)
    if not module.training:
        reference.train()
    given = (inputs,) if isinstance(inputs, Tensor) else inputs
    arguments = double(given)
    names = [n for n in graph.program["train_step"].inputs if n != "labels"]
    leaves = list(arguments.values()) if isinstance(arguments, dict) else list(arguments)
    feed = {n: t.numpy() for n, t in zip(names, leaves, strict=True)}
    prediction = reference(**arguments) if isinstance(arguments, dict) else reference(*arguments)
    if "labels" in graph.program["train_step"].inputs:
        type_ = graph.value["labels"].type
        if labels is None:
            generator = torch.Generator().manual_seed(1)
            classes = prediction.shape[1] if prediction.dim() > 1 else prediction.shape[0]
            labels = (
                torch.randint(0, classes, type_.shape, generator=generator)
                if type_.dtype.value == "int64"
                else torch.randn(type_.shape, generator=generator)
            )
        labels = double(labels)
        assert labels is not None
        feed["labels"] = labels.numpy()
    compute = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}.get(loss, loss) if isinstance(loss, str) else loss
    compute = compute.double() if isinstance(compute, nn.Module) else compute
    expected = prediction if compute is None else compute(prediction, labels)
    expected.backward()
    results = run_program(graph, "train_step", {**values, **feed})
    np.testing.assert_allclose(results[graph.program["train_step"].outputs[0]].reshape(()), expected.item(), rtol=1e-6)
    by_name = {v.name: v.id for v in graph.values if v.name}
    states = {v.name: v.id for v in graph.values if v.role is Role.STATE and not v.constant}
    written = {n: p for n, p in reference.named_parameters() if n in states}  # a teacher's, for instance
    parameters = {n: p for n, p in reference.named_parameters() if n not in written}
    assert not any(p.requires_grad for p in written.values())
    assert {v.name for v in graph.values if v.role is Role.PARAMETER} >= set(parameters)
    for name, parameter in parameters.items():
        moved = values[by_name[name]] - results[by_name[name]]
        wanted = np.zeros(moved.shape) if parameter.grad is None else in_pairs(parameter.grad).numpy()
        np.testing.assert_allclose(moved, wanted, rtol=1e-5, atol=1e-8, err_msg=name)
    for name, buffer in (*reference.named_buffers(), *written.items()):
        if name in states and buffer.is_floating_point():
            np.testing.assert_allclose(
                results[by_name[name]], buffer.detach().numpy(), rtol=1e-6, atol=1e-9, err_msg=name
            )
    evaluated = reference.eval()(**arguments) if isinstance(arguments, dict) else reference.eval()(*arguments)
    statistics = {i: results[i] for i in states.values()}
    predicted = run_program(graph, "predict", {**values, **statistics, **feed})[graph.program["predict"].outputs[0]]
    np.testing.assert_allclose(predicted, evaluated.detach().numpy(), rtol=1e-5, atol=1e-7)


class Function(nn.Module):
    """A parameter-free function between two linear layers, so that gradients pass through it."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 6, outputs: int = 6) -> None:
        super().__init__()
        self.before, self.function, self.after = nn.Linear(5, width), function, nn.Linear(outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))
