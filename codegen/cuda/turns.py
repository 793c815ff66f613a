"""What is timed on a GPU is timed alone: profilers and benchmarks, of all threads and processes, take turns."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
