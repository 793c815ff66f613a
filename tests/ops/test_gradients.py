"""Every gradient rule against PyTorch's autograd in float64: the training graph of loss = sum(y * weights) runs in
NumPy, op by op."""

import numpy as np
import pytest
import torch

from codegen.torch_attention import attention, matrices
from codegen.torch_ops import TORCH
from planner.graph.builder import GraphBuilder
from planner.graph.differentiate import append_backward
from planner.graph.model import DType, Init, TensorType
from planner.ops import all_ops
from planner.ops.attention_base import AttentionAttrs
from planner.ops.dropout import REFERENCE_SEED, REFERENCE_STEP, factors
from planner.ops.reduce import ReduceAttrs
from tests.interpreter import run_nodes

NO_GRADIENT = {
    "add_slice": "only adds up gradients",
    "caller_gradient": "a gradient itself",
    "clip_factor": "behind all gradients",
    "gradient_sum": "behind all gradients",
    "square_sum": "behind all gradients",
    "argsort": "whole numbers have none",
    "batch_norm_apply": "added to differentiated graphs: batch_norm once more",
    "offload": "added to differentiated graphs",
    "prefetch": "added to differentiated graphs",
    "cast": "whole numbers have none",
    "compare": "constant wherever it is differentiable",
    "detach": "it has none by its meaning",
    **dict.fromkeys(("floor", "round", "sign", "trunc"), "constant wherever it is differentiable"),
    "dropout": "its mask comes from its own generator; see test_dropout",
    "ones": "a constant",
    "own_gradient": "it is given; see tests/frontends/test_torch_functions",
    "random": "no input",
    "random_whole": "no input",
    "sort_entries": "whole numbers have none",
    "whole": "whole numbers have none",
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


CASES = [
    (name, i)
    for name in TORCH
    if name not in NO_GRADIENT
    for i, sample in enumerate(all_ops()[name].samples())
    if name != "embedding_backward" or sample.attrs.padding_index < 0  # with padding, SP1002
]


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
        if type_.dtype is DType.INT64 or position in op.constants:
            operands.append(builder.input(value, type_))
        else:
            builder.parameter(value, type_.shape, Init(kind="zeros"))
            operands.append(builder.convert(value, type_.layout))
            trained.append(value)
    outputs = builder.op(name, operands, sample.attrs, name="node")
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in drawn]
    if getattr(sample.attrs, "dropout", 0.0):
        a = sample.attrs
        assert isinstance(a, AttentionAttrs)
        q, k, _ = matrices(a, tensors)
        shape = (*q.shape[:-1], k.shape[-2])
        left = factors(REFERENCE_SEED, a.stream, REFERENCE_STEP, a.dropout, shape)
        results = attention(a, tensors, torch.from_numpy(left))
    else:
        results = TORCH[name](sample.attrs, tensors)
    results = results if isinstance(results, tuple) else (results,)
    smooth = [position for position, result in enumerate(results) if result.requires_grad]
    read = smooth[:: -1 if index % 2 else 1][: max(1, len(smooth) - index)]
    """Of several outputs, which are read: all, then fewer and fewer."""
    parts = []
    for position in read:
        y = outputs[position]
        values[f"weights{position}"] = rng.standard_normal(builder.shape(y))
        builder.input(f"weights{position}", TensorType(shape=builder.shape(y)))
        (product,) = builder.op("mul", [y, f"weights{position}"], name=f"product{position}")
        axes = tuple(range(len(builder.shape(y))))
        parts.append(builder.op("reduce_sum", [product], ReduceAttrs(axes=axes), name=f"part{position}")[0])
    loss = parts[0]
    for part in parts[1:]:
        (loss,) = builder.op("add", [loss, part], name="sum")
    gradients = append_backward(builder, list(builder.nodes), loss)
    held = run_nodes(builder.nodes, builder.values, values)

    expected = 0.0
    for position in read:
        np.testing.assert_allclose(held[outputs[position]], results[position].detach().numpy(), rtol=1e-9, atol=1e-9)
        expected = expected + (results[position] * torch.tensor(values[f"weights{position}"])).sum()
    expected.backward()
    trained = [v for v in trained if tensors[int(v[1:])].grad is not None]
    assert set(gradients) == set(trained) and trained
    for value in trained:
        found = held[gradients[value]]
        wanted = tensors[int(value[1:])].grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8, err_msg=value)
        assert builder.values[gradients[value]].gradient_of
