"""What oneDNN takes from the heap and gives back does not make the heap grow, in the process's own C library."""

import platform
from ctypes import c_int64
from pathlib import Path

import pytest

from tests.runtime.build import Library, compile_library

BLOCK = 2_229_952
"""The largest of the blocks that heap.cpp takes."""


@pytest.fixture(scope="module")
def library() -> Library:
    return compile_library(Path(__file__).parent / "heap.cpp", ("-pthread",))


def test_a_full_cache_keeps_the_heap_small(library: Library) -> None:
    assert library("growth", 40, True, result=c_int64) < BLOCK


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="another C library may reuse its blocks")
def test_an_empty_cache_does_not(library: Library) -> None:
    """Proof that the test above would see it."""
    assert library("growth", 40, False, result=c_int64) > 3 * BLOCK
