"""Which of the runtime's kernels a plan needs: what its sources and the runtime ask for, and what that asks for."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from codegen.cuda.toolchain import CUDA_RUNTIME
from codegen.toolchain import headers_of

Group = tuple[str, ...]
"""Sources of the runtime that are compiled as one: most of what a small one takes alone is its headers."""

DECLARED = ("device_kernels.hpp", "library.hpp")
"""Where the functions are declared that kernels' sources define."""

_FUNCTION = re.compile(r"^void (?:(\w+)::)?(\w+)\(Queue", re.MULTILINE)
_CALL = re.compile(r"\b(\w+)(?=[<(])|\bgpu::(\w+)")
_NORM = re.compile(r"\bgpu::\w+Norm\w*<(\w+)>")


def used(sources: Sequence[Path], kernels: Sequence[Group]) -> tuple[Group, ...]:
    """Those of `kernels`, groups of sources in the runtime's folder, that define what `sources`, or headers beside
    them, call, and what these call; in their order."""
    found: set[Group] = set()
    headers = {h for s in sources for h in headers_of(s, ()) if h.name not in DECLARED}
    pending = [*sources, *headers]
    while pending:
        called = _called(pending.pop().read_text(errors="replace"))
        for group in kernels:
            if group not in found and not called.isdisjoint(_offered_by(group)):
                found.add(group)
                pending += [CUDA_RUNTIME / name for name in group]
    return tuple(group for group in kernels if group in found)


def on_floats(sources: Sequence[Path], group: Group) -> bool:
    """Whether a function of a plan's `sources` calls some of a group that is there once per type, and names float32 as
    the type of a norm's activations, or of anything where it calls no norm."""
    for source in sources:
        for function in source.read_text(errors="replace").split("\n}\n"):
            if not _called(function).isdisjoint(_offered_by(group)):
                norm = _NORM.search(function)
                if norm[1] == "float" if norm else re.search(r"\bfloat\b", function):
                    return True
    return False


def _called(text: str) -> set[str]:
    return {name for names in _CALL.findall(text) for name in names}


def _offered_by(group: Group) -> set[str]:
    return {function for name in group for function in offered()[name]}


@cache
def offered() -> Mapping[str, frozenset[str]]:
    """Source of kernels -> the functions and classes that it defines for others."""
    declared = {f for name in DECLARED for _, f in _FUNCTION.findall((CUDA_RUNTIME / name).read_text())}
    found: dict[str, frozenset[str]] = {}
    for file in CUDA_RUNTIME.glob("*.cu"):
        defined = _FUNCTION.findall(file.read_text())
        found[file.name] = frozenset(owner or name for owner, name in defined if owner or name in declared)
    return found
