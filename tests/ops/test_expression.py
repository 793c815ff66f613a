"""The text of chains: what it says, what it refuses, and that printing and parsing are each other's inverse."""

import numpy as np
import pytest

from planner.errors import UserError
from planner.graph.model import Attrs, TensorType
from planner.ops import all_ops, op_named
from planner.ops.activation import ClampAttrs, GeluAttrs, Unary
from planner.ops.binary import BinaryGradAttrs
from planner.ops.chain import Chain, ChainAttrs
from planner.ops.expression import FAMILIES, Expression, Step, parse
from planner.ops.expression_gradient import DY, Y, backward_of, differentiable
from planner.ops.expression_sigmoid import with_sigmoids
from planner.ops.scalar import ScalarAttrs


def steps(text, inputs):
    return [(s.op, s.operands) for s in parse(text, inputs).steps]


def test_steps():
    assert steps("u = sigmoid(b); a * u + c", 3) == [("sigmoid", (1,)), ("mul", (0, 3)), ("add", (4, 2))]
    assert parse("u = -a; u, u * b", 2).results == (2, 3)
    assert parse("a, b", 2).results == (0, 1)


def test_numbers_make_other_ops():
    found = parse("(2 * a - 3.0) ** 2 + 0.5", 1).steps
    assert [(s.op, s.attrs.value) for s in found] == [
        ("scale", 2.0),
        ("add_scalar", -3.0),
        ("pow_scalar", 2.0),
        ("add_scalar", 0.5),
    ]


def test_attributes_stand_behind_operands():
    found = parse("clamp(gelu(a, 'tanh'), None, 6) + maximum_backward(a, b, a, 1)", 2).steps
    assert found[0].attrs == GeluAttrs(approximate="tanh")
    assert found[1].attrs == ClampAttrs(high=6.0)
    assert found[2].attrs == BinaryGradAttrs(operand=1)


def test_numbers_among_operands():
    found = parse("where(compare(a, 0.5, 'gt'), 0.5, maximum(-2, b))", 2).steps
    assert [(s.op, s.constant, s.operands) for s in found] == [
        ("ones", 0.5, ()),
        ("compare", None, (0, 2)),
        ("ones", -2.0, ()),
        ("maximum", None, (4, 1)),
        ("where", None, (3, 2, 5)),
    ]


def test_choices_pass_the_gradient_on_where_they_chose():
    """And 0 elsewhere, whatever the gradient is there; none to the mask."""
    assert gradient("where(compare(a, b, 'lt'), c, a * 2.0)", 3) == (
        "u1 = compare(b, c, 'lt'); where(u1, 0.0, a) * 2.0, where(u1, a, 0.0)",
        (DY, "0", "1"),
        {0: 0, 2: 1},
    )
    assert gradient("maximum(a, 0.5)", 1)[0] == "maximum_backward(a, b, 0.5, 0)"


@pytest.mark.parametrize(("text", "low"), [("compare(a, 0.5, 'ge') * b", True), ("a * compare(b, a, 'ge')", False)])
def test_tensors_are_compared_in_float32(text, low):
    """Rounding one of them would turn results over; a number is not rounded."""
    assert (op_named("chain").low_inputs(ChainAttrs(expression=text)) is not None) == low


@pytest.mark.parametrize(
    "text",
    [
        "a * clamp(a + 3.0, 0.0, 6.0)",
        "-(a - b) - (c - -a)",
        "a / (b / c) * (a * b)",
        "(a + b) ** 3.0 * (-a) ** 0.5",
        "u1 = a * b; u2 = sqrt(u1); u2 * u2 + u1, -u1",
        "a * -2.0 - 1e-05",
        "gelu_backward(a, b, 'tanh') + leaky_relu(c) + clamp(a, -1.0)",
        "u1 = compare(a, -0.5, 'ne'); where(u1, b, 0.0) + where(u1, 0.0, maximum(1e-05, c))",
    ],
)
def test_text_comes_back(text):
    expression = parse(text, 3)
    assert expression.text == text
    assert parse(expression.text, 3) == expression


@pytest.mark.parametrize(
    "text",
    [
        "",
        "u = a",
        "a; b",
        "a = b; a",
        "u = v = a; u",
        "d",
        "a + ",
        "1.0 + 2.0",
        "1.0 - a",
        "a / 2.0",
        "a ** b",
        "a // b",
        "a if b else a",
        "a[0]",
        "a.b",
        "a()",
        "relu",
        "relu(a, b)",
        "relu(a, 1.0)",
        "relu(1.0, a)",
        "relu(x=a)",
        "maximum(a, None)",
        "maximum(a, True)",
        "maximum(a, 'b')",
        "maximum(a, 1e999)",
        "where(a, b)",
        "where(a, b, c, 1.0)",
        "compare(a, 'gt')",
        "compare(a, b, 'above')",
        "u = 1.0; maximum(a, u)",
        "ones(1.0)",
        "relu(*a)",
        "clamp(a, 'b')",
        "scale(a)",
        "scale(a, 1e999)",
        "linear(a, b)",
        "matmul(a, b)",
        "chain(a)",
        "dropout(a)",
        "nothing(a)",
        "__import__('os')",
        "'a' * a",
        "lambda: a",
        "a\\\n+ a",
        "a # b",
        "-" * 3000 + "a",
        "(" * 500 + "a" + ")" * 500,
        "a" + " + a" * 1200,
        ", ".join("a" * 9),
    ],
)
def test_refused(text):
    with pytest.raises(UserError) as refusal:
        Chain().infer(ChainAttrs(expression=text), (TensorType(shape=(3,)),) * 3)
    assert refusal.value.code == "SP1002"


def test_refused_operands():
    wide = tuple(TensorType(shape=(n,)) for n in (3, 4))
    for types in (wide, (TensorType(shape=(3,)),) * 13):
        with pytest.raises(UserError, match="SP1002"):
            Chain().infer(ChainAttrs(expression="a"), types)


def test_every_element_wise_op_prints_and_parses():
    for op in all_ops().values():
        if op.family in FAMILIES:
            for sample in op.samples():
                count = op.input_counts[0]
                expression = Expression(count, (Step(op.name, sample.attrs, tuple(range(count))),), (count,))
                assert parse(expression.text, count) == expression, expression.text


def gradient(text, inputs, wanted=None, sizes=None):
    found = backward_of(parse(text, inputs), wanted or range(inputs), sizes or [10] * inputs)
    return found.expression.text, found.reads, dict(found.result)


def test_gradients_read_inputs_only():
    assert gradient("a * sigmoid(b) + c", 3) == (
        "u1 = sigmoid(c); a * u1, sigmoid_backward(a * b, u1)",
        (DY, "0", "1"),
        {0: 0, 1: 1, 2: -1},
    )
    assert gradient("a * sigmoid(b) + c", 3, wanted=[0])[:2] == ("a * sigmoid(b)", (DY, "1"))


def test_gradients_read_the_result_where_it_is_enough():
    assert gradient("relu(a + b)", 2) == ("relu_backward(a, b)", (DY, Y), {0: 0, 1: 0})
    # Both are read anyway: the result would be one more.
    assert gradient("relu(a * b)", 2)[1] == (DY, "0", "1")
    # What lies before the last step has to be computed again from the input, which then is enough.
    assert gradient("exp(tanh(a))", 1) == (
        "u1 = tanh(b); tanh_backward(exp_backward(a, exp(u1)), u1)",
        (DY, "0"),
        {0: 0},
    )


def test_addition_passes_the_gradient_on():
    assert gradient("a + b", 2) == ("", (DY,), {0: -1, 1: -1})


def test_every_differentiable_op_has_a_rule():
    """With torch-checked gradients of whole chains in test_gradients; here: none is forgotten."""
    for op in all_ops().values():
        if op.family in FAMILIES and not op.name.endswith("_backward"):
            assert differentiable(op.name), op.name


@pytest.mark.parametrize(
    "op", [o for o in all_ops().values() if isinstance(o, Unary) and o.differentiable], ids=lambda o: o.name
)
def test_single_steps_have_their_ops_gradients(op):
    """A chain of one op against differences."""
    sample = op.samples()[0]
    expression = Expression(1, (Step(op.name, sample.attrs, (0,)),), (1,))
    (x,) = op.draw(sample, np.random.default_rng(1))
    backward = backward_of(expression, [0], [1])
    leaves = {DY: np.ones_like(x), Y: op.reference(sample.attrs, (x,))[0], "0": x}
    attrs = ChainAttrs(expression=backward.expression.text)
    (found,) = op_named("chain_backward").reference(attrs, [leaves[leaf] for leaf in backward.reads])
    step = 1e-6
    ahead, behind = (op.reference(sample.attrs, (x + d,))[0] for d in (step, -step))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4)


def test_flat_steps_have_no_gradient():
    backward = backward_of(parse("round(a * 4.0) * b + a", 2), [0, 1], [1, 1])
    assert backward.expression.text == "a * round(b * 4.0)" and backward.result == {0: -1, 1: 0}
    assert not backward_of(parse("sign(a)", 1), [0], [1]).result


def test_a_chain_costs_what_its_steps_cost():
    from planner.ops.base import Signature

    t = TensorType(shape=(10,))
    chain = Signature("chain", ChainAttrs(expression="sigmoid(a) * b"), (t, t), (t,))
    single = Signature("sigmoid", Attrs(), (t,), (t,))
    assert op_named("chain").flops(chain) == op_named("sigmoid").flops(single) + 10
    assert op_named("chain").bytes_moved(chain) == 3 * 40
    assert ScalarAttrs(value=2.0).text() == "value=2.0"


@pytest.mark.parametrize(
    ("text", "inputs", "found"),
    [
        ("a * 0.5 * (tanh(a * 0.75) + 1.0)", 1, "a * sigmoid(a * 1.5)"),
        ("(tanh(a * b) + 1.0) * (c * 0.5)", 3, "c * sigmoid(a * b * 2.0)"),
        ("b - (tanh(a) + 1.0) * 0.5", 2, "b - sigmoid(a * 2.0)"),
        ("u1 = tanh(a) + 1.0; u1 * 0.5 + u1", 1, "u1 = tanh(a) + 1.0; u1 * 0.5 + u1"),
        ("a * 0.25 * (tanh(a) + 1.0)", 1, "a * 0.25 * (tanh(a) + 1.0)"),
    ],
)
def test_half_of_one_and_tanh_is_a_sigmoid(text, inputs, found):
    """Where nothing else reads what lies between."""
    before = parse(text, inputs)
    after = with_sigmoids(before)
    assert after.text == found
    drawn = [np.linspace(-9, 9, 40) + i for i in range(inputs)]
    attrs = [ChainAttrs(expression=e.text) for e in (before, after)]
    (expected,), (got,) = (Chain().reference(a, drawn) for a in attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-12)
