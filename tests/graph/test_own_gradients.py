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
