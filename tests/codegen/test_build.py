"""Building: the toolchain's errors, the cache, builds at the same time. Loading: what is checked before code runs."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from codegen import build as build_module
from codegen import toolchain
from codegen.build import bfloat16_flags, build, unverified
from codegen.cpu.emit import NODES, TABLES
from codegen.cpu.tables import HEADERS
from codegen.emit import rendered
from codegen.executor import Executor
from codegen.facts import facts, implementations
from codegen.initial import draw
from codegen.load import LEVELS, executor_class, require_processor
from codegen.paths import RUNTIME
from planner.errors import InternalError, UserError
from planner.graph.model import Init, Role, TensorType, Value
from planner.graph.text import graph_text
from planner.ops.base import Mode
from planner.ops.signature import signature_of
from planner.plan.text import plan_text, read_plan, write_plan
from planner.target.model import Target
from planner.target.text import load_target, read_target
from tests.codegen.plans import plan_for, target_of
from tests.codegen.quick import QUICK, STRICT, quick
from tests.graphs import small_net

UNIFORM = [0.4897562265396118, 0.21574239432811737, -0.048866961151361465]
"""Uniform draws in [-0.5, 0.5) of a value called w under seed 3."""


@pytest.fixture
def copy(small_class: type[Executor], small_folder: Path, tmp_path: Path) -> Path:
    """A copy of a built folder."""
    return Path(shutil.copytree(small_folder, tmp_path / "copy"))


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_no_compiler(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="SP1506"):
        build(copy, flags=QUICK)


@pytest.mark.parametrize(("script", "code"), [("echo 10.2.1", "SP1507"), ("echo", "SP1507"), ("exit 1", "SP1506")])
def test_compilers_that_are_too_old_or_broken(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, code: str
) -> None:
    program(tmp_path / "bin", "g++", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(UserError, match=code):
        build(copy, flags=QUICK)


LOCALISED = """
test "$1" = -dumpfullversion && echo 12.2.0 && exit
test "$LC_ALL" = C && echo 'error: No space left on device' >&2 || printf 'Fehler: Kein Platz auf dem Ger\\344t' >&2
exit 1
"""


def test_compilers_are_asked_in_english(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What they say decides on the code."""
    program(tmp_path / "bin", "g++", LOCALISED)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("LC_ALL", "de_DE")
    with pytest.raises(UserError, match="SP1514"):
        build(copy, flags=QUICK)


def test_messages_that_are_no_text(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compilers quote sources and paths as they are."""
    script = r"""test "$1" = -dumpfullversion && echo 12.2.0 && exit; printf 'error: \377 in it' >&2; exit 1"""
    program(tmp_path / "bin", "g++", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(InternalError, match="error: \N{REPLACEMENT CHARACTER} in it"):
        build(copy, flags=QUICK)


def test_an_architecture_that_the_compiler_does_not_know(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """test "$1" = -dumpfullversion && echo 12.2.0 && exit
    echo "cc1plus: error: bad value 'znver9' for '-march=' switch" >&2; exit 1"""
    program(tmp_path / "bin", "g++", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(UserError, match=r"SP1109: .* does not know the target's march 'znver9'"):
        build(copy, flags=STRICT)


@pytest.mark.parametrize("name", ["forward.cpp", "kernels.hpp"])
def test_sources_that_were_cut_and_do_not_compile(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (copy / name).write_text((copy / name).read_text()[:-300])
    program(tmp_path / "bin", "g++", """test "$1" = -dumpfullversion && echo 12.2.0 && exit; exit 1""")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(UserError, match=f"SP1511: .*copy/{name}"):
        build(copy, flags=STRICT)


def test_no_onednn(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toolchain.onednn.cache_clear()
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(toolchain.sys, "prefix", str(tmp_path))
    with pytest.raises(UserError, match="SP1508"):
        toolchain.onednn()


def test_cache_that_cannot_be_written(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPLAN_CACHE", str(copy / "plan.json" / "cache"))
    with pytest.raises(UserError, match="SP1509"):
        build(copy, flags=QUICK)
    monkeypatch.setenv("STEPPLAN_CACHE", str(copy / "cache"))
    monkeypatch.setattr(toolchain.os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    with pytest.raises(UserError, match=r"SP1509: .* cannot be written"):
        build(copy, flags=QUICK)


def test_what_a_killed_compiler_leaves_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPLAN_CACHE", str(tmp_path))
    objects = toolchain.cache_folder() / "objects"
    kept, old, new = (objects / name for name in ("lanes-1.o", ".lanes-1.o.abc", ".lanes-2.o.abc"))
    for file in (kept, old, new):
        file.touch()
    for file in (kept, old):
        os.utime(file, (0, 0))
    toolchain.drop_old_objects()
    assert kept.exists() and new.exists() and not old.exists()


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SP1510"):
        build(tmp_path)


@pytest.mark.parametrize("name", ["backward.cpp", "values.hpp"])
def test_sources_of_two_plans(name: str, copy: Path) -> None:
    """They compile, as when emitting another plan stopped on the way; what they compute is nobody's."""
    plan, target = plan_for(small_net(), 1)
    (copy / name).write_text(rendered(plan, small_net(), target)[name])
    with pytest.raises(UserError, match=rf"SP1511: copy/{name} was made from another plan than plan\.json"):
        build(copy, flags=QUICK)


@pytest.mark.parametrize("name", ["kernels.hpp", "nodes.hpp", "lanes.cpp"])
def test_a_folder_that_lacks_a_source(name: str, copy: Path) -> None:
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"SP1510: copy is no emitted plan: it lacks {name}"):
        build(copy, flags=QUICK)


def test_sources_that_are_no_text(copy: Path) -> None:
    (copy / "kernels.hpp").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"SP1511: copy/kernels\.hpp is not what stepplan emits"):
        build(copy, flags=QUICK)
    (copy / "executor.cpp").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="SP1511: copy: the sources were made from another plan"):
        executor_class(copy)


def test_edited_sources_are_told_of(copy: Path) -> None:
    """They compile, and the plan is safe, but they are not the plan's any more."""
    assert not unverified(copy)
    lanes = copy / "lanes.cpp"
    lanes.write_text(lanes.read_text() + "// another line\n")
    assert unverified(copy) == "not what stepplan emits for plan.json: lanes.cpp"
    plan = read_plan(copy / "plan.json")
    write_plan(plan.model_copy(update={"placements": plan.placements[1:]}), copy / "plan.json")
    assert unverified(copy).startswith("its plan would not be emitted: SP1417: plan small_net is not safe: value ")


def test_compiler_errors_are_shown(copy: Path) -> None:
    (copy / "lanes.cpp").write_text("int broken = nothing;\n")
    told = r"SP1511: copy/lanes.cpp is not what .*executor[^:]*:\n(.|\n)*lanes.cpp:1.*error: .nothing. was not declared"
    with pytest.raises(UserError, match=told):
        build(copy, flags=QUICK)


def test_nothing_is_compiled_twice(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, flags = list[str](), quick(read_target(copy / "target.toml"))  # as it was built
    run = toolchain.run_compiler
    monkeypatch.setattr(toolchain, "run_compiler", lambda c, t: (made.append(t.name), run(c, t)))
    first = build(copy, flags=flags)
    assert len(made) <= 1  # at most the link, for the copy's own folder
    build(copy, flags=flags)
    assert len(made) <= 1
    lanes = copy / "lanes.cpp"
    lanes.write_text(lanes.read_text() + f"// {copy}\n")
    made.clear()
    second = build(copy, flags=flags)
    assert sorted(n.split("-")[0] for n in made) == sorted(["executor", second.name])
    assert not first.exists() and second.exists()


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (Path("module.cpp"), ()),
        (*build_module.REPORTS, ()),
        (*build_module.NORMS["BatchNorm"], ("-DSTEPPLAN_FUSION=relu6", "-DSTEPPLAN_ELEMENT=float")),
        (*build_module.NORMS["BatchNorm"], ("-DSTEPPLAN_FUSION=add_relu", "-DSTEPPLAN_ELEMENT=bfloat16")),
        (*build_module.NORMS["GroupNorm"], ("-DSTEPPLAN_FUSION=silu", "-DSTEPPLAN_ELEMENT=bfloat16")),
    ],
    ids=["bindings", "reports", "batch norm", "batch norm of bfloat16", "group norm of bfloat16"],
)
def test_what_plans_share_compiles_without_a_warning(copy: Path, source: Path, more: tuple[str, ...]) -> None:
    """Builds of tests ask for that of a plan's own sources; tests/runtime does of the library calls and the other
    batch norms."""
    flags = (*build_module.COMMON, *build_module.ONCE, f"-march={target_of(2).cpu.march}", *STRICT, *more)
    assert toolchain.compile_object(copy / source, flags=flags).exists()


def test_two_builds_at_once(copy: Path) -> None:
    lanes = copy / "lanes.cpp"
    lanes.write_text(lanes.read_text() + f"// {copy}\n")
    results: list[object] = []

    def work() -> None:
        try:
            results.append(build(copy, flags=QUICK))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({str(r) for r in results}) == 1 and isinstance(results[0], Path) and results[0].exists()
    assert [f.name for f in copy.glob("*.so")] == [results[0].name]
    executor_class(copy)(pin=False).close()


def test_progress_counts_every_file(copy: Path) -> None:
    told: list[tuple[int, int, str]] = []
    build(copy, progress=lambda done, of, name: told.append((done, of, name)), jobs=1, flags=QUICK)
    assert [t[0] for t in told] == list(range(1, told[0][1] + 1))
    assert {t[2] for t in told} >= {"nanobind", "kernels.cpp, lanes.cpp, executor.cpp", "module.cpp"}


def test_sources_in_the_digest(copy: Path) -> None:
    before = build_module.source_digest(copy)
    (copy / "notes.txt").write_text("not a source")
    assert build_module.source_digest(copy) == before
    (copy / "values.hpp").write_text((copy / "values.hpp").read_text() + "\n")
    assert build_module.source_digest(copy) != before


def test_generated_sources_include_only_what_compiles_quickly(copy: Path) -> None:
    """A plan's own code is compiled again and again; a heavy header costs more than all of it."""
    light = {"algorithm", "array", "bit", "cmath", "cstddef", "cstdint", "cstring", "initializer_list"}
    light |= {"limits", "numeric", "span", "type_traits", "utility"}
    kernels = {RUNTIME / header for headers in HEADERS.values() for header in headers}
    sources = [copy / name for name in (*NODES, *TABLES) if (copy / name).exists()]
    found = {*kernels, *(h for s in [*sources, *kernels] for h in toolchain.headers_of(s, (copy, RUNTIME)))}
    for header in sorted(found):
        system = set(re.findall(r"^#include <([^>]+)>", header.read_text(), re.MULTILINE))
        assert system <= light, f"{header.name} includes {system - light}"


# -- loading ---------------------------------------------------------------------------------------------------
def test_loading_what_is_not_built(copy: Path) -> None:
    (module,) = copy.glob("_executor.*.so")
    module.unlink()
    with pytest.raises(UserError, match=r"SP1512: copy: it is not built(.|\n)*stepplan build"):
        executor_class(copy)


def test_loading_what_changed_since(copy: Path) -> None:
    (copy / "update.cpp").write_text((copy / "update.cpp").read_text() + "\n")
    with pytest.raises(UserError, match=r"SP1512.*changed since"):
        executor_class(copy)


def test_another_model_in_the_folder_of_a_loaded_class(copy: Path) -> None:
    """Its weights are not this class's."""
    loaded = executor_class(copy)
    (copy / "graph.json").write_text(graph_text(small_net(batch=2)))
    with pytest.raises(UserError, match=r"SP1512: copy: the folder has another model(.|\n)*executor_class"):
        loaded(pin=False)


def test_loading_a_broken_module(copy: Path) -> None:
    (module,) = copy.glob("_executor.*.so")
    module.unlink()
    module.write_bytes(b"not a library")
    with pytest.raises(UserError, match=r"SP1512.*does not load"):
        executor_class(copy)


def test_loading_files_that_do_not_belong_together(copy: Path) -> None:
    plan, _ = plan_for(small_net(), 3)
    original = (copy / "plan.json").read_text()
    (copy / "plan.json").write_text(plan_text(plan))
    with pytest.raises(UserError, match=r"SP1511.*another plan than plan\.json"):
        executor_class(copy)
    (copy / "plan.json").write_text(original)
    (copy / "graph.json").write_text(graph_text(small_net(batch=2)))
    with pytest.raises(UserError, match=r"SP1511.*graph\.json is not"):
        executor_class(copy)
    (copy / "executor.cpp").unlink()
    with pytest.raises(UserError, match=r"SP1511.*lacks executor\.cpp"):
        executor_class(copy)


def test_processors_that_lack_instructions() -> None:
    require_processor(target_of(2))
    target, have = load_target("cpu2"), frozenset(LEVELS["x86-64-v4"])
    require_processor(target, flags=have)
    with pytest.raises(UserError, match=r"SP1609: this processor lacks avx512f.*x86-64-v4"):
        require_processor(target, flags=have - {"avx512f"})
    named = target.model_copy(
        update={"cpu": target.cpu.model_copy(update={"march": "znver4", "isa": ("avx2", "sse9")})}
    )
    with pytest.raises(UserError, match="SP1609: this processor lacks sse9"):
        require_processor(named, flags=have)


def test_instructions_for_bfloat16() -> None:
    target = load_target("cpu2")

    def having(*isa: str) -> Target:
        return target.model_copy(update={"cpu": target.cpu.model_copy(update={"isa": isa})})

    assert bfloat16_flags(having("avx512f", "amx_tile", "amx_bf16")) == ()
    assert bfloat16_flags(having("avx512_bf16", "amx_int8")) == ("-mavx512bf16",)
    tiles = having("avx512_bf16", "amx_tile", "amx_bf16")
    assert bfloat16_flags(tiles) == ("-mavx512bf16", "-mamx-tile", "-mamx-bf16")
    have = frozenset(LEVELS["x86-64-v4"])
    require_processor(tiles, flags=have)  # in float32 the compiler uses none of them
    require_processor(tiles, mixed=True, flags=have | {"avx512_bf16", "amx_bf16"})
    with pytest.raises(UserError, match="SP1609: this processor lacks avx512_bf16, amx_bf16"):
        require_processor(tiles, mixed=True, flags=have)


def test_weights_beside_the_plan_are_loaded(copy: Path) -> None:
    given = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    np.savez(copy / "weights.npz", **{"fc.weight": given})
    with executor_class(copy)(pin=False) as executor:
        state = executor.state_dict()
    assert np.array_equal(state["fc.weight"], given) and state["conv1.weight"].std() > 0
    np.savez(copy / "weights.npz", **{"fc.weight": given[:3]})
    with pytest.raises(UserError, match=r"SP1613.*fc\.weight in shape"):
        executor_class(copy)(pin=False)


def test_initial_values() -> None:
    def of(kind: str, name: str = "w", value: float = 0.5, seed: int = 3) -> np.ndarray:
        type_ = TensorType(shape=(101,))
        return draw(Value(id=name, type=type_, role=Role.PARAMETER, name=name, init=Init(kind=kind, value=value)), seed)

    assert set(of("zeros")) == {0.0} and set(of("ones")) == {1.0} and set(of("constant")) == {0.5}
    uniform = of("uniform")
    assert -0.5 <= uniform.min() < -0.3 and 0.3 < uniform.max() < 0.5
    assert 0.35 < of("normal").std() < 0.65
    assert np.array_equal(of("normal"), of("normal")) and not np.array_equal(of("normal"), of("normal", "v"))
    # The very bits: a saved experiment must start the same with every version.
    assert of("uniform")[:3].tolist() == UNIFORM
    with pytest.raises(UserError, match="SP1613"):
        of("data")


# -- facts -----------------------------------------------------------------------------------------------------
def test_facts_come_from_the_library() -> None:
    graph = small_net()
    node = graph.program["train_step"].node
    forward = signature_of(graph, node["conv2"])
    assert facts(forward, Mode("onednn", "batch", 2))["packed_bytes"] >= 8 * 8 * 9 * 4
    weights = signature_of(graph, node["conv2.backward_weights"])
    one, two = (facts(weights, Mode("onednn", "batch", n)).get("partial_bytes", 0) for n in (1, 2))
    assert two > one and two % 128 == 0
    assert facts(signature_of(graph, node["bn1"]), Mode("loops", "rows", 2)) == {}
    named = implementations(forward, Mode("onednn", "batch", 2))
    assert len(named) > 1 and facts(forward, Mode("onednn", "batch", 2, named[0]))
    with pytest.raises(InternalError, match="conv2d"):
        facts(forward, Mode("onednn", "batch", 1000))
    with pytest.raises(InternalError, match="no library computes"):
        facts(signature_of(graph, node["bn1"]), Mode("onednn", "rows", 2))


@pytest.mark.parametrize("cloning", [False, True])
def test_kernels_have_no_copies_for_constant_arguments(tmp_path: Path, cloning: bool) -> None:
    """Of such copies g++ 12 makes no vector code, and where they are made depends on what else a file calls."""
    source = tmp_path / "constant.cpp"
    source.write_text(
        '#include "softmax.hpp"\n'
        "void rows(const float* x, float* y) { stepplan::softmax_backward(x, x, y, 128, stepplan::Range{0, 9}); }\n"
    )
    flags = (*build_module.COMMON, *build_module.FAST, "-march=x86-64-v4", f"-I{RUNTIME}")
    made = tmp_path / "constant.o"
    again = ["-fipa-cp"] if cloning else []  # that the flag is what keeps them away
    subprocess.run(["g++", *flags, *again, "-c", str(source), "-o", str(made)], check=True)
    symbols = subprocess.run(["nm", str(made)], check=True, capture_output=True, text=True).stdout
    assert "softmax_backward" in symbols
    assert (".constprop" in symbols) == cloning


def test_no_call_of_a_function_that_writes_is_dropped(tmp_path: Path) -> None:
    """g++ 12 takes this one for one that only reads, once its loops are vector code, unless it is told not to ask."""
    source = tmp_path / "written.cpp"
    source.write_text(
        '#include "context.hpp"\n#include "max_pool.hpp"\n'
        "namespace stepplan {\n"
        "void pool(const Context& run, int slice, int64_t in, int64_t out, int64_t chosen) {\n"
        "  const bfloat16* x = run.at<bfloat16>(in);\n"
        "  const Pool2d pool{8, 32, 32, 64, 16, 16, 3, 3, 2, 2, 1, 1, 1, 1};\n"
        "  max_pool_forward(x, run.at<bfloat16>(out), run.at<uint8_t>(chosen), pool, split(128, 2, slice));\n"
        "}\n"
        "void node(const Context& run, int, int slice) { pool(run, slice, 0, 1 << 20, 3 << 19); }\n"
        "}\n"
    )
    flags = (*build_module.COMMON, *build_module.FAST, "-march=x86-64-v4", f"-I{RUNTIME}")
    made = tmp_path / "written.s"
    subprocess.run(["g++", *flags, "-S", str(source), "-o", str(made)], check=True)
    (node,) = re.findall(r"^_ZN8stepplan4nodeE\w+:\n(.*?)\.cfi_endproc", made.read_text(), re.MULTILINE | re.DOTALL)
    assert "_ZN8stepplan4poolE" in node or node.count("\n") > 50  # called, or inlined
