"""What an executor on a GPU is made of: the plan's own sources, the runtime's, and the kernels that they call, compiled
once by nvcc (chains of element-wise functions once per plan).

`null`: for the null device instead, which runs everything on the processor: the same sources, by g++ alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from codegen import toolchain
from codegen.cuda.toolchain import CUDA_RUNTIME, compile_kernels, libraries, toolkit
from codegen.cuda.used import Group, on_floats, used
from codegen.paths import RUNTIME
from planner.target.model import Target

BASE: Group = ("movement.cu", "plain.cu", "rows.cu", "steps.cu")
"""Kernels that nearly every plan needs: compiled for all."""
DEVICE: Group = ("find_device.cu", "recorded.cu")
"""What device_cuda.hpp leaves to nvcc."""
KERNELS: tuple[Group, ...] = (
    ("normalise.cu", "pooling.cu"),
    ("joint.cu", "training.cu"),
    ("group_norm.cu",),
    ("unary.cu",),
    ("binary.cu",),
    ("numbers.cu",),
    ("attention.cu",),
    ("indexed.cu",),
    ("ctc.cu",),
    ("distances.cu",),
    ("grouped.cu",),
    ("lrn.cu",),
    ("matrices.cu",),
    ("order.cu",),
)
"""Compiled where a plan calls some of them."""
STORED = frozenset({"binary.cu", "group_norm.cu", "normalise.cu", "pooling.cu", "unary.cu"})
"""Of these, what is compiled once per type in which a plan stores activations."""

EXECUTOR: Group = ("executor.cpp", "run.cpp", "timing.cpp")
LIBRARY: Group = ("convolution.cpp", "engines.cpp", "folded.cpp", "pointwise.cpp", "product.cpp")
NULL_LIBRARY: Group = ("block_null.cpp", "library_null.cpp")

BFLOAT16 = "-DSTEPPLAN_BFLOAT16"

HOST = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
NULL_KERNELS = ("-O0", "-x", "c++")
"""Kernels for the null device: nobody waits for them, everybody for their compiler."""
NULL_PRODUCTS: Group = ("plain.cu",)
"""But for those that take the libraries' place there: a step of a convolutional network does little else."""
MODULE = ("-Os", "-fno-strict-aliasing")
BINDINGS = ("module.cpp", "probe.cpp")
TOGETHER = 8 * toolchain.TOGETHER
"""Of sources that only ask for work: ResNet-18's take 3 s as one and 11 s one by one, most of that for headers."""

Unit = tuple[str, Callable[[], Path]]
"""(what is compiled, how)"""


def units(
    sources: Sequence[Path],
    target: Target,
    null: bool,
    extra: Sequence[str],
    own: Sequence[str] = (),
    mixed: bool = False,
) -> list[Unit]:
    """Everything that must be compiled, the slowest first. `own`: more flags, of the plan's own sources; `mixed`: the
    plan stores activations in bfloat16."""
    return _units(sources, target.gpus[0].arch, null, extra, own, [EXECUTOR], mixed)


def probe_units(arch: str, null: bool) -> list[Unit]:
    """The module that asks a GPU and its libraries without a plan."""
    return _units((CUDA_RUNTIME / "probe.cpp",), arch, null, (), ())


def _units(
    sources: Sequence[Path],
    arch: str,
    null: bool,
    extra: Sequence[str],
    own: Sequence[str],
    more: Sequence[Group] = (),
    mixed: bool = False,
) -> list[Unit]:
    runtime = [_paths(group) for group in (*more, NULL_LIBRARY if null else LIBRARY)]
    kernels: list[tuple[list[Path], tuple[str, ...]]] = []
    if null:
        kernels += [(_paths(NULL_PRODUCTS), ("-O2",)), (_paths([n for n in BASE if n not in NULL_PRODUCTS]), ())]
    else:
        kernels.append((_paths(BASE + DEVICE), ()))
    for group in used((*sources, *(s for some in runtime for s in some), *_paths(BASE)), KERNELS):
        stored = mixed and STORED.issuperset(group)
        if stored:
            kernels.append((_paths(group), (BFLOAT16,)))
        if not stored or on_floats(sources, group):
            kernels.append((_paths(group), ()))
    # The host's code only asks for work: it runs on every processor of the architecture, whichever the target assumes.
    extra = tuple(f for f in extra if not f.startswith("-march="))
    if null:
        includes: tuple[Path, ...] = ()
        defines: tuple[str, ...] = ("-DSTEPPLAN_NULL_DEVICE",)
        kernel = (*NULL_KERNELS, *defines)
        compiled = [(_names(some), _host(some, (*kernel, *flags), includes, extra)) for some, flags in kernels]
    else:
        includes, defines = (
            (*toolkit().includes, *libraries().includes),
            (f"-DSTEPPLAN_LIBRARIES={libraries().version}",),
        )
        compiled = [(_names(some), _kernels(some, arch, flags)) for some, flags in kernels]
    compiled += [(_names(some), _host(some, ("-O2", *defines), includes, extra)) for some in runtime]
    asking = [s for s in sources if s.suffix != ".cu" and s.name not in BINDINGS]
    for some in (*toolchain.groups(asking, TOGETHER), *([s] for s in sources if s not in asking)):
        compiled.append((_names(some), _own(some, arch, null, defines, includes, extra, own)))
    return compiled


def _paths(group: Sequence[str]) -> list[Path]:
    return [CUDA_RUNTIME / name for name in group]


def _names(sources: Sequence[Path]) -> str:
    return ", ".join(source.name for source in sources)


def _own(
    group: Sequence[Path],
    arch: str,
    null: bool,
    defines: Sequence[str],
    includes: Sequence[Path],
    extra: Sequence[str],
    own: Sequence[str],
) -> Callable[[], Path]:
    """Some of a plan's own sources. But for its chains they only ask for work: nothing in them is worth optimising, and
    one constructor of thousands of prepared calls takes g++ minutes."""
    first = group[0]
    if first.name in BINDINGS:  # the same for all plans
        return _host(group, (*MODULE, *defines), includes, extra)
    if first.suffix == ".cu":
        return _host(group, (*NULL_KERNELS, *defines), includes, (*extra, *own)) if null else _kernels(group, arch)
    return _host(group, ("-O0", *defines), includes, (*extra, *own))


def _kernels(sources: Sequence[Path], arch: str, defines: tuple[str, ...] = ()) -> Callable[[], Path]:
    return lambda: compile_kernels(sources, arch, defines)


def _host(
    sources: Sequence[Path], defines: Sequence[str], includes: Sequence[Path], extra: Sequence[str]
) -> Callable[[], Path]:
    flags = (*HOST, *defines, *extra, f"-I{CUDA_RUNTIME}")
    flags += tuple(f"-isystem{folder}" for folder in includes)
    return lambda: toolchain.compile_object(*sources, flags=flags, folders=(CUDA_RUNTIME, RUNTIME))


def link_flags(null: bool) -> tuple[str, ...]:
    """The CUDA runtime is linked in, so that a module loads where there is no driver, and says so."""
    if null:
        return ()
    files = libraries().files
    paths = [f"-Wl,-rpath,{file.parent}" for file in files]
    return (*map(str, files), *paths, f"-L{toolkit().library}", "-lcudart_static", "-lrt", "-ldl")
