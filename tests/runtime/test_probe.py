"""What the probe says of oneDNN's kernels, and what it refuses."""

import ctypes
from dataclasses import astuple, replace

import pytest

from tests.runtime.onednn import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    BATCH,
    CHANNELS,
    FORWARD,
    IMPOSSIBLE,
    NAMED,
    ONEDNN_REFUSED,
    ROWS,
    conv,
    implementations,
    integers,
    needs_bfloat16,
)


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        ((FORWARD, NAMED["strided1x1"], BATCH, 3, ""), IMPOSSIBLE, "more batch slices than images"),
        ((FORWARD, NAMED["strided1x1"], CHANNELS, 2, ""), IMPOSSIBLE, "sliced over batch or rows"),
        ((BACKWARD_WEIGHTS, NAMED["depthwise"], CHANNELS, 2, ""), IMPOSSIBLE, "grouped"),
        ((FORWARD, NAMED["plain3x3"], BATCH, 2, "matmul"), IMPOSSIBLE, "1x1"),
        ((BACKWARD_WEIGHTS, NAMED["depthwise"], BATCH, 2, "gather"), IMPOSSIBLE, "gather"),
        ((BACKWARD_DATA, NAMED["plain3x3"], BATCH, 2, "pointwise"), IMPOSSIBLE, "1x1"),
        ((BACKWARD_WEIGHTS, NAMED["pointwise"], CHANNELS, 2, "pointwise"), IMPOSSIBLE, "over batch"),
        ((FORWARD, NAMED["plain3x3"], BATCH, 2, "nonsense"), IMPOSSIBLE, "no implementation named 'nonsense'"),
        ((FORWARD, NAMED["plain3x3"], 7, 2, ""), IMPOSSIBLE, "slice dimension"),
        ((9, NAMED["plain3x3"], BATCH, 2, ""), IMPOSSIBLE, "convolution kind"),
        ((FORWARD, replace(NAMED["plain3x3"], oh=3), BATCH, 2, ""), ONEDNN_REFUSED, "oneDNN"),
        ((BACKWARD_DATA, replace(NAMED["plain3x3"], stride_h=0), ROWS, 2, ""), IMPOSSIBLE, "positive"),
        ((FORWARD, replace(NAMED["plain3x3"], groups=5), BATCH, 2, ""), IMPOSSIBLE, "groups"),
    ],
)
def test_the_probe_explains_what_is_impossible(library, arguments, code, message):
    kind, shape, dim, slices, implementation = arguments
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    assert (
        library.stepplan_conv_facts(
            kind, integers(astuple(shape)), dim, slices, implementation.encode(), facts, text, 512
        )
        == code
    )
    assert message in text.value.decode()


def test_the_probe_says_how_weights_need_no_packing(library):
    shape = NAMED["pointwise"]
    text = ctypes.create_string_buffer(512)
    found = set()
    for kind in (FORWARD, BACKWARD_DATA):
        for name in implementations(library, kind, shape, BATCH, 2):
            facts = integers([0] * 5)
            args = (kind, integers(astuple(shape)), BATCH, 2, name.encode(), facts, text, 512)
            assert library.stepplan_conv_facts(*args) == 0
            assert facts[0] or not any(facts[3:])
            found.add(tuple(facts[3:]))
    assert len(found) > 1


def test_the_probe_refuses_empty_matrices(library):
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    shape = integers([1, 4, 4, 0, 0, 1, 1, 0, 4, 1, 0, 4, 1, 0, 0, 0])
    assert library.stepplan_matmul_facts(shape, ROWS, 2, b"", facts, text, 512) == IMPOSSIBLE
    assert "positive" in text.value.decode()


def test_partials_cost_one_gradient_per_slice(library):
    shape, text, facts = NAMED["plain3x3"], ctypes.create_string_buffer(512), integers([0] * 5)
    for slices in (2, 3):
        assert library.stepplan_conv_facts(2, integers(astuple(shape)), BATCH, slices, b"", facts, text, 512) == 0
        assert facts[2] == slices * 48 * 32 * 9 * 4
    assert library.stepplan_conv_facts(2, integers(astuple(shape)), CHANNELS, 2, b"", facts, text, 512) == 0
    assert facts[2] == 0


def facts_of(library, kind, shape, dim, slices, implementation=""):
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    arguments = (kind, integers(astuple(shape)), dim, slices, implementation.encode(), facts, text, 512)
    assert library.stepplan_conv_facts(*arguments) == 0, text.value
    return list(facts)


@needs_bfloat16
def test_bfloat16_weights_take_half_the_bytes_and_sums_all_of_them(library):
    shape = replace(conv(4, 64, (9, 9), 128, (3, 3), 1, 1), element=1)
    elements = 128 * 64 * 9
    for kind in (FORWARD, BACKWARD_DATA):
        for name in implementations(library, kind, shape, BATCH, 2):
            packed, _, _, *stored = facts_of(library, kind, shape, BATCH, 2, name)
            assert packed == 2 * elements and stored == [0, 0], name
    assert facts_of(library, BACKWARD_WEIGHTS, shape, BATCH, 2)[2] == 2 * 4 * elements
    pointwise = replace(NAMED["pointwise"], element=1)
    # A product reads the weights as they lie. What it makes of images are sums, even in one slice.
    assert facts_of(library, FORWARD, pointwise, BATCH, 2, "matmul")[0] == 0
    assert facts_of(library, BACKWARD_WEIGHTS, pointwise, BATCH, 1, "matmul")[2] == 4 * (128 * 64 + 128)
    assert facts_of(library, BACKWARD_WEIGHTS, replace(pointwise, element=0), BATCH, 1, "matmul")[2] == 0


def test_the_probe_knows_two_elements(library):
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    unknown = integers(astuple(replace(NAMED["plain3x3"], element=2)))
    assert library.stepplan_conv_facts(FORWARD, unknown, BATCH, 2, b"", facts, text, 512) == IMPOSSIBLE
    assert b"an element is 0 (float32) or 1 (bfloat16)" in text.value
    product = integers([1, 4, 4, 4, 0, 4, 1, 0, 4, 1, 0, 4, 1, 0, 1, -1])
    assert library.stepplan_matmul_facts(product, ROWS, 2, b"", facts, text, 512) == IMPOSSIBLE


def test_only_products_of_dense_rows_are_dot_products(library):
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    plain = integers([1, 4, 4, 4, 0, 4, 1, 0, 4, 1, 0, 4, 1, 0, 0, 0])
    assert library.stepplan_matmul_facts(plain, ROWS, 2, b"dots", facts, text, 512) == IMPOSSIBLE
    assert library.stepplan_matmul_implementations(plain, ROWS, 2, text, 512) == 0
    assert b"dots" not in text.value.split()
