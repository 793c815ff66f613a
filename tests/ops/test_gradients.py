"""Every gradient rule against PyTorch's autograd in float64: the training graph of loss = sum(y * weights) runs in
NumPy, op by op."""

import numpy as np
import pytest
import torch

from codegen.torch_ops import TORCH
from planner.graph.builder import GraphBuilder
from planner.graph.differentiate import append_backward
from planner.graph.model import DType, Init, TensorType
from planner.ops import all_ops
from planner.ops.reduce import ReduceAttrs
from tests.interpreter import run_nodes

NO_GRADIENT = {
    "dropout": "its mask comes from its own generator; see test_dropout",
    "ones": "a constant",
    "slice_backward": "the transpose of slice, differentiated only for second derivatives",
}


def test_every_gradient_is_tested():
    """Only ops of inference and backward nodes have none."""
    without = {name for name in all_ops() if name not in TORCH}
    assert not [
        n
        for n in without
        if not n.endswith(("_backward", "_update", "_inference", "_data", "_weights")) and n not in NO_GRADIENT
    ]


CASES = [(name, i) for name in TORCH for i in range(len(all_ops()[name].samples()))]


@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{n}-{i}" for n, i in CASES])
def test_against_autograd(name, index):
    op = all_ops()[name]
    sample = op.samples()[index]
    rng = np.random.default_rng(index)
    drawn = op.draw(sample, rng)
    count = len(drawn) - (2 if name == "batch_norm" and len(drawn) > 4 else 0)
    if name == "batch_norm":
        count = 4 if sample.attrs.residual else 3
    drawn, types = drawn[:count], sample.inputs[:count]

    builder = GraphBuilder("case")
    operands, values, trained = [], {}, []
    for position, (array, type_) in enumerate(zip(drawn, types, strict=True)):
        value = f"x{position}"
        values[value] = array
        if type_.dtype is DType.INT64:
            operands.append(builder.input(value, type_))
        else:
            builder.parameter(value, type_.shape, Init(kind="zeros"))
            operands.append(builder.convert(value, type_.layout))
            trained.append(value)
    outputs = builder.op(name, operands, sample.attrs, name="node")
    y = outputs[0]
    weights = rng.standard_normal(builder.shape(y))
    builder.input("weights", TensorType(shape=weights.shape))
    values["weights"] = weights
    (product,) = builder.op("mul", [y, "weights"], name="product")
    (loss,) = builder.op("reduce_sum", [product], ReduceAttrs(axes=tuple(range(weights.ndim))), name="loss")
    gradients = append_backward(builder, list(builder.nodes), loss)
    held = run_nodes(builder.nodes, builder.values, values)

    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in drawn]
    expected = TORCH[name](sample.attrs, tensors)
    np.testing.assert_allclose(held[y], expected.detach().numpy(), rtol=1e-9, atol=1e-9)
    (expected * torch.tensor(weights)).sum().backward()
    assert set(gradients) == set(trained)
    for value in trained:
        found = held[gradients[value]]
        wanted = tensors[int(value[1:])].grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8, err_msg=value)
        assert builder.values[gradients[value]].gradient_of
