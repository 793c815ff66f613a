"""Every operation of lazy arrays once, with what NumPy or PyTorch gives for it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from planner import narray as na

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(0)
DATA: dict[str, Array] = {
    "a": RNG.standard_normal((6, 8)).astype(np.float32),
    "b": RNG.standard_normal((6, 8)).astype(np.float32),
    "p": (RNG.random((6, 8)) + 0.5).astype(np.float32),
    "row": RNG.standard_normal(8).astype(np.float32),
    "m": RNG.standard_normal((8, 5)).astype(np.float32),
    "t": RNG.integers(0, 3, (6, 8)).astype(np.float32),
    "x": RNG.standard_normal((2, 3, 8, 8)).astype(np.float32),
    "w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
    "c": RNG.standard_normal(4).astype(np.float32),
    "d": RNG.standard_normal((2, 4, 4, 4)).astype(np.float32),
    "e": RNG.standard_normal((2, 3, 4, 4)).astype(np.float32),
    "y": RNG.integers(0, 8, 6),
}


def gradient(function: Callable[..., Any], dy: Array, *operands: Array, by: int = 0) -> Array:
    """PyTorch's, in float64."""
    tensors = [torch.tensor(o, dtype=torch.float64) for o in operands]
    tensors[by].requires_grad_()
    function(*tensors).backward(torch.tensor(dy, dtype=torch.float64))
    found = tensors[by].grad
    assert found is not None
    return np.asarray(found.numpy())


def in_torch(function: Callable[..., Any], *operands: Array) -> Array:
    tensors = [torch.tensor(o, dtype=torch.float64 if o.dtype == np.float32 else torch.int64) for o in operands]
    return np.asarray(function(*tensors).numpy())


CONV = {"stride": 2, "padding": 1}
Case = tuple[Callable[[Mapping[str, Any]], Any], Callable[[Mapping[str, Array]], Any]]
CASES: dict[str, Case] = {
    "add": (lambda v: v["a"] + v["row"] + 1, lambda v: v["a"] + v["row"] + 1),
    "sub": (lambda v: 2 - v["a"] - v["row"] - 0.5, lambda v: 2 - v["a"] - v["row"] - 0.5),
    "mul": (lambda v: 3 * v["a"] * v["b"], lambda v: 3 * v["a"] * v["b"]),
    "div": (lambda v: v["a"] / v["p"] / 4 + 1 / v["p"], lambda v: v["a"] / v["p"] / 4 + 1 / v["p"]),
    "power": (lambda v: v["p"] ** 1.5 + v["p"] ** 2, lambda v: v["p"] ** 1.5 + v["p"] ** 2),
    "neg": (lambda v: -v["a"], lambda v: -v["a"]),
    "abs": (lambda v: abs(v["a"]), lambda v: abs(v["a"])),
    "data": (lambda v: v["a"] + DATA["b"], lambda v: v["a"] + v["b"]),
    "exp": (lambda v: na.exp(v["a"]), lambda v: np.exp(v["a"])),
    "log": (lambda v: na.log(v["p"]), lambda v: np.log(v["p"])),
    "sqrt": (lambda v: na.sqrt(v["p"]), lambda v: np.sqrt(v["p"])),
    "square": (lambda v: na.square(v["a"]), lambda v: np.square(v["a"])),
    "tanh": (lambda v: na.tanh(v["a"]), lambda v: np.tanh(v["a"])),
    "sigmoid": (lambda v: na.sigmoid(v["a"]), lambda v: 1 / (1 + np.exp(-v["a"]))),
    "relu": (lambda v: na.relu(v["a"]), lambda v: np.maximum(v["a"], 0)),
    "relu_backward": (lambda v: na.relu_backward(v["b"], na.relu(v["a"])), lambda v: v["b"] * (v["a"] > 0)),
    "sigmoid_backward": (
        lambda v: na.sigmoid_backward(v["b"], na.sigmoid(v["a"])),
        lambda v: gradient(torch.sigmoid, v["b"], v["a"]),
    ),
    "tanh_backward": (
        lambda v: na.tanh_backward(v["b"], na.tanh(v["a"])),
        lambda v: gradient(torch.tanh, v["b"], v["a"]),
    ),
    "maximum": (
        lambda v: na.maximum(v["a"], v["b"]) + na.minimum(v["a"], v["b"]) * 2,
        lambda v: np.maximum(v["a"], v["b"]) + np.minimum(v["a"], v["b"]) * 2,
    ),
    "bounds": (
        lambda v: na.maximum(v["a"], 0.2) + na.minimum(v["a"], 0.3) + na.clip(v["a"], -0.5, 0.5),
        lambda v: np.maximum(v["a"], 0.2) + np.minimum(v["a"], 0.3) + np.clip(v["a"], -0.5, 0.5),
    ),
    "matmul": (lambda v: v["a"] @ v["m"], lambda v: v["a"] @ v["m"]),
    "matmul_transposed": (lambda v: v["m"].T @ v["a"].T @ v["b"], lambda v: v["m"].T @ v["a"].T @ v["b"]),
    "transpose": (lambda v: na.transpose(v["x"], (0, 2, 1, 3)), lambda v: v["x"].transpose(0, 2, 1, 3)),
    "reshape": (lambda v: na.reshape(v["a"], (3, 16)) + 1, lambda v: v["a"].reshape(3, 16) + 1),
    "broadcast_to": (lambda v: na.broadcast_to(v["row"], (6, 8)), lambda v: np.broadcast_to(v["row"], (6, 8))),
    "concatenate": (
        lambda v: na.concatenate([v["a"], v["b"]], 1),
        lambda v: np.concatenate([v["a"], v["b"]], 1),
    ),
    "slices": (lambda v: v["a"][1:5:2, 3] + v["a"][-1, 0], lambda v: v["a"][1:5:2, 3] + v["a"][-1, 0]),
    "sum": (lambda v: v["a"].sum(0) + v["a"].sum(), lambda v: v["a"].sum(0) + v["a"].sum()),
    "mean": (lambda v: v["x"].mean((0, 2, 3), keepdims=True), lambda v: v["x"].mean((0, 2, 3), keepdims=True)),
    "max": (
        lambda v: v["a"].max(0) + v["a"].max() + v["x"].max((1, 3)).sum(),
        lambda v: v["a"].max(0) + v["a"].max() + v["x"].max((1, 3)).sum(),
    ),
    "argmax": (lambda v: v["t"].argmax(1), lambda v: v["t"].argmax(1)),
    "argmax_0": (lambda v: v["t"].argmax(0), lambda v: v["t"].argmax(0)),
    "equal": (lambda v: na.equal(v["t"], 1), lambda v: v["t"] == 1),
    "count_nonzero": (lambda v: na.count_nonzero(v["t"]), lambda v: np.count_nonzero(v["t"])),
    "softmax": (lambda v: na.softmax(v["a"], 0), lambda v: in_torch(lambda a: a.softmax(0), v["a"])),
    "log_softmax": (lambda v: na.log_softmax(v["a"]), lambda v: in_torch(lambda a: a.log_softmax(1), v["a"])),
    "softmax_backward": (
        lambda v: na.softmax_backward(v["b"], na.softmax(v["a"], 0), 0),
        lambda v: gradient(lambda a: a.softmax(0), v["b"], v["a"]),
    ),
    "cross_entropy": (
        lambda v: na.cross_entropy(v["a"], v["y"]),
        lambda v: in_torch(F.cross_entropy, v["a"], v["y"]),
    ),
    "mean_squared_error": (
        lambda v: na.mean_squared_error(v["a"], v["b"]),
        lambda v: ((v["a"] - v["b"]) ** 2).mean(),
    ),
    "conv2d": (
        lambda v: na.conv2d(v["x"], v["w"], v["c"], stride=2, padding=1),
        lambda v: in_torch(lambda x, w, c: F.conv2d(x, w, c, **CONV), v["x"], v["w"], v["c"]),
    ),
    "conv2d_backward_data": (
        lambda v: na.conv2d_backward_data(v["d"], v["w"], (2, 3, 8, 8), stride=2, padding=1),
        lambda v: gradient(lambda x, w: F.conv2d(x, w, **CONV), v["d"], v["x"], v["w"]),
    ),
    "conv2d_backward_weights": (
        lambda v: na.conv2d_backward_weights(v["d"], v["x"], (4, 3, 3, 3), stride=2, padding=1),
        lambda v: gradient(lambda x, w: F.conv2d(x, w, **CONV), v["d"], v["x"], v["w"], by=1),
    ),
    "max_pool2d": (
        lambda v: na.max_pool2d(v["x"], 3, **CONV),
        lambda v: in_torch(lambda x: F.max_pool2d(x, 3, **CONV), v["x"]),
    ),
    "max_pool2d_backward": (
        lambda v: na.max_pool2d_backward(v["e"], v["x"], 3, **CONV),
        lambda v: gradient(lambda x: F.max_pool2d(x, 3, **CONV), v["e"], v["x"]),
    ),
    "avg_pool2d": (lambda v: na.avg_pool2d(v["x"], 2), lambda v: in_torch(lambda x: F.avg_pool2d(x, 2), v["x"])),
    "avg_pool2d_backward": (
        lambda v: na.avg_pool2d_backward(v["e"], (2, 3, 8, 8), 2),
        lambda v: gradient(lambda x: F.avg_pool2d(x, 2), v["e"], v["x"]),
    ),
    "local_response_norm": (
        lambda v: na.local_response_norm(v["x"], 3, 0.1),
        lambda v: in_torch(lambda x: F.local_response_norm(x, 3, 0.1), v["x"]),
    ),
    "local_response_norm_backward": (
        lambda v: na.local_response_norm_backward(v["x"] * 2, v["x"], 3, 0.1),
        lambda v: gradient(lambda x: F.local_response_norm(x, 3, 0.1), v["x"] * 2, v["x"]),
    ),
}


def require_near(found: Array, name: str) -> None:
    expected = np.asarray(CASES[name][1](DATA))
    assert found.shape == expected.shape, name
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)
