"""How tests of what a plan does compile its own sources: soon. How they compile for users is up to test_truth,
test_bfloat16 and tests/runtime."""

import hashlib
from functools import cache

from codegen import toolchain
from codegen.build import COMMON, FAST, ONCE
from planner.artefact import write_text
from planner.target.model import Target

Flags = tuple[str, ...]

STRICT = ("-Wall", "-Wextra", "-Werror")
"""Emitted code compiles without a warning."""
QUICK = (*STRICT, "-Og")

INCLUDED = ("algorithm", "array", "bit", "cmath", "cstring", "limits", "span")
"""What the runtime's headers include: nearly half of what a small plan's sources take."""


def quick(target: Target) -> Flags:
    """QUICK, with those headers compiled beforehand."""
    march = target.cpu.march
    return (
        *QUICK,
        *beforehand(march, INCLUDED, *((*COMMON, *kind, *QUICK, f"-march={march}") for kind in (FAST, ONCE))),
    )


@cache
def beforehand(place: str, headers: tuple[str, ...], *ways: Flags) -> Flags:
    """Flags that include headers of the library which are compiled now, once in all `ways` in which sources are. g++
    takes what fits its other flags, and the headers themselves where nothing does.

    `place`: a folder for each list of ways, for g++ looks at all files there, also at those that are being written."""
    folder = toolchain.cache_folder() / "tests" / place
    header, made = folder / "headers.hpp", folder / "headers.hpp.gch"
    made.mkdir(parents=True, exist_ok=True)
    text = "".join(f"#include <{name}>\n" for name in headers)
    write_text(header, text)
    gxx = toolchain.compiler()
    for way in ways:
        command = (gxx.path, *way, "-x", "c++-header", str(header))
        name = hashlib.sha256("\n".join((gxx.version, text, *command)).encode()).hexdigest()[:24]
        toolchain.made_once(command, made / name)
    return ("-include", str(header))
