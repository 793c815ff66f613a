"""Dropout's generator and its gradient."""

import numpy as np

from planner.graph.builder import GraphBuilder
from planner.graph.differentiate import append_backward
from planner.graph.model import Init, Layout, TensorType
from planner.ops.dropout import Dropout, DropoutAttrs, dropout_mask, philox
from planner.ops.reduce import ReduceAttrs
from tests.interpreter import run_nodes


def test_philox_known_answers():
    """The vectors that come with Random123 for philox4x32-10."""
    ones = 0xFFFFFFFF
    cases = (
        (philox(0, 0, 0, 1), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (philox(ones << 32 | ones, ones, ones, 1, ones << 32 | ones), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            philox(0x299F31D0A4093822, 0x13198A2E, 0x03707344, 1, 0x85A308D3243F6A88),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    )
    for words, expected in cases:
        assert " ".join(f"{w:08x}" for w in words[0]) == expected


def test_mask_depends_on_position_only():
    long = dropout_mask(5, 9, 2, 0.3, 1000)
    np.testing.assert_array_equal(dropout_mask(5, 9, 2, 0.3, 77), long[:77])
    assert not np.array_equal(dropout_mask(5, 9, 3, 0.3, 1000), long)
    assert not np.array_equal(dropout_mask(5, 8, 2, 0.3, 1000), long)
    assert not np.array_equal(dropout_mask(6, 9, 2, 0.3, 1000), long)
    assert abs(dropout_mask(1, 1, 1, 0.3, 10**5).mean() - 0.7) < 0.01


def test_extremes():
    assert dropout_mask(1, 1, 1, 0.0, 100).all()
    assert not dropout_mask(1, 1, 1, 1.0, 100).any()


def test_elements_count_in_memory_order():
    x = np.ones((2, 3, 4, 5))
    last = DropoutAttrs(p=0.5, stream=3, layout=Layout.CHANNELS_LAST)
    first = DropoutAttrs(p=0.5, stream=3)
    op = Dropout()
    by_memory = op.reference(last, (x,))[1].transpose(0, 2, 3, 1).reshape(-1)
    np.testing.assert_array_equal(by_memory, op.reference(first, (x,))[1].reshape(-1))


def test_builder_derives_the_stream_from_the_name():
    def streams(*names):
        b = GraphBuilder("g")
        x = b.input("x", TensorType(shape=(4, 5)))
        for name in names:
            b.op("dropout", [x], DropoutAttrs(p=0.5), name=name)
        return {n.id: n.attrs.stream for n in b.nodes}

    both, one = streams("a", "b"), streams("b")
    assert both["a"] != both["b"]
    assert both["b"] == one["b"]


def test_gradient_passes_where_the_mask_is():
    b = GraphBuilder("g")
    b.parameter("x", (6, 10), Init(kind="zeros"))
    y, mask = b.op("dropout", ["x"], DropoutAttrs(p=0.25), name="drop")
    (loss,) = b.op("reduce_sum", [y], ReduceAttrs(axes=(0, 1)), name="loss")
    gradients = append_backward(b, list(b.nodes), loss)
    held = run_nodes(b.nodes, b.values, {"x": np.ones((6, 10))})
    np.testing.assert_allclose(held[gradients["x"]], held[mask] / 0.75)
