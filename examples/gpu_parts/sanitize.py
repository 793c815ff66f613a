"""compute-sanitizer on a small network."""

import shutil
import subprocess
import sys

from gpu_parts.study import Study

RUN = """
import sys
from codegen.load import executor_class
from codegen.steps import random_inputs
from planner.bundle import read_bundle
graph = read_bundle(sys.argv[1]).graph
with executor_class(sys.argv[1])(seed=0, device=int(sys.argv[2])) as executor:
    print([float(executor.step(*random_inputs(graph, i))) for i in range(3)])
"""
CHECKS = {
    # What libraries ask the driver for, and are refused, is no error of memory.
    "memcheck": ("--tool", "memcheck", "--report-api-errors", "no"),
    # Shared memory is stepplan's own business in its own kernels; the libraries' are slow to watch.
    "racecheck": ("--tool", "racecheck", "--kernel-regex", "kns=stepplan"),
    "synccheck": ("--tool", "synccheck", "--kernel-regex", "kns=stepplan"),
    "initcheck": ("--tool", "initcheck", "--kernel-regex", "kns=stepplan"),
}
SECONDS = 120


def sanitizer() -> str:
    """Where it is; beside the toolkit, if nowhere else."""
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def sanitize(study: Study) -> None:
    """Bar: memcheck and racecheck find nothing; status 9 says that they did."""
    rows = {f"{check} {precision}": (check, precision) for check in CHECKS for precision in ("float32", "bf16")}
    for key in study.open(rows):
        check, precision = rows[key]
        try:
            graph = study.graph("digits_cnn", precision, batch=8)
            _, made = study.make(graph, precision, rough=True, lanes=2, policy="liu", strategies=(1, 3))
            if study.null:
                study.keep(key, {"skipped": "there is no GPU"})
                continue
            command = [
                sanitizer(),
                *CHECKS[check],
                "--error-exitcode",
                "9",
                sys.executable,
                "-c",
                RUN,
                str(made._folder),
            ]
            done = subprocess.run([*command, str(study.device)], capture_output=True, text=True, timeout=SECONDS)
        except Exception as error:
            study.failed(key, error)
            continue
        study.keep(key, {"status": done.returncode, "end": (done.stdout + done.stderr)[-1500:]})
