"""What the GPU does, and how long steps of ResNet-50 take beside PyTorch's."""

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from codegen.cuda.bench import CONTENDERS, bench, device_inputs, host_ms
from codegen.cuda.probe import algorithms
from codegen.cuda.profile import copy_bandwidths
from codegen.cuda.toolchain import libraries, toolkit
from codegen.toolchain import compiler
from gpu_parts.sanitize import sanitizer
from gpu_parts.study import Study
from planner.bundle import read_bundle
from planner.graph.precision import mixed_precision
from planner.ops.base import op_named
from planner.ops.signature import signatures_of

ROWS = ((32, "bf16"), (256, "bf16"), (32, "tf32"), (256, "tf32"), (64, "bf16"), (64, "tf32"))
"""(batch, precision) in the order of their weight; float32 without TF32 comes last."""
PLAIN_ROWS = tuple((batch, "float32") for batch in (32, 64, 256))
QUICK, SLOW = CONTENDERS[:2], CONTENDERS[2]
"""Contenders that are ready in a minute, and max-autotune, which takes several, unless it was compiled ahead."""
Row = tuple[int, str, str | None]
"""Batch, precision, contender; None: the executor alone."""


def machine(study: Study) -> None:
    """The GPU, the driver, what is installed, copy bandwidths."""
    for key in study.open(("gpu", "tools", "copies")):
        try:
            study.keep(key, _machine(study, key))
        except Exception as error:
            study.failed(key, error)


def _machine(study: Study, key: str) -> dict[str, Any]:
    if key == "gpu":
        return study.describe()
    if key == "copies":
        return copy_bandwidths(study.target, study.device, study.null)
    found: dict[str, Any] = {"python": platform.python_version(), "processors": os.cpu_count()}
    for name in ("torch", "triton", "numpy", "nanobind", "pydantic"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    found["sanitizer"] = sanitizer()
    if not study.null:
        found |= {"nvcc": f"{toolkit().nvcc} {toolkit().version}", "cudnn": libraries().version}
        found["g++"] = compiler().version
    return found


def speed(study: Study) -> None:
    """Bar: at most the fastest of PyTorch's in the same precision, in pairs. Each contender is a row of its own, so
    that one that fails or takes minutes to compile costs nothing that is there already."""
    rows = {row_name(*row): row for row in _rows(study)}
    for key in study.open(rows):
        batch, precision, contender = rows[key]
        try:
            _, made = study.make(study.graph("resnet50", precision, batch=batch), precision)
            row = bench(
                made,
                read_bundle(made._folder),
                against=None if contender is None else "torch",
                contenders=() if contender is None else (contender,),
                repetitions=2 if study.null else 30,
                device=study.device,
                null_device=study.null,
            )
        except Exception as error:
            study.failed(key, error)
            continue
        if contender == SLOW and isinstance(compiled_ahead(study.folder).get(key), float):
            row["chosen_beside_other_work"] = True  # it timed its kernels while other parts ran
        study.keep(key, row)


def _rows(study: Study) -> Iterator[Row]:
    """In the order of their weight. A dry run has one of every kind."""
    timed, plain = (ROWS[:1], PLAIN_ROWS[:1]) if study.null else (ROWS, PLAIN_ROWS)
    ready = compiled_ahead(study.folder)
    for some in (timed, plain):
        for batch, precision in some:
            compiled = isinstance(ready.get(row_name(batch, precision, SLOW)), float)
            yield from ((batch, precision, c) for c in (None, *QUICK, *((SLOW,) if compiled else ())))
    yield from ((batch, precision, SLOW) for batch, precision in (*timed, *plain))


def row_name(batch: int, precision: str, contender: str | None = None) -> str:
    return f"batch {batch} {precision}{f' against {contender}' if contender else ''}"


def ahead_file(folder: Path) -> Path:
    """What ahead.py compiled: row -> seconds, or why not. A text: no part of the state that is carried to other
    machines, which lack the caches."""
    return folder / "ahead.txt"


def stop_file(folder: Path) -> Path:
    """There: ahead.py begins nothing more."""
    return folder / "ahead.stop"


def compiled_ahead(folder: Path) -> dict[str, float | str]:
    file = ahead_file(folder)
    found: dict[str, float | str] = json.loads(file.read_text()) if file.exists() else {}
    return found


def host(study: Study) -> None:
    """Bar: 50 us until `step` returns, with the recorded graph."""
    sizes = {"digits_cnn": 64, "resnet50": 32}
    for name in study.open(sizes):
        try:
            graph = study.graph(name, batch=sizes[name])
            _, made = study.make(graph, "tf32")
            with study.executor(made) as executor:
                inputs = device_inputs(graph, study.device, study.null)
                for _ in range(3):
                    float(executor.step(*inputs))
                took = 1e3 * host_ms(executor, inputs, 3 if study.null else 200)
                times, recorded = executor.node_times(repetitions=5), executor.recorded_nodes()
                row = {"host_us": took, "kernels_us": sum(times.values()) / 1e3, "recorded": recorded}
                study.keep(name, {**row, "nodes": times})
        except Exception as error:
            study.failed(name, error)


def convolutions(study: Study) -> None:
    """Every algorithm and engine of ResNet-50's convolutions with its time and workspace."""
    graph = study.graph("resnet50", batch=32)
    found = {s.text: s for s in signatures_of([graph, mixed_precision(graph)]) if op_named(s.op).family == "conv"}
    for text in study.open(found):
        both = (False, True) if found[text].inputs[0].dtype == "float32" else (False,)
        try:
            ways = [
                w._asdict()
                for tf32 in both
                for w in algorithms(found[text], study.arch, tf32=tf32, device=study.device, null_device=study.null)
            ]
        except Exception as error:
            study.failed(text, error)
            continue
        study.keep(text, ways)
