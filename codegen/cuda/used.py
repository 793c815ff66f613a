"""Which of the runtime's kernels a plan needs: what its sources and the runtime ask for, and what that asks for."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from codegen.cuda.toolchain import CUDA_RUNTIME
from codegen.toolchain import headers_of

DECLARED = ("device_kernels.hpp", "library.hpp")
"""Where the functions are declared that kernels' sources define."""

_FUNCTION = re.compile(r"^void (?:(\w+)::)?(\w+)\(Queue", re.MULTILINE)
_CALL = re.compile(r"\b(\w+)(?=[<(])|\bgpu::(\w+)")


def used(sources: Sequence[Path], kernels: Sequence[str]) -> tuple[str, ...]:
    """Those of `kernels`, sources in the runtime's folder, that define what `sources`, or headers beside them, call; in
    their order."""
    found: set[str] = set()
    headers = {h for s in sources for h in headers_of(s, ()) if h.name not in DECLARED}
    pending = [*sources, *headers]
    while pending:
        called = {name for names in _CALL.findall(pending.pop().read_text()) for name in names}
        for name in kernels:
            if name not in found and not called.isdisjoint(offered()[name]):
                found.add(name)
                pending.append(CUDA_RUNTIME / name)
    return tuple(name for name in kernels if name in found)


@cache
def offered() -> Mapping[str, frozenset[str]]:
    """Source of kernels -> the functions and classes that it defines for others."""
    declared = {f for name in DECLARED for _, f in _FUNCTION.findall((CUDA_RUNTIME / name).read_text())}
    found: dict[str, frozenset[str]] = {}
    for file in CUDA_RUNTIME.glob("*.cu"):
        defined = _FUNCTION.findall(file.read_text())
        found[file.name] = frozenset(owner or name for owner, name in defined if owner or name in declared)
    return found
