"""NUMA nodes: which have memory, and buffers of it.

Processors with memory of two kinds show one of them as nodes without processors: the memory on the package of a Xeon
Max or Xeon Phi in flat mode, or memory behind CXL.
"""

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.target.system import Files, cpu_list
from planner.units import Bytes

_MBIND: Mapping[str, int] = {"x86_64": 237, "aarch64": 235, "ppc64le": 259, "riscv64": 235, "s390x": 268}
"""The system call's number, by machine: the C library has no function for it."""
_INTERLEAVE = 3
"""linux/mempolicy.h"""


def memory_of_nodes(files: Files) -> dict[int, Bytes]:
    """Node -> bytes of memory, for the nodes that have some of which this process may take."""
    status = files.proc("thread-self/status") or files.proc("self/status")
    allowed = re.search(r"^Mems_allowed_list:\s*(\S+)", status, re.MULTILINE)
    found = {}
    for node in files.nodes():
        total = re.search(r"MemTotal:\s*(\d{1,15}) kB", files.node(f"node{node}/meminfo"))
        if total and int(total[1]) and (allowed is None or node in cpu_list(allowed[1])):
            found[node] = Bytes(int(total[1]) << 10)
    return found


def buffer(size: int, nodes: Sequence[int] = ()) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Untouched bytes of these nodes' memory, page by page in turn; without nodes, wherever they are touched from.

    OSError: the system has no such nodes, or does not let this process choose.
    """
    if not nodes:
        return np.empty(size, np.uint8)
    memory = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(f"no system call mbind is known for {platform.machine()}")
    words = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    call = ctypes.CDLL(None, use_errno=True).syscall
    bits = ctypes.c_ulong(64 * len(words) + 1)  # the kernel takes one off
    place, length = ctypes.c_void_p(memory.ctypes.data), ctypes.c_ulong(size)
    if call(ctypes.c_long(number), place, length, ctypes.c_long(_INTERLEAVE), words, bits, ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return memory


def may_choose(nodes: Sequence[int]) -> bool:
    """Whether this process may take memory from these nodes: containers without the capability SYS_NICE may not."""
    try:
        buffer(mmap.PAGESIZE, nodes)
    except OSError:
        return False
    return True
