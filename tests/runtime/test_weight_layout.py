"""Packing of weights against oneDNN's reorder, and back, byte for byte."""

from ctypes import c_int64
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.build import Library, compile_library

TAGS = {"oihw": 0, "OIhw16i16o": 1, "OIhw16o16i": 2, "Owhi16o": 3, "OIhw8i8o": 4, "ohwi": 5, "hwio": 6}
PAIRS = {"OIhw8i16o2i": 7, "OIhw8o16i2o": 8, "OhwI64o2i": 9, "IhwO64i2o": 10}
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


@pytest.mark.parametrize("tag", {**TAGS, **PAIRS})
@pytest.mark.parametrize("shape", [*SHAPES, (128, 96, 3, 3)])
@pytest.mark.parametrize("slices", [1, 2, 3])
def test_packs_bfloat16_like_the_library(library: Library, tag: str, shape: tuple[int, ...], slices: int) -> None:
    o, i, h, w = shape
    number, dims = library("tag_of", {**TAGS, **PAIRS}[tag], result=c_int64), np.array(shape, np.int64)
    # No -0.0, which the library may turn into 0.0.
    numbers = np.random.default_rng().standard_normal((o, h, w, i), np.float32) + np.float32(0)
    weights = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    elements = library("bfloat16_elements", dims, number, result=c_int64)
    expected, packed = np.full(elements, 0xFFFF, np.uint16), np.full(elements, 0xFFFF, np.uint16)
    library("bfloat16_reorder", dims, number, weights, expected)
    library("bfloat16_pack", dims, number, slices, weights, packed)
    assert packed.tobytes() == expected.tobytes()


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_rounded_to_bfloat16_once(library: Library, tag: str, shape: tuple[int, ...]) -> None:
    number, dims = library("tag_of", TAGS[tag], result=c_int64), np.array(shape, np.int64)
    floats = library("layout_floats", dims, number, result=c_int64)
    parts, tensors = np.full((2, floats), np.nan, np.float32), np.random.default_rng().standard_normal((2, *shape))
    tensors = tensors.astype(np.float32)
    tensors[:, 0, 0, 0, 0] = np.inf, -np.inf  # no number: it stays none
    for part, tensor in zip(parts, tensors, strict=True):
        library("layout_reorder", dims, number, tensor, part)
    total = np.zeros(shape, np.uint16)
    library("layout_unpack_sum_bfloat16", dims, number, 2, parts, 2, floats, total)
    exact = torch.from_numpy(tensors).sum(0).to(torch.bfloat16)
    found = torch.from_numpy(total.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(found.nan_to_num(7.0), exact.nan_to_num(7.0))
    assert found.isnan().sum() == 1
