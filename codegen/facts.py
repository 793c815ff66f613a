"""What only the kernel library knows of a (signature, mode): sizes it will ask for, implementations it has.

Asked of a small library built once from templates/cpu/probe.cpp; nothing is run and no data is needed.
"""

import ctypes
import functools
import hashlib
from collections.abc import Sequence

from codegen import toolchain
from codegen.build import CONVOLUTIONS
from codegen.cpu.shapes import CONV_KINDS, conv_shape, matmul_shape, slice_dim
from codegen.paths import TEMPLATES
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.errors import InternalError
from planner.graph.model import Graph
from planner.ops.base import Facts, Mode, Signature, op_named
from planner.ops.signature import signatures_of
from planner.target.model import Target

_DIMS = {"batch": 0, "rows": 1, "channels": 2, "tiles": 3, "depth": 4}
_TEXT = 8192


class Refused(InternalError):
    """The library has no such kernel. Of a mode without an implementation's name: the op should not offer it."""


def facts(signature: Signature, mode: Mode) -> Facts:
    """packed_bytes, scratch_bytes (largest slice), partial_bytes (all slices), and into which blocks weights are packed
    (ops/stored.py), without zeros; {} for ops that no library computes. Refused: the library has no such kernel."""
    if mode.kernel != "onednn":
        return {}
    sizes = (ctypes.c_int64 * 5)()
    _ask(signature, mode, "facts", mode.implementation.encode(), sizes)
    names = ("packed_bytes", "scratch_bytes", "partial_bytes", "packs_o", "packs_i")
    return {name: size for name, size in zip(names, sizes, strict=True) if size}


def implementations(signature: Signature, mode: Mode) -> tuple[str, ...]:
    """The library's implementations of a mode, its favourite first; of a generated loop its schedules, the plain one
    first; empty where there is only one."""
    if mode.kernel != "onednn":
        more = op_named(signature.op).schedules(signature)
        return ("", *more) if more else ()
    # Where the library made such a kernel before, it may list every name twice.
    return tuple(dict.fromkeys(_ask(signature, mode, "implementations").splitlines()))


def modelled_by(implementation: str, graph: Graph, target: Target) -> CostTable:
    """Modelled costs of a graph whose library nodes run by this implementation wherever it computes them: for studies
    and tests of kernels that only measured times would choose."""
    known = {s.text: s for s in signatures_of([graph])}

    def named(signature: Signature, mode: Mode) -> Mode:
        there = mode.kernel == "onednn" and implementation in implementations(signature, mode)
        return mode._replace(implementation=implementation) if there else mode

    table = modelled_costs(graph, target, lambda signature, mode: facts(signature, named(signature, mode)))
    entries = [(e, named(known[e.signature], e.mode)) for e in table.entries]
    ours = {e.signature for e, mode in entries if mode.implementation}
    kept = [(e, mode) for e, mode in entries if mode.implementation or e.signature not in ours]
    made = tuple(e.model_copy(update={"implementation": mode.implementation}) for e, mode in kept)
    return table.model_copy(update={"entries": made})


def _ask(signature: Signature, mode: Mode, what: str, *more: object) -> str:
    conv = signature.op in CONV_KINDS
    if not conv and op_named(signature.op).family != "matmul":
        raise InternalError(f"no library computes {signature.op}")
    shape = conv_shape(signature) if conv else matmul_shape(signature)
    head = (ctypes.c_int(CONV_KINDS[signature.op]),) if conv else ()
    text = ctypes.create_string_buffer(_TEXT)
    function = getattr(_library(), f"stepplan_{'conv' if conv else 'matmul'}_{what}")
    dim = _DIMS[slice_dim(signature, mode)]
    code = function(*head, _integers(shape), ctypes.c_int(dim), ctypes.c_int(mode.slices), *more, text, _TEXT)
    answer = text.value.decode(errors="replace")
    if code:
        raise Refused(f"{mode.text()} of {signature.text}: {answer}")
    return answer


def _integers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def _library() -> ctypes.CDLL:
    sources = (*(s for group in CONVOLUTIONS for s in group), TEMPLATES / "cpu" / "probe.cpp")
    # Kernels are described, never run.
    made = toolchain.compile_object(*sources, flags=("-std=c++20", "-fPIC", "-fopenmp", "-Og", "-Wno-psabi"))
    folder = toolchain.onednn() / "lib"
    # The library remembers where oneDNN lies: another environment has a library of its own.
    library = made.with_name(f"{made.stem}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}.so")
    if not library.exists():
        command = [toolchain.compiler().path, "-shared", "-fopenmp", str(made), f"-L{folder}", "-ldnnl"]
        toolchain.run_compiler([*command, f"-Wl,-rpath,{folder}"], library)
    return ctypes.CDLL(str(library))
