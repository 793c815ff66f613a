"""Packing of weights against oneDNN's reorder, and back, byte for byte."""

from ctypes import c_int64
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.build import Library, compile_library

TAGS = {"oihw": 0, "OIhw16i16o": 1, "OIhw16o16i": 2, "Owhi16o": 3, "OIhw8i8o": 4, "ohwi": 5, "hwio": 6}
SHAPES = [(32, 48, 3, 3), (64, 16, 1, 1), (50, 37, 3, 3), (16, 32, 7, 5), (17, 3, 11, 11), (48, 40, 5, 1)]


@pytest.fixture(scope="module")
def library(onednn_flags: tuple[str, ...]) -> Library:
    return compile_library(Path(__file__).parent / "weight_layout.cpp", onednn_flags)


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slices", [1, 2, 3])
def test_packs_and_unpacks_like_the_library(library: Library, tag: str, shape: tuple[int, ...], slices: int) -> None:
    rng = np.random.default_rng()
    number, dims = library("tag_of", TAGS[tag], result=c_int64), np.array(shape, np.int64)
    plain = rng.standard_normal(shape).astype(np.float32)
    floats = library("layout_floats", dims, number, result=c_int64)
    expected, packed = np.full(floats, np.nan, np.float32), np.full(floats, np.nan, np.float32)
    library("layout_reorder", dims, number, plain, expected)
    library("layout_pack", dims, number, slices, plain, packed)
    assert packed.tobytes() == expected.tobytes()

    stride = floats + 16
    parts = np.full((3, stride), np.nan, np.float32)
    tensors = rng.standard_normal((3, *shape)).astype(np.float32)
    for part, tensor in zip(parts, tensors, strict=True):
        library("layout_reorder", dims, number, tensor, part)
    total = np.full(shape, np.nan, np.float32)
    library("layout_unpack_sum", dims, number, slices, parts, 3, stride, total)
    assert total.tobytes() == ((tensors[0] + tensors[1]) + tensors[2]).tobytes()
