"""The oneDNN kernels against PyTorch in float64, sliced over threads, with poisoned outputs and scratch."""

import ctypes
import itertools
import random
import subprocess
import sysconfig
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "templates" / "runtime"
PREFIX = Path(sysconfig.get_path("data"))
BATCH, ROWS, CHANNELS = 0, 1, 2
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = 0, 1, 2
IMPOSSIBLE, ONEDNN_REFUSED = 1, 2


@dataclass(frozen=True)
class Conv:
    """The fields of ConvShape, in its order."""

    n: int
    ic: int
    ih: int
    iw: int
    oc: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    bias: int = 0
    relu: int = 0

    def torch_arguments(self):
        return dict(
            stride=(self.stride_h, self.stride_w),
            padding=(self.pad_h, self.pad_w),
            dilation=(self.dilation_h, self.dilation_w),
            groups=self.groups,
        )


def conv(n, ic, size, oc, kernel, stride=1, pad=0, dilation=1, groups=1, bias=0, relu=0):
    (ih, iw), (kh, kw) = size, kernel
    out = [(i + 2 * pad - (k - 1) * dilation - 1) // stride + 1 for i, k in ((ih, kh), (iw, kw))]
    return Conv(n, ic, ih, iw, oc, *out, kh, kw, stride, stride, pad, pad, dilation, dilation, groups, bias, relu)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if not (PREFIX / "include" / "dnnl.hpp").exists():
        pytest.skip("oneDNN is not installed")
    built = tmp_path_factory.mktemp("onednn") / "harness.so"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-O3",
            "-march=native",
            "-fopenmp",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{RUNTIME}",
            f"-I{PREFIX / 'include'}",
            str(HERE / "onednn_harness.cpp"),
            "-o",
            str(built),
            f"-L{PREFIX / 'lib'}",
            "-ldnnl",
            f"-Wl,-rpath,{PREFIX / 'lib'}",
        ],
        check=True,
    )
    return ctypes.CDLL(str(built))


class KernelError(Exception):
    pass


def pointer(tensor):
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def integers(values):
    return (ctypes.c_int64 * len(values))(*values)


def run_conv(
    library, kind, shape, dim, slices, implementation, in1, in2, bias, out1, out2=None, repeats=2, blocks=(0, 0)
):
    text, seconds = ctypes.create_string_buffer(4096), (ctypes.c_double * 2)()
    code = library.harness_conv(
        kind,
        integers(astuple(shape)),
        dim,
        slices,
        implementation.encode(),
        integers(blocks),
        pointer(in1),
        pointer(in2),
        pointer(bias),
        pointer(out1),
        pointer(out2),
        repeats,
        seconds,
        text,
        4096,
    )
    if code:
        raise KernelError(code, text.value.decode())
    return text.value.decode(), list(seconds)


def implementations(library, kind, shape, dim, slices):
    text = ctypes.create_string_buffer(4096)
    code = library.stepplan_conv_implementations(kind, integers(astuple(shape)), dim, slices, text, 4096)
    if code:
        raise KernelError(code, text.value.decode())
    return [name for name in text.value.decode().split("\n") if "ref" not in name]


def nhwc(tensor):
    return tensor.float().permute(0, 2, 3, 1).contiguous()


def nan(*shape):
    return torch.full(shape, float("nan"))


def assert_as_good_as_torch(ours, truth, torchs):
    """Float32 PyTorch's own error, times a factor for other orders of addition, is what we may differ by."""
    scale = truth.abs().mean().item() + 1e-30
    allowed = 4 * (torchs.double() - truth).abs().max().item() + 2e-6 * scale
    assert (ours.double() - truth).abs().max().item() <= allowed


def check_conv(library, shape, kind, dim, slices, implementation="", seed=0):
    random_numbers = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=random_numbers, dtype=torch.float64).float().double()

    s = shape
    x, w = draw(s.n, s.ic, s.ih, s.iw), draw(s.oc, s.ic // s.groups, s.kh, s.kw)
    bias = draw(s.oc) if s.bias else None
    dy = draw(s.n, s.oc, s.oh, s.ow)

    def expected(dtype):
        xs, ws = x.to(dtype, copy=True).requires_grad_(), w.to(dtype, copy=True).requires_grad_()
        bs = bias.to(dtype, copy=True).requires_grad_() if s.bias else None
        y = torch.nn.functional.conv2d(xs, ws, bs, **s.torch_arguments())
        y.backward(dy.to(dtype))
        return y.relu().detach() if s.relu else y.detach(), xs.grad, ws.grad, bs.grad if s.bias else None

    truth, torchs = expected(torch.float64), expected(torch.float32)
    b32 = bias.float() if s.bias else None
    if kind == FORWARD:
        y = nan(s.n, s.oh, s.ow, s.oc)
        run_conv(library, kind, s, dim, slices, implementation, nhwc(x), w.float(), b32, y)
        assert_as_good_as_torch(y.permute(0, 3, 1, 2), truth[0], torchs[0])
    elif kind == BACKWARD_DATA:
        dx = nan(s.n, s.ih, s.iw, s.ic)
        run_conv(library, kind, s, dim, slices, implementation, nhwc(dy), w.float(), None, dx)
        assert_as_good_as_torch(dx.permute(0, 3, 1, 2), truth[1], torchs[1])
    else:
        dw, db = nan(*w.shape), nan(s.oc)
        run_conv(library, kind, s, dim, slices, implementation, nhwc(x), nhwc(dy), None, dw, db)
        assert_as_good_as_torch(dw, truth[2], torchs[2])
        if s.bias:
            assert_as_good_as_torch(db, truth[3], torchs[3])


NAMED = {
    "first": conv(3, 3, (33, 35), 64, (7, 7), 2, 3, bias=1),
    "plain3x3": conv(5, 32, (13, 13), 48, (3, 3), 1, 1, relu=1),
    "strided3x3": conv(2, 16, (14, 15), 32, (3, 3), 2, 1, bias=1),
    "leftover": conv(2, 16, (16, 16), 32, (3, 3), 2, 0, bias=1),
    "pointwise": conv(4, 64, (9, 9), 128, (1, 1), bias=1, relu=1),
    "strided1x1": conv(2, 64, (9, 9), 32, (1, 1), 2),
    "dilated": conv(3, 16, (17, 17), 16, (3, 3), 1, 2, dilation=2, bias=1),
    "odd": conv(4, 5, (11, 10), 7, (3, 2), 1, 1, bias=1),
    "odd_wide": conv(2, 19, (8, 8), 100, (3, 3), 1, 1, bias=1),
    "grouped": conv(3, 32, (10, 10), 64, (3, 3), 1, 1, groups=4, bias=1),
    "depthwise": conv(3, 40, (12, 12), 40, (3, 3), 1, 1, groups=40, bias=1),
    "odd_groups": conv(2, 12, (9, 9), 18, (3, 3), 2, 1, groups=3),
    "one_image": conv(1, 16, (28, 28), 32, (5, 5), 1, 2, bias=1),
    "four_stride": conv(1, 8, (40, 40), 16, (4, 4), 4, 0, bias=1),
    "big_stride": conv(2, 8, (23, 23), 16, (2, 2), 3, 1),
}
MODES = [
    (FORWARD, BATCH),
    (FORWARD, ROWS),
    (BACKWARD_DATA, BATCH),
    (BACKWARD_DATA, ROWS),
    (BACKWARD_WEIGHTS, BATCH),
    (BACKWARD_WEIGHTS, CHANNELS),
]


def possible(shape, kind, dim, slices):
    if dim == BATCH:
        return slices <= shape.n
    if dim == ROWS:
        return slices <= (shape.oh if kind == FORWARD else shape.ih)
    return shape.groups == 1 and slices <= shape.oc


@pytest.mark.parametrize("kind,dim", MODES)
@pytest.mark.parametrize("name", NAMED)
def test_convolutions_match_float64(library, name, kind, dim):
    for slices in range(1, 6):
        if possible(NAMED[name], kind, dim, slices):
            check_conv(library, NAMED[name], kind, dim, slices)


@pytest.mark.parametrize("seed", range(40))
def test_random_convolutions_match_float64(library, seed):
    choose = random.Random(seed)
    while True:
        groups = choose.choice([1, 1, 1, 2, 3])
        shape = conv(
            choose.randint(1, 5),
            groups * choose.randint(1, 24),
            (choose.randint(3, 20), choose.randint(3, 20)),
            groups * choose.randint(1, 40),
            (choose.randint(1, 5), choose.randint(1, 5)),
            choose.randint(1, 3),
            choose.randint(0, 2),
            choose.randint(1, 2),
            groups,
            choose.randint(0, 1),
            choose.randint(0, 1),
        )
        if shape.oh > 0 and shape.ow > 0 and shape.pad_h < shape.kh and shape.pad_w < shape.kw:
            break
    for kind, dim in MODES:
        slices = choose.choice([k for k in range(1, 6) if possible(shape, kind, dim, k)] or [0])
        if slices:
            check_conv(library, shape, kind, dim, slices, seed=seed)


@pytest.mark.parametrize("kind,dim", MODES)
@pytest.mark.parametrize(
    "name", ["pointwise", "plain3x3", "odd_wide", "depthwise", "strided1x1", "dilated", "leftover"]
)
def test_every_implementation_matches_float64(library, name, kind, dim):
    shape = NAMED[name]
    if not possible(shape, kind, dim, 2):
        pytest.skip("not sliced this way")
    for implementation in implementations(library, kind, shape, dim, 2):
        for slices in (1, 2, 3):
            if possible(shape, kind, dim, slices):
                check_conv(library, shape, kind, dim, slices, implementation)


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        ((FORWARD, NAMED["strided1x1"], BATCH, 3, ""), IMPOSSIBLE, "more batch slices than images"),
        ((FORWARD, NAMED["strided1x1"], CHANNELS, 2, ""), IMPOSSIBLE, "sliced over batch or rows"),
        ((BACKWARD_WEIGHTS, NAMED["depthwise"], CHANNELS, 2, ""), IMPOSSIBLE, "grouped"),
        ((FORWARD, NAMED["plain3x3"], BATCH, 2, "matmul"), IMPOSSIBLE, "1x1"),
        ((BACKWARD_WEIGHTS, NAMED["depthwise"], BATCH, 2, "gather"), IMPOSSIBLE, "gather"),
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


def stored(plain, blocks):
    """Plain weights (O, I, H, W) as a plan may store them: in blocks of output or of input channels."""
    (o, i, h, w), (o_block, i_block) = plain.shape, blocks
    if o_block:
        return plain.view(o // o_block, o_block, i, h, w).permute(0, 3, 4, 2, 1).contiguous()
    return plain.view(o, i // i_block, i_block, h, w).permute(1, 3, 4, 0, 2).contiguous() if i_block else plain


@pytest.mark.parametrize("blocks", [(64, 0), (16, 0), (0, 64), (0, 32), (0, 16)])
@pytest.mark.parametrize("pixels,k,slices", [(9, 3, 2), (7, 1, 3)])
def test_stored_weights_give_the_bits_of_plain_ones(library, blocks, pixels, k, slices):
    shape = conv(4, 64, (pixels, pixels), 128, (k, k), 1, k // 2, bias=1)
    numbers = torch.Generator().manual_seed(pixels)
    x, dy = (torch.randn(4, pixels, pixels, c, generator=numbers) for c in (64, 128))
    weight, bias = torch.randn(128, 64, k, k, generator=numbers), torch.randn(128, generator=numbers)
    for kind, given, result in ((FORWARD, x, dy), (BACKWARD_DATA, dy, x)):
        for implementation in implementations(library, kind, shape, BATCH, slices):
            if "ref" in implementation or implementation.startswith("matmul"):
                continue
            outs = [torch.full_like(result, torch.nan) for _ in range(2)]
            for out, how in zip(outs, ((0, 0), blocks), strict=True):
                operands = (given, stored(weight, how), bias if kind == FORWARD else None, out)
                run_conv(library, kind, shape, BATCH, slices, implementation, *operands, blocks=how)
            assert torch.equal(*outs), implementation
    for dim, ways in ((BATCH, slices), (CHANNELS, 2)):
        for implementation in implementations(library, BACKWARD_WEIGHTS, shape, dim, ways):
            if "ref" in implementation or (dim == CHANNELS and implementation.startswith("matmul")):
                continue
            dw, db = ([nan(*size) for _ in range(2)] for size in ((128, 64, k, k), (128,)))
            for number, how in enumerate(((0, 0), blocks)):
                out = (None, dw[number], db[number])
                run_conv(library, BACKWARD_WEIGHTS, shape, dim, ways, implementation, x, dy, *out, blocks=how)
            assert torch.equal(stored(dw[0], blocks).reshape(-1), dw[1].reshape(-1)), implementation
            assert torch.equal(*db)


def test_a_weight_gradient_that_is_written_straight_away_is_stored_plain(library):
    shape, x = conv(4, 64, (7, 7), 128, (1, 1)), torch.zeros(4, 7, 7, 128)
    named = next(i for i in implementations(library, BACKWARD_WEIGHTS, shape, CHANNELS, 2) if i.startswith("matmul"))
    with pytest.raises(KernelError, match="straight away"):
        run_conv(library, BACKWARD_WEIGHTS, shape, CHANNELS, 2, named, x, x, None, x, blocks=(64, 0))


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
    shape = integers([1, 4, 4, 0, 0, 1, 1, 0, 4, 1, 0, 4, 1, 0, 0])
    assert library.stepplan_matmul_facts(shape, ROWS, 2, b"", facts, text, 512) == IMPOSSIBLE
    assert "positive" in text.value.decode()


def test_partials_cost_one_gradient_per_slice(library):
    shape, text, facts = NAMED["plain3x3"], ctypes.create_string_buffer(512), integers([0] * 5)
    for slices in (2, 3):
        assert library.stepplan_conv_facts(2, integers(astuple(shape)), BATCH, slices, b"", facts, text, 512) == 0
        assert facts[2] == slices * 48 * 32 * 9 * 4
    assert library.stepplan_conv_facts(2, integers(astuple(shape)), CHANNELS, 2, b"", facts, text, 512) == 0
    assert facts[2] == 0


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
    ours = [b"dots"] if batch == 1 and transposed_b and not transposed_a else []
    for (dim, extent), implementation in itertools.product(((BATCH, batch), (ROWS, m), (CHANNELS, n)), [b"", *ours]):
        for slices in range(1, min(5, extent) + 1):
            c = nan(batch, m, n + pads)
            shape = [batch, m, n, k, *strides(a), *strides(b), c.stride(0), c.stride(1), 1, bias, 0]
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


@pytest.mark.parametrize("m,n,k", [(7, 41, 2500), (32, 64, 1024), (1, 19, 1039)])
def test_dot_products_have_the_same_bits_in_any_slices(library, m, n, k):
    numbers = torch.Generator().manual_seed(k)
    a, b, bias = (torch.randn(*size, generator=numbers) for size in ((m, k), (n, k), (n,)))
    shape = integers([1, m, n, k, 0, k, 1, 0, 1, k, 0, n, 1, 1, 0])
    results, text, seconds = [], ctypes.create_string_buffer(512), (ctypes.c_double * 1)()
    for dim, slices in ((ROWS, 1), (ROWS, min(3, m)), (CHANNELS, 2), (CHANNELS, 5)):
        c, operands = nan(m, n), (pointer(a), pointer(b), pointer(bias))
        assert library.harness_matmul(shape, dim, slices, b"dots", *operands, pointer(c), 1, seconds, text, 512) == 0
        results.append(c)
    assert_as_good_as_torch(results[0], a.double() @ b.double().T + bias.double(), a @ b.T + bias)
    assert all(torch.equal(c, results[0]) for c in results[1:])


def test_only_products_of_dense_rows_are_dot_products(library):
    text, facts = ctypes.create_string_buffer(512), integers([0] * 5)
    plain = integers([1, 4, 4, 4, 0, 4, 1, 0, 4, 1, 0, 4, 1, 0, 0])
    assert library.stepplan_matmul_facts(plain, ROWS, 2, b"dots", facts, text, 512) == IMPOSSIBLE
    assert library.stepplan_matmul_implementations(plain, ROWS, 2, text, 512) == 0
    assert b"dots" not in text.value.split()


@pytest.mark.parametrize("rows,columns,slices", [(1, 1, 1), (1000, 130, 3), (100_000, 17, 2)])
def test_bias_gradient_is_nearly_exact(library, rows, columns, slices):
    dy = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) + 1
    gradient = nan(columns)
    library.harness_bias_gradient(pointer(dy), ctypes.c_int64(rows), ctypes.c_int64(columns), slices, pointer(gradient))
    exact = dy.double().sum(0)
    assert (gradient.double() - exact).norm() <= 4e-8 * exact.norm()  # a float's rounding is at most 6e-8
