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
with executor_class(sys.argv[1])(seed=0, device=int(sys.argv[2]), null_device=sys.argv[3] == "null") as executor:
    print([float(executor.step(*random_inputs(graph, i))) for i in range(3)])
"""
CHECKS = {
    # What libraries ask the driver for, and are refused, is no error of memory.
    "memcheck": ("--tool", "memcheck", "--report-api-errors", "no"),
    # Shared memory is stepplan's own business in its own kernels; the libraries' are slow to watch.
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
    bars, more = ("memcheck", "racecheck"), ("synccheck", "initcheck")
    rows = {
        f"{c} {precision}": (c, precision) for some in (bars, more) for precision in ("float32", "bf16") for c in some
    }
    for key in study.open(rows):
        check, precision = rows[key]
        try:
            graph = study.graph("digits_cnn", precision, batch=8)
            _, made = study.make(graph, precision, rough=True, lanes=2, policy="liu", strategies=(1, 3))
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
        study.keep(key, {"status": done.returncode, "summary": summary, "end": "\n".join(lines)[-1500:]})


def _text(output: bytes | str | None) -> str:
    """What a process that was ended had printed so far: bytes, though text was asked for."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
