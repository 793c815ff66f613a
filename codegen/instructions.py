"""Which of the kernel library's implementations a target's processor can run.

The library chooses by the processor that it finds; a plan may be for another one. Its names end in what an
implementation is written for: `brgconv:avx512_core`, `jit_1x1:avx2`.
"""

import re
from collections.abc import Sequence

from planner.target.model import Target

_BFLOAT16 = {"_bf16": "avx512_bf16", "_amx": "amx_bf16"}
"""How names end, and the instruction set that these need."""
_WIDEST = {"x86-64": 0, "x86-64-v2": 1, "x86-64-v3": 2, "x86-64-v4": 3}


def usable(names: Sequence[str], target: Target) -> tuple[str, ...]:
    """The names that need no wider vectors than the target's -march has (for one that is no level of the x86-64 ABI:
    than its `isa` lists) and no instructions for bfloat16 that its `isa` lacks, in their order; the last of all where
    none is left: the library's reference code."""
    cpu = target.cpu
    listed = 3 if "avx512f" in cpu.isa else 2 if "avx2" in cpu.isa else 1 if "sse4_2" in cpu.isa else 0
    widest = _WIDEST.get(cpu.march, listed)
    lacking = [written_for for written_for, wants in _BFLOAT16.items() if wants not in cpu.isa]
    able = [n for n in names if width(n) <= widest and not any(n.endswith(each) for each in lacking)]
    return tuple(able) or tuple(names[-1:])


def width(name: str) -> int:
    """What vectors a name asks for, as an index of the x86-64 levels; 0: it does not say."""
    found = re.search(r"avx10|amx|avx512|avx2|avx|sse41", name.rpartition("/")[2])
    if not found:
        return 0
    return {"sse41": 1, "avx": 2, "avx2": 2}.get(found[0], 3)
