"""Types that carry units, and how people read them."""

import re
from typing import NewType

from planner.errors import UserError

Bytes = NewType("Bytes", int)
Nanoseconds = NewType("Nanoseconds", int)

ALIGNMENT = Bytes(64)
"""Every value and scratch block starts on a cache line."""

_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def align(size: int, to: int = ALIGNMENT) -> Bytes:
    """The next multiple of `to` bytes."""
    return Bytes(-(-size // to) * to)


def parse_bytes(text: str) -> Bytes:
    """`2GiB`, `512 MiB`, `100MB` or a plain number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _SIZES:
        raise UserError("SP1801", f"cannot read {text[:40]!r} as a size", "write it like 2GiB, 512MiB or 1000000")
    size = float(match[1]) * _SIZES[match[2].upper()]
    if size >= 2**63:
        raise UserError("SP1801", f"{text[:40]!r} is more than 2^63 bytes", "write it like 2GiB, 512MiB or 1000000")
    return Bytes(int(size))


def format_bytes(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def format_ns(time: float) -> str:
    """2500000 -> '2.50 ms'."""
    for limit, scale, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(time) < limit:
            return f"{time / scale:.0f} {unit}" if scale == 1 else f"{time / scale:.2f} {unit}"
    return f"{time / 1e9:.3f} s"
