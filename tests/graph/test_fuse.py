"""Fusion: which nodes merge, which ids survive, and that nothing else changes."""

import numpy as np
import pytest

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.fuse import fuse
from planner.graph.model import Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.scalar import ScalarAttrs
from tests.interpreter import draw_values, run_program

SHAPE = (4, 3, 5, 6)


def start():
    b = GraphBuilder("net")
    return b, b.input("x", TensorType(shape=SHAPE, layout=Layout.CHANNELS_LAST))


def bn(b, x, name):
    return layers.batch_norm(b, layers.conv2d(b, x, 3, 1, name=f"{name}_conv"), name=name)


def norms(nodes):
    return {n.id: (n.attrs.activation, n.attrs.residual, n.inputs[3:]) for n in nodes if n.op == "batch_norm"}


def fused(b, *wanted):
    return fuse(b.nodes, b.values, set(wanted))


def test_relu():
    b, x = start()
    y = layers.relu(b, bn(b, x, "bn"), name="relu")
    nodes = fused(b, y)
    assert norms(nodes) == {"bn": ("relu", False, ())}
    assert nodes[-1].outputs == (y, "bn.mean", "bn.inv_std")
    assert [n.op for n in nodes] == ["conv2d", "batch_norm"]


def test_relu6_but_no_other_clamp_and_not_behind_an_addition():
    b, x = start()
    y = layers.clamp(b, bn(b, x, "bn"), 0, 6, name="relu6")
    z = layers.clamp(b, bn(b, y, "other"), -1, 6, name="other_clamp")
    w = layers.clamp(b, layers.add(b, bn(b, z, "third"), z, name="add"), 0, 6, name="behind")
    nodes = fused(b, w)
    assert norms(nodes) == {"bn": ("relu6", False, ()), "other": ("none", False, ()), "third": ("none", True, (z,))}
    assert [n.op for n in nodes if n.op == "clamp"] == ["clamp"] * 2


def test_silu_but_not_behind_an_addition():
    b, x = start()
    y = layers.unary(b, "silu", bn(b, x, "bn"), name="silu")
    z = layers.unary(b, "silu", layers.add(b, bn(b, y, "second"), y, name="add"), name="behind")
    nodes = fused(b, z)
    assert norms(nodes) == {"bn": ("silu", False, ()), "second": ("none", True, (y,))}
    assert [n.op for n in nodes if n.op == "silu"] == ["silu"]


def test_group_norms_take_activations_but_no_addition():
    b, x = start()
    y = layers.relu(b, layers.group_norm(b, x, 3, name="relu_norm"), name="relu")
    y = layers.unary(b, "silu", layers.group_norm(b, y, 1, name="silu_norm"), name="silu")
    y = layers.clamp(b, layers.group_norm(b, y, 3, name="relu6_norm"), 0, 6, name="relu6")
    y = hard_swish(b, layers.group_norm(b, y, 1, name="swish_norm"), "swish")
    y = layers.add(b, layers.group_norm(b, y, 1, name="sum_norm"), x, name="add")
    nodes = fused(b, y)
    assert {n.id: n.attrs.activation for n in nodes if n.op == "group_norm"} == {
        "relu_norm": "relu",
        "silu_norm": "silu",
        "relu6_norm": "relu6",
        "swish_norm": "hard_swish",
        "sum_norm": "none",
    }
    assert [n.op for n in nodes] == ["group_norm"] * 5 + ["add"]


@pytest.mark.parametrize("first", [True, False])
def test_add_in_either_order(first):
    b, x = start()
    y = bn(b, x, "bn")
    z = layers.add(b, *((y, x) if first else (x, y)), name="add")
    nodes = fused(b, z)
    assert norms(nodes) == {"bn": ("none", True, (x,))}
    assert nodes[-1].outputs[0] == z


def test_add_and_relu():
    b, x = start()
    z = layers.relu(b, layers.add(b, bn(b, x, "bn"), x, name="add"), name="relu")
    nodes = fused(b, z)
    assert norms(nodes) == {"bn": ("relu", True, (x,))}
    assert nodes[-1].outputs[0] == z


@pytest.mark.parametrize("first", [True, False])
def test_of_two_batch_norms_the_later_takes_the_addition(first):
    b, x = start()
    early, late = bn(b, x, "early"), bn(b, x, "late")
    z = layers.relu(b, layers.add(b, *((early, late) if first else (late, early)), name="add"), name="relu")
    assert norms(fused(b, z)) == {"early": ("none", False, ()), "late": ("relu", True, ("early.y",))}


def test_a_residual_that_comes_late():
    b, x = start()
    y = bn(b, x, "bn")
    late = layers.conv2d(b, x, 3, 1, name="late")
    nodes = fused(b, layers.add(b, y, late, name="add"))
    assert [n.id for n in nodes] == ["bn_conv", "late", "bn"]


def test_two_readers_keep_the_value():
    b, x = start()
    y = bn(b, x, "bn")
    z = layers.add(b, layers.relu(b, y, name="relu"), y, name="add")
    assert norms(fused(b, z)) == {"bn": ("none", False, ())}


def test_wanted_values_stay():
    b, x = start()
    y = bn(b, x, "bn")
    z = layers.relu(b, y, name="relu")
    assert norms(fused(b, z, y)) == {"bn": ("none", False, ())}


def test_addition_to_itself_stays():
    b, x = start()
    y = bn(b, x, "bn")
    assert norms(fused(b, layers.add(b, y, y, name="add"))) == {"bn": ("none", False, ())}


def test_broadcast_addition_stays():
    b, x = start()
    bias = b.input("bias", TensorType(shape=(1, 3, 1, 1), layout=Layout.CHANNELS_LAST))
    assert norms(fused(b, layers.add(b, bn(b, x, "bn"), bias, name="add"))) == {"bn": ("none", False, ())}


def test_a_layer_that_runs_twice_stays():
    b, x = start()
    first = layers.batch_norm(b, x, name="bn")
    node = b.nodes[-1]
    (second, *_) = b.op("batch_norm", [first, *node.inputs[1:]], node.attrs, name="again", updates=node.updates)
    z = layers.relu(b, second, name="relu")
    assert norms(fused(b, z)) == {"bn": ("none", False, ()), "again": ("none", False, ())}


def residual_net(fuse_nodes):
    b, x = start()
    y = layers.relu(b, bn(b, x, "bn1"), name="relu1")
    z = layers.add(b, bn(b, y, "bn2"), bn(b, x, "down"), name="add")
    z = layers.relu(b, z, name="relu2")
    z = layers.add(b, bn(b, z, "bn3"), z, name="add2")
    target = b.input("target", TensorType(shape=SHAPE, layout=Layout.CHANNELS_LAST))
    return b.finish(layers.mse(b, z, target), z, Optimizer(lr=0.1), fuse=fuse_nodes)


def test_the_step_stays_the_same():
    plain, merged = residual_net(False), residual_net(True)
    train = merged.program["train_step"]
    assert len(train.nodes) < len(plain.program["train_step"].nodes)
    assert not {"relu", "relu_backward"} & {n.op for n in train.nodes}
    values = draw_values(plain, np.random.default_rng(0))
    before, after = (run_program(g, "train_step", values) for g in (plain, merged))
    for value in plain.values:
        if value.name or value.id == "loss.loss":
            np.testing.assert_allclose(after[value.id], before[value.id], rtol=1e-9, atol=1e-12, err_msg=value.id)
    first, second = (run_program(g, "predict", values)[g.program["predict"].outputs[0]] for g in (plain, merged))
    np.testing.assert_allclose(first, second)


def hard_swish(b, y, name, by=6.0, divided_first=True, again=None):
    """y clamp(y + 3, 0, 6) / `by`; `again`: who multiplies, if not y."""
    (shifted,) = b.op("add_scalar", [y], ScalarAttrs(value=3.0), name=f"{name}.shift")
    part = layers.clamp(b, shifted, 0, 6, name=f"{name}.clamp")
    sixth = ScalarAttrs(value=1 / by)
    if divided_first:
        return layers.mul(b, again or y, b.op("scale", [part], sixth, name=f"{name}.scale")[0], name=name)
    return b.op("scale", [layers.mul(b, part, again or y, name=f"{name}.mul")], sixth, name=name)[0]


@pytest.mark.parametrize("divided_first", [False, True])
def test_hard_swish_however_it_is_spelled(divided_first):
    b, x = start()
    y = hard_swish(b, bn(b, x, "bn"), "swish", divided_first=divided_first)
    nodes = fused(b, y)
    assert norms(nodes) == {"bn": ("hard_swish", False, ())}
    assert [n.op for n in nodes] == ["conv2d", "batch_norm"] and nodes[-1].outputs[0] == y


def test_what_only_looks_like_hard_swish_stays():
    b, x = start()
    fifth = hard_swish(b, bn(b, x, "fifth"), "a", by=5.0)
    other = hard_swish(b, bn(b, fifth, "other"), "b", again=fifth)
    seen = bn(b, other, "seen")
    swish = hard_swish(b, seen, "c")
    summed = hard_swish(b, layers.add(b, bn(b, layers.add(b, swish, seen, name="join"), "last"), x, name="add"), "d")
    nodes = fused(b, summed)
    assert {name: activation for name, (activation, *_) in norms(nodes).items()} == dict.fromkeys(
        ("fifth", "other", "seen", "last"), "none"
    )
    assert sum(n.attrs == ScalarAttrs(value=3.0) for n in nodes) == 4
