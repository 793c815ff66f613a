"""What engines.cpp and convolution.cpp ask of cuDNN, computed as its headers and documentation say: by every engine and
algorithm, with biases; what is offered, and what is refused."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from codegen.cpu.shapes import CONV_KINDS, conv_shape
from planner.graph.model import DType, Layout, TensorType
from planner.ops.base import Op, Sample, Signature, op_named, round_bfloat16
from planner.ops.conv import ConvAttrs, ConvGradAttrs
from tests.codegen.cuda.mocks import Array, characters, compile_mock, read, stored, text
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.codegen.plans import in_bfloat16
from tests.runtime.build import Library

pytestmark = needs_toolkit

RNG = np.random.default_rng()
FORWARD, DATA, WEIGHTS = (op_named(f"conv2d{ending}") for ending in ("", "_backward_data", "_backward_weights"))


class Timed(NamedTuple):
    name: str
    workspace: int
    milliseconds: float


def channels_last(values: Array) -> Array:
    return values.transpose(0, 2, 3, 1) if values.ndim == 4 else values


class Asked:
    """One convolution, its operands drawn at random."""

    def __init__(self, library: Library, op: Op, sample: Sample) -> None:
        self.library, self.kind = library, CONV_KINDS[op.name]
        results = op.infer(sample.attrs, sample.inputs)
        self.low = results[0].dtype is DType.BFLOAT16
        self.fields = np.array(conv_shape(Signature(op.name, sample.attrs, sample.inputs, results)), np.int64)
        self.fields[16] = len(sample.inputs) > 2  # gradients of a bias are not the library's
        self.of_volumes = np.prod(self.fields[18:21]) > 1 or self.fields[22] > 0
        drawn = [np.float32(a).astype(float) for a in op.draw(sample, RNG)]
        drawn = [round_bfloat16(a) for a in drawn] if self.low else drawn
        self.want = op.reference(sample.attrs, drawn)[0]
        self.sizes = op.reference(sample.attrs, [np.abs(a) for a in drawn])[0]
        self.operands = [stored(channels_last(a), t.dtype) for a, t in zip(drawn[:2], sample.inputs[:2], strict=True)]
        bias = [stored(a, t) for a in drawn[2:] for t in (DType.FLOAT32, DType.BFLOAT16)]
        self.bias, rounded = bias if bias else (None, None)
        self.rounded = rounded if self.low else None
        self.out = stored(channels_last(np.zeros(self.want.shape)), results[0].dtype)
        self.space = stored(np.zeros(2**15), DType.FLOAT32, 256)

    def memory(self, space: Array) -> list[Array | None]:
        """Arguments. The library may touch no other memory than theirs, and no result is what it was before."""
        self.out[...] = 0x7FC0 if self.low else np.nan
        arguments = [*self.operands, self.bias, self.rounded, self.out]
        added = self.rounded if self.low else self.bias
        touched = [a for a in (*self.operands, added, self.out, space) if a is not None]
        starts, sizes = np.array([(a.ctypes.data, a.nbytes) for a in touched], np.int64).T.copy()
        self.library("allocate", starts, sizes, len(touched))
        return arguments

    def by(self, name: str, space: Array | None = None) -> str:
        """What is wrong."""
        space = self.space if space is None else space
        *arguments, out = self.memory(space)
        given = (self.kind, self.fields, *arguments, out, characters(name), space, space.nbytes)
        return text(self.library, "convolution", *given)

    def agrees(self, name: str) -> float:
        """By an algorithm that is there; how far results are off at most, of the sum of what was added up to them."""
        assert self.by(name) == "", name
        precision = 2**-7 if self.low else 1e-3 if name.endswith(":tf32") else 2e-6  # two numbers are rounded
        off = np.abs(np.moveaxis(read(self.out), -1, 1) - self.want)
        assert (off <= precision * self.sizes).all(), (name, off.max())
        return float((off / np.maximum(self.sizes, 1e-9)).max())

    def candidates(self, tf32: bool = False) -> list[str]:
        return text(self.library, "candidates", self.kind, self.fields, tf32).split()

    def algorithms(self) -> list[str]:
        return text(self.library, "algorithms", self.kind).split()

    def measured(self, tf32: bool = False, workspace: int = 2**13, brief: bool = False) -> list[Timed]:
        given = (self.kind, self.fields, tf32, *self.memory(self.space), self.space, workspace, brief)
        lines = text(self.library, "measure", *given).splitlines()
        return [Timed(name, int(size), float(ms)) for name, size, ms in (line.split(" ") for line in lines)]


FILES = ("convolutions.cpp", "engines.cpp", "convolution.cpp", "folded.cpp", "product.cpp", "pointwise.cpp")


@pytest.fixture(scope="module")
def library() -> Library:
    return compile_mock(*FILES)


def conv(x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, low: bool = False, **attrs: Any) -> Sample:
    types = [TensorType(shape=x, layout=Layout.CHANNELS_LAST), TensorType(shape=w)]
    sample = Sample(ConvAttrs(**attrs), (*types, TensorType(shape=w[:1])) if bias else tuple(types))
    return in_bfloat16(FORWARD, sample) if low else sample


def directions(
    sample: Sample, ops: Sequence[Op] = (FORWARD, DATA, WEIGHTS), gradient: type[ConvGradAttrs] = ConvGradAttrs
) -> list[tuple[Op, Sample]]:
    """A convolution and its two gradients."""
    forward, data, weights = ops
    (x, w), (y,) = sample.inputs[:2], forward.infer(sample.attrs, sample.inputs)
    common = sample.attrs.model_dump()
    return [
        (forward, sample),
        (data, Sample(gradient(**common, shape=x.shape), (y, w))),
        (weights, Sample(gradient(**common, shape=w.shape), (x, y))),
    ]


UNEQUAL = conv((2, 4, 9, 7), (6, 2, 3, 2), stride=(2, 3), dilation=(1, 2), padding=(1, 1, 2, 2), groups=2)
"""Rows are never as many as columns, and padding is what the older interface has."""
CASES = [(op, sample) for op in map(op_named, CONV_KINDS) for sample in op.samples()] + directions(UNEQUAL)
CASES += [(op, in_bfloat16(op, sample)) for op, sample in CASES]


def of_one_tap(asked: Asked) -> bool:
    """Of images, without padding, groups or rows behind the last that strides reach."""
    ih, iw, oh, ow, kh, kw, stride_h, stride_w, pad_h, pad_w, groups = asked.fields[
        [2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 15]
    ]
    inside = (oh - 1) * stride_h < ih and (ow - 1) * stride_w < iw
    return bool(kh == kw == groups == 1 and pad_h == pad_w == 0 and inside and not asked.of_volumes)


def padded_alike(sample: Sample) -> bool:
    attrs: Any = sample.attrs
    top, bottom, left, right = attrs.padding
    front, behind = getattr(attrs, "depth_padding", (0, 0))
    return (front, top, left) == (behind, bottom, right)


def by_every_way(library: Library, op: Op, sample: Sample) -> None:
    asked, alike = Asked(library, op, sample), padded_alike(sample)
    for tf32 in (False, True):
        names = asked.candidates(tf32)
        engines, products = ([name for name in names if kind in name] for kind in ("engine_", "product_"))
        biased = bool(asked.fields[16]) and sample.attrs.groups == 1  # type: ignore[attr-defined]
        assert len(engines) >= 4 and any(name.startswith("biased_") for name in engines) == biased
        assert len(products) == (0 if not of_one_tap(asked) else 4 if asked.fields[16] else 2)
        for name in (*engines, *products):  # what is offered is there
            one_sided = not alike or name.startswith("fold")  # cells of pixels are padded as it comes out
            if asked.kind != CONV_KINDS[WEIGHTS.name] or not one_sided or "engine_8" not in name:
                asked.agrees(name + ":tf32" * tf32)
    computed = []
    for name in asked.algorithms():  # of these, not all are
        if wrong := asked.by(name):
            none = wrong.startswith("SP1857") and (asked.of_volumes or not alike)
            assert none or wrong == "a convolution: an algorithm"
        else:
            asked.agrees(name)
            computed.append(name)
    assert not computed if asked.of_volumes else len(computed) >= 2 or not alike


@pytest.mark.parametrize(("op", "sample"), CASES, ids=[f"{op.name}-{i}" for i, (op, _) in enumerate(CASES)])
def test_every_convolution(library: Library, op: Op, sample: Sample) -> None:
    by_every_way(library, op, sample)


def random_sample(low: bool) -> Sample:
    def pair(least: int, most: int) -> tuple[int, int]:
        a, b = RNG.integers(least, most + 1, 2).tolist()
        return a, b

    groups, channels, (kh, kw) = int(RNG.choice((1, 2, 5))), pair(1, 3), pair(1, 3)
    stride, dilation = pair(1, 3), pair(1, 2)
    padding = (*pair(0, 2), *pair(0, 2))
    x = (pair(1, 2)[0], groups * channels[0], *(r + e for r, e in zip((5, 5), pair(0, 3), strict=True)))
    weight = (groups * channels[1], channels[0], kh, kw)
    bias = bool(RNG.integers(2))
    return conv(x, weight, bias, low, stride=stride, dilation=dilation, padding=padding, groups=groups)


@pytest.mark.parametrize("low", [False, True])
def test_random_convolutions(library: Library, low: bool) -> None:
    for _ in range(12):
        for op, sample in directions(random_sample(low)):
            try:
                by_every_way(library, op, sample)
            except AssertionError:
                print(op.name, sample)
                raise


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2)])
def test_one_tap(library: Library, low: bool, stride: tuple[int, int]) -> None:
    """Also as matrix products; of pixels that strides visit copies are made in the workspace."""
    for bias in (True, False):
        for op, sample in directions(conv((2, 8, 7, 6), (16, 8, 1, 1), bias, low, stride=stride)):
            by_every_way(library, op, sample)
    asked = Asked(library, WEIGHTS, directions(conv((2, 8, 7, 6), (16, 8, 1, 1), stride=stride))[2][1])
    first, second = (name for name in asked.candidates() if name.startswith("product_"))
    needed = [int(text(library, "workspace", asked.kind, asked.fields, characters(name))) for name in (first, second)]
    rows, columns = asked.fields[5:7]
    copies = 0 if stride == (1, 1) else -(-2 * rows * columns * 8 * 4 // 256) * 256
    assert needed == [copies, copies + 1024]
    assert asked.by(second, asked.space[: (needed[1] - 4) // 4]) != ""
    assert {first, second} <= {t.name for t in asked.measured()}


@pytest.mark.parametrize("low", [False, True])
def test_rows_that_no_window_reaches(library: Library, low: bool) -> None:
    """Padded in front alone, by strides that leave the last rows out: there is nothing to pad behind them."""
    sample = conv((2, 4, 7, 8), (6, 4, 3, 2), low=low, stride=(3, 3), padding=(1, 0, 2, 0))
    for op, each in directions(sample):
        by_every_way(library, op, each)


def test_a_window_that_reaches_beyond_all(library: Library) -> None:
    """Of two taps over a single row, by strides of two: padded on one side, though it has as many results without."""
    for op, each in directions(conv((2, 4, 1, 7), (6, 4, 2, 3), stride=(2, 1), padding=(0, 1, 1, 1))):
        by_every_way(library, op, each)


def test_a_bias_is_added_before_the_sum_is_rounded(library: Library) -> None:
    asked = Asked(library, FORWARD, conv((4, 32, 9, 9), (32, 32, 3, 3), bias=True, low=True))
    want, differ = round_bfloat16(asked.want), {}
    for name in asked.candidates():
        if "engine" in name or "product" in name:
            asked.agrees(name)
            differ[name] = np.mean(np.moveaxis(read(asked.out), -1, 1) != want)
    assert {name.startswith("biased_") for name in differ} == {True, False}
    assert all((share < 0.002) == name.startswith("biased_") for name, share in differ.items())  # twice rounded: 5 %


def test_what_is_offered(library: Library) -> None:
    """Never what adds in no fixed order, nor, of float32 alone, what rounds its operands; biased engines first."""
    image, weight = (2, 4, 6, 6), (4, 4, 3, 3)
    exact = ["engine_4.2_2.17_3", "engine_4.2_1", "engine_0", "engine_8"]
    wide = ["engine_2.2_1", *exact[:2], "engine_3", "engine_0", "engine_6", "engine_7", "engine_8"]
    plain = {
        FORWARD.name: ["implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "winograd"],
        DATA.name: ["algo_1", "winograd"],
        WEIGHTS.name: ["algo_1", "winograd"],
    }
    for op, sample in directions(conv(image, weight)):
        assert Asked(library, op, sample).candidates() == exact + plain[op.name]
        low = Asked(library, op, in_bfloat16(op, sample))
        few = low.candidates()  # the matrix units take eight channels in bfloat16, and four in TF32
        assert few[: 2 * len(wide)] == [name for each in wide for name in (f"wide8_{each}", each)]
        for names in (Asked(library, op, sample).candidates(tf32=True), [n for n in few if n[:4] != "wide"]):
            assert names[: len(wide)] == wide
            assert sorted(names[len(wide) :]) == sorted(set(low.algorithms()) - {"algo_0", "algo_3"})
    biased = Asked(library, FORWARD, conv(image, weight, bias=True)).candidates()
    assert biased == [*(f"biased_{name}" for name in exact), *exact, *plain["conv2d"]]


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("tf32", [False, True])
def test_padding_on_one_side(library: Library, tf32: bool, low: bool) -> None:
    """The older interface has one number for both sides, and computes something else without saying so. Engines are
    compared with what is computed without the library, for not all that are offered compute it."""
    for op, sample in directions(conv((3, 16, 7, 6), (16, 16, 3, 3), bias=True, low=low, padding=(1, 1, 0, 1))):
        asked = Asked(library, op, sample)
        names = asked.candidates(tf32)
        assert "engine_8" in names and not set(names) & set(asked.algorithms())
        assert asked.by("algo_1" if op is not FORWARD else "gemm").startswith("SP1857")
        found = {t.name.removesuffix(":tf32") for t in asked.measured(tf32)}
        for name in found:
            asked.agrees(name + ":tf32" * tf32)
        assert len(found) >= 3 and ("engine_8" in found) is (op is not WEIGHTS and not (low and op is FORWARD))
        alike = Asked(library, *directions(conv((3, 16, 7, 6), (16, 16, 3, 3), low=low, padding=(1, 1, 1, 1)))[2])
        assert "engine_8" in {t.name.removesuffix(":tf32") for t in alike.measured(tf32)}


@pytest.mark.parametrize("tf32", [False, True])
def test_what_is_measured(library: Library, tf32: bool) -> None:
    for op, sample in directions(conv((2, 4, 6, 6), (4, 4, 3, 3))):
        asked = Asked(library, op, sample)
        found = asked.measured(tf32)
        assert len(found) > 4 and {t.name for t in found} <= {name + ":tf32" * tf32 for name in asked.candidates(tf32)}
        assert [t.milliseconds for t in found] == sorted(t.milliseconds for t in found)
        for t in found:  # all of them compute it, each in the workspace that it was said to need
            off = asked.agrees(t.name)
            assert not tf32 or "engine" in t.name or off > 1e-5
            assert t.workspace == int(text(library, "workspace", asked.kind, asked.fields, characters(t.name)))
        narrow = asked.measured(tf32, workspace=2999)
        assert [t.name for t in narrow] == [t.name for t in found if t.workspace < 3000] != [t.name for t in found]
        assert len(asked.measured(tf32, brief=True)) == 2


@pytest.mark.parametrize("one_in", [3, 4, 5])
def test_another_program_on_the_gpu(library: Library, one_in: int) -> None:
    """Its work comes between: nothing is taken for slow because of that."""
    for op, sample in directions(conv((2, 4, 6, 6), (4, 4, 1, 1))):
        asked = Asked(library, op, sample)
        alone = asked.measured()
        library("disturb", one_in)
        try:
            assert asked.measured() == alone
        finally:
            library("disturb", 0)


def test_a_sum_that_is_rounded_once(library: Library) -> None:
    """With a bias in bfloat16 nothing else is timed, unless there is no engine for that: none takes groups."""
    image, weight = (2, 4, 6, 6), (4, 4, 3, 3)
    names = [t.name for t in Asked(library, FORWARD, conv(image, weight, bias=True, low=True)).measured()]
    assert names and all(name.removeprefix("wide8_").startswith("biased_engine_") for name in names)
    grouped = Asked(library, FORWARD, conv(image, (4, 2, 3, 3), bias=True, low=True, groups=2)).measured()
    assert grouped and not any("biased_" in t.name or "wide" in t.name for t in grouped)
    exact = Asked(library, FORWARD, conv(image, weight, bias=True)).measured()
    times = {t.name: t.milliseconds for t in exact}
    assert times["engine_0"] == times["biased_engine_0"] + 0.125 and "gemm" in times  # the kernel that adds it


@pytest.mark.parametrize(("low", "channels"), [(True, 3), (True, 1), (False, 3)])
@pytest.mark.parametrize("stride", [(2, 1), (2, 2)])
def test_over_copies_with_more_channels(library: Library, low: bool, channels: int, stride: tuple[int, int]) -> None:
    """Images' channels on matrix units; with a bias, and in the gradients. Windows of 3 x 5 over an odd and an even
    number of pixels, padded by one and by two."""
    common = {"stride": stride, "padding": (1, 1, 2, 2)}
    biased, plain = (
        conv((2, channels, 9, 8), (6, channels, 3, 5), bias=bias, low=low, **common) for bias in (True, False)
    )
    wide, fold = f"wide{8 if low else 4}_", f"fold{-(-4 * channels // (8 if low else 4)) * (8 if low else 4)}_"
    for op, each in [(FORWARD, biased), *directions(plain)]:
        asked, ending = Asked(library, op, each), "" if low else ":tf32"
        names = [name for name in asked.candidates(tf32=not low) if "engine_" in name]
        assert {wide, *([fold] if stride == (2, 2) else [])} == {
            n.split("_")[0] + "_" for n in names if n[:4] in ("wide", "fold")
        }
        for name in names:
            if op is not WEIGHTS or not name.startswith("fold") or "engine_8" not in name:  # padded on one side
                asked.agrees(name + ending)
        for t in asked.measured(tf32=not low):
            asked.agrees(t.name)
        needed = int(text(library, "workspace", asked.kind, asked.fields, characters(names[0])))
        assert needed >= 2 * 5 * 4 * 16
        assert asked.by(names[0], asked.space[: needed // 4 - 1]) != ""
    assert not any(
        n[:4] in ("wide", "fold") for n in Asked(library, FORWARD, conv((2, 3, 6, 6), (4, 3, 3, 3))).candidates()
    )


def test_what_the_library_does_not_compute(library: Library) -> None:
    asked = Asked(library, FORWARD, conv((2, 4, 6, 6), (4, 4, 3, 3), bias=True))
    for name in (
        *("engine_9", "engine_-1", "engine_0.2_1", "engine_4.2_4", "engine_4.17_5", "engine_4.2_1.2_1"),
        *("engine_", "engine_4.", "engine_4.2", "engine_4.2_", "engine_4.2_1 ", "engine_04", "engine_4x", "biased_"),
        *("fold16_engine_0", "fold_engine_0", "wide8_wide8_engine_0", "wide6_engine_0"),
        *("wide", "wide_", "wide8", "wide8engine_0", "wide4_engine_0", "wide0_engine_0", "wide8_engine_9"),
        *("biased_gemm", "algo_0", "gemm ", "Gemm", ""),
    ):
        assert asked.by(name).startswith("SP1857: cuDNN"), name
    for name in ("product_", "product_9", "product_0.1.2.3.4.5.6.7.8", "biased_product_0.1.2.3.4.5.6.7.8"):
        assert asked.by(name).startswith("SP1857: cuBLASLt does not compute this convolution"), name
    tap = Asked(library, FORWARD, conv((2, 4, 6, 6), (4, 4, 1, 1)))
    assert tap.by("product_9").startswith("SP1857: cuBLASLt has no algorithm 9 for")
    assert tap.by("product_").startswith("SP1857") and tap.by(f"biased_{tap.candidates()[1]}").startswith("SP1857")
    assert asked.by("direct") == "a convolution: an algorithm"
    asked.fields[16] = 0
    assert asked.by("biased_engine_0").startswith("SP1857")
    asked.fields[5] -= 1  # a row too few
    assert asked.by("engine_0") == "a convolution's operation: a result of another size"
    assert asked.by("gemm").startswith("SP1857: cuDNN's algorithms with names pad alike on both sides")
    assert [t.name for t in asked.measured()] == ["plain"]


def test_memory_that_is_refused(library: Library) -> None:
    asked = Asked(library, FORWARD, conv((2, 4, 6, 6), (4, 4, 3, 3), bias=True))
    for name, bytes in (("engine_4.2_2.17_3", 3000), ("biased_engine_4.2_2.17_3", 3000), ("winograd", 3000)):
        assert text(library, "workspace", asked.kind, asked.fields, characters(name)) == str(bytes)
        space = stored(np.zeros(1024), DType.FLOAT32, 256).view(np.uint8)
        assert asked.by(name, space[64 : 256 + bytes]) == ""  # brought to a multiple of 256
        assert asked.by(name, space[64 : 256 + bytes - 1]) == "a convolution: a workspace that is too small"
        assert asked.by(name, space[:0]) == asked.by(name, space[64:256])
        assert asked.by(name, space[:0]).endswith(("no workspace", "a workspace that is too small"))
    whole = asked.operands[0]
    for operand, problem in ((whole[:1], "an illegal address"), (whole.reshape(-1)[1:], "an operand's alignment")):
        asked.operands[0] = operand
        assert asked.by("engine_0") == f"a convolution: {problem}"
    asked.operands[0] = whole
    asked.bias = None
    assert asked.by("biased_engine_0") == "a convolution: an operand is null"
