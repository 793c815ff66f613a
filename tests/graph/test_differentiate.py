"""Whole training steps against PyTorch in float64: loss, gradients, updates, running statistics."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.differentiate import append_backward
from planner.graph.model import DType, Init, Layout, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.reduce import ReduceAttrs
from tests.interpreter import draw_values, run_nodes, run_program


class Net(torch.nn.Module):
    """A residual network with every kind of join."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.bn2 = torch.nn.BatchNorm2d(8)
        self.down = torch.nn.Conv2d(8, 8, 1, stride=2, bias=False)
        self.down_bn = torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(2 * 8 * 4, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + self.down_bn(self.down(x)))
        pooled = F.avg_pool2d(x, 2)
        x = torch.cat([F.max_pool2d(x, 2), pooled * torch.sigmoid(pooled)], 1)
        return self.fc(x.flatten(1))


def graph_of_net(optimizer):
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(6, 3, 8, 8), layout=Layout.CHANNELS_LAST))
    x = layers.relu(
        b, layers.batch_norm(b, layers.conv2d(b, x, 8, 3, 1, 1, bias=False, name="conv1"), name="bn1"), name="r1"
    )
    y = layers.batch_norm(b, layers.conv2d(b, x, 8, 3, 2, 1, name="conv2"), name="bn2")
    z = layers.batch_norm(b, layers.conv2d(b, x, 8, 1, 2, bias=False, name="down"), name="down_bn")
    x = layers.relu(b, layers.add(b, y, z, name="join"), name="r2")
    pooled = layers.avg_pool(b, x, 2, 2, name="avg")
    gated = layers.mul(b, pooled, layers.unary(b, "sigmoid", pooled, name="gate"), name="gated")
    x = layers.concat(b, [layers.max_pool(b, x, 2, 2, name="max"), gated], name="cat")
    logits = layers.linear(b, layers.flatten(b, x, name="flat"), 5, name="fc")
    labels = b.input("labels", TensorType(shape=(6,), dtype=DType.INT64))
    return b.finish(layers.cross_entropy(b, logits, labels, label_smoothing=0.1), logits, optimizer)


def test_training_step_of_a_network():
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    graph = graph_of_net(Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01))
    rng = np.random.default_rng(0)
    values = draw_values(graph, rng)
    values |= {k: v.numpy().copy() for k, v in model.state_dict().items() if "num_batches" not in k}
    for _ in range(3):
        x, labels = rng.standard_normal((6, 3, 8, 8)), rng.integers(0, 5, 6)
        held = run_program(graph, "train_step", values | {"x": x, "labels": labels})
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.tensor(x)), torch.tensor(labels), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(held["loss.loss"], loss.item(), rtol=1e-10)
        values = {v.id: held[v.id] for v in graph.values if v.name}
        for name, expected in model.state_dict().items():
            if "num_batches" not in name:
                np.testing.assert_allclose(values[name], expected.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)
    model.eval()
    held = run_program(graph, "predict", values | {"x": x})
    (prediction,) = graph.program["predict"].outputs
    np.testing.assert_allclose(held[prediction], model(torch.tensor(x)).detach().numpy(), rtol=1e-8, atol=1e-10)


def test_transformer_block():
    """Embedding, layer norm, attention with batched products, gelu, shared table."""
    rows, length, width, heads, entries = 2, 5, 8, 2, 11
    b = GraphBuilder("net")
    ids = b.input("ids", TensorType(shape=(rows, length), dtype=DType.INT64))
    x = layers.embedding(b, ids, entries, width, name="table")
    normal = layers.layer_norm(b, x, name="ln")
    parts = layers.split(b, layers.linear(b, normal, 3 * width, name="qkv"), (width,) * 3, axis=-1, name="parts")

    def heads_first(value, name):
        split = layers.reshape(b, value, (rows, length, heads, width // heads), name=name)
        return layers.transpose(b, split, 1, 2, name=f"{name}_t")

    q, k, v = (heads_first(p, n) for p, n in zip(parts, "qkv", strict=True))
    from planner.ops.matmul import MatmulAttrs
    from planner.ops.scalar import ScalarAttrs

    scores = b.op("matmul", [q, k], MatmulAttrs(transpose_b=True), name="scores")[0]
    scores = b.op("scale", [scores], ScalarAttrs(value=(width // heads) ** -0.5), name="scaled")[0]
    mixed = b.op("matmul", [layers.softmax(b, scores, name="softmax"), v], name="mixed")[0]
    mixed = layers.reshape(b, layers.transpose(b, mixed, 1, 2, name="back"), (rows, length, width), name="joined")
    x = layers.add(b, x, layers.gelu(b, mixed, name="gelu"), name="residual")
    logits = b.op("linear", [x, "table.weight"], name="head")[0]
    flat = layers.reshape(b, logits, (-1, entries), name="flat")
    labels = b.input("labels", TensorType(shape=(rows * length,), dtype=DType.INT64))
    loss = layers.cross_entropy(b, flat, labels)
    gradients = append_backward(b, list(b.nodes), loss)

    rng = np.random.default_rng(1)
    values = {v.id: rng.standard_normal(v.type.shape) for v in b.values.values() if v.role is Role.PARAMETER}
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in values.items()}
    values |= {"ids": rng.integers(0, entries, (rows, length)), "labels": rng.integers(0, entries, rows * length)}
    held = run_nodes(b.nodes, b.values, values)

    t = F.embedding(torch.tensor(values["ids"]), tensors["table.weight"])
    n = F.layer_norm(t, (width,), tensors["ln.weight"], tensors["ln.bias"])
    qkv = F.linear(n, tensors["qkv.weight"], tensors["qkv.bias"]).split(width, -1)
    q, k, v = (p.reshape(rows, length, heads, -1).transpose(1, 2) for p in qkv)
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
    t = t + F.gelu(mixed)
    logits = F.linear(t, tensors["table.weight"]).reshape(-1, entries)
    expected = F.cross_entropy(logits, torch.tensor(values["labels"]))
    expected.backward()
    np.testing.assert_allclose(held[loss], expected.item(), rtol=1e-9)
    assert set(gradients) == set(tensors)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(held[gradient], tensors[name].grad.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


def test_segmentation_loss_over_pixels():
    b = GraphBuilder("net")
    b.parameter("x", (2, 4, 3, 5), Init(kind="zeros"))
    x = b.convert("x", Layout.CHANNELS_LAST)
    labels = b.input("labels", TensorType(shape=(2, 3, 5), dtype=DType.INT64))
    loss = layers.cross_entropy(b, x, labels, ignore_index=1)
    gradients = append_backward(b, list(b.nodes), loss)
    rng = np.random.default_rng(2)
    values = {"x": rng.standard_normal((2, 4, 3, 5)), "labels": rng.integers(0, 4, (2, 3, 5))}
    held = run_nodes(b.nodes, b.values, values)
    tensor = torch.tensor(values["x"], requires_grad=True)
    expected = F.cross_entropy(tensor, torch.tensor(values["labels"]), ignore_index=1)
    expected.backward()
    np.testing.assert_allclose(held[loss], expected.item())
    np.testing.assert_allclose(held[gradients["x"]], tensor.grad.numpy(), atol=1e-12)


def test_backward_reads_only_what_it_needs():
    """Memory planning lives on this: relu keeps its output, convolution its input, addition nothing."""
    graph = graph_of_net(Optimizer(lr=0.1))
    nodes = graph.program["train_step"].node
    forward = {v for n in nodes.values() if n.phase == "forward" for v in n.outputs}
    read = {n.id: {v for v in n.inputs if v in forward} for n in nodes.values() if n.phase == "backward"}
    assert read["max.backward"] == {"max.argmax"}
    assert read["avg.backward"] == set()
    assert read["conv2.backward_data"] == set()
    assert read["conv2.backward_weights"] == {"r1.y"}
    assert read["loss.backward"] == {"fc.y", "loss.largest", "loss.log_sum", "loss.scale"}


def test_gradients_that_meet_are_added_once_per_arrival():
    b = GraphBuilder("net")
    b.parameter("x", (3, 4), Init(kind="zeros"))
    a, c, d = (layers.unary(b, op, "x", name=op) for op in ("tanh", "exp", "square"))
    y = layers.add(b, layers.add(b, a, c, name="ac"), d, name="acd")
    target = b.input("target", TensorType(shape=(3, 4)))
    loss = layers.mse(b, y, target)
    gradients = append_backward(b, list(b.nodes), loss)
    assert [n.op for n in b.nodes if n.phase == "backward"].count("add") == 2
    assert b.values[gradients["x"]].gradient_of == "x"


def dense_block(join, bend, x):
    """Every layer reads all that there is before it, as in DenseNet. At the end everything is joined, and three parts
    once more the other way round."""
    parts = [x]
    for number in range(4):
        parts.append(bend(join(parts, f"join{number}") if number else x, number))
    return join(parts, "all"), join(parts[2::-1], "turned")


@pytest.mark.parametrize("axis", [1, 2])
def test_gradients_within_dense_blocks_are_added_as_wide_as_they_were_joined(axis):
    b = GraphBuilder("net")
    x = b.parameter("x", (3, 4, 5, 4) if axis == 1 else (6, 5, 4), Init(kind="zeros"))
    first = b.convert(x, Layout.CHANNELS_LAST) if axis == 1 else x
    mean = ReduceAttrs(axes=(axis,), keepdims=True)

    def bend(wide, number):
        bent = b.op("reduce_mean", [layers.unary(b, "tanh", wide, name=f"tanh{number}")], mean, name=f"mean{number}")[0]
        return layers.mul(b, bent, first, name=f"out{number}")

    ends = dense_block(lambda parts, name: layers.concat(b, parts, axis, name=name), bend, first)
    squares = [layers.unary(b, "square", end, name=f"square_{end}") for end in ends]
    every = ReduceAttrs(axes=tuple(range(len(b.shape(x)))))
    sums = [b.op("reduce_sum", [s], every, name=f"sum_{s}")[0] for s in squares]
    loss = layers.add(b, *sums, name="loss")
    gradients = append_backward(b, list(b.nodes), loss)
    drawn = np.random.default_rng().standard_normal(b.shape("x"))
    held = run_nodes(b.nodes, b.values, {"x": drawn})

    t = torch.tensor(drawn, requires_grad=True)
    ends = dense_block(lambda parts, _: torch.cat(parts, axis), lambda w, _: w.tanh().mean(axis, True) * t, t)
    expected = sum((end**2).sum() for end in ends)
    expected.backward()
    np.testing.assert_allclose(held[loss], expected.item(), rtol=1e-12)
    np.testing.assert_allclose(held[gradients["x"]], t.grad.numpy(), rtol=1e-10, atol=1e-12)

    # What a join reads of an earlier one is added to that one's gradient in one piece. Cut out is only what no other
    # gradient waits for.
    assert {n.id for n in b.nodes if n.op == "slice"} == {
        *("turned.backward_0", "turned.backward_1", "all.backward_1", "join3.backward_1")
    }
    wide = {n.id: b.shape(n.outputs[0])[axis] for n in b.nodes if n.op == "add_slice"}
    assert {n: w for n, w in wide.items() if n.startswith("join")} == {
        f"join{i}.y.grad_sum": 4 * (i + 1) for i in (1, 2, 3)
    }
