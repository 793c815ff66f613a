"""compute-sanitizer on a small network."""

import shutil
import subprocess
import sys

from codegen.cuda.facts import facts
from gpu_parts.study import Study
from planner import zoo
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.ops.device import LIBRARIES
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.zoo import Sizes

RUN = """
import sys
from codegen.load import executor_class
from codegen.steps import random_inputs
from planner.bundle import read_bundle
graph = read_bundle(sys.argv[1]).graph
with executor_class(sys.argv[1])(seed=0, device=int(sys.argv[2]), null_device=sys.argv[3] == "null") as executor:
    print([float(executor.step(*random_inputs(graph, i))) for i in range(3)])
"""
CHECKS = {
    # What libraries ask the driver for, and are refused, is no error of memory.
    "memcheck": ("--tool", "memcheck", "--report-api-errors", "no"),
    "racecheck": ("--tool", "racecheck", "--kernel-name", "kns=stepplan"),
    "synccheck": ("--tool", "synccheck", "--kernel-name", "kns=stepplan"),
    "initcheck": ("--tool", "initcheck", "--kernel-name", "kns=stepplan"),
}
SECONDS = 120


def sanitizer() -> str:
    """Where it is; beside the toolkit, if nowhere else."""
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def sanitize(study: Study) -> None:
    """Bar: memcheck and racecheck find nothing; status 9 says that they did. A dry run leaves the sanitizer out."""
    networks = {"digits_cnn": _digits, "gpt2": _gpt2, "lstm": _lstm}
    rows = {
        f"{check} {precision} {name}": (check, precision, name)
        for checks in (("memcheck", "racecheck"), ("synccheck", "initcheck"))
        for name in networks
        for precision in ("float32", "bf16")
        for check in checks
    }
    for key in study.open(rows):
        check, precision, name = rows[key]
        try:
            plain = networks[name](study)
            graph = mixed_precision(plain) if precision == "bf16" else plain
            options = {"lanes": 2, "policy": "liu", "strategies": (1, 3)}
            if check == "memcheck":
                _, made = study.make(graph, precision, rough=True, **options)
            else:  # libraries' kernels are not watched, and some do not run under these tools at all
                plan = make_plan(graph, study.target, _without_libraries(study, graph), PlanOptions(**options))
                made = study.built(plan, graph)
            watched = [] if study.null else [sanitizer(), *CHECKS[check], "--error-exitcode", "9"]
            given = [str(made._folder), str(study.device), "null" if study.null else "gpu"]
            limit = max(20.0, min(SECONDS, study.left_s))
            done = subprocess.run(
                [*watched, sys.executable, "-c", RUN, *given], capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired as ended:
            study.failed(key, TimeoutError(f"no end after {limit:.0f} s: {_text(ended.stdout)}{_text(ended.stderr)}"))
            continue
        except Exception as error:
            study.failed(key, error)
            continue
        lines = (done.stdout + done.stderr).splitlines()
        summary = next((line for line in reversed(lines) if "SUMMARY" in line), "")
        told = "\n".join(lines)
        study.keep(key, {"status": done.returncode, "summary": summary, "begin": told[:3000], "end": told[-1500:]})


def _digits(study: Study) -> Graph:
    return study.graph("digits_cnn", batch=8)


def _gpt2(study: Study) -> Graph:
    b = GraphBuilder("small_gpt2")
    ends = zoo.gpt2(length=16, depth=1, width=32, heads=2)(b, Sizes(2, classes=50))
    return b.finish(ends.loss, ends.prediction, Optimizer(lr=1e-3))


def _lstm(study: Study) -> Graph:
    b = GraphBuilder("small_lstm")
    ends = zoo.lstm(steps=4, depth=2, hidden=20)(b, Sizes(6, classes=50))
    return b.finish(ends.loss, ends.prediction, Optimizer(lr=1e-3))


def _without_libraries(study: Study, graph: Graph) -> CostTable:
    """Modelled, with stepplan's own loops in the place of the libraries' kernels."""
    table = modelled_costs(graph, study.target, facts)
    plain = tuple(
        e.model_copy(update={"implementation": "plain"}) if e.kernel in LIBRARIES.values() else e for e in table.entries
    )
    return CostTable(target=table.target, fingerprint=table.fingerprint, entries=plain)


def _text(output: bytes | str | None) -> str:
    """What a process that was ended had printed so far: bytes, though text was asked for."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
