"""Broadcasting, reductions, copies and pooling against PyTorch in float64."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from build import compile_library
from loops_cases import SLICES, assert_close, cut, poisoned, run_slices, tensor


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("loops_elementwise.cpp"))


def six(values, fill):
    return np.array([fill] * (6 - len(values)) + list(values), np.int64)


def strides_of(array):
    return [s // array.itemsize for s in array.strides]


BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.remainder,
    torch.fmod,
    torch.pow,
]
BROADCASTS = [
    ((40,), (40,)),
    ((4, 5, 6), (6,)),
    ((4, 1, 6), (5, 1)),
    ((3,), (2, 7, 1)),
    ((), (2, 3)),
    ((2, 3, 1, 2, 1, 4), (1, 3, 2, 1, 5, 1)),
]


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("kind", range(len(BINARY)))
@pytest.mark.parametrize("shapes", BROADCASTS)
def test_broadcast(lib, kind, shapes, slices):
    rng = np.random.default_rng(kind)
    a, b = (np.asarray(rng.integers(1, 6, s), np.float32) for s in shapes)  # integers: ties in max and min
    wide_a, wide_b = np.broadcast_arrays(a, b)
    shape, n = wide_a.shape, wide_a.size
    y = poisoned(*shape)
    arguments = (a, six(strides_of(wide_a), 0), b, six(strides_of(wide_b), 0), y, six(shape, 1))
    run_slices(slices, lambda s: lib("binary", kind, 0, None, *arguments, *cut(n, slices, s)))
    ta, tb = tensor(wide_a.copy()), tensor(wide_b.copy())
    expected = BINARY[kind](ta, tb)
    assert_close(y, expected, 1e-6)
    dy = rng.standard_normal(shape).astype(np.float32)
    expected.backward(torch.tensor(dy).double())
    full_a, full_b = np.ascontiguousarray(wide_a), np.ascontiguousarray(wide_b)
    for which, gradient in ((1, ta.grad), (2, tb.grad)):
        out = poisoned(*shape)
        lib("binary", kind, which, dy, full_a, None, full_b, None, out, None, 0, n)
        assert_close(out, gradient, 1e-6)


@pytest.mark.parametrize("kind", [4, 5])
def test_max_and_min_keep_nan(lib, kind):
    a, b = np.array([1, np.nan, 2], np.float32), np.array([np.nan, 1, 3], np.float32)
    y, ones = np.zeros(3, np.float32), six([1], 1)
    lib("binary", kind, 0, None, a, ones, b, ones, y, six([3], 1), 0, 3)
    assert np.isnan(y[:2]).all() and np.isfinite(y[2])


def rest_bits(values) -> np.ndarray:
    """One NaN is as good as another; zeros have signs."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def rest_of(lib, kind, a, b) -> np.ndarray:
    y, one = poisoned(a.size), six([1], 1)
    lib("binary", kind, 0, None, a, one, b, one, y, six([a.size], 1), 0, a.size)
    return rest_bits(y)


def exact_rest(kind, a, b) -> np.ndarray:
    """By C's fmod: PyTorch's vector code gives NaN where the quotient is huge."""
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        turned = (rest != 0) & ((rest < 0) != (b < 0)) & (kind == REST[0])
        return rest_bits(np.where(turned, rest + b, rest))


POW = BINARY.index(torch.pow)


def test_powers_are_rounded_once(lib):
    """Of numbers of any size, and those next to 1, whose logarithms are tiny."""
    rng = np.random.default_rng()
    wide = np.exp2(rng.uniform(-126, 127, 20000)), rng.uniform(-3, 3, 20000)
    near = 1 + rng.integers(-2000, 2000, 20000) * 2.0**-24, rng.uniform(-1e6, 1e6, 20000)
    a, b = (np.concatenate(v).astype(np.float32) for v in zip(wide, near, strict=True))
    y, one = poisoned(a.size), six([1], 1)
    lib("binary", POW, 0, None, a, one, b, one, y, six([a.size], 1), 0, a.size)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
        rounded = exact.astype(np.float32)
        spacing = np.spacing(rounded).astype(np.float64)
    finite = np.isfinite(spacing)
    assert (np.abs(y - exact)[finite] <= 0.51 * spacing[finite]).all()
    np.testing.assert_array_equal(y[~finite], rounded[~finite])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_powers_of_special_numbers(lib, which):
    """All pairs of zeros, infinities, NaN, whole and other numbers, with signs: as in PyTorch, the gradients, too."""
    sizes = np.array([0, np.inf, np.nan, 1e-45, 1.2e-38, 0.5, 1, 2, 3, 2.5, 1e10, 16777217, 3.4e38], np.float32)
    a, b = (np.ascontiguousarray(v).reshape(-1) for v in np.meshgrid(*[np.concatenate([sizes, -sizes])] * 2))
    ta, tb = (torch.tensor(v, requires_grad=True) for v in (a, b))
    y, one = poisoned(a.size), six([1], 1)
    expected = torch.pow(ta, tb)
    if which:
        expected.backward(torch.ones(a.size))
        lib("binary", POW, which, np.ones_like(a), a, None, b, None, y, None, 0, a.size)
        expected = (ta, tb)[which - 1].grad
    else:
        lib("binary", POW, 0, None, a, one, b, one, y, six([a.size], 1), 0, a.size)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-5)


REST = [BINARY.index(torch.remainder), BINARY.index(torch.fmod)]


@pytest.mark.parametrize("kind", REST)
@pytest.mark.parametrize("ratio", [1.0, 1e6, 1e9, 1e38])
def test_what_division_leaves_is_exact(lib, kind, ratio):
    """However often the divisor is in it; one in four is a whole multiple, as far as float32 has those."""
    rng = np.random.default_rng(0)
    b = rng.choice([-1, 1], 40001) * np.exp2(rng.uniform(-2, 1, 40001))
    quotients = rng.standard_normal(b.size) * ratio
    quotients[::4] = np.rint(quotients[::4])
    b = b.astype(np.float32)
    a = np.clip(quotients * b, -3e38, 3e38).astype(np.float32)
    found = rest_of(lib, kind, a, b)
    np.testing.assert_array_equal(found, exact_rest(kind, a, b))
    if ratio <= 1e9:
        np.testing.assert_array_equal(found, rest_bits(BINARY[kind](torch.tensor(a), torch.tensor(b)).numpy()))


@pytest.mark.parametrize("kind", REST)
def test_what_division_leaves_of_special_numbers(lib, kind):
    """All pairs of zeros, infinities, NaN, the smallest and largest numbers and those next to multiples, with signs."""
    sizes = [0, np.inf, np.nan, 1e-45, 3e-45, 1.2e-38, 1e-10, 0.1, 1, 2, 3, 6, 1e10, 1.7e38, 3.4e38]
    sizes = np.array(sizes, np.float32)
    sizes = np.concatenate([sizes, np.nextafter(sizes[7:12], np.float32(0)), np.nextafter(sizes[7:12], np.float32(9))])
    signed = np.concatenate([sizes, -sizes])
    a, b = (np.ascontiguousarray(v).reshape(-1) for v in np.meshgrid(signed, signed))
    np.testing.assert_array_equal(rest_of(lib, kind, a, b), exact_rest(kind, a, b))


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1, 2), (1, 2), (2, 3), (0, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("shape", [(5, 6, 7, 70), (2, 300, 3, 4), (2, 530, 3, 5)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1)])
def test_reduce(lib, axes, shape, order, slices):
    """In any order of the dimensions in memory. Slices change no bits."""
    memory = np.random.default_rng().random([shape[d] for d in order], np.float32)
    x = memory.transpose(np.argsort(order))
    strides, kept = strides_of(x), [d for d in range(4) if d not in axes]
    pick = lambda dims, values, fill: six([values[d] for d in dims], fill)
    n = math.prod(shape[d] for d in kept)
    extents = pick(kept, shape, 1), pick(kept, strides, 0), pick(axes, shape, 1), pick(axes, strides, 0)

    def means(slices):
        y = poisoned(n)
        run_slices(slices, lambda s: lib("reduce", memory, *extents, n / x.size, y, *cut(n, slices, s)))
        return y

    y = means(slices)
    assert_close(y, x.astype(np.float64).mean(axes), 2e-7)
    assert np.array_equal(y, means(1))


def bits(dtype, *shape) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 0x7F00, shape).astype(dtype)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 3, 41, 70), (1, 2, 16, 33)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2), (0, 1, 3, 2)])
@pytest.mark.parametrize("function,dtype", [("copy", np.float32), ("copy_bfloat16", np.uint16)])
def test_permute(lib, function, dtype, order, shape, slices):
    x = bits(dtype, *shape)
    view = x.transpose(order)
    y = np.full(view.shape, 0xABCD, dtype)
    strides = six(strides_of(view), 0), six(strides_of(y), 0)
    run_slices(
        slices, lambda s: lib(function, x, strides[0], y, strides[1], six(view.shape, 1), *cut(x.size, slices, s))
    )
    assert np.array_equal(y, view)


def test_strided_slice_write_and_broadcast(lib):
    x = np.random.default_rng(0).random((5, 8)).astype(np.float32)
    y = np.zeros((10, 30), np.float32)
    view = y[1::2, 3:27:3]
    first = y.reshape(-1)[33:]
    run_slices(
        3, lambda s: lib("copy", x, six([8, 1], 0), first, six(strides_of(view), 0), six((5, 8), 1), *cut(40, 3, s))
    )
    assert np.array_equal(view, x) and np.count_nonzero(y) == 40
    filled = poisoned(7, 8)
    lib("copy", x, six([0, 1], 0), filled, six([8, 1], 0), six((7, 8), 1), 0, 56)
    assert np.array_equal(filled, np.broadcast_to(x[0], (7, 8)))
    lib("copy", x, six([0, 0], 0), filled, six([8, 1], 0), six((7, 8), 1), 0, 56)
    assert (filled == x[0, 0]).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenate_and_split(lib, axis):
    rng = np.random.default_rng(0)
    shapes = [[3, 4, 5] for _ in range(3)]
    for i, shape in enumerate(shapes):
        shape[axis] = i + 2
    parts = [rng.random(s).astype(np.float32) for s in shapes]
    expected = np.concatenate(parts, axis)
    y, outer = np.full_like(expected, np.nan), math.prod(expected.shape[:axis])
    flat, start = y.reshape(-1), 0
    pitch = y.size // outer
    for part in parts:
        length = part.size // outer
        run_slices(2, lambda s: lib("blocks", part, length, flat[start:], pitch, length, *cut(outer, 2, s)))
        back = np.full_like(part, np.nan)
        run_slices(2, lambda s: lib("blocks", flat[start:], pitch, back, length, length, *cut(outer, 2, s)))
        assert np.array_equal(back, part)
        start += length
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("batch,rows,columns", [(2, 3, 1000), (3, 100, 70), (1, 32, 32), (4, 1, 5)])
@pytest.mark.parametrize("function,dtype", [("transposed", np.float32), ("transposed_bfloat16", np.uint16)])
def test_transpose(lib, function, dtype, batch, rows, columns, slices):
    x = bits(dtype, batch, rows, columns)
    y = np.full((batch, columns, rows), 0xABCD, dtype)
    run_slices(slices, lambda s: lib(function, x, y, rows, columns, *cut(batch * columns, slices, s)))
    assert np.array_equal(y, x.transpose(0, 2, 1))


def nchw(x):
    return torch.tensor(x, dtype=torch.float64).permute(0, 3, 1, 2).contiguous().requires_grad_()


def nhwc(t):
    return t.detach().permute(0, 2, 3, 1).numpy()


# kernel, stride, padding, dilation, ceil
POOLS = [
    ((2, 2), (2, 2), (0, 0), 1, False),
    ((3, 3), (2, 2), (1, 1), 1, False),
    ((3, 3), (2, 2), (0, 0), 1, True),
    ((3, 2), (1, 3), (1, 1), 1, True),
    ((3, 3), (1, 2), (1, 0), 2, False),
    ((5, 3), (3, 2), (2, 1), 1, True),
    ((2, 2), (3, 2), (1, 1), 1, True),
    ((1, 3), (2, 4), (0, 1), 1, False),
]


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels", [3, 16, 64, 86])
def test_max_pool(lib, pool, channels, slices):
    kernel, stride, pad, dilation, ceil = pool
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (2, 13, 11, channels)).astype(np.float32)  # ties
    tx = nchw(x)
    expected = F.max_pool2d(tx, kernel, stride, pad, dilation, ceil)
    oh, ow = expected.shape[2:]
    sizes = np.array([*x.shape, oh, ow, *kernel, *stride, *pad, dilation, dilation], np.int64)
    y, argmax = poisoned(2, oh, ow, channels), np.full((2, oh, ow, channels), 255, np.uint8)
    run_slices(slices, lambda s: lib("max_pool", None, x, argmax, y, sizes, *cut(2 * oh, slices, s)))
    assert np.array_equal(y, nhwc(expected))
    evaluated = poisoned(2, oh, ow, channels)
    run_slices(slices, lambda s: lib("max_pool", None, x, None, evaluated, sizes, *cut(2 * oh, slices, s)))
    assert np.array_equal(y, evaluated)
    dy, dx = rng.standard_normal(y.shape).astype(np.float32), poisoned(*x.shape)
    expected.backward(nchw(dy).detach())
    run_slices(slices, lambda s: lib("max_pool", dy, None, argmax, dx, sizes, *cut(26, slices, s)))
    assert_close(dx, nhwc(tx.grad), 1e-6)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_max_pool_special_values(lib, value):
    x = np.random.default_rng(0).random((1, 6, 6, 5)).astype(np.float32)
    x[0, 1:4, 2:5] = value
    expected, index = F.max_pool2d(nchw(x), 3, 1, 1, return_indices=True)
    y, argmax = np.zeros((1, 6, 6, 5), np.float32), np.zeros((1, 6, 6, 5), np.uint8)
    lib("max_pool", None, x, argmax, y, np.array([1, 6, 6, 5, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1], np.int64), 0, 6)
    np.testing.assert_array_equal(y, nhwc(expected))
    h, w = np.arange(6)[:, None, None], np.arange(6)[None, :, None]
    chosen = argmax.astype(np.int64)
    assert np.array_equal((h - 1 + chosen // 3) * 6 + (w - 1 + chosen % 3), nhwc(index))


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("pool", [p for p in POOLS if p[3] == 1])
@pytest.mark.parametrize("channels", [3, 70])
@pytest.mark.parametrize("count_pad", [False, True])
def test_average_pool(lib, pool, channels, count_pad, slices):
    kernel, stride, pad, _, ceil = pool
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 13, 11, channels)).astype(np.float32)
    tx = nchw(x)
    expected = F.avg_pool2d(tx, kernel, stride, pad, ceil, count_pad)
    check_average(lib, int(count_pad), x, tx, expected, [*kernel, *stride, *pad], slices)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("size", [(1, 1), (6, 6), (7, 3), (20, 2)])
def test_adaptive_average_pool(lib, size, slices):
    x = np.random.default_rng(0).standard_normal((3, 13, 11, 70)).astype(np.float32)
    tx = nchw(x)
    check_average(lib, 2, x, tx, F.adaptive_avg_pool2d(tx, size), [0] * 6, slices)


@pytest.mark.parametrize("height,width", [(1, 100_003), (100_003, 1)])
def test_average_of_a_whole_signal(lib, height, width):
    """As near as float32 has it, whichever axis is long: pooling in one dimension is pooling of a single row."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (1, height, width, 3)).astype(np.float32)
    y = poisoned(1, 1, 1, 3)
    lib("average_pool", 2, None, x, y, np.array([1, height, width, 3, 1, 1, *[0] * 6, 1, 1], np.int64), 0, 1)
    np.testing.assert_allclose(y.reshape(3), x.mean((0, 1, 2), dtype=np.float64), rtol=3e-7)


def check_average(lib, mode, x, tx, expected, window, slices):
    batch, height, width, channels = x.shape
    oh, ow = expected.shape[2:]
    sizes = np.array([*x.shape, oh, ow, *window, 1, 1], np.int64)
    y, dx = poisoned(batch, oh, ow, channels), poisoned(*x.shape)
    run_slices(slices, lambda s: lib("average_pool", mode, None, x, y, sizes, *cut(batch * oh, slices, s)))
    assert_close(y, nhwc(expected), 1e-6)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    expected.backward(nchw(dy).detach())
    run_slices(slices, lambda s: lib("average_pool", mode, dy, None, dx, sizes, *cut(batch * height, slices, s)))
    assert_close(dx, nhwc(tx.grad), 1e-6)
