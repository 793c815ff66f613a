"""A plan for a processor with narrower vectors uses none of this machine's wider ones, and runs here."""

import re
from pathlib import Path

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.instructions import usable
from codegen.load import executor_class, processor_flags
from codegen.profile import profile
from planner import zoo
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from tests.codegen.following import batch
from tests.codegen.plans import make


def test_instructions_for_bfloat16() -> None:
    names = ("brgconv:avx512_core_amx", "brgconv:avx512_core_bf16", "jit:avx512_core", "ref:any")
    wide = detect("wide")

    def usable_with(*isa: str) -> tuple[str, ...]:
        cpu = wide.cpu.model_copy(update={"march": "x86-64-v4", "isa": ("avx512f", *isa)})
        return usable(names, wide.model_copy(update={"cpu": cpu}))

    assert usable_with("amx_bf16", "avx512_bf16") == names
    assert usable_with("avx512_bf16") == names[1:]
    assert usable_with() == names[2:]


def narrow() -> Target:
    """One core of this machine, for code of x86-64-v3."""
    found = detect("narrow").restrict(1)
    return found.model_copy(update={"cpu": found.cpu.model_copy(update={"march": "x86-64-v3"})})


NAMES = (
    "brgconv:avx512_core",
    "product/brg:avx512_core",
    "jit_1x1:avx2",
    "jit:avx",
    "jit:sse41",
    "gemm:jit:f32",
    "ref:any",
)


@pytest.mark.parametrize(
    ("march", "expected"),
    [
        ("x86-64-v4", NAMES),
        ("x86-64-v3", NAMES[2:]),
        ("x86-64-v2", NAMES[4:]),
        ("x86-64", NAMES[5:]),
    ],
)
def test_usable(march: str, expected: tuple[str, ...]) -> None:
    target = narrow()
    target = target.model_copy(update={"cpu": target.cpu.model_copy(update={"march": march})})
    assert usable(NAMES, target) == expected
    assert usable(NAMES[:1], target) == NAMES[:1], "something always remains"


def test_other_names_of_march_go_by_the_listed_instructions() -> None:
    target = narrow()
    cpu = target.cpu.model_copy(update={"march": "znver3", "isa": ("avx", "avx2", "fma", "sse4_2")})
    assert usable(NAMES, target.model_copy(update={"cpu": cpu})) == NAMES[2:]


@pytest.mark.skipif("avx2" not in (processor_flags() or ()), reason="this processor lacks AVX2")
def test_another_march_is_honoured(tmp_path: Path) -> None:
    """By products; test_depthwise.py and test_winograd.py run convolutions so."""
    target, graph = narrow(), zoo.build("mlp", batch=16)
    table = profile([graph], target, budget_s=2)
    named = [e.implementation for e in table.entries if e.implementation]
    assert named and not [n for n in named if re.search("avx512|amx|avx10", n)]
    plan = make_plan(graph, target, table)
    emit(plan, graph, target, tmp_path / "narrow")
    build(tmp_path / "narrow")
    wide = make(graph, tmp_path / "wide")
    with executor_class(tmp_path / "narrow")(seed=1, pin=False) as a, wide(seed=1, pin=False) as b:
        losses = [[executor.step(*batch(graph, number)) for number in range(3)] for executor in (a, b)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
