"""Networks written with lazy arrays compute what NumPy-style PyTorch computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.graph.text import validate
from planner.narray import (
    NArray,
    Recorder,
    concatenate,
    cross_entropy,
    exp,
    log,
    mean_squared_error,
    relu,
    sigmoid,
    softmax,
    tanh,
)
from tests.interpreter import run_program

STEP = Optimizer(lr=1.0)


def run(graph: Graph, values: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradient of every parameter)."""
    validate(graph)
    weights = {v.id: v for v in graph.values if v.name}
    results = run_program(graph, "train_step", values)
    return float(results[graph.program["train_step"].outputs[0]]), {k: values[k] - results[k] for k in weights}


def test_a_perceptron() -> None:
    with Recorder("mlp_b8") as r:
        x, y = r.input("x", (8, 5)), r.labels("y", (8,))
        w1, b1, w2 = r.parameter("w1", (5, 7)), r.parameter("b1", (7,)), r.parameter("w2", (7, 3))
        scores = relu(x @ w1 + b1) @ w2
        graph = r.train(cross_entropy(scores, y), scores, STEP)
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        k: rng.standard_normal(s) for k, s in {"x": (8, 5), "w1": (5, 7), "b1": (7,), "w2": (7, 3)}.items()
    }
    values["y"] = rng.integers(0, 3, 8)
    t = {k: torch.tensor(v, requires_grad=k[0] in "wb") for k, v in values.items()}
    expected = torch.nn.functional.cross_entropy(torch.relu(t["x"] @ t["w1"] + t["b1"]) @ t["w2"], t["y"])
    expected.backward()
    loss, gradients = run(graph, values)
    assert np.isclose(loss, expected.item())
    assert set(gradients) == {"w1", "b1", "w2"}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, t[name].grad.numpy(), rtol=1e-9, err_msg=name)
    assert {v.name: v.init.kind for v in graph.values if v.init} == {"w1": "uniform", "b1": "zeros", "w2": "uniform"}


class Torch:
    """The same functions for torch tensors."""

    relu, tanh, sigmoid, exp, log, softmax = torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.log, torch.softmax
    concatenate = staticmethod(lambda xs, axis=0: torch.cat(list(xs), axis))


class Lazy:
    relu, tanh, sigmoid, exp, log = map(staticmethod, (relu, tanh, sigmoid, exp, log))
    softmax, concatenate = staticmethod(softmax), staticmethod(concatenate)


CONSTANT = np.linspace(0.5, 2, 6, dtype=np.float32)

EXPRESSIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda f, x, w: (
        2 * w + 1 - w / 4 + (3 - w) * 0.5 - (w - 1) + x * w - x + w / (w * w + 1) + 1 / (w * w + 1)
    ),
    "powers": lambda f, x, w: w**2 + (w * w + 1) ** 0.5 + (w * w + 1) ** -1.5 + abs(w) + -w,
    "functions": lambda f, x, w: f.tanh(w) + f.sigmoid(w) * f.exp(w) + f.log(w * w + 1) + f.relu(w),
    "reductions": lambda f, x, w: w.sum(0) + w.mean(1, keepdims=True) + w.sum() + w.mean((0, 1)),
    "shapes": lambda f, x, w: w.T.reshape(6, 4)[:4].T.reshape(4, 4)[:, 1:3].T[1] + w[2, 1] + w[-1, ::2].sum(),
    "products": lambda f, x, w: (w @ x.T) @ w + w @ w[0].reshape(6, 1),
    "softmax": lambda f, x, w: f.softmax(w, 1) * f.softmax(x + w, 0),
    "joins": lambda f, x, w: f.concatenate([w, x * w], 1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expression(name: str) -> None:
    rng = np.random.default_rng(1)
    values = {"x": rng.standard_normal((4, 6)), "w": rng.standard_normal((4, 6))}
    r = Recorder(name)
    y = EXPRESSIONS[name](Lazy, r.input("x", (4, 6)), r.parameter("w", (4, 6)))
    w = torch.tensor(values["w"], requires_grad=True)
    z = EXPRESSIONS[name](Torch, torch.from_numpy(values["x"]), w)
    assert y.shape == tuple(z.shape) and y.ndim == z.dim() and y.size == z.numel()
    expected = (z**2).mean()
    expected.backward()
    loss, gradients = run(r.train((y**2).mean(), y, STEP), values)
    assert np.isclose(loss, expected.item())
    np.testing.assert_allclose(gradients["w"], w.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_numpy_constants_on_both_sides() -> None:
    r = Recorder("constants")
    w = r.parameter("w", (4, 6))
    y = CONSTANT * w + (CONSTANT - w) + CONSTANT / (w * w + 1)
    assert isinstance(y, NArray) and y.shape == (4, 6)
    target = r.input("target", (4, 6))
    graph = r.train(mean_squared_error(y, target), y, STEP)
    states = [v for v in graph.values if v.name.startswith("constant")]
    assert states and all(v.type.shape == (6,) for v in states)
    assert set(r.emitter.weights) == {v.name for v in states}


def test_lazy_arrays_have_no_values() -> None:
    r = Recorder("lazy")
    x = r.input("x", (3, 4))
    assert "f32[3,4]" in repr(x)
    for use in (float, bool, int, len, list, np.asarray):
        with pytest.raises(UserError, match="SP1021"):
            use(x)
    with pytest.raises(UserError, match="SP1021"):
        x[[0, 1]]
    with pytest.raises(UserError, match="SP1021"):
        x + Recorder("other").input("x", (3, 4))
    with pytest.raises(UserError, match="SP1002"):
        x @ x
    with pytest.raises(UserError, match="SP1006"):
        r.train(x.sum(), x)
