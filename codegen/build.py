"""Compile an emitted folder into its Python module, `_executor.<hash of the sources>.so`."""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from codegen import toolchain
from codegen.cpu.emit import ARTEFACTS, HEADERS, NODES, SOURCES, TABLES
from codegen.cuda import build as cuda
from codegen.cuda.build import Unit
from codegen.emit import rendered
from codegen.paths import RUNTIME
from planner.bundle import read_bundle
from planner.errors import InternalError, UserError
from planner.graph.precision import is_mixed
from planner.graph.text import read_graph
from planner.target.model import Target
from planner.target.text import read_target

Progress = Callable[[int, int, str], None]
"""(done, all, what was just made)."""

COMMON = ("-std=c++20", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-pthread", "-Wno-psabi")
"""No notes on how vectors wider than the processor's are passed: functions that pass them are inlined."""
FAST = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-ipa-cp")
"""As the kernels were written for: fused multiply-add, no errno, no traps (else selects become branches, and loops are
not turned into vector code); NaN and infinity keep their meaning. No copies of a function for constant arguments: of
their `omp simd` loops g++ 12 makes no vector code, and whether there are any depends on what else a file calls."""

ONCE = ("-O1",)
"""For tables and construction, which run once."""
BINDINGS = ("-Os", "-fno-strict-aliasing")

PRODUCTS = ((RUNTIME / "onednn" / "matmul.cpp",),)
CONVOLUTIONS = (
    tuple(RUNTIME / "onednn" / name for name in ("convolution.cpp", "conv_weights.cpp", "winograd.cpp")),
    tuple(RUNTIME / "onednn" / name for name in ("depthwise.cpp", "pointwise.cpp")),
    *PRODUCTS,
)
"""Where a plan has products or convolutions. What stands together is compiled as one: most of what each takes alone is
the library's header."""
REPORTS = (RUNTIME / "reports.cpp",)
NORMS = {"BatchNorm": (RUNTIME / "batch_norm.cpp",), "GroupNorm": (RUNTIME / "group_norm.cpp",)}
"""Once per fusion and element type that a plan uses."""
ATTENTION = (RUNTIME / "attention.cpp",)
"""Where a plan has attention; with the instruction for products of bfloat16 pairs where there is one."""
GROUPED = (RUNTIME / "grouped.cpp",)
"""Where a plan has products by groups."""
SANITIZED = ("-g1", "-Og")
"""As sanitizers want it: no speed hides what they look for, and their reports name lines."""


def build(
    folder: Path | str,
    *,
    sanitize: Literal["thread", "address", "undefined"] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    flags: Sequence[str] = (),
    null_device: bool = False,
) -> Path:
    """Build the module of an emitted folder and return it; what did not change is not compiled again.

    `jobs`: compilers at once, one per processor by default. `flags`: more, for the plan's own sources alone; what plans
    share is the same for all. `null_device`: a plan for a GPU, to be run without one.
    SP1506 to SP1509, SP1518, SP1519: the toolchain is not complete; SP1510: the folder holds no emitted plan; SP1511:
    the compiler fails on it and its sources are not what stepplan emits for its plan; SP1109: the compiler does not
    know the target's architecture. Any other compiler error is an InternalError with its first lines.
    """
    place = Path(os.path.realpath(folder))
    with _locked(place):
        digest = source_digest(place)
        target = read_target(place / "target.toml")
        extra: tuple[str, ...] = (f"-march={target.cpu.march}",)
        if sanitize:
            extra += (f"-fsanitize={sanitize}", *SANITIZED)
        module = place / module_name(digest, null_device)
        try:
            objects = compile_all(_units(place, target, extra, flags, null_device), jobs, progress)
            _link(objects, module, _link_flags(target, extra, null_device))
        except InternalError as error:
            _require_as_emitted(place, str(error))
            raise
        for other in place.glob(module_name("*", null_device)):
            if other != module:
                other.unlink()
        toolchain.drop_old_objects()
    return module


def _require_as_emitted(folder: Path, failed: str) -> None:
    """SP1511 where the compiler failed on sources that were cut or edited, or that another version of stepplan made."""
    bundle = read_bundle(folder)
    for name, text in rendered(bundle.plan, bundle.graph, bundle.target).items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != text.encode():
            problem = f"{folder.name}/{name} is not what stepplan emits for plan.json, and {failed}"
            raise UserError("SP1511", problem, f"stepplan emit {folder.name} -o ANOTHER, and build that") from None


def source_digest(folder: Path) -> str:
    """Hash of everything an executor is made of: the emitted folder and the runtime. SP1510: not an emitted folder."""
    missing = [n for n in (*ARTEFACTS, "executor.cpp", "lanes.cpp", "module.cpp") if not (folder / n).is_file()]
    if missing:
        raise UserError(
            "SP1510", f"{folder.name} is no emitted plan: it lacks {missing[0]}", "run stepplan emit PLAN -o FOLDER"
        )
    emitted = [folder / n for n in (*ARTEFACTS, *HEADERS, *SOURCES) if (folder / n).is_file()]
    library = "cuda" if read_target(folder / "target.toml").gpus else "onednn"
    runtime = sorted(f for place in (RUNTIME, RUNTIME / library) for f in place.iterdir() if f.is_file())
    return toolchain.digest_of([*emitted, *runtime])


def module_name(digest: str, null_device: bool) -> str:
    return f"_executor{'_null' * null_device}.{digest}.so"


def _units(folder: Path, target: Target, extra: Sequence[str], own: Sequence[str], null_device: bool) -> list[Unit]:
    """`own`: flags of the plan's own sources, behind `extra`, which are everybody's."""
    sources = [folder / name for name in SOURCES if (folder / name).is_file()]
    if target.gpus:
        return cuda.units(sources, target, null_device, extra, own, is_mixed(read_graph(folder / "graph.json")))

    toolchain.onednn()

    def compiled(together: Sequence[Path], flags: Sequence[str]) -> Unit:
        names = ", ".join(source.name for source in together)
        return names, lambda: toolchain.compile_object(*together, flags=(*COMMON, *flags, *extra))

    nodes, tables, bindings = ([s for s in sources if s.name in kind] for kind in (NODES, TABLES, ("module.cpp",)))
    included = {
        h for s in (*nodes, folder / "kernels.hpp") for h in re.findall(r'#include "(\w+)\.hpp"', s.read_text())
    }
    library = CONVOLUTIONS if "convolution" in included else PRODUCTS if "matmul" in included else ()
    found = [*(compiled(group, FAST) for group in library), compiled(bindings, BINDINGS), compiled(REPORTS, ONCE)]
    used = re.compile(rf"({'|'.join(NORMS)})(?:For|Back)ward<(\w+)> a{{.*?<Fusion::(\w+)", re.DOTALL)
    found += (
        compiled(NORMS[norm], (*FAST, f"-DSTEPPLAN_FUSION={fusion}", f"-DSTEPPLAN_ELEMENT={element}"))
        for norm, element, fusion in sorted({k for s in nodes for k in used.findall(s.read_text())})
    )
    if "attention" in included:
        found.append(compiled(ATTENTION, (*FAST, *bfloat16_flags(target))))
    if "grouped" in included:
        found.append(compiled(GROUPED, FAST))
    found += (compiled(group, (*FAST, *own)) for group in toolchain.groups(nodes))
    return [*found, *(compiled(group, (*ONCE, *own)) for group in toolchain.groups(tables))]


def bfloat16_flags(target: Target) -> tuple[str, ...]:
    """What lets g++ use a processor's instructions for bfloat16, which the levels of -march do not have."""
    isa = set(target.cpu.isa)
    vectors = ("-mavx512bf16",) if "avx512_bf16" in isa else ()
    return (*vectors, "-mamx-tile", "-mamx-bf16") if vectors and {"amx_tile", "amx_bf16"} <= isa else vectors


def _link_flags(target: Target, extra: Sequence[str], null_device: bool) -> tuple[str, ...]:
    if target.gpus:
        return (*extra, *cuda.link_flags(null_device))
    library = toolchain.onednn() / "lib"
    return ("-fopenmp", *extra, f"-L{library}", "-ldnnl", f"-Wl,-rpath,{library}")


def compile_all(units: Sequence[Unit], jobs: int | None = None, progress: Progress | None = None) -> list[Path]:
    """The objects of a module, nanobind's own code first. `jobs`: compilers at once, one per processor by default."""
    done: list[str] = []

    def one(make: Callable[[], Path], name: str) -> Path:
        made = make()
        done.append(name)
        if progress:
            progress(len(done), len(units) + 1, name)
        return made

    with ThreadPoolExecutor(max_workers=max(1, jobs or len(os.sched_getaffinity(0)))) as pool:
        waiting = [pool.submit(one, nanobind_object, "nanobind")]
        waiting += [pool.submit(one, make, name) for name, make in units]
        try:
            return [w.result() for w in waiting]
        except BaseException:
            for other in waiting:
                other.cancel()
            raise


def nanobind_object() -> Path:
    """nanobind's own code, the same for every plan."""
    import nanobind

    source = Path(nanobind.source_dir()) / "nb_combined.cpp"
    flags = (*COMMON, "-O2", "-fno-strict-aliasing", "-DNDEBUG", "-DNB_COMPACT_ASSERTIONS", "-ffunction-sections")
    return toolchain.compile_object(source, flags=(*flags, "-fdata-sections"), folders=(source.parent,))


def _link(objects: Sequence[Path], module: Path, flags: Sequence[str]) -> None:
    key = hashlib.sha256("\n".join(o.name for o in objects).encode()).hexdigest()
    stamp = toolchain.cache_folder() / "locks" / f"{module.name}-{hashlib.sha256(bytes(module)).hexdigest()[:16]}.made"
    if module.is_file() and stamp.exists() and stamp.read_text() == f"{key} {_hash(module)}":
        return
    command = [toolchain.compiler().path, "-shared", "-pthread", *map(str, objects), *flags, "-Wl,--gc-sections"]
    toolchain.run_compiler(command, module)
    stamp.write_text(f"{key} {_hash(module)}")


def _hash(file: Path) -> str:
    """So that a module that was damaged is linked again."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build of a folder at a time; a second one waits and then finds everything made."""
    name = hashlib.sha256(bytes(folder)).hexdigest()[:16]
    with open(toolchain.cache_folder() / "locks" / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
