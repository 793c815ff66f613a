"""What oneDNN takes from the heap and gives back does not make the heap grow, in the process's own C library."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.build import compile_library

BLOCK = 2_229_952
"""The largest of the blocks that heap.cpp takes."""

CALL = "import ctypes; f = ctypes.CDLL({!r}).growth; f.restype = ctypes.c_int64; print(f(ctypes.c_int64(40), {}))"


def growth(filled: bool) -> int:
    """In a process of its own: what earlier tests left in this one's heap is another's."""
    library = compile_library(Path(__file__).parent / "heap.cpp", ("-pthread",))
    call = CALL.format(str(library.path), f"ctypes.c_int64({int(filled)})")
    return int(subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout)


def test_a_full_cache_keeps_the_heap_small() -> None:
    assert growth(filled=True) < BLOCK


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="another C library may reuse its blocks")
def test_an_empty_cache_does_not() -> None:
    """Proof that the test above would see it."""
    assert growth(filled=False) > 3 * BLOCK
