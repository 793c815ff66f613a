"""How much memory a NUMA node has left, and what is said where a plan wants more."""

import ctypes
import re
from pathlib import Path

import pytest

from tests.runtime.build import Library, compile_library

MEMINFO = Path("/sys/devices/system/node/node0/meminfo")


@pytest.fixture(scope="module")
def library() -> Library:
    return compile_library(Path(__file__).parent / "numa.cpp")


def mistake(library: Library, size: int) -> str:
    return f"SP{library('mistake_of_taking', size, result=ctypes.c_int64)}"


def test_what_is_left(library: Library) -> None:
    if not MEMINFO.exists():
        pytest.skip("this system shows no NUMA nodes")
    kib = {name: int(size) for name, size in re.findall(r"(\S+):\s+(\d+) kB", MEMINFO.read_text())}
    expected = kib["MemFree"] + kib["Active(file)"] + kib["Inactive(file)"]
    assert library("left", 0, result=ctypes.c_int64) == pytest.approx(expected, rel=0.05)  # others run meanwhile
    assert library("left", 1023, result=ctypes.c_int64) == 0


def test_more_than_is_left(library: Library) -> None:
    if not MEMINFO.exists():
        pytest.skip("this system shows no NUMA nodes")
    assert mistake(library, 2**60) == "SP1604"


def test_memory_that_is_not_there(library: Library) -> None:
    """No mapping lies at address 0."""
    if not MEMINFO.exists():
        pytest.skip("this system shows no NUMA nodes")
    assert mistake(library, 4096) == "SP1622"
