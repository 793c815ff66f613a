"""Weights that several linear layers share: one product of joined operands makes their gradient, where that is less."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.differentiate import append_backward
from planner.graph.model import Init, TensorType
from planner.graph.shared_weights import LEAST_ROWS
from planner.ops.split import SplitAttrs
from tests.interpreter import run_nodes

WIDTH = 6
RNG = np.random.default_rng()


def recurrent(
    rows: Sequence[int], read: Collection[int] | None = None, trained: Collection[str] | None = None
) -> GraphBuilder:
    """y_t = W h_t + b, h_t+1 = tanh(y_t + part t of V x), differentiated and compared with PyTorch. `rows`: of every
    step; `read`: the steps that the loss adds up, all by default; `trained`: by which it is differentiated."""
    b = GraphBuilder("net")
    shapes = {"x": (sum(rows), WIDTH), "h": (rows[0], WIDTH), "v": (WIDTH, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    for name, shape in shapes.items():
        if name in "xh":
            b.input(name, TensorType(shape=shape))
        else:
            b.parameter(name, shape, Init(kind="zeros"))
    values: dict[str, Any] = {n: RNG.standard_normal(s) for n, s in shapes.items()}
    tensors = {n: torch.tensor(v, requires_grad=n not in "xh") for n, v in values.items()}

    parts = b.op("split", b.op("linear", ["x", "v"], name="first"), SplitAttrs(axis=0, sizes=tuple(rows)), name="parts")
    h, state, losses, expected = "h", tensors["h"], [], []
    for t, (part, theirs) in enumerate(zip(parts, (tensors["x"] @ tensors["v"].T).split(list(rows)), strict=True)):
        if rows[t] < b.shape(h)[0]:
            h, _ = layers.split(b, h, (rows[t], b.shape(h)[0] - rows[t]), axis=0, name=f"left{t}")
        y = b.op("linear", [h, "w", "b"], name=f"step{t}")[0]
        h = layers.unary(b, "tanh", layers.add(b, y, part, name=f"sum{t}"), name=f"h{t}")
        state = torch.tanh(state[: rows[t]] @ tensors["w"].T + tensors["b"] + theirs)
        if read is None or t in read:
            losses.append(layers.sum_over(b, h, (0, 1), name=f"total{t}"))
            expected.append(state.sum())
    loss = losses[0]
    for other in losses[1:]:
        loss = layers.add(b, loss, other, name="loss")
    gradients = append_backward(b, list(b.nodes), loss, trained)
    held = run_nodes(b.nodes, b.values, values)
    torch.stack(expected).sum().backward()
    assert set(gradients) == {"v", "w", "b"} & set(trained or "vwb")
    for name, gradient in gradients.items():
        np.testing.assert_allclose(held[gradient], tensors[name].grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)
        assert b.values[gradient].gradient_of == name
    return b


def counted(b: GraphBuilder) -> Counter[str]:
    return Counter(n.op for n in b.nodes if n.phase == "backward")


def test_steps_make_one_product_of_what_is_joined_anyway() -> None:
    b = recurrent((2,) * 9)  # 9 (2 * 6 + 2 * 6) elements are joined in place of adding 8 * 36
    ops = counted(b)
    # The gradient of the split, which is joined for the first layer, is that of the steps as well.
    assert (ops["linear_backward_weights"], ops["concat"]) == (2, 2)
    assert not any(n.id.startswith(("w.grad_sum", "b.grad_sum")) for n in b.nodes)


def test_what_would_be_joined_is_larger_than_what_is_added() -> None:
    b = recurrent((3,) * 9)  # 9 * 36 against 8 * 36
    assert counted(b)["linear_backward_weights"] == 1 + 9


def test_steps_that_do_not_fit_together() -> None:
    b = recurrent((2,) * 5 + (1,) * 4)  # 5 * 24 against 4 * 36, 4 * 12 against 3 * 36
    assert counted(b)["linear_backward_weights"] == 1 + 2
    b = recurrent((2, 1))
    assert counted(b)["linear_backward_weights"] == 1 + 2


def test_only_steps_that_the_loss_depends_on() -> None:
    b = recurrent((1,) * 7, read=(0, 3))
    (steps,) = [n for n in b.nodes if n.op == "linear_backward_weights" and n.id.startswith("step")]
    assert b.shape(steps.inputs[0]) == (4, WIDTH)
    b = recurrent((1,) * 7, read=(0,))
    assert [n.inputs[0] for n in b.nodes if n.id == "step0.backward_weights"] == ["h"], "one alone is not joined"


def test_weights_that_are_not_trained_join_nothing() -> None:
    b = recurrent((1,) * 5, trained="v")
    assert (counted(b)["linear_backward_weights"], counted(b)["concat"]) == (1, 1)
    b = recurrent((1,) * 5, trained="b")
    assert counted(b)["concat"] == 2


def test_long_sequences_are_joined_block_by_block() -> None:
    b = recurrent((1,) * (2 * LEAST_ROWS + 1))
    joined = [b.shape(n.inputs[0])[0] for n in b.nodes if n.op == "linear_backward_weights" and n.id != "first"]
    assert sorted(joined)[:2] == [LEAST_ROWS, LEAST_ROWS + 1]
