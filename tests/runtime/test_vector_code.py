"""What the compiler makes of loops, where it takes little to keep it from vector code: read off its assembly.

Nothing is timed and nothing runs, so any x86-64 machine will do."""

import platform
import re
import subprocess

import pytest

from codegen.build import COMMON, FAST
from codegen.cpu.chains import Loop
from codegen.cpu.render import environment
from codegen.toolchain import compiler
from planner.graph.model import TensorType
from planner.ops.base import Signature
from planner.ops.chain import ChainAttrs
from tests.runtime.build import RUNTIME

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 assembly")

FUNCTIONS = (
    "Relu",
    "LeakyRelu",
    "Clamp",
    "Clip",
    "HardSwish",
    "Gelu",
    "Softplus",
    "Elu",
    "Expm1",
    "Lgamma",
    "Digamma",
    "Trigamma",
)
APPLY = "batch_norm_backward_apply<Fusion::relu>(a, 0, 2, x)"
MASKED_LOAD = re.compile(r"\)(\{1to\d+\})?, (%[xyz]mm\d+, )?%[xyz]mm\d+\{%k")


def compiled(tmp_path, march: str, header: str, *text: str) -> tuple[str, str]:
    """The assembly, and which loops became vector code."""
    source = tmp_path / "loops.cpp"
    source.write_text("\n".join([f'#include "{header}.hpp"', "namespace stepplan {", *text, "}", ""]))
    flags = (*COMMON, *FAST, f"-march={march}", f"-I{RUNTIME}", "-fopt-info-vec-optimized", "-S", "-o", "-")
    run = subprocess.run([compiler().path, *flags, str(source)], check=True, capture_output=True, text=True)
    return run.stdout, run.stderr


@pytest.mark.parametrize("march,width", [("x86-64-v3", 32), ("x86-64-v4", 64)])
@pytest.mark.parametrize("element", ["float", "bfloat16"])
def test_functions_of_elements_become_vector_code(tmp_path, element, march, width):
    """Also of bfloat16 and of numbers that are not known before: g++ must not think that results overwrite these. And
    many in one file, which is when it stops to inline by itself."""
    text, loops = compiled(
        tmp_path,
        march,
        "activations",
        f"using T = {element};",
        *(
            f"void forward(const T* x, T* y, Range range, {function} f) {{ map_forward(x, y, range, f); }}"
            f"void backward(const T* dy, const T* x, const T* y, T* dx, Range range, {function} f)"
            "{ map_backward(dy, x, y, dx, range, f); }"
            for function in FUNCTIONS
        ),
    )
    assert loops.count(f"optimized: loop vectorized using {width} byte vectors") >= 2 * len(FUNCTIONS), "one each way"
    assert not re.search(r"(call|jmp)\s.*stepplan4math", text)


@pytest.mark.parametrize("march,width", [("x86-64-v3", 32), ("x86-64-v4", 64)])
@pytest.mark.parametrize("function", ["Remainder", "Fmod"])
def test_what_division_leaves_becomes_vector_code(tmp_path, function, march, width):
    text, loops = compiled(
        tmp_path,
        march,
        "binary",
        "void forward(const float* a, const float* b, float* y, Range range)",
        f"{{ map_binary<{function}>(a, b, y, range); }}",
    )
    assert f"optimized: loop vectorized using {width} byte vectors" in loops
    assert not re.search(r"(call|jmp)\s.*(fma|trunc|floor|fmod)", text)


POWERS = {
    "pairs": ("const float* a, const float* b, float* y, Range range", "map_binary<Pow>(a, b, y, range)"),
    **{
        way: (
            "const float* dy, const float* a, const float* b, float* y, Range range",
            f"map(y, range, [](float d, float u, float v) {{ return Pow::{way}(d, u, v); }}, dy, a, b)",
        )
        for way in ("grad_a", "grad_b")
    },
    "number": ("const float* x, float p, float* y, Range range", "pow_scalar_forward(x, p, y, range)"),
    "gradient": (
        "const float* dy, const float* x, float p, float* dx, Range range",
        "pow_scalar_backward(dy, x, p, dx, range)",
    ),
}


@pytest.mark.parametrize("march,register", [("x86-64-v3", "ymm"), ("x86-64-v4", "zmm")])
def test_powers_become_vector_code(tmp_path, march, register):
    """Of two operands, each way, and with an exponent that is not known before: all divide vectors of double."""
    lines = [f"void {name}({parameters}) {{ {call}; }}" for name, (parameters, call) in POWERS.items()]
    text, _ = compiled(tmp_path, march, "binary", *lines)
    functions = re.split(r"^_ZN8stepplan\d+(\w+?)E\w*:$", text, flags=re.MULTILINE)[1:]
    divided = {
        n for n, code in zip(functions[::2], functions[1::2], strict=True) if re.search(f"divpd.*{register}", code)
    }
    assert divided == set(POWERS)
    assert not re.search(r"(call|jmp)\s+(pow|trunc)", text)


@pytest.mark.parametrize("results", [1, 2, 3])
def test_chains_of_bfloat16_become_vector_code(tmp_path, results):
    """However long they are, and of several results."""
    steps = "".join(f"a = a * {function}::forward(a + b); " for function in ("Gelu", "Tanh", "Silu", "Erf") * 6)
    pointers = [f"y{k}" for k in range(results)]
    text, loops = compiled(
        tmp_path,
        "x86-64-v4",
        "activations",
        f"void chain(const bfloat16* a, const bfloat16* b, Range range, bfloat16* {', bfloat16* '.join(pointers)}) {{",
        f"  map_pairs<{results}>({{{', '.join(pointers)}}}, range,",
        f"      [](std::array<float, {results}>& result, float a, float b) {{",
        f"    {steps}",
        *(f"    result[{k}] = a + {k + 0.5}f * b;" for k in range(results)),
        "  }, a, b);",
        "}",
    )
    assert "optimized: loop vectorized using 64 byte vectors" in loops
    assert not re.search(r"(call|jmp)\s.*stepplan4math", text)


CHOICES = ("where(a, b, 0.0)", "where(compare(a, 0.5, 'gt'), b * 0.1, c)", "compare(a, b, 'le') * c - where(a, 1.0, b)")


@pytest.mark.parametrize("march,width", [("x86-64-v3", 32), ("x86-64-v4", 64)])
@pytest.mark.parametrize("expression", CHOICES)
def test_choices_in_chains_become_vector_code(tmp_path, expression, march, width):
    """All that they choose from is loaded, whatever they choose."""
    t = TensorType(shape=(100,))
    attrs = ChainAttrs(expression=expression)
    loop = Loop(Signature("chain", attrs, (t,) * 3, (t,)))
    lines = environment().get_template("chain.j2").module.body(loop, ["a[i]", "b[i]", "c[i]"], ["y[i]"], "")
    text, loops = compiled(
        tmp_path,
        march,
        "activations",
        "void chain(const float* a, const float* b, const float* c, float* y, Range range) {",
        "#pragma omp simd",
        f"  for (int64_t i = range.begin; i < range.end; ++i) {{ {lines} }}",
        "}",
    )
    assert f"optimized: loop vectorized using {width} byte vectors" in loops
    assert not [line for line in text.splitlines() if MASKED_LOAD.search(line)]


@pytest.mark.parametrize(
    "header,given,call",
    [
        ("activations", "", "map_backward<Relu>(dy, x, y, dx, range)"),
        ("activations", "", "map_backward(dy, x, y, dx, range, Clamp{0.0f, 6.0f})"),
        ("activations", "", "map_backward(dy, x, y, dx, range, Clip{{-1.0f, 1.0f}})"),
        ("dropout", ", const uint8_t* mask", "dropout_apply(dy, mask, 0.1f, dx, range)"),
        ("batch_norm_backward", ", const BatchNormBackward<float>& a", APPLY),
        ("batch_norm_backward", ", const BatchNormBackward<bfloat16>& a", APPLY),
    ],
)
def test_no_load_waits_for_a_mask(tmp_path, header, given, call):
    arguments = "const float* dy, const float* x, const float* y, float* dx, Range range"
    text, _ = compiled(tmp_path, "x86-64-v4", header, f"void loop({arguments}{given}) {{ {call}; }}")
    assert "%zmm" in text
    assert not [line for line in text.splitlines() if MASKED_LOAD.search(line)]
