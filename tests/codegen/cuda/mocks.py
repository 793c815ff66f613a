"""Mocks of NVIDIA's libraries: a part of the GPU's runtime, compiled with a library that computes on the processor."""

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from codegen.cuda import toolchain
from planner.graph.model import DType
from tests.runtime.build import RUNTIME, Library, compile_library

Array = np.ndarray[Any, Any]


def compile_mock(name: str, *tested: str) -> Library:
    """Of `name`, which includes the runtime's files `tested` and headers beside itself."""
    here, folder = Path(__file__).parent, RUNTIME / "cuda"
    included = [*(folder / each for each in tested), *sorted(here.glob("*.hpp"))]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in included)).hexdigest()[:16]
    flags = [f"-DOF_{version}", f"-I{folder}", f"-I{RUNTIME}", "-Wno-unknown-pragmas", "-Wno-restrict"]
    # (g++ 12 takes strings that are put together for overlapping memory.)
    flags += [f"-isystem{include}" for include in (*toolchain.toolkit().includes, *toolchain.libraries().includes)]
    flags += ["-O1", "-Wl,-Bsymbolic"]  # another package may have loaded the library itself
    return compile_library(here / name, tuple(flags))


def text(library: Library, name: str, *arguments: object) -> str:
    told = library(name, *arguments, result=ctypes.c_char_p)
    assert isinstance(told, bytes)
    return told.decode()


def characters(value: str) -> Array:
    return np.frombuffer(value.encode() + b"\0", np.uint8).copy()


def stored(values: Array, dtype: DType, alignment: int = 64) -> Array:
    """As it lies in memory, at a multiple of `alignment` bytes."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype is DType.BFLOAT16:
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    room = np.zeros(values.nbytes + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    kept = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    kept[...] = values
    return kept


def read(memory: Array) -> Array:
    return (memory.astype(np.uint32) << 16).view(np.float32) if memory.dtype == np.uint16 else memory
