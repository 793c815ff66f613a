"""Everything that is to be measured of GPU executors, on a machine with a GPU; one command, as often as there is time.

    python examples/gpu_study.py --minutes 9.5 --out gpu_results.json

Each call goes on where the last one stopped, in the order of the parts below, and ends by itself in time. Every part
runs in a process of its own: one that fails, hangs or is out of time loses only what it was at, and is taken up again
by a later call, after those that had no turn yet. Results are written as they come; `--out` has them all.

    machine       the GPU, the driver, copy bandwidths
    sanitize      compute-sanitizer (memcheck, racecheck) on a small network, in float32 and bfloat16
    correct       zoo networks against PyTorch in float64: at most twice PyTorch float32's own error, or 1e-5
    bfloat16      the same networks in bfloat16: no further from float64 than PyTorch's autocast
    speed         ResNet-50 steps at batches 32, 64, 256 in TF32, bfloat16 and float32, in pairs with PyTorch eager and
                  torch.compile (reduce-overhead and max-autotune, channels-last, CUDA graphs) in the same precision
    host          host time per step with the recorded graph
    memory        peak device memory as the driver tells it, less the context, against the plan
    budgets       step times under 50 % and 33 % of the unbudgeted peak, ResNet-50 at batch 184
    torch_budget  PyTorch's activation memory budget on the same network: what it costs at which measured peak
    cap           how far 12 GB reach: SuperNeurons' batches and depths, run
    streams       pairs of nodes on two streams (table VII's five operators), and one stream against what `auto` takes
    convolutions  every algorithm and engine of ResNet-50's convolutions

`--null`: a dry run on the null device with toy networks; its times mean nothing. Nothing is fetched: a machine with
PyTorch for CUDA, nvcc and g++ lacks only pydantic, whose wheels can be brought along
(`pip download pydantic -d wheels --only-binary :all: --python-version 3.12 --platform manylinux2014_x86_64` here,
`pip install --no-index --find-links wheels pydantic` there).
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from gpu_parts import accuracy, memory, sanitize, speed, streams  # noqa: E402
from gpu_parts.study import Study  # noqa: E402

from planner.artefact import write_text  # noqa: E402
from planner.errors import UserError  # noqa: E402

PARTS: dict[str, tuple[Callable[[Study], None], float]] = {
    "machine": (speed.machine, 2),
    "sanitize": (sanitize.sanitize, 4),
    "correct": (accuracy.correct, 5),
    "bfloat16": (accuracy.bfloat16, 4),
    "speed": (speed.speed, 8),
    "host": (speed.host, 2),
    "memory": (memory.memory, 2),
    "budgets": (memory.budgets, 4),
    "torch_budget": (memory.torch_budget, 3),
    "cap": (memory.under_the_cap, 5),
    "streams": (streams.streams, 4),
    "convolutions": (speed.convolutions, 3),
}
"""What measures it, and for how many minutes in one turn."""
GRACE_S = 20.0
"""So long before a part's end it begins nothing new; so long before the call's end no part begins."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none named: all of them")
    parser.add_argument("--out", type=Path, default=Path("gpu_results.json"))
    parser.add_argument("--folder", type=Path, default=Path("out/gpu_study"), help="for cost tables and executors")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts of this call")
    parser.add_argument("--null", action="store_true")
    parser.add_argument(
        "--within", type=float, default=None, help=argparse.SUPPRESS
    )  # seconds: this is a part's process
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.within is not None:
        return run_part(options)
    return run_all(options, time.monotonic() + 60 * options.minutes)


def run_all(options: argparse.Namespace, end: float) -> int:
    turns = options.folder / "turns.json"
    had = json.loads(turns.read_text()) if turns.exists() else {}
    worst = 0
    for name in sorted(options.parts or PARTS, key=lambda n: had.get(n, {}).get("turns", 0)):
        before = had.get(name, {"turns": 0, "status": "no turn yet"})
        left = min(60 * PARTS[name][1], end - time.monotonic())
        if before["status"] != "done" and left > GRACE_S:
            print(f"{name} ...", flush=True)
            begun = time.monotonic()
            status = turn(name, options, left)
            seconds = before.get("seconds", 0) + round(time.monotonic() - begun, 1)
            had[name] = {"turns": before["turns"] + 1, "status": status, "seconds": seconds}
            worst = max(worst, int(status not in ("done", "more to do")))
            write_text(turns, json.dumps(had, indent=1) + "\n")
        collect(options, had)
    return worst


def turn(name: str, options: argparse.Namespace, seconds: float) -> str:
    """Some minutes of one part. `done`, `more to do`, or what went wrong."""
    command = [sys.executable, __file__, name, "--folder", str(options.folder), "--device", str(options.device)]
    command += ["--within", str(seconds), *(["--null"] if options.null else [])]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(command, timeout=seconds, env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"})
    except subprocess.TimeoutExpired:
        return "out of time"
    return {0: "done", 3: "more to do"}.get(done.returncode, f"ended with status {done.returncode}")


def run_part(options: argparse.Namespace) -> int:
    """0: all is measured; 3: some is not yet; 1: it failed."""
    (name,) = options.parts
    file = options.folder / f"{name}.json"
    deadline = time.monotonic() + max(1.0, options.within - GRACE_S)
    study = Study(options.device, options.null, options.folder, file, deadline)
    try:
        study.require_gpu()
        study.found.pop("error", None)
        PARTS[name][0](study)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        study.failed("error", error)
        return 1
    if any(study.is_open(key) for key in study.found):
        return 1
    return 3 if time.monotonic() > deadline else 0


def collect(options: argparse.Namespace, had: dict[str, Any]) -> None:
    """Every part's results so far in one file."""
    found = {}
    for name in PARTS:
        file = options.folder / f"{name}.json"
        if file.exists() or name in had:
            found[name] = {**had.get(name, {}), "rows": json.loads(file.read_text()) if file.exists() else {}}
    write_text(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
