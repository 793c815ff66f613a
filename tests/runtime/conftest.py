"""The oneDNN kernels, which several test modules call."""

import ctypes
import sysconfig
from pathlib import Path

import pytest

from codegen.build import CONVOLUTIONS
from tests.runtime.build import compile_library, shared_object

PREFIX = Path(sysconfig.get_path("data"))


@pytest.fixture(scope="session")
def onednn_flags() -> tuple[str, ...]:
    if not (PREFIX / "include" / "dnnl.hpp").exists():
        pytest.skip("oneDNN is not installed")
    return (f"-I{PREFIX / 'include'}", f"-L{PREFIX / 'lib'}", f"-Wl,-rpath,{PREFIX / 'lib'}", "-ldnnl")


@pytest.fixture(scope="session")
def library(onednn_flags: tuple[str, ...]) -> ctypes.CDLL:
    """The harness with all library calls; test modules of other kernels have a `library` of their own."""
    harness = Path(__file__).parent / "onednn_harness.cpp"
    calls = [shared_object(*group) for group in CONVOLUTIONS]
    return ctypes.CDLL(str(compile_library(harness, onednn_flags, calls).path))
