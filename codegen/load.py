"""From a built folder to its `Executor` class, with everything checked that could go wrong before code runs."""

import importlib.machinery
import importlib.util
import platform
import re
import struct
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from planner.errors import UserError
from planner.graph.text import graph_hash, read_graph
from planner.plan.text import plan_hash, read_plan
from planner.target.model import Target
from planner.target.text import read_target, target_hash

if TYPE_CHECKING:
    from codegen.executor import Executor

LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("sse4_2", "ssse3", "popcnt"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt"),
    "x86-64-v4": ("avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "bmi1", "bmi2", "f16c", "fma"),
}
"""-march -> the processor flags, as /proc/cpuinfo spells them, that code built for it may use."""


def executor_class(folder: Path | str) -> "type[Executor]":
    """The `Executor` of an emitted and built folder.

    SP1511: its files do not belong together. SP1512: it is not built, or changed since (for
    a GPU: told when an executor is made). SP1609: this processor lacks instructions that it is built for.
    """
    from codegen.executor import Executor

    place = Path(folder).resolve()
    plan, graph, target = read_plan(place / "plan.json"), read_graph(place / "graph.json"), None
    target = read_target(place / "target.toml")
    _require_together(
        place, plan_hash(plan), plan.graph_hash == graph_hash(graph), plan.target_hash == target_hash(target)
    )
    require_processor(target)
    own = {"_folder": place, "_graph": graph, "plan": plan}
    if target.gpus:
        from codegen.cuda.executor import CudaExecutor

        # Which module is loaded depends on the device: the executor's constructor loads it.
        told = f"Runs plan {plan.name}; see codegen.cuda.executor.CudaExecutor."
        return type("Executor", (CudaExecutor,), {"__doc__": told, "__module__": CudaExecutor.__module__, **own})
    told = f"Runs plan {plan.name}; see codegen.executor.Executor."
    own["_native"] = native_module(place)
    return type("Executor", (Executor,), {"__doc__": told, "__module__": Executor.__module__, **own})


def _require_together(folder: Path, expected: str, same_graph: bool, same_target: bool) -> None:
    fix = "run stepplan emit on the plan that you mean, then stepplan build"
    try:
        text = (folder / "executor.cpp").read_text()
    except OSError as error:
        raise UserError("SP1511", f"{folder.name} lacks executor.cpp: {error.strerror}", fix) from error
    stated = re.search(r"executor_spec = \{\"([0-9a-f]+)\"", text)
    if not stated or stated[1] != expected:
        raise UserError("SP1511", f"{folder.name}: the sources were made from another plan than plan.json", fix)
    if not (same_graph and same_target):
        wrong = "target.toml" if same_graph else "graph.json"
        raise UserError("SP1511", f"{folder.name}: {wrong} is not the one that plan.json was made for", fix)


def native_module(folder: Path, null_device: bool = False) -> ModuleType:
    """Load the built module (SP1512)."""
    from codegen.build import module_name, source_digest

    module = folder / module_name(source_digest(folder), null_device)
    if not module.exists():
        others = list(folder.glob(module_name("*", null_device)))
        what = "its sources or the runtime changed since it was built" if others else "it is not built"
        raise UserError("SP1512", f"{folder.name}: {what}", f"run stepplan build {folder}")
    if not _complete_elf(module.read_bytes()):
        raise UserError(
            "SP1512",
            f"{folder.name}: the built module does not load: it is damaged",
            f"run stepplan build {folder} again",
        )
    loader = importlib.machinery.ExtensionFileLoader("_executor", str(module))
    spec = importlib.util.spec_from_file_location("_executor", module, loader=loader)
    assert spec is not None
    try:
        native = importlib.util.module_from_spec(spec)
        loader.exec_module(native)
    except ImportError as error:
        raise UserError(
            "SP1512", f"{folder.name}: the built module does not load: {error}", f"run stepplan build {folder} again"
        ) from error
    return native


def _complete_elf(data: bytes) -> bool:
    """Whether a 64-bit ELF file is all there: loading half a copy would end the process, not raise an error. The
    section headers come last in the file."""
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    start, size, count = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    return bool(0 < start + size * count <= len(data))


def require_processor(target: Target, flags: frozenset[str] | None = None) -> None:
    """SP1609 unless this processor has every instruction set that the target's -march lets the compiler use."""
    have = processor_flags() if flags is None else flags
    if have is None:
        return
    missing = [f for f in LEVELS.get(target.cpu.march, target.cpu.isa) if f not in have]
    if missing:
        raise UserError(
            "SP1609",
            f"this processor lacks {', '.join(missing)}, which code built for {target.cpu.march} uses",
            "run it on a machine like its target, or detect this machine, plan for it and build again",
        )


def processor_flags() -> frozenset[str] | None:
    """The flags of the first processor in /proc/cpuinfo; None where that cannot be told."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else None
