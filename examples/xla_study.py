"""The same training step compiled by XLA, beside a built executor: `jax.jit` of the graph's forward nodes, their
gradients and the update, with donated parameters.

python examples/xla_study.py FOLDER [FOLDER ...] [--repetitions 10] [--json]     (needs `pip install jax`)

XLA gets the values in the memory order that the graph gives them, channels last, which its convolutions on processors
want. Running statistics are left to the executor alone. Where nothing is drawn, both losses are compared: a study of
two different networks would say nothing.
"""

import argparse
import gc
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from codegen.load import executor_class
from codegen.steps import Step, paired, random_inputs
from codegen.torch_twin import unchained
from planner.bundle import read_bundle
from planner.console import script
from planner.graph.model import Graph, Layout, Node, Role

Array = Any
TOLERANCES = (2e-4, 0.05)
"""Between the first and the second losses of both, relative: far more than rounding makes, far less than a missing op
does. A whole step at the network's own rate lies between them, which multiplies rounding."""


def conv2d(a: Any, t: Sequence[Array]) -> Array:
    top, bottom, left, right = a.padding
    y = lax.conv_general_dilated(
        t[0],
        t[1].transpose(2, 3, 1, 0),
        a.stride,
        ((top, bottom), (left, right)),
        rhs_dilation=a.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=a.groups,
    )
    return y + t[2] if len(t) > 2 else y


def batch_norm(a: Any, t: Sequence[Array]) -> Array:
    mean = t[0].mean((0, 1, 2))
    var = jnp.square(t[0] - mean).mean((0, 1, 2))
    y = (t[0] - mean) * (lax.rsqrt(var + a.eps) * t[1]) + t[2]
    y = y + t[3] if a.residual else y
    return {"none": lambda y: y, "relu": jax.nn.relu}[a.activation](y)


def _windows(a: Any, t: Sequence[Array], start: float, combine: Any) -> Array:
    top, bottom, left, right = a.padding
    padding = ((0, 0), (top, bottom), (left, right), (0, 0))
    return lax.reduce_window(t[0], start, combine, (1, *a.kernel, 1), (1, *a.stride, 1), padding)


def max_pool2d(a: Any, t: Sequence[Array]) -> Array:
    assert not a.ceil_mode and tuple(a.dilation) == (1, 1)
    return _windows(a, t, -math.inf, lax.max)


def avg_pool2d(a: Any, t: Sequence[Array]) -> Array:
    assert not a.ceil_mode
    counts = math.prod(a.kernel) if a.count_include_pad else _windows(a, [jnp.ones_like(t[0])], 0.0, lax.add)
    return _windows(a, t, 0.0, lax.add) / counts


def adaptive_avg_pool2d(a: Any, t: Sequence[Array]) -> Array:
    n, height, width, channels = t[0].shape
    rows, columns = a.output
    assert height % rows == width % columns == 0
    return t[0].reshape(n, rows, height // rows, columns, width // columns, channels).mean((2, 4))


def linear(a: Any, t: Sequence[Array]) -> Array:
    y = t[0] @ t[1].T
    return y + t[2] if len(t) > 2 else y


def cross_entropy(a: Any, t: Sequence[Array]) -> Array:
    assert a.reduction == "mean" and not a.label_smoothing
    return -jnp.take_along_axis(jax.nn.log_softmax(t[0]), t[1][:, None], 1).mean()


def bce_with_logits(a: Any, t: Sequence[Array]) -> Array:
    assert a.reduction == "mean"
    return (jax.nn.softplus(t[0]) - t[0] * t[1]).mean()


def layer_norm(a: Any, t: Sequence[Array]) -> Array:
    axes = tuple(range(t[0].ndim - a.dims, t[0].ndim))
    mean = t[0].mean(axes, keepdims=True)
    var = jnp.square(t[0] - mean).mean(axes, keepdims=True)
    y = (t[0] - mean) * lax.rsqrt(var + a.eps)
    y = y * t[1] if a.scale else y
    return y + t[-1] if a.shift else y


def attention(a: Any, t: Sequence[Array]) -> Array:
    q, k, v = t
    scores = a.scale * jnp.einsum("...qd,...kd->...qk", q, k)
    if a.causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -math.inf)
    weights = jax.nn.softmax(scores)
    if a.dropout:
        weights = dropout(a.dropout, weights)
    return weights @ v


def dropout(p: float, x: Array) -> Array:
    """With a key of the trace's own: what is drawn does not matter here, that something is does."""
    kept = jax.random.bernoulli(_key(), 1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0.0)


_keys: list[Array] = []


def _key() -> Array:
    _keys[0], key = jax.random.split(_keys[0])
    return key


def lstm_cell(a: Any, t: Sequence[Array]) -> tuple[Array, Array]:
    i, f, g, o = jnp.split(t[0] + t[1], 4, 1)
    c = jax.nn.sigmoid(f) * t[2] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def split(a: Any, t: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(jnp.split(t[0], np.cumsum(a.sizes)[:-1], a.axis))


def sliced(a: Any, t: Sequence[Array]) -> Array:
    return lax.slice_in_dim(t[0], a.start, a.stop, a.step, a.axis)


OPS: Mapping[str, Callable[[Any, Sequence[Array]], Any]] = {
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "add": lambda a, t: t[0] + t[1],
    "attention": attention,
    "avg_pool2d": avg_pool2d,
    "batch_norm": batch_norm,
    "bce_with_logits": bce_with_logits,
    "conv2d": conv2d,
    "cross_entropy": cross_entropy,
    "dropout": lambda a, t: dropout(a.p, t[0]),
    "embedding": lambda a, t: t[0][t[1]],
    "gelu": lambda a, t: jax.nn.gelu(t[0], approximate=a.approximate == "tanh"),
    "layer_norm": layer_norm,
    "linear": linear,
    "lstm_cell": lstm_cell,
    "max_pool2d": max_pool2d,
    "permute": lambda a, t: t[0].transpose(a.axes),
    "reduce_sum": lambda a, t: t[0].sum(a.axes, keepdims=a.keepdims),
    "relu": lambda a, t: jax.nn.relu(t[0]),
    "reshape": lambda a, t: t[0].reshape(a.shape),
    "slice": sliced,
    "split": split,
}


class Network:
    """A graph's training step for XLA. Values that lie channels-last are arrays of that order."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.program = graph, unchained(graph.program["train_step"])
        self.forward = [n for n in self.program.nodes if n.phase == "forward"]
        updates = [n for n in self.program.nodes if n.phase == "update"]
        self.value = {v.id: v for v in graph.values}
        self.parameters = [v.id for v in graph.values if v.role is Role.PARAMETER]
        unknown = {n.op for n in self.forward} - {*OPS, "concat", "convert_layout"}
        unknown |= {n.op for n in updates} - {"sgd_update", "adam_update"}
        if unknown:
            raise SystemExit(f"this study knows no {', '.join(sorted(unknown))}")
        self.updates = {n.updates[0]: n for n in updates}

    def last(self, value: str) -> bool:
        return self.value[value].type.layout is Layout.CHANNELS_LAST

    def loss(self, parameters: dict[str, Array], inputs: Sequence[Array], key: Array) -> Array:
        _keys[:] = [key]
        held = {**parameters, **dict(zip(self.program.inputs, inputs, strict=True))}
        for node in self.forward:
            result = self._run(node, [held[v] for v in node.inputs])
            held.update(zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=False))
        return held[self.program.outputs[0]]

    def _run(self, node: Node, given: Sequence[Array]) -> Any:
        attrs: Any = node.attrs
        if node.op == "concat":
            axis = attrs.axis if not self.last(node.outputs[0]) else (0, 3, 1, 2)[attrs.axis]
            return jnp.concatenate(given, axis)
        if node.op == "convert_layout":
            before, after = self.last(node.inputs[0]), self.last(node.outputs[0])
            axes = (0, 1, 2, 3) if before == after else (0, 2, 3, 1) if after else (0, 3, 1, 2)
            return given[0].transpose(axes)
        return OPS[node.op](attrs, given)

    def step(self, parameters: Any, moments: Any, count: Array, inputs: Sequence[Array], key: Array) -> Any:
        loss, gradients = jax.value_and_grad(self.loss)(parameters, inputs, key)
        parameters, moments = dict(parameters), dict(moments)
        for name, node in self.updates.items():
            update = _sgd if node.op == "sgd_update" else _adam
            parameters[name], moments[name] = update(
                node.attrs, parameters[name], gradients[name], moments[name], count + 1
            )
        return parameters, moments, count + 1, loss


def _sgd(a: Any, value: Array, gradient: Array, moments: tuple[Array, ...], count: Array) -> Any:
    gradient = gradient + a.weight_decay * value
    if not a.momentum:
        return value - a.lr * gradient, moments
    velocity = a.momentum * moments[0] + gradient
    return value - a.lr * (gradient + a.momentum * velocity if a.nesterov else velocity), (velocity, moments[1])


def _adam(a: Any, value: Array, gradient: Array, moments: tuple[Array, ...], count: Array) -> Any:
    if a.decoupled:
        value = value * (1 - a.lr * a.weight_decay)
    else:
        gradient = gradient + a.weight_decay * value
    first = a.beta1 * moments[0] + (1 - a.beta1) * gradient
    second = a.beta2 * moments[1] + (1 - a.beta2) * gradient * gradient
    scale = a.lr / (1 - a.beta1**count)
    return value - scale * first / (jnp.sqrt(second / (1 - a.beta2**count)) + a.eps), (first, second)


def compiled(graph: Graph, state: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray]) -> Step:
    """A step that keeps its parameters, as the executor's does; returns its loss."""
    network = Network(graph)
    # Copies: a donated array must not lie in memory that belongs to NumPy.
    parameters = {v: jnp.array(state[network.value[v].name or v]) for v in network.parameters}
    moments = {v: (jnp.zeros_like(p), jnp.zeros_like(p)) for v, p in parameters.items()}
    given = [
        jnp.array(array.transpose(0, 2, 3, 1) if network.last(value) else array)
        for value, array in zip(network.program.inputs, inputs, strict=True)
    ]
    run = jax.jit(network.step, donate_argnums=(0, 1, 2))
    held: list[Any] = [parameters, moments, jnp.zeros(()), jax.random.key(0)]

    def step() -> float:
        held[3], key = jax.random.split(held[3])
        held[0], held[1], held[2], loss = run(held[0], held[1], held[2], given, key)
        return float(loss)

    return step


def study(folder: Path, repetitions: int) -> dict[str, Any]:
    bundle = read_bundle(folder)
    inputs = random_inputs(bundle.graph)
    executor = executor_class(folder)(seed=0)
    contender = compiled(bundle.graph, executor.state_dict(), inputs)

    def step() -> float:
        return executor.step(*inputs)

    losses = [(step(), contender()) for _ in TOLERANCES]
    drawn = any(n.op == "dropout" or getattr(n.attrs, "dropout", 0) for n in bundle.graph.program["train_step"].nodes)
    off = [abs(a - b) / abs(a) for a, b in losses]
    if not drawn and any(error > most for error, most in zip(off, TOLERANCES, strict=True)):
        raise SystemExit(f"{folder.name}: losses differ: {losses}")
    row = {"name": bundle.plan.name, "losses": losses, **paired(step, contender, repetitions)}
    executor.close()
    del contender
    gc.collect()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [study(Path(folder), arguments.repetitions) for folder in arguments.folders]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"jax {jax.__version__}, {os.cpu_count()} processors")
    for row in rows:
        print(f"{row['name']:>40} {row['stepplan_ms']:>9.1f} ms, XLA {row['ms']:>9.1f} ms, ratio {row['ratio']:.3f}")


if __name__ == "__main__":
    script(main)
