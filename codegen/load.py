"""From a built folder to its `Executor` class, with everything checked that could go wrong before code runs."""

import os
import platform
import re
from pathlib import Path

from codegen.cuda.executor import CudaExecutor
from codegen.executor import Executor
from codegen.native import native_module
from planner.errors import UserError
from planner.graph.precision import is_mixed
from planner.graph.text import graph_hash, read_graph
from planner.plan.text import plan_hash, read_plan
from planner.target.model import BFLOAT16_ISA, Target
from planner.target.text import read_target, target_hash

LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("sse4_2", "ssse3", "popcnt"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt"),
    "x86-64-v4": ("avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "bmi1", "bmi2", "f16c", "fma"),
}
"""-march -> the processor flags, as /proc/cpuinfo spells them, that code built for it may use."""


def executor_class(folder: Path | str) -> type[Executor]:
    """The `Executor` of an emitted and built folder.

    SP1511: its files do not belong together. SP1512: it is not built, or changed since (for
    a GPU: told when an executor is made). SP1609: this processor lacks instructions that it is built for; a GPU's
    executor asks for none.
    """
    place = Path(os.path.realpath(folder))
    plan, graph, target = read_plan(place / "plan.json"), read_graph(place / "graph.json"), None
    target = read_target(place / "target.toml")
    _require_together(
        place, plan_hash(plan), plan.graph_hash == graph_hash(graph), plan.target_hash == target_hash(target)
    )
    if not target.gpus:  # whose host code needs nothing special of the processor
        require_processor(target, is_mixed(graph))
    own = {"_folder": place, "_graph": graph, "_graph_file": (place / "graph.json").read_bytes(), "plan": plan}
    if target.gpus:
        # Which module is loaded depends on the device: the executor's constructor loads it.
        told = f"Runs plan {plan.name}; see codegen.cuda.executor.CudaExecutor."
        return type("Executor", (CudaExecutor,), {"__doc__": told, "__module__": CudaExecutor.__module__, **own})
    told = f"Runs plan {plan.name}; see codegen.executor.Executor."
    own["_native"] = native_module(place)
    return type("Executor", (Executor,), {"__doc__": told, "__module__": Executor.__module__, **own})


def _require_together(folder: Path, expected: str, same_graph: bool, same_target: bool) -> None:
    fix = "run stepplan emit on the plan that you mean, then stepplan build"
    try:
        text = (folder / "executor.cpp").read_text(errors="replace")
    except OSError as error:
        raise UserError("SP1511", f"{folder.name} lacks executor.cpp: {error.strerror}", fix) from error
    stated = re.search(r"executor_spec = \{\"([0-9a-f]+)\"", text)
    if not stated or stated[1] != expected:
        raise UserError("SP1511", f"{folder.name}: the sources were made from another plan than plan.json", fix)
    if not (same_graph and same_target):
        wrong = "target.toml" if same_graph else "graph.json"
        raise UserError("SP1511", f"{folder.name}: {wrong} is not the one that plan.json was made for", fix)


def require_processor(target: Target, mixed: bool = False, flags: frozenset[str] | None = None) -> None:
    """SP1609 unless this processor has every instruction set that the target's -march lets the compiler use, and, where
    precision is `mixed`, those for bfloat16 that the target has."""
    have = processor_flags() if flags is None else flags
    if have is None:
        return
    wanted = LEVELS.get(target.cpu.march, target.cpu.isa)
    if mixed:
        wanted = (*wanted, *(f for f in target.cpu.isa if f in BFLOAT16_ISA))
    missing = [f for f in dict.fromkeys(wanted) if f not in have]
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
