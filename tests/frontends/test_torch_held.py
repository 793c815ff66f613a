"""Parameters that a module holds in lists and dicts, too, are trained."""

import numpy as np
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from tests.frontends.torch_agreement import agree
from tests.interpreter import run_program


class Held(nn.Module):
    """As liquid networks hold theirs; a layer's, and a constant among them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 4), nn.Parameter(torch.rand(4))
        self.by_name = {"scale": self.scale, "half": torch.tensor(0.5), "name": "held"}
        self.listed = [(self.layer.weight, self.layer.bias), self.by_name["half"]]

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(x, *self.listed[0]) * self.by_name["scale"] * self.listed[1]
        return y + self.layer(x)


def test_parameters_in_lists_and_dicts() -> None:
    module = Held()
    held = dict(module.by_name), list(module.listed)
    agree(module, torch.randn(6, 5))
    assert all(module.by_name[k] is v for k, v in held[0].items()) and module.listed == held[1]
    assert module.by_name["scale"] is module.scale and module.listed[0][0] is module.layer.weight


class Variable:
    """As Keras has one."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Found(nn.Module):
    """What objects that are no modules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.rand(4, 5)), nn.Parameter(torch.rand(4))
        self.register_buffer("mean", torch.zeros(4))
        self.held = Variable(self.weight), Variable(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.held[0].value.mT + self.held[1].value
        return y - self.mean


def test_parameters_in_objects() -> None:
    agree(Found(), torch.randn(6, 5))


def test_a_parameter_of_whole_numbers_is_a_constant() -> None:
    """As the state of a generator that a layer holds, and nobody reads."""

    class Ordered(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 4)
            self.order = nn.Parameter(torch.tensor([2, 0, 1, 3], dtype=torch.int32), requires_grad=False)
            self.state = nn.Parameter(torch.tensor([7], dtype=torch.int32), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, self.order]

    module, x = Ordered(), torch.randn(6, 5)
    graph, weights = capture_module(module, x)
    assert set(weights) >= set(module.state_dict())
    step, values = graph.program["predict"], {v.id: weights[v.name] for v in graph.values if v.name in weights}
    found = run_program(graph, "predict", {**values, step.inputs[0]: x.numpy()})[step.outputs[0]]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_a_function_closes_over() -> None:
    module = nn.Linear(5, 4)
    scale, mean = nn.Parameter(torch.rand(4)), torch.zeros(4)
    module.register_parameter("scale", scale)
    module.register_buffer("mean", mean)

    def forward(x: Tensor) -> Tensor:
        y = nn.Linear.forward(module, x) * scale
        if module.training:
            mean.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return y

    module.forward = forward  # type: ignore[method-assign]
    graph, _ = capture_module(module, torch.randn(6, 5))
    changed = {v for n in graph.program["train_step"].nodes for v in n.updates}
    assert {v.name for v in graph.values if v.id in changed and v.name} >= {"weight", "bias", "scale", "mean"}
