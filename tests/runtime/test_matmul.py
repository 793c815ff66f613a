"""Matrix products by oneDNN, as dot products and in blocks, and gradients of biases, against PyTorch in float64."""

import ctypes
import itertools

import pytest
import torch

from tests.runtime.onednn import (
    BATCH,
    CHANNELS,
    DEPTH,
    ROWS,
    TILES,
    assert_as_good_as_torch,
    assert_rounded_once,
    integers,
    nan,
    needs_bfloat16,
    pointer,
)


def counts(dim, batch, m, n, most=5):
    """Numbers of slices to try; of tiles those that may have several rows and columns."""
    if dim == TILES:
        return [k for k in (2, 4, 6, 12)[: most - 1] if batch == 1 and k <= m]
    return range(1, min(most, {BATCH: batch, ROWS: m, CHANNELS: n}[dim]) + 1)


def strides(tensor):
    batch = tensor.stride(0) if tensor.dim() == 3 else 0
    return [batch, tensor.stride(-2), tensor.stride(-1)]


@pytest.mark.parametrize("transposed_a,transposed_b,bias", list(itertools.product([0, 1], [0, 1], [0, 1])))
@pytest.mark.parametrize("batch,m,n,k", [(1, 37, 50, 29), (1, 64, 128, 256), (6, 33, 17, 40), (1, 5, 1, 7)])
def test_matrix_products_match_float64(library, batch, m, n, k, transposed_a, transposed_b, bias):
    numbers = torch.Generator().manual_seed(m)
    pads = 3  # leading dimensions longer than the rows

    def operand(rows, columns, transposed):
        rows, columns = (columns, rows) if transposed else (rows, columns)
        full = torch.randn(batch, rows, columns + pads, generator=numbers)[..., :columns]
        return full.transpose(1, 2) if transposed else full

    a, b = operand(m, k, transposed_a), operand(k, n, transposed_b)
    bias_values = torch.randn(n, generator=numbers) if bias else None
    truth, torchs = a.double() @ b.double(), a @ b
    if bias:
        truth, torchs = truth + bias_values.double(), torchs + bias_values
    ours = [b"blocks", b"dots"] if batch == 1 and transposed_b and not transposed_a else [b"blocks"]
    for dim, implementation in itertools.product((BATCH, ROWS, CHANNELS, TILES), [b"", *ours]):
        for slices in counts(dim, batch, m, n):
            c = nan(batch, m, n + pads)
            shape = [batch, m, n, k, *strides(a), *strides(b), c.stride(0), c.stride(1), 1, bias, 0, 0, 0]
            text, seconds = ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
            code = library.harness_matmul(
                integers(shape),
                dim,
                slices,
                implementation,
                pointer(a),
                pointer(b),
                pointer(bias_values),
                pointer(c),
                2,
                seconds,
                text,
                512,
            )
            assert code == 0, text.value
            assert_as_good_as_torch(c[..., :n], truth, torchs)
            assert c[..., n:].isnan().all()


@needs_bfloat16
@pytest.mark.parametrize("result,bias", [(torch.bfloat16, 1), (torch.float32, 0)])  # all four take twice as long
@pytest.mark.parametrize("transposed_a,transposed_b", list(itertools.product([0, 1], [0, 1])))
@pytest.mark.parametrize("batch,m,n,k", [(1, 37, 50, 29), (1, 64, 128, 256), (6, 33, 17, 40), (1, 5, 1, 7)])
def test_every_bfloat16_product_rounds_once(library, batch, m, n, k, transposed_a, transposed_b, bias, result):
    numbers = torch.Generator().manual_seed(m)

    def draw(*size):
        return torch.randn(*size, generator=numbers).to(torch.bfloat16)

    a = draw(batch, k, m).transpose(1, 2) if transposed_a else draw(batch, m, k)
    b = draw(batch, n, k).transpose(1, 2) if transposed_b else draw(batch, k, n)
    added = draw(n) if bias else torch.zeros(n)
    truth = a.double() @ b.double() + added.double()
    magnitudes = a.double().abs() @ b.double().abs() + added.double().abs()
    shape = integers([batch, m, n, k, *strides(a), *strides(b), m * n, n, 1, bias, 1, int(result == torch.bfloat16)])
    text, seconds = ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
    operands = (pointer(a), pointer(b), pointer(added if bias else None))
    for dim in (BATCH, ROWS, CHANNELS, TILES):
        for slices in counts(dim, batch, m, n, most=3):
            assert library.stepplan_matmul_implementations(shape, dim, slices, text, 512) == 0
            names = text.value.split()
            assert not {b"dots", b"blocks"}.intersection(names)
            for name in names:
                c = nan(batch, m, n, dtype=result)
                code = library.harness_matmul(shape, dim, slices, name, *operands, pointer(c), 2, seconds, text, 512)
                assert code == 0, text.value
                assert_rounded_once(c, truth, magnitudes)


@pytest.mark.parametrize("m,n,k", [(7, 41, 2500), (32, 64, 1024), (1, 19, 1039)])
def test_our_products_have_the_same_bits_in_any_slices(library, m, n, k):
    numbers = torch.Generator().manual_seed(k)
    a, b, bias = (torch.randn(*size, generator=numbers) for size in ((m, k), (n, k), (n,)))
    shape = integers([1, m, n, k, 0, k, 1, 0, 1, k, 0, n, 1, 1, 0, 0])
    text, seconds = ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
    for name in (b"dots", b"blocks"):
        results = []
        for dim, slices in (
            (ROWS, 1),
            (ROWS, min(3, m)),
            (CHANNELS, 2),
            (CHANNELS, 5),
            *((TILES, k) for k in (4, 6) if k <= m),
        ):
            c, operands = nan(m, n), (pointer(a), pointer(b), pointer(bias))
            assert library.harness_matmul(shape, dim, slices, name, *operands, pointer(c), 1, seconds, text, 512) == 0
            results.append(c)
        assert_as_good_as_torch(results[0], a.double() @ b.double().T + bias.double(), a @ b.T + bias)
        assert all(torch.equal(c, results[0]) for c in results[1:])


@pytest.mark.parametrize("m,n,k", [(3, 2500, 900), (600, 40, 520), (259, 1041, 257)])
@pytest.mark.parametrize("transposed_a,transposed_b", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_blocks_of_every_side_match_float64(library, m, n, k, transposed_a, transposed_b):
    """Sides longer than what a block holds of them, and results between others that stay."""
    numbers = torch.Generator().manual_seed(m)
    a = torch.randn(k, m, generator=numbers).T if transposed_a else torch.randn(m, k, generator=numbers)
    b = torch.randn(n, k, generator=numbers).T if transposed_b else torch.randn(k, n, generator=numbers)
    shape = integers([1, m, n, k, *strides(a), *strides(b), 0, n + 2, 1, 0, 0, 0])
    text, seconds = ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
    for dim, slices in ((ROWS, 1), (ROWS, 3), (CHANNELS, 2), *((TILES, k) for k in (6, 15) if k <= m)):
        c = nan(m, n + 2)
        operands = (pointer(a), pointer(b), pointer(None), pointer(c))
        assert library.harness_matmul(shape, dim, slices, b"blocks", *operands, 1, seconds, text, 512) == 0
        assert_as_good_as_torch(c[:, :n], a.double() @ b.double(), a @ b)
        assert c[:, n:].isnan().all()


@pytest.mark.parametrize("rows,columns,slices", [(1, 1, 1), (1000, 130, 3), (100_000, 17, 2)])
def test_bias_gradient_is_nearly_exact(library, rows, columns, slices):
    dy = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) + 1
    gradient = nan(columns)
    library.harness_bias_gradient(pointer(dy), ctypes.c_int64(rows), ctypes.c_int64(columns), slices, pointer(gradient))
    exact = dy.double().sum(0)
    assert (gradient.double() - exact).norm() <= 4e-8 * exact.norm()  # a float's rounding is at most 6e-8


@pytest.mark.parametrize("rows,columns,slices", [(1, 1, 1), (1000, 130, 3)])
def test_bias_gradient_of_bfloat16_is_nearly_exact(library, rows, columns, slices):
    dy = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) + 1).to(torch.bfloat16)
    gradient, sizes = nan(columns), (ctypes.c_int64(rows), ctypes.c_int64(columns))
    library.harness_bias_gradient_bfloat16(pointer(dy), *sizes, slices, pointer(gradient))
    exact = dy.double().sum(0)
    assert (gradient.double() - exact).norm() <= 4e-8 * exact.norm()


@pytest.mark.parametrize("m,n,k", [(7, 5, 130), (64, 64, 1000), (16, 33, 300)])
def test_sums_of_slices_in_depth_match_float64(library, m, n, k):
    """Every slice alone gives its part of the sums, wherever it writes; ours and oneDNN's."""
    numbers = torch.Generator().manual_seed(k)
    a, b = torch.randn(k, m, generator=numbers).T, torch.randn(k, n, generator=numbers)
    shape = integers([1, m, n, k, *strides(a), *strides(b), 0, n, 1, 0, 0, 0])
    text, seconds = ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
    assert library.stepplan_matmul_implementations(shape, DEPTH, 3, text, 512) == 0
    for name in text.value.split():
        total = torch.zeros(m, n)
        for index in range(3):
            c, operands = nan(m, n), (pointer(a), pointer(b), pointer(None))
            run = library.harness_matmul_slice
            assert run(shape, DEPTH, 3, name, *operands, pointer(c), index, text, 512) == 0, text.value
            lo, hi = k * index // 3, k * (index + 1) // 3
            assert_as_good_as_torch(c, a[:, lo:hi].double() @ b[lo:hi].double(), a[:, lo:hi] @ b[lo:hi])
            total += c
        assert_as_good_as_torch(total, a.double() @ b.double(), a @ b)
    biased = integers([1, m, n, k, *strides(a), *strides(b), 0, n, 1, 1, 0, 0])
    assert library.harness_matmul(biased, DEPTH, 2, b"", *operands, pointer(c), 1, seconds, text, 512) != 0
    assert b"not cut in its depth" in text.value
