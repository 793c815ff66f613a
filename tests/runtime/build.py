"""Compiles the C++ wrappers of the runtime's kernels and calls them on NumPy arrays."""

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from codegen.build import COMMON, FAST
from codegen.toolchain import compile_object
from planner.target.detect import detect

RUNTIME = Path(__file__).resolve().parents[2] / "templates" / "runtime"
MARCH = f"-march={detect().cpu.march}"
FLAGS = [
    "-std=c++20",
    *FAST,
    MARCH,
    "-fopenmp",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-Wno-missing-field-initializers",
    "-shared",
    "-fPIC",
]


class Library:
    """Calls `extern "C"` functions: arrays become pointers, int is int64_t, float is float, None a null pointer."""

    def __init__(self, path: Path):
        self.path = path
        self._library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *arguments, result=None):
        function = getattr(self._library, name)
        function.restype = result
        return function(*[_convert(a) for a in arguments])


def _convert(argument):
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, (bool, int, np.integer)):
        return ctypes.c_int64(int(argument))
    return ctypes.c_float(argument)


def shared_object(*sources: Path, flags: Sequence[str] = ()) -> Path:
    """What plans share, as executors on this machine are linked with it, and from their cache."""
    return compile_object(*sources, flags=(*COMMON, *FAST, *flags, MARCH))


def compile_library(source: Path, extra_flags: tuple[str, ...] = (), more: Sequence[Path] = ()) -> Library:
    """Builds `source`, and `more` with it, into a shared library, cached in the temporary folder by the hash of all
    that is compiled."""
    digest = hashlib.sha256(" ".join([*FLAGS, *extra_flags]).encode())
    headers = (*sorted(RUNTIME.rglob("*.hpp")), *sorted(source.parent.glob("*.hpp")))
    for file in [source, *more, *headers, RUNTIME.parent / "cpu" / "probe.cpp"]:
        digest.update(file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"stepplan-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    target = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    partial = target.with_suffix(".partial")
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not target.exists():
            command = [os.environ.get("CXX", "g++"), *FLAGS, f"-I{RUNTIME}", str(source), *map(str, more), *extra_flags]
            outcome = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
            assert outcome.returncode == 0, outcome.stderr
            partial.rename(target)
    return Library(target)
