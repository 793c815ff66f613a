"""What the gradient of a function may not do; that it is right is shown with PyTorch's (tests/frontends)."""

import pytest

from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.own_gradients import own_gradient


def test_a_gradient_that_changes_a_state_is_refused() -> None:
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(2, 3, 4, 4), layout=Layout.CHANNELS_LAST))
    y = layers.conv2d(b, x, 3, 1, name="conv")
    (arriving,) = b.op("detach", [y])
    (result,) = own_gradient(b, [y], [arriving], [y], [layers.batch_norm(b, arriving, name="bn")], "own")
    loss = layers.mean(b, result, (0, 1, 2, 3), name="loss")
    with pytest.raises(UserError, match=r"SP1024.*'bn'"):
        b.finish(loss, result, Optimizer())


def test_what_only_a_gradient_reads_is_computed_when_it_arrives() -> None:
    """Of a mask made from the function's input nothing is kept: the input is."""
    b = GraphBuilder("net")
    x = layers.linear(b, b.input("data", TensorType(shape=(4, 6))), 6, name="first")
    (y,) = b.op("round", [x])
    (arriving,) = b.op("detach", [y])
    (mask,) = b.op("sign", [b.op("square", [x])[0]])
    (result,) = own_gradient(b, [y], [arriving], [x], [layers.mul(b, arriving, mask, name="masked")], "own")
    graph = b.finish(layers.mean(b, result, (0, 1), name="loss"), result, Optimizer())
    nodes = graph.program["train_step"].nodes
    assert not {n.op for n in nodes if n.phase == "forward"} & {"square", "sign"}
    (chain,) = [n for n in nodes if n.op == "chain"]
    assert chain.phase == "backward" and chain.attrs.expression.endswith("sign(square(a))") and x in chain.inputs


def test_what_reads_a_changing_state_is_computed_before() -> None:
    """A batch norm changes its statistics in the forward pass: a gradient reads them when its function does."""
    b = GraphBuilder("net")
    x = layers.conv2d(b, b.input("x", TensorType(shape=(2, 3, 4, 4), layout=Layout.CHANNELS_LAST)), 3, 1, name="conv")
    (arriving,) = b.op("detach", [x])
    seen = layers.batch_norm(b, x, name="bn")
    width = layers.reshape(b, b.op("square", ["bn.running_var"])[0], (3, 1, 1), name="width")
    (result,) = own_gradient(b, [x], [arriving], [x], [layers.mul(b, arriving, width, name="wide")], "own")
    loss = layers.mean(b, layers.add(b, result, seen, name="both"), (0, 1, 2, 3), name="loss")
    graph = b.finish(loss, result, Optimizer())
    (square,) = [n for n in graph.program["train_step"].nodes if n.op == "square"]
    assert square.phase == "forward"
