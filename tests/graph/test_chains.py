"""Chains: which element-wise nodes are joined, which are left alone, and that the step stays the same."""

import numpy as np
import pytest

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.chains import apart, join
from planner.graph.model import DType, Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops import op_named
from planner.ops.masks import CompareAttrs
from planner.ops.scalar import ScalarAttrs
from planner.ops.shape import FillAttrs
from tests.interpreter import draw_values, run_program

SHAPE = (6, 20)


class Net:
    """A builder whose methods are ops; `x`: the output of a layer, so that it takes memory."""

    def __init__(self):
        self.b = GraphBuilder("net")
        self.x = layers.linear(self.b, self.b.input("data", TensorType(shape=SHAPE)), 20, name="first")

    def __getattr__(self, op):
        def call(*operands, value=None):
            attrs = None if value is None else ScalarAttrs(value=value)
            return self.b.op(op, [v for v in operands if v], attrs)[0]

        return call

    def other(self, name="other"):
        return layers.linear(self.b, self.x, 20, name=name)

    def joined(self, *wanted):
        return {n.id: n for n in join(self.b.nodes, self.b.values, set(wanted), "forward")}

    def finish(self, y, fuse=True, keep=()):
        target = self.b.input("target", TensorType(shape=self.b.shape(y)))
        return self.b.finish(layers.mse(self.b, y, target), y, Optimizer(lr=0.1), fuse=fuse, keep=keep)


def chains(nodes):
    return {n.id: (n.attrs.expression, n.inputs) for n in nodes.values() if n.op == "chain"}


def hard_swish(net, x):
    return net.mul(x, net.scale(layers.clamp(net.b, net.add_scalar(x, value=3.0), 0, 6, name="clamp"), value=0.125))


def test_a_run_becomes_one_node():
    net = Net()
    y = hard_swish(net, net.x)
    nodes = net.joined(y)
    assert chains(nodes) == {"mul": ("a * (clamp(a + 3.0, 0.0, 6.0) * 0.125)", (net.x,))}
    assert list(nodes) == ["first", "mul"]
    assert nodes["mul"].outputs == (y,)


def test_one_node_stays():
    net = Net()
    y = net.silu(net.x)
    assert not chains(net.joined(y))


def test_values_read_twice_inside_are_named():
    net = Net()
    s = net.sigmoid(net.x)
    nodes = net.joined(net.add(net.mul(s, s), net.exp(s)))
    assert chains(nodes) == {"add": ("u1 = sigmoid(a); u1 * u1 + exp(u1)", (net.x,))}


def test_a_value_that_others_read_stays():
    net = Net()
    s = net.sigmoid(net.x)
    y = net.scale(net.exp(s), value=2.0)
    layers.linear(net.b, s, 3, name="reader")
    assert chains(net.joined(y)) == {"scale": ("exp(a) * 2.0", (s,))}


def test_wanted_values_stay():
    net = Net()
    s = net.sigmoid(net.x)
    y = net.scale(net.exp(s), value=2.0)
    assert chains(net.joined(y, s)) == {"scale": ("exp(a) * 2.0", (s,))}


def test_kept_values_stay_in_every_program():
    """`clamp.y` would lie inside the chain; what is around it is joined as before."""
    net = Net()
    y = hard_swish(net, net.x)
    found = net.finish(y, keep=("clamp.y", "layer1.*"))
    texts = {p.name: [n.attrs.expression for n in p.nodes if n.op == "chain"] for p in found.programs}
    assert texts["predict"] == ["clamp(a + 3.0, 0.0, 6.0)", "b * (a * 0.125)"]
    assert texts["train_step"][:2] == texts["predict"]
    assert "clamp.y" in found.value


def test_a_step_without_gradients_joins_what_has_none():
    net = Net()
    net.relu_backward(net.scale(net.x, value=2.0), net.x)
    nodes = join(net.b.nodes, net.b.values, set(), "forward", differentiated=False)
    assert [n.attrs.expression for n in nodes if n.op == "chain"] == ["relu_backward(a * 2.0, a)"]


def test_smaller_values_stay():
    """A gate of one number per row is computed once per row."""
    net = Net()
    gate = net.sigmoid(layers.sum_over(net.b, net.x, (1,), keepdims=True, name="sums"))
    y = net.add(net.mul(net.x, gate), net.x)
    assert chains(net.joined(y)) == {"add": ("a * b + a", (net.x, gate))}


def test_vectors_and_numbers_are_operands():
    net = Net()
    gamma = net.b.parameter("gamma", (20,), Init(kind="ones"))
    y = net.add(net.mul(net.other(), gamma), net.x)
    assert chains(net.joined(y)) == {"add": ("a * b + c", ("other.y", gamma, net.x))}


def compare(net, relation, a, b):
    return net.b.op("compare", [a, b], CompareAttrs(relation=relation))[0]


def number(net, value, *shape):
    return net.b.op("ones", [], FillAttrs(shape=shape, value=value))[0]


def bent(net, x):
    """x above 0, a tenth of it below."""
    return net.where(compare(net, "gt", x, number(net, 0.0)), x, net.scale(x, value=0.1))


def test_choices_are_steps_and_numbers_stand_in_the_text():
    net = Net()
    nodes = net.joined(bent(net, net.x))
    assert chains(nodes) == {"where": ("where(compare(a, 0.0, 'gt'), a, a * 0.1)", (net.x,))}
    assert list(nodes) == ["first", "where"]


def test_one_node_with_a_number_is_a_chain():
    net = Net()
    low = number(net, -1.5)
    assert chains(net.joined(net.maximum(net.x, low))) == {"maximum": ("maximum(a, -1.5)", (net.x,))}
    assert "ones" in net.joined(net.maximum(net.x, low), low)  # what is wanted stays


def test_numbers_that_give_a_result_its_shape_stay():
    net = Net()
    rows = number(net, 0.5, *SHAPE)
    y = net.exp(net.maximum(net.b.parameter("gain", (20,), Init(kind="ones")), rows))
    assert chains(net.joined(y)) == {"exp": ("exp(maximum(a, b))", ("gain", rows))}
    net = Net()
    both = net.where(net.x, number(net, 1.0), number(net, 2.0))
    assert chains(net.joined(both)) == {"where": ("where(a, 1.0, 2.0)", (net.x,))}
    alone = net.maximum(number(net, 1.0), number(net, 2.0))
    assert "maximum" not in chains(net.joined(alone))


def test_numbers_beside_operators_are_operands():
    """`a / 2.0` is none of the text's divisions."""
    net = Net()
    two = number(net, 2.0)
    assert chains(net.joined(net.exp(net.div(net.x, two)))) == {"exp": ("exp(a / b)", (net.x, two))}


def test_whole_numbers_are_compared_apart():
    net = Net()
    ids = [net.b.input(name, TensorType(shape=SHAPE, dtype=DType.INT64)) for name in ("a", "b")]
    same = compare(net, "eq", *ids)
    assert chains(net.joined(net.scale(net.mul(same, net.x), value=2.0))) == {"scale": ("a * b * 2.0", (same, net.x))}


def test_a_mask_that_is_all_the_gradient_needs_stays():
    net = Net()
    mask = compare(net, "lt", net.exp(net.x), net.other())
    y = net.where(mask, net.other("yes"), net.other("no"))
    assert set(chains(net.joined(y))) == {"compare"}


def choosing_net(fuse):
    """Choices among layers' outputs, a number per column, and numbers; what is not chosen may be NaN."""
    net = Net()
    floor = net.b.parameter("floor", (20,), Init(kind="uniform", value=0.5))
    x = bent(net, net.x)
    x = net.where(compare(net, "le", x, floor), floor, x)
    root = net.where(compare(net, "gt", x, number(net, 0.1)), net.sqrt(net.add_scalar(x, value=-0.1)), number(net, 0.0))
    return net.finish(net.add(net.minimum(root, number(net, 0.75)), net.other()), fuse)


def test_choices_have_their_gradients():
    plain, joined = choosing_net(False), choosing_net(True)
    texts = [n.attrs.expression for n in joined.program["train_step"].nodes if n.op.startswith("chain")]
    assert any("where(compare(" in text for text in texts)
    values = draw_values(joined, np.random.default_rng())
    with np.errstate(invalid="ignore", divide="ignore"):
        before, after = (run_program(g, "train_step", values) for g in (plain, joined))
    for parameter in (v.id for v in joined.values if v.name):
        np.testing.assert_allclose(after[parameter], before[parameter], rtol=1e-9, atol=1e-12, err_msg=parameter)


def test_slow_powers_stay():
    net = Net()
    y = net.scale(net.pow_scalar(net.exp(net.x), value=1.7), value=2.0)
    assert not chains(net.joined(y))


def test_a_sum_that_is_all_the_gradient_needs_stays():
    """gelu(a + b) apart keeps a + b; as one node it would keep both."""
    net = Net()
    total = net.add(net.x, net.other())
    assert not chains(net.joined(net.gelu(total)))
    assert "relu" in chains(net.joined(net.relu(net.add(net.x, net.other("another")))))  # keeps its result


def test_operands_do_not_wait_for_a_chain_far_behind():
    net = Net()
    early = net.add(net.x, net.other())
    late = layers.linear(net.b, net.x, 20, name="late")
    assert not chains(net.joined(net.add(early, late)))
    near = net.add(net.x, late)
    assert "add_3" in chains(net.joined(net.add(near, late)))


def test_more_operands_than_a_chain_has_make_two():
    net = Net()
    parts = [net.b.input(f"part{i}", TensorType(shape=SHAPE)) for i in range(20)]
    total = net.x
    for part in parts:
        total = net.add(total, part)
    found = chains(net.joined(total))
    assert sorted(len(inputs) for _, inputs in found.values()) == [10, 12]


def product_net(fuse):
    net = Net()
    product, *factors = [net.other(f"factor{i}") for i in range(9)]
    for factor in factors:
        product = net.mul(product, factor)
    return net.finish(product, fuse)


def test_chains_have_gradients_that_are_chains():
    """A product of nine has nine gradients, one more than a chain has results."""
    plain, joined = product_net(False), product_net(True)
    nodes = joined.program["train_step"].nodes
    assert [len(n.inputs) for n in nodes if n.op == "chain" and n.phase == "forward"] == [8]
    values = draw_values(joined, np.random.default_rng())
    before, after = (run_program(g, "train_step", values) for g in (plain, joined))
    for parameter in (v.id for v in joined.values if v.name):
        np.testing.assert_allclose(after[parameter], before[parameter], rtol=1e-9, atol=1e-12)


def test_changed_values_are_read_before():
    """A state that a layer in between changes."""
    net = Net()
    state = net.b.state("memory", SHAPE, Init(kind="zeros"))
    early = net.scale(state, value=2.0)
    net.b.op("state_update", [net.x], name="change", updates=[state])
    assert not chains(net.joined(net.exp(early)))


def test_what_the_next_step_starts_from_stays():
    net = Net()
    state = net.b.state("memory", SHAPE, Init(kind="zeros"))
    inner = net.sigmoid(net.add(net.x, state))
    net.b.carry(state, inner)
    graph = net.finish(net.scale(net.exp(inner), value=0.5))
    assert inner in {v for n in graph.program["train_step"].nodes for v in n.outputs}


def test_sums_of_gradients_are_joined():
    """Where a value's readers give their gradients one after the other; with what the sum is multiplied by."""
    net = Net()
    x = net.exp(net.x)
    nodes = net.finish(net.add(net.scale(x, value=2.0), layers.softmax(net.b, x, name="soft"))).program["train_step"]
    assert chains(nodes.node) == {
        "add": ("a * 2.0 + b", (x, "soft.y")),
        "exp.backward": ("exp_backward(a + b, c)", ("add.backward.dx", "soft.backward.dx", x)),
    }


def image_net(fuse):
    """Chains with per-channel and per-image operands, behind and before other layers."""
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(4, 3, 6, 5), layout=Layout.CHANNELS_LAST))
    x = layers.batch_norm(b, layers.conv2d(b, x, 8, 3, padding=1, name="conv"), name="bn")
    (shifted,) = b.op("add_scalar", [x], ScalarAttrs(value=3.0))
    (part,) = b.op("scale", [layers.clamp(b, shifted, 0, 6, name="clamp")], ScalarAttrs(value=0.2))
    x = layers.mul(b, x, part, name="swish")
    gate = layers.unary(b, "sigmoid", layers.mean(b, x, (2, 3), keepdims=True, name="squeeze"), name="gate")
    gain = b.parameter("gain", (8, 1, 1), Init(kind="uniform", value=1.0))
    gated = layers.mul(b, x, gate, name="gated")
    x = layers.add(b, x, layers.mul(b, gated, gain, name="gained"), name="residual")
    x = layers.conv2d(b, x, 4, 3, name="last")
    target = b.input("target", b.type(x))
    return b.finish(layers.mse(b, x, target), x, Optimizer(lr=0.1), fuse=fuse)


def test_the_step_stays_the_same():
    plain, joined = image_net(False), image_net(True)
    train = joined.program["train_step"]
    assert {n.op for n in train.nodes if n.phase == "forward"} >= {"chain"}
    assert {n.id for n in train.nodes if n.op == "chain" and n.phase == "forward"} == {"swish", "residual"}
    values = draw_values(plain, np.random.default_rng(0))
    before, after = (run_program(g, "train_step", values) for g in (plain, joined))
    for value in plain.values:
        if value.name or value.id == "loss.loss":
            np.testing.assert_allclose(after[value.id], before[value.id], rtol=1e-9, atol=1e-12, err_msg=value.id)
    first, second = (run_program(g, "predict", values)[g.program["predict"].outputs[0]] for g in (plain, joined))
    np.testing.assert_allclose(first, second)


def test_nothing_between_is_kept():
    """Of the chain's four nodes the backward pass reads only their input; the next layer needs their result."""
    net = Net()
    y = hard_swish(net, net.x)
    graph = net.finish(layers.linear(net.b, y, 3, name="last"))
    forward = {v for n in graph.program["train_step"].nodes if n.phase == "forward" for v in n.outputs}
    read = {v for n in graph.program["train_step"].nodes if n.phase == "backward" for v in n.inputs if v in forward}
    assert read == {net.x, y, "last.y", "loss.scale"}


@pytest.mark.parametrize("build", ["mlp", "digits_cnn", "lstm"])
def test_networks_without_chains_stay(build):
    from planner.zoo import build as zoo

    graph = zoo(build, 8) if build != "lstm" else zoo(build)
    assert not [n.id for n in graph.program["train_step"].nodes if n.op.startswith("chain")]


def test_apart_is_what_was_joined():
    net = Net()
    s = net.sigmoid(net.x)
    y = net.add(net.mul(s, s), net.exp(s))
    (chain,) = [n for n in net.joined(y).values() if n.op == "chain"]
    parts = apart(chain)
    assert [(n.op, n.inputs) for n in parts] == [
        ("sigmoid", (net.x,)),
        ("mul", ("add.u0", "add.u0")),
        ("exp", ("add.u0",)),
        ("add", ("add.u1", "add.u2")),
    ]
    assert parts[-1].outputs == (y,)
    assert apart(parts[0]) == [parts[0]]


def again(net, *wanted):
    return {n.id: n for n in join(net.b.nodes, net.b.values, set(wanted), "forward", differentiated=False)}


def test_what_all_readers_can_compute_again_is_not_written():
    """A mask of one operand, read by two; each chain reads that operand instead."""
    net = Net()
    other = net.other()
    low = compare(net, "lt", net.x, number(net, 0.5))
    first = net.mul(net.add_scalar(net.scale(low, value=-1.0), value=1.0), other)
    second = net.mul(low, net.exp(other))
    nodes = again(net, first, second)
    assert chains(nodes) == {
        "mul": ("(compare(a, 0.5, 'lt') * -1.0 + 1.0) * b", (net.x, other)),
        "mul_1": ("compare(a, 0.5, 'lt') * exp(b)", (net.x, other)),
    }
    assert list(nodes) == ["first", "other", "mul", "mul_1"]
    assert "compare" not in chains(net.joined(first, second))["mul"][0]  # its gradients would be computed again, too


def test_what_is_read_otherwise_is_not_computed_again():
    net = Net()
    low = compare(net, "lt", net.x, number(net, 0.5))
    last = net.scale(net.add_scalar(low, value=1.0), value=2.0)
    layers.linear(net.b, low, 3, name="reader")
    assert chains(again(net, last))["scale"] == ("(a + 1.0) * 2.0", (low,))


def test_what_is_costly_or_takes_more_operands_is_not_computed_again():
    net = Net()
    costly, sums = net.exp(net.x), net.add(net.x, net.other())
    ends = [net.scale(net.neg(v), value=2.0 + i) for v in (costly, sums) for i in range(2)]
    found = chains(again(net, *ends))
    assert {inputs for _, inputs in found.values()} == {(costly,), (sums,)}


def test_several_layers_of_what_is_read_twice():
    """Of a quotient, masks of it and their sum nothing is left."""
    net = Net()
    y = net.scale(net.x, value=3.0)
    masks = [compare(net, r, y, number(net, v)) for r, v in (("lt", -1.0), ("gt", 1.0))]
    inside = net.add_scalar(net.neg(net.add(*masks)), value=1.0)
    first = net.mul(inside, net.x)
    second = net.add(net.mul(inside, net.round(y)), net.sub(*masks))
    nodes = again(net, first, second)
    assert {n: n_.inputs for n, n_ in nodes.items() if n_.op == "chain"} == {"mul": (net.x,), "add_1": (net.x,)}
    assert list(nodes) == ["first", "mul", "add_1"]
    x = np.random.default_rng().standard_normal(SHAPE)
    low, high = 3 * x < -1, 3 * x > 1
    expected = {"mul": x * ~(low | high), "add_1": np.rint(3 * x) * ~(low | high) + low - high}
    for name, wanted in expected.items():
        np.testing.assert_allclose(op_named("chain").reference(nodes[name].attrs, [x])[0], wanted)


def random_nodes(rng):
    """Functions of two tensors, a row and numbers, read once or often."""
    net = Net()
    known = [net.x, net.other(), net.b.parameter("row", (20,), Init(kind="uniform", value=1.0))]
    for _ in range(rng.integers(4, 25)):
        one, two = (known[i] for i in rng.integers(0, len(known), 2))
        three = known[rng.integers(0, len(known))]
        made = rng.integers(0, 8)
        if made == 0:
            known.append(compare(net, "gt", one, number(net, 0.25)))
        elif made == 1:
            known.append(compare(net, "le", one, two))
        elif made == 2:
            known.append(net.where(one, two, three))
        elif made == 3:
            known.append(net.where(one, number(net, 0.5), two))
        elif made == 4:
            known.append(net.add(one, two))
        elif made == 5:
            known.append(net.scale(one, value=-0.5))
        elif made == 6:
            known.append(net.tanh(one))
        else:
            known.append(net.maximum(one, number(net, -0.25)))
    return net, known


def evaluated(nodes, values, rng):
    """Every value that the nodes make, of inputs and layers' outputs that are drawn."""
    found = {v.id: rng.standard_normal(v.type.shape) for v in values.values()}
    for node in nodes:
        if node.op != "linear":
            results = op_named(node.op).reference(node.attrs, [found[v] for v in node.inputs])
            found.update(zip(node.outputs, results, strict=True))
    return found


@pytest.mark.parametrize("differentiated", [True, False])
def test_random_functions_stay_what_they_are(differentiated):
    for seed in np.random.default_rng().integers(0, 2**32, 60):
        net, known = random_nodes(np.random.default_rng(seed))
        wanted = set(known[-3:])
        joined = join(net.b.nodes, net.b.values, wanted, "forward", differentiated)
        before, after = (evaluated(nodes, net.b.values, np.random.default_rng(seed)) for nodes in (net.b.nodes, joined))
        for value in wanted:
            np.testing.assert_allclose(after[value], before[value], rtol=1e-12, atol=1e-12, err_msg=f"seed {seed}")
        made = {v for n in joined for v in n.outputs}
        read = {v for n in joined for v in n.inputs}
        assert made - read <= wanted | {"other.y", "first.y"} | set(known), f"seed {seed}"
        assert traffic(joined, net.b.values) <= traffic(net.b.nodes, net.b.values), f"seed {seed}"
        assert costly(joined) <= costly(net.b.nodes), f"seed {seed}"


def traffic(nodes, values):
    """Tensors of the full size that are read and written."""
    full = {v.id for v in values.values() if v.type.shape == SHAPE}
    return sum(v in full for n in nodes for v in (*dict.fromkeys(n.inputs), *n.outputs))


def costly(nodes):
    return [part.op for node in nodes for part in apart(node)].count("tanh")
