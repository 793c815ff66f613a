"""How tests of what a plan does compile its own sources: soon. How they compile for users is up to test_truth,
test_bfloat16 and tests/runtime."""

import hashlib
from functools import cache

from codegen import toolchain
from codegen.build import COMMON, FAST, ONCE
from planner.artefact import write_text
from planner.target.model import Target

STRICT = ("-Wall", "-Wextra", "-Werror")
"""Emitted code compiles without a warning."""
QUICK = (*STRICT, "-Og")

INCLUDED = ("algorithm", "array", "bit", "cmath", "cstring", "limits", "span")
HEADERS = "".join(f"#include <{name}>\n" for name in INCLUDED)
"""What the runtime's headers include: two thirds of what a small plan's sources take."""


def quick(target: Target) -> tuple[str, ...]:
    """QUICK, with those headers compiled beforehand."""
    return _quick(target.cpu.march)


@cache
def _quick(march: str) -> tuple[str, ...]:
    # In a folder for each architecture: g++ looks at all files there, also at those that are being written.
    folder = toolchain.cache_folder() / "tests" / march
    header, made = folder / "headers.hpp", folder / "headers.hpp.gch"
    made.mkdir(parents=True, exist_ok=True)
    write_text(header, HEADERS)
    gxx = toolchain.compiler()
    for flags in (FAST, ONCE):  # g++ takes what fits its other flags, and the header itself where nothing does
        command = (gxx.path, *COMMON, *flags, *QUICK, f"-march={march}", "-x", "c++-header", str(header))
        name = hashlib.sha256("\n".join((gxx.version, HEADERS, *command)).encode()).hexdigest()[:24]
        toolchain.made_once(command, made / name)
    return (*QUICK, "-include", str(header))
