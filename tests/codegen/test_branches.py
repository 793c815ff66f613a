"""Decisions at kinks: read, forced, and how far they are from right."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from codegen.branches import Forced, Watched, decisive_values, kinked, read_decisions
from codegen.initial import draw
from codegen.kinks import KINKS
from codegen.steps import random_inputs
from codegen.torch_ops import TORCH
from codegen.torch_random import FIXED
from codegen.torch_twin import Call, Twin
from planner import zoo
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Init, Node, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops import all_ops
from planner.ops.max_pool import MaxPool2d
from planner.ops.rectifier import SoftplusAttrs
from planner.ops.scalar import ScalarAttrs
from tests.codegen.every_op import every_op_net
from tests.graphs import small_net

SMOOTH = {
    *(
        "add",
        "add_scalar",
        "atan",
        "attention",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "bce_with_logits",
        "concat",
        "cos",
        "conv2d",
        "conv3d",
        "conv_transpose2d",
        "conv_transpose3d",
    ),
    *(
        "convert_layout",
        "cross_entropy",
        "cross_entropy_rows",
        "div",
        "detach",
        "digamma",
        "dropout",
        "embedding",
        "erf",
        "exp",
        "expand",
        "expm1",
        "gelu",
        "layer_norm",
        "lgamma",
    ),
    *(
        "linear",
        "log",
        "log1p",
        "log_softmax",
        "lrn",
        "lstm_cell",
        "matmul",
        "mse_loss",
        "mul",
        "neg",
        "nll_loss",
        "pad",
        "permute",
    ),
    *(
        "pow",
        "pow_scalar",
        "reciprocal",
        "reduce_mean",
        "reduce_sum",
        "reshape",
        "scale",
        "sigmoid",
        "sin",
        "silu",
        "slice",
        "split",
    ),
    *("softmax", "sqrt", "square", "sub", "sum_to", "tanh", "trigamma"),
    *("cholesky", "inverse", "log_determinant"),
    *("cast", "ctc_loss", "cumsum", "distances", "embedding_backward"),
    *("grouped_matmul", "grouped_outer", "gru_cell", "interpolate", "sddmm", "spmm", "where"),
}


GRAPHS = (every_op_net(Optimizer()), zoo.build("mlp", 3))
"""Together with all kinks; in the first, every relu is part of a batch norm."""


def run(graph: Graph, calls: dict[str, Call], dtype: torch.dtype) -> tuple[float, dict[str, torch.Tensor]]:
    state = {v.name: draw(v, 3) for v in graph.values if v.name}
    twin = Twin(graph, {**FIXED, **calls}).to(dtype).load(state)
    batch = [torch.from_numpy(a) for a in random_inputs(graph, 3)]
    loss, _ = twin(*(a.to(dtype) if a.is_floating_point() else a for a in batch))
    loss.backward()
    return float(loss.detach()), twin.gradients()


def test_every_differentiable_op_is_smooth_or_has_a_kink() -> None:
    # One stands for other ops, through the others no gradient passes.
    others = {"argsort", "chain", "compare", "ones", "sort_entries", "whole", "floor", "round", "sign", "trunc"}
    others |= {"fmod", "remainder"}  # they jump, as what they are made of does
    assert (set(TORCH) | {"dropout"}) - others == SMOOTH | set(KINKS) and not SMOOTH & set(KINKS)
    assert {n.op for graph in GRAPHS for n in kinked(graph)} == set(KINKS)
    assert set(TORCH) <= set(all_ops())


def test_softplus_of_large_numbers_has_a_gradient() -> None:
    """Beyond where exp is infinite, by PyTorch's own and on a branch that is given."""
    x = torch.tensor([-3.0, 30.0, 200.0], requires_grad=True)
    attrs = SoftplusAttrs(threshold=10.0)
    node = Node(id="soft", op="softplus", inputs=("x",), outputs=("y",), attrs=attrs)
    for y in (TORCH["softplus"](attrs, [x]), KINKS["softplus"].apply(node, (x,), x > 20)):
        assert isinstance(y, torch.Tensor)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, torch.sigmoid(torch.tensor([-3.0, 30.0, 200.0])))


def test_watching_changes_nothing_and_its_own_decisions_fit() -> None:
    for graph in (*GRAPHS, small_net()):
        watched, forced = Watched(), Forced()
        loss, gradients = run(graph, {}, torch.float64)
        seen, seen_gradients = run(graph, watched.calls(), torch.float64)
        forced.decisions, forced.operands = watched.decisions, watched.operands
        bent, bent_gradients = run(graph, forced.calls(), torch.float64)
        assert seen == bent == pytest.approx(loss, rel=1e-13)
        for name, gradient in gradients.items():
            for other in (seen_gradients[name], bent_gradients[name]):
                assert (gradient - other).norm() <= 1e-12 * (gradient.norm() + 1e-6), name
        assert set(forced.wrong.values()) == {(0, 0.0)} and {e for e, _ in forced.errors.values()} == {0.0}


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_another_decision_changes_the_branch_and_is_measured(graph: Graph) -> None:
    watched, forced = Watched(), Forced()
    _, gradients = run(graph, watched.calls(), torch.float64)
    # Where the absolute value passes the maximum and the minimum behind it.
    passing, named = torch.ones(1), {n.op: n.id for n in kinked(graph)}
    if "maximum" in named:
        passing = (watched.decisions[named["maximum"]] == 1) & (watched.decisions[named["minimum"]] == 1)
    for node in kinked(graph):
        at = int(passing.reshape(-1).nonzero()[0]) if node.op in ("abs", "maximum", "minimum") else 7
        if node.op == "segment_max":  # one more row that would be as large
            at = int((~watched.decisions[node.id]).reshape(-1).nonzero()[0])
        forced.decisions = {name: decision.clone() for name, decision in watched.decisions.items()}
        decision = forced.decisions[node.id].reshape(-1)
        if node.op == "max_pool2d":
            decision[at] = 0 if decision[at] else 4
        else:
            sides = decision.dtype is torch.int8  # below the lower bound, or not
            decision[at] = (
                ~decision[at] if decision.dtype is torch.bool else -(not decision[at]) if sides else 1 - decision[at]
            )
        forced.decisions[node.id] = decision.reshape(watched.decisions[node.id].shape)
        _, bent = run(graph, forced.calls(), torch.float64)
        count, gap = forced.wrong[node.id]
        assert count == 1 and gap > 1e-4, node.id
        if node.op in ("relu", "leaky_relu", "abs"):
            assert gap == pytest.approx(abs(float(watched.operands[node.id][0].reshape(-1)[at])), rel=1e-12)
        assert any((gradients[n] - bent[n]).norm() > 1e-6 * gradients[n].norm() for n in gradients), node.id


def test_pooling_decides_like_pytorch() -> None:
    """The first of equals, in every window that the op's samples have, with many ties."""
    rng, kink = np.random.default_rng(5), KINKS["max_pool2d"]
    for sample in MaxPool2d().samples():
        a = sample.attrs
        x = torch.from_numpy(rng.integers(0, 3, sample.inputs[0].shape).astype(np.float64))
        node = Node(id="pool", op="max_pool2d", inputs=("x",), outputs=("y", "argmax"), attrs=a)
        chosen = kink.decide(node, (x,))
        assert (chosen.numpy() == MaxPool2d().reference(a, (x.numpy(),))[1]).all()
        assert (kink.apply(node, (x,), chosen) == TORCH["max_pool2d"](a, [x])).all()
        assert float(kink.gap(node, (x,), chosen).max()) == 0.0
        assert float(kink.gap(node, (x,), torch.full_like(chosen, a.kernel[0] * a.kernel[1])).max()) > 0.0
        if a.padding[::2] == a.padding[1::2]:
            places = F.max_pool2d(x, a.kernel, a.stride, a.padding[::2], a.dilation, a.ceil_mode, True)[1]
            width = x.shape[3]
            down = torch.arange(chosen.shape[2])[:, None] * a.stride[0] - a.padding[0]
            right = torch.arange(chosen.shape[3]) * a.stride[1] - a.padding[2]
            row, column = (places // width - down) // a.dilation[0], (places % width - right) // a.dilation[1]
            assert (row * a.kernel[1] + column == chosen).all()


def test_values_to_keep_are_what_decisions_are_read_from() -> None:
    graph = small_net()
    assert decisive_values(graph) == ("bn1.y", "bn2.y", "maxpool.argmax")


def test_views_of_parameters_are_read_from_these() -> None:
    """They cannot be kept, and a step's updates write over what they show."""
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(4, 2, 3)))
    row = layers.reshape(b, b.parameter("bias", (2,), Init(kind="zeros")), (1, 2), name="row")
    column = layers.reshape(b, row, (2, 1), name="column")
    y = layers.clamp(b, layers.add(b, x, column, name="sum"), 0, 1, name="clamp")
    graph = b.finish(layers.mse(b, y, b.input("target", TensorType(shape=(4, 2, 3)))), y, Optimizer())
    assert decisive_values(graph) == () and len(kinked(graph)) == 1
    held = {"bias": np.array([-9.0, 9.0], np.float32), "x": np.zeros((4, 2, 3), np.float32)}
    (decision,) = read_decisions(graph, lambda name: held[name]).values()
    assert (decision[:, 0] == -1).all() and (decision[:, 1] == 1).all()


def test_chains_decide_like_their_ops() -> None:
    """Kinks within a chain are found, and read from what the chain computes from."""
    b = GraphBuilder("net")
    x = layers.linear(b, b.input("x", TensorType(shape=(4, 6))), 6, name="first")
    (shifted,) = b.op("add_scalar", [x], ScalarAttrs(value=0.5))
    y = layers.mul(b, x, layers.clamp(b, shifted, 0, 1, name="clamp"), name="swish")
    graph = b.finish(layers.mse(b, y, b.input("target", TensorType(shape=(4, 6)))), y, Optimizer())
    (chain,) = [n for n in graph.program["train_step"].nodes if n.op == "chain"]
    assert [n.op for n in kinked(graph)] == ["clamp"]
    assert decisive_values(graph) == chain.inputs == (x,)
    values = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    (decision,) = read_decisions(graph, lambda name: values).values()
    expected = np.where(values + 0.5 >= 1, 1, np.where(values + 0.5 <= 0, -1, 0))
    np.testing.assert_array_equal(decision.numpy(), expected)
    watched, forced = Watched(), Forced()
    loss, _ = run(graph, watched.calls(), torch.float64)
    forced.decisions = watched.decisions
    assert run(graph, forced.calls(), torch.float64)[0] == pytest.approx(loss, rel=1e-13)
