"""Small training graphs for tests: fixed ones and random ones (fans, joins, shared weights, in-place chances)."""

import random

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init, Layout, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.conv import ConvAttrs
from planner.ops.copy import SliceAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.pool import AdaptivePoolAttrs, MaxPoolAttrs
from planner.ops.shape import FillAttrs, ReshapeAttrs

NORMAL = Init(kind="normal", value=0.2)


def images(b: GraphBuilder, batch: int = 4, channels: int = 3, size: int = 8) -> str:
    return b.input("images", TensorType(shape=(batch, channels, size, size), layout=Layout.CHANNELS_LAST))


def conv(b: GraphBuilder, x: str, out: int, name: str, kernel: int = 3, bias: bool = False) -> str:
    weight = b.parameter(f"{name}.weight", (out, b.shape(x)[1], kernel, kernel), NORMAL)
    inputs = [x, weight] + ([b.parameter(f"{name}.bias", (out,), NORMAL)] if bias else [])
    return b.op("conv2d", inputs, ConvAttrs(padding=(kernel // 2,) * 4), name=name)[0]


def batch_norm(b: GraphBuilder, x: str, name: str, activation: str = "none", residual: str = "") -> str:
    shape = b.shape(x)[1:2]
    inputs = [x, b.parameter(f"{name}.weight", shape, NORMAL), b.parameter(f"{name}.bias", shape, NORMAL)]
    states = [
        b.state(f"{name}.running_mean", shape, Init(kind="zeros")),
        b.state(f"{name}.running_var", shape, Init(kind="ones")),
    ]
    attrs = BatchNormAttrs(activation=activation, residual=bool(residual))
    return b.op("batch_norm", inputs + ([residual] if residual else []), attrs, name=name, updates=states)[0]


def classifier(
    b: GraphBuilder,
    x: str,
    classes: int = 5,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    accumulate: bool = False,
) -> Graph:
    """Global pooling, a linear layer and cross-entropy on `labels`."""
    (pooled,) = b.op("adaptive_avg_pool2d", [x], AdaptivePoolAttrs(output=(1, 1)), name="pool")
    n, c = b.shape(pooled)[:2]
    (flat,) = b.op("reshape", [pooled], ReshapeAttrs(shape=(n, c)), name="flat")
    weight, bias = b.parameter("fc.weight", (classes, c), NORMAL), b.parameter("fc.bias", (classes,), NORMAL)
    (logits,) = b.op("linear", [flat, weight, bias], name="fc")
    labels = b.input("labels", TensorType(shape=(n,), dtype=DType.INT64))
    loss = b.op("cross_entropy", [logits, labels], name="loss")[0]
    optimizer = optimizer or Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-4)
    return b.finish(loss, logits, optimizer, clip_norm=clip_norm, accumulate=accumulate)


def small_net(
    batch: int = 4,
    size: int = 8,
    clip_norm: float | None = None,
    accumulate: bool = False,
    optimizer: Optimizer | None = None,
) -> Graph:
    """Convolution, batch norm with relu, a residual block, max pooling, classifier."""
    b = GraphBuilder("small_net")
    x = batch_norm(b, conv(b, images(b, batch, size=size), 8, "conv1"), "bn1", "relu")
    y = batch_norm(b, conv(b, x, 8, "conv2"), "bn2", "relu", residual=x)
    (y,) = b.op("max_pool2d", [y], MaxPoolAttrs(kernel=(2, 2), stride=(2, 2)), name="maxpool")[:1]
    return classifier(b, y, optimizer=optimizer, clip_norm=clip_norm, accumulate=accumulate)


def deep_net(depth: int, optimizer: Optimizer, clip_norm: float | None = None, accumulate: bool = False) -> Graph:
    """Many small parameters, two per linear layer. Inputs: x (3, 6), target (3, 6)."""
    b = GraphBuilder("deep_net")
    x = b.input("x", TensorType(shape=(3, 6)))
    for layer in range(depth):
        x = layers.linear(b, x, 6, name=f"fc{layer}")
    loss = layers.mse(b, x, b.input("target", TensorType(shape=(3, 6))), name="loss")
    return b.finish(loss, x, optimizer, clip_norm=clip_norm, accumulate=accumulate)


def gated_net() -> Graph:
    """Most of what bfloat16 goes through: convolution with and without packing, batch norm with a residual, a chain, a
    branch, dropout, pooling and a product, and on to a float32 loss."""
    b = GraphBuilder("gated_net")
    x = batch_norm(b, conv(b, images(b), 8, "conv1"), "bn1", "relu")
    y = batch_norm(b, conv(b, x, 8, "conv2", kernel=1), "bn2", "relu", residual=x)
    (z,) = b.op("sigmoid", [y], name="gate")
    (z,) = b.op("mul", [z, y], name="gated")
    (z,) = b.op("dropout", [z], DropoutAttrs(p=0.0), name="drop")[:1]
    return classifier(b, conv(b, z, 8, "conv3", bias=True))


def random_net(rng: random.Random, nodes: int = 12, batch: int = 4) -> Graph:
    """A random graph of `nodes` forward layers over equal shapes, so that any two values can be joined."""
    b = GraphBuilder("random_net")
    values = [conv(b, images(b, batch, size=6), 8, "stem", bias=True)]
    for index in range(nodes):
        x = rng.choice(values[-4:])
        kind = rng.choice(["conv", "conv1", "bn", "bn_relu", "bn_add_relu", "relu", "add", "mul"])
        if kind.startswith("conv"):
            y = conv(b, x, 8, f"n{index}", kernel=1 if kind == "conv1" else 3, bias=rng.random() < 0.5)
        elif kind.startswith("bn"):
            residual = rng.choice(values) if kind == "bn_add_relu" else ""
            y = batch_norm(b, x, f"n{index}", "relu" if "relu" in kind else "none", residual)
        elif kind == "relu":
            (y,) = b.op("relu", [x], name=f"n{index}")
        else:
            (y,) = b.op(kind, [x, rng.choice(values)], name=f"n{index}")
        values.append(y)
    joined = values[-1]
    for index, other in enumerate(v for v in values[:-1] if rng.random() < 0.3):
        (joined,) = b.op("add", [joined, other], name=f"join{index}")
    optimizer = rng.choice([Optimizer(lr=0.05), Optimizer(lr=0.05, momentum=0.9), Optimizer(kind="adam", lr=1e-3)])
    clip_norm, accumulate = rng.choice(((None, False), (None, False), (0.5, False), (None, True), (0.5, True)))
    return classifier(b, joined, optimizer=optimizer, clip_norm=clip_norm, accumulate=accumulate)


def random_losses(rng: random.Random, objectives: int = 3, nodes: int = 5) -> Graph:
    """Several losses, each with its own updates: layers that ran before run again, on what their parameters are by
    then, and what they made before is read again."""
    b = GraphBuilder("random_losses")
    values, trained = [images(b, batch=2, channels=8, size=6)], set[str]()
    optimizer = Optimizer(lr=0.05, momentum=rng.choice((0.0, 0.9)))
    for part in range(objectives):
        for index in range(nodes):
            x, name = rng.choice(values[-3:]), f"part{part}.n{index}"
            kind = rng.choice(("conv", "bn_relu", "relu", "add", "mul"))
            with b.sharing():
                layer = f"shared{rng.randrange(3)}.{kind}"
                if kind == "conv":
                    y = layers.conv2d(b, x, 8, 3, padding=1, bias=rng.random() < 0.5, name=layer)
                elif kind == "bn_relu":
                    y = layers.relu(b, layers.batch_norm(b, x, name=layer), name=name)
                elif kind == "relu":
                    y = layers.relu(b, x, name=name)
                else:
                    (y,) = b.op(kind, [x, rng.choice(values)], name=name)
            values.append(y)
        (pooled,) = b.op("adaptive_avg_pool2d", values[-1:], AdaptivePoolAttrs(output=(1, 1)), name=f"part{part}.pool")
        verdict = layers.linear(b, layers.reshape(b, pooled, (2, 8), name=f"part{part}.flat"), 3, name=f"part{part}.fc")
        (target,) = b.op("ones", [], FillAttrs(shape=b.shape(verdict), value=0.5), name=f"part{part}.target")
        loss = layers.mse(b, verdict, target, name=f"part{part}.loss")
        if part == objectives - 1:
            clip_norm, accumulate = rng.choice((None, 0.5)), rng.choice((False, True))
            return b.finish(loss, verdict, optimizer, clip_norm=clip_norm, accumulate=accumulate)
        fresh = {v.id for v in b.values.values() if v.role is Role.PARAMETER} - trained
        chosen = {v for v in sorted(fresh) if v.startswith(f"part{part}.") or rng.random() < 0.7}
        trained |= chosen
        b.objective(loss, optimizer, chosen)
    raise AssertionError("no objectives")


def random_flats(rng: random.Random, objectives: int = 2, nodes: int = 6) -> Graph:
    """Several losses of layers whose weights are views of flat parameters, most of them of the same."""
    b = GraphBuilder("random_flats")
    values, trained = [b.input("x", TensorType(shape=(6, 4)))], set[str]()
    flats = [b.parameter(f"flat{index}", (16,), NORMAL) for index in range(3)]
    optimizer = Optimizer(lr=0.05, momentum=rng.choice((0.0, 0.9)))
    for part in range(objectives):
        for index in range(nodes):
            x, name = rng.choice(values[-3:]), f"part{part}.n{index}"
            kind = rng.choice(("linear", "matmul", "mul", "tanh", "add"))
            wide = layers.reshape(b, rng.choice(flats), (2, 8), name=f"{name}.wide")
            if kind in ("linear", "matmul"):
                (y,) = b.op(kind, [x, layers.reshape(b, wide, (4, 4), name=f"{name}.weight")], name=name)
            elif kind == "mul":
                lines = layers.reshape(b, x, (3, 1, 8), name=f"{name}.lines")
                y = layers.reshape(b, layers.mul(b, lines, wide, name=name), (12, 4), name=f"{name}.rows")
                (y,) = b.op("slice", [y], SliceAttrs(axis=0, start=0, stop=6), name=f"{name}.half")
            else:
                (y,) = b.op(kind, [x] if kind == "tanh" else [x, rng.choice(values)], name=name)
            values.append(y)
        target = b.input(f"part{part}.target", TensorType(shape=(6, 4)))
        verdict = layers.linear(b, values[-1], 4, name=f"part{part}.head")
        loss = layers.mse(b, verdict, target, name=f"part{part}.loss")
        if part == objectives - 1:
            return b.finish(loss, verdict, optimizer)
        chosen = {f"part{part}.head.weight"} | {f for f in flats if f not in trained and rng.random() < 0.5}
        trained |= chosen
        b.objective(loss, optimizer, chosen)
    raise AssertionError("no objectives")
