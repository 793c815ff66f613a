"""What product.cpp asks of cuBLASLt, computed as the header says: rows as columns, strides, batches, biases."""

import numpy as np
import pytest

from codegen.cpu.shapes import matmul_shape
from planner.graph.model import DType, TensorType
from planner.ops import all_ops
from planner.ops.base import Op, Sample, Signature, round_bfloat16
from tests.codegen.cuda.mocks import Array, characters, compile_mock, read, stored, text
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.codegen.plans import in_bfloat16
from tests.runtime.build import Library

pytestmark = needs_toolkit

RNG = np.random.default_rng()
OPS = [op for op in all_ops().values() if op.family == "matmul"]
CASES = [(op, sample) for op in OPS for sample in op.samples()]
CASES += [(op, in_bfloat16(op, sample)) for op, sample in CASES if op.low_precision is not None]


@pytest.fixture(scope="module")
def library() -> Library:
    return compile_mock("products.cpp", "product.cpp")


def asked(
    library: Library, op: Op, sample: Sample, algorithm: str = "", workspace: int = 0
) -> tuple[str, Array, Array, float]:
    """(what is wrong, what the library was made to compute, the op's reference, how precise that can be)."""
    signature = Signature(op.name, sample.attrs, sample.inputs, op.infer(sample.attrs, sample.inputs))
    product = op.product(signature)  # type: ignore[attr-defined]
    drawn = [round_bfloat16(a) for a in op.draw(sample, RNG)]  # float32 operands, too: then sums hardly round
    inputs = [stored(a, t.dtype) for a, t in zip(drawn, sample.inputs, strict=True)]
    result = signature.outputs[0]
    out = stored(np.full(result.shape, np.nan), result.dtype)
    operand = {f"in{i}": a for i, a in enumerate(inputs)}
    space = stored(np.zeros(workspace // 4 + 1), DType.FLOAT32)
    fields = np.array(matmul_shape(signature), np.int64)
    bias = operand[product.bias] if product.bias else None
    given = (fields, operand[product.a.operand], operand[product.b.operand], bias, out)
    wrong = text(library, "product", *given, characters(algorithm), space, workspace)
    return wrong, read(out), op.reference(sample.attrs, drawn)[0], 2**-8 if result.dtype is DType.BFLOAT16 else 2e-6


@pytest.mark.parametrize(("op", "sample"), CASES, ids=[f"{op.name}-{i}" for i, (op, _) in enumerate(CASES)])
def test_every_product(library: Library, op: Op, sample: Sample) -> None:
    wrong, got, want, precision = asked(library, op, sample)
    assert wrong == ""
    np.testing.assert_allclose(got, want, rtol=precision, atol=precision * np.abs(want).max())


def test_an_algorithm_is_found_by_its_name(library: Library) -> None:
    first, second = text(library, "offered", 4096).split()
    assert text(library, "offered", 100).split() == [first]
    op = all_ops()["linear"]
    sample = Sample(op.samples()[0].attrs, (TensorType(shape=(6, 5)), TensorType(shape=(4, 5)), TensorType(shape=(4,))))
    for name, workspace in ((first, 0), (second, 1024 + 192)):
        wrong, got, want, precision = asked(library, op, sample, name, workspace)
        assert wrong == ""
        np.testing.assert_allclose(got, want, rtol=precision, atol=precision * np.abs(want).max())
    assert "has no algorithm 9.9" in asked(library, op, sample, "9.9.9.9.9.9.9.9.9")[0]
    assert "invalid value" in asked(library, op, sample, second, 512)[0]  # a workspace that is too small is refused
