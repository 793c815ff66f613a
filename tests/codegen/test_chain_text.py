"""What chains become in C++: every element-wise op has its call, and loops read like a person's."""

import pytest

from codegen.cpu.chains import Loop
from codegen.cpu.render import environment
from planner.graph.model import Layout, TensorType
from planner.ops import all_ops
from planner.ops.base import Signature
from planner.ops.chain import Chain, ChainAttrs
from planner.ops.expression import FAMILIES, Expression, Step

MATRIX, ROW = TensorType(shape=(6, 40)), TensorType(shape=(40,))


def loop_of(text: str, *types: TensorType) -> Loop:
    attrs = ChainAttrs(expression=text)
    return Loop(Signature("chain", attrs, types, Chain().infer(attrs, types)))


def body(loop: Loop, elements: list[str], results: list[str]) -> list[str]:
    template = environment().get_template("chain.j2").module
    return [line.strip() for line in template.body(loop, elements, results, "").splitlines()]  # type: ignore[attr-defined]


def test_a_line_per_step() -> None:
    loop = loop_of("u = clamp(a, 0.0, 6.0); u * b, gelu(a, 'tanh') - 0.5", MATRIX, MATRIX)
    assert body(loop, ["a[i]", "b[i]"], ["y[i]", "y1[i]"]) == [
        "const float u1 = Clamp{0.0f, 6.0f}.forward(a[i]);",
        "const float u2 = u1 * b[i];",
        "const float u3 = GeluTanh::forward(a[i]);",
        "const float u4 = u3 + -0.5f;",
        "y[i] = u2;",
        "y1[i] = u4;",
    ]


def test_numbers_are_literals() -> None:
    loop = loop_of("where(compare(a, 0.5, 'gt'), b, -1.0)", MATRIX, MATRIX)
    assert body(loop, ["a[i]", "b[i]"], ["y[i]"]) == [
        "const float u1 = a[i] > 0.5f ? 1.0f : 0.0f;",
        "const float u2 = select_loaded(u1 != 0.0f, b[i], -1.0f);",
        "y[i] = u2;",
    ]


OPS = [op for op in all_ops().values() if op.family in FAMILIES]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_element_wise_op_has_its_call(op) -> None:  # type: ignore[no-untyped-def]
    for sample in op.samples():
        count = op.input_counts[0]
        text = Expression(count, (Step(op.name, sample.attrs, tuple(range(count))),), (count,)).text
        (line, result) = body(loop_of(text, *(MATRIX,) * count), ["a", "b", "c"][:count], ["y"])
        assert line.startswith("const float u1 = ") and result == "y = u1;"


def test_operands_that_are_broadcast() -> None:
    """A vector along the rows, a number per row, and both along an image's channels and pixels."""
    walks = [(o.name, o.walk, o.strides[-2:]) for o in loop_of("a * b", MATRIX, ROW).walking]
    assert walks == [("b", 0, (0, 1))]
    walks = [(o.name, o.walk, o.stride) for o in loop_of("a * b + c", TensorType(shape=(6, 1)), MATRIX, ROW).walking]
    assert walks == [("a", 0, 0), ("c", 1, 1)]
    image = TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST)
    loop = loop_of("a * b", image, TensorType(shape=(3, 8, 1, 1), layout=Layout.CHANNELS_LAST))
    assert loop.shape[-3:] == (3, 35, 8)
    assert loop.walking[0].strides[-3:] == (8, 0, 1)


def test_alike_chains_share_a_kernel() -> None:
    first, second, other = (loop_of(t, MATRIX) for t in ("a * 2.0", "a * 2.0", "a * 3.0"))
    assert first.name == second.name != other.name
    assert first.parameters == "gpu::Queue queue, const float* a, float* y"
