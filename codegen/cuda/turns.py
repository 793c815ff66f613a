"""What is timed on a GPU is timed alone: profilers and benchmarks, of all threads and processes, take turns."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codegen import toolchain


def turns_file(device: int) -> Path:
    """What is locked by who has the turn, here and in runtime/cuda/probe.cpp. Each opens it anew: not twice in one
    thread."""
    return toolchain.cache_folder() / "locks" / f"gpu{device}.turn"


@contextmanager
def turn(device: int, null_device: bool = False) -> Iterator[None]:
    """The null device has no times to disturb."""
    if null_device:
        yield
        return
    with open(turns_file(device), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def compilers_turns(device: int) -> Iterator[None]:
    """Meanwhile PyTorch's compiler takes a turn for every kernel that it times, and none while it compiles them: what
    it times runs once before, since half a second may pass until a kernel of Triton's is loaded."""
    from torch._inductor.runtime.benchmarking import benchmarker

    time_kernel, inside = benchmarker.benchmark_gpu, False

    def in_turn(kernel: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        nonlocal inside
        if inside:
            return time_kernel(kernel, *arguments, **options)
        kernel()
        with turn(device):
            inside = True
            try:
                return time_kernel(kernel, *arguments, **options)
            finally:
                inside = False

    benchmarker.benchmark_gpu = in_turn
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = time_kernel
