"""The PyTorch contender does what the graph says, also of captured modules and of steps with several losses."""

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from codegen.initial import draw
from codegen.steps import random_inputs
from codegen.torch_random import FIXED
from codegen.torch_twin import Twin
from planner import zoo
from planner.capturing import capture
from planner.graph.model import PERSISTENT
from tests.interpreter import run_program
from tests.torch_draws import Replayed
from tests.torch_modules import MODULES, in_pairs


def test_losses_that_train_different_parameters() -> None:
    graph = zoo.build("dcgan", 2)
    program = graph.program["train_step"]
    values = {v.name: draw(v, 3).astype(np.float64) for v in graph.values if v.role in PERSISTENT}
    twin = Twin(graph).double().load(values)
    inputs = [a.astype(np.float64) for a in random_inputs(graph, None)]
    held = run_program(graph, "train_step", {**values, **dict(zip(program.inputs, inputs, strict=True))})
    loss = twin.alternating()(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs))
    np.testing.assert_allclose(float(loss), float(held[program.outputs[0]]), rtol=1e-9)
    for name, tensor in twin.named_values():
        # Adam's first step is nearly the sign of the gradient, whatever its size: float32 would not do here.
        difference, moved = tensor.detach().numpy() - held[name], held[name] - values[name]
        assert np.mean(np.abs(difference)) < 1e-3 * np.mean(np.abs(moved)) + 1e-12, name


@pytest.mark.parametrize("name", ["dcgan", "lstm", "digits_cnn"])
def test_on_another_device(name: str) -> None:
    """All that a twin makes itself lies beside its parameters: the meta device takes no other."""
    graph = zoo.build(name, 2)
    twin = Twin(graph).to("meta")
    loss, _ = twin(*(torch.from_numpy(np.ascontiguousarray(a)).to("meta") for a in random_inputs(graph)))
    loss.backward()
    assert loss.device.type == "meta"


class FiveDimensions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.factor = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(1, 2, 2, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.conv(x).unflatten(1, (2, 2)) * self.factor).flatten(1)


def test_memory_order_of_images_alone() -> None:
    x = torch.randn(2, 3, 5, 5)
    graph = capture(FiveDimensions(), (x,)).graph
    plain = Twin(graph)
    state = {name: tensor.detach().numpy() for name, tensor in plain.named_values()}
    turned = Twin(graph).load(state).of_images(torch.channels_last)
    assert dict(turned.named_values())["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([1, 2])
    np.testing.assert_allclose(*(float(t(x, labels)[0].detach()) for t in (plain, turned)), rtol=1e-5)


def digits() -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, object]]:
    """Parameters called 0.weight: no ids of a graph."""
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (torch.randn(4, 6),), {}


@pytest.mark.parametrize("name", [*sorted(MODULES), "digits"])
def test_captured_modules(name: str) -> None:
    """Loss and gradients are the module's own, under its names; dropout is left out of both, numbers are the same."""
    torch.manual_seed(0)
    module, inputs, options = digits() if name == "digits" else MODULES[name]()
    captured = capture(module, inputs, **options)
    persistent = {v.name or v.id: v for v in captured.graph.values if v.role in PERSISTENT}
    state = {n: captured.weights[n] if n in captured.weights else draw(v, 0) for n, v in persistent.items()}
    twin = Twin(captured.graph, FIXED).load(state)
    batch = [torch.from_numpy(np.ascontiguousarray(a)) for a in random_inputs(captured.graph, 1)]
    loss, _ = twin(*batch)
    loss.backward()
    plain = copy.deepcopy(module).train()
    for part in plain.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    *given, labels = batch
    compute = nn.functional.mse_loss if options.get("loss") == "mse" else nn.functional.cross_entropy
    with Replayed(captured.graph, seed=0, step=1):
        prediction = plain(*given)
    expected = compute(prediction, labels)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    wanted = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    got = twin.gradients()
    assert set(got) == set(wanted)
    for n, gradient in wanted.items():
        near = {"rtol": 1e-3, "atol": 1e-5}
        torch.testing.assert_close(got[n], in_pairs(gradient), **near, msg=lambda m, n=n: f"{n}: {m}")


def test_what_only_predict_computes(tmp_path: Path) -> None:
    """An ONNX model ends in a softmax, which training leaves to the loss: the twin's prediction is the logits."""
    weight = numpy_helper.from_array(np.ones((6, 3), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["logits"]), helper.make_node("Softmax", ["logits"], ["y"], axis=1)]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, 6]), ("y", [4, 3]))]
    graph = helper.make_graph(nodes, "net", shapes[:1], shapes[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    captured = capture(tmp_path / "net.onnx")
    x, labels = (torch.from_numpy(a) for a in random_inputs(captured.graph, 1))
    _, prediction = Twin(captured.graph).load(captured.weights)(x, labels)
    np.testing.assert_allclose(prediction.detach(), x @ torch.ones(6, 3), rtol=1e-5)
