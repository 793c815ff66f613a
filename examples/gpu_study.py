"""Everything that is to be measured of GPU executors, on a machine with a GPU; one command, as often as there is time.

    python examples/gpu_study.py machine sanitize correct        # first: is it right?
    python examples/gpu_study.py --minutes 9                     # then, again and again: everything else

Each call goes on where the last one stopped, in the order of the parts below, and ends by itself in time. Every part
runs in a process of its own: one that fails, hangs or is out of time loses only the row it was at, which is tried once
more by a later call, after everything that had no turn yet; a turn that a call's end cut short goes on first. A row
that leaves its process no use of the GPU costs the others nothing: a new process goes on in the same turn. Results are
written as they come; `--out` has them all, and each call ends with a page about them. What compilers and libraries say
lies beside `--out` (`gpu_results.log`); the end of it is shown where a part ends otherwise than it should.

    machine       the GPU, the driver, what is installed, copy bandwidths
    sanitize      compute-sanitizer (memcheck, racecheck) on a small network, in float32 and bfloat16
    correct       zoo networks against PyTorch in float64: at most twice PyTorch float32's own error, or 1e-5
    bfloat16      the same networks in bfloat16: no further from float64 than PyTorch's autocast
    speed         ResNet-50 steps at batches 32, 64, 256 in TF32, bfloat16 and float32, in pairs with eager PyTorch and
                  torch.compile (reduce-overhead, then max-autotune, with CUDA graphs), channels-last
    cap           how far 12 GB reach: SuperNeurons' batches, run
    budgets       step times under 50 % and 33 % of the unbudgeted peak, ResNet-50 at batch 184
    memory        peak device memory as the driver tells it, less the context, against the plan
    host          host time per step with the recorded graph
    torch_budget  PyTorch's activation memory budget on the same network: what it costs at which measured peak
    streams       pairs of nodes on two streams (table VII's five operators), and one stream against what `auto` takes
    depth         SuperNeurons' depths under 12 GB: networks of thousands of nodes
    convolutions  every algorithm and engine of ResNet-50's convolutions
    autograd      a residual network's passes inside PyTorch's autograd: gradients, and steps beside eager PyTorch

Three calls of nine minutes on sixteen processors give every part its turn. The parts behind the first that time nothing
are at work side by side, and beside them PyTorch's compiled contenders are made (`--no-ahead`: they are not), as far as
there is time: max-autotune of one ResNet-50 step did not end within 75 s there.

What the machine needs: an H100 or H200 with a driver for CUDA 13; Python 3.11 or newer with PyTorch for CUDA 13 (whose
wheels bring cuDNN, cuBLASLt and NVRTC), Triton, NumPy, Jinja2, nanobind, NetworkX and SciPy; nvcc 13 with its headers
and libcudart_static.a, on the PATH or in /usr/local/cuda; g++ 11 or newer; compute-sanitizer for the part of that name.
Nothing is fetched. Neither TVM, oneDNN, ninja nor an installed stepplan is needed. What is missing is brought along as
wheels: usually pydantic and what it stands on.

    here:  pip download -d wheels --only-binary :all: --python-version 3.12 --platform manylinux_2_17_x86_64 \\
               --platform manylinux2014_x86_64 pydantic
    there: pip install --no-index --no-deps --target /tmp/site wheels/*.whl && export PYTHONPATH=/tmp/site

gpu_rows.py prepares what takes long all at once, and times it in turn, where the GPU is there for minutes only.

A machine that starts bare each time forgets everything: `--state FILE` keeps cost tables and results in one archive
(a few MiB), read where the folder has none yet and written after every part. Carry it from call to call.

`--null`: a dry run on the null device with toy networks, PyTorch's on the processor; its times mean nothing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

try:
    from gpu_parts import accuracy, memory, sanitize, speed, streams
    from gpu_parts.study import GpuLost, Study

    from planner.artefact import write_text
    from planner.errors import UserError

    if importlib.util.find_spec("torch") is None:  # not imported here: seconds of every process, few of which use it
        raise ModuleNotFoundError(name="torch")
except ModuleNotFoundError as missing:
    needs = __doc__.partition("What the machine")
    sys.exit(f"{sys.executable} lacks {missing.name}: bring it along.\n\n{''.join(needs[1:])}")


def autograd(study: Study) -> None:
    """The part that is made of PyTorch's modules."""
    from gpu_parts.inside import autograd

    autograd(study)


PARTS: dict[str, tuple[Callable[[Study], None], float]] = {
    "machine": (speed.machine, 2),
    "sanitize": (sanitize.sanitize, 1.5),
    "correct": (accuracy.correct, 2),
    "bfloat16": (accuracy.bfloat16, 1.25),
    "speed": (speed.speed, 7),
    "cap": (memory.batches_under_the_cap, 2),
    "budgets": (memory.budgets, 3),
    "memory": (memory.memory, 1.25),
    "host": (speed.host, 1),
    "torch_budget": (memory.torch_budget, 2),
    "streams": (streams.streams, 2.5),
    "depth": (memory.depths_under_the_cap, 2),
    "convolutions": (speed.convolutions, 1),
    "autograd": (autograd, 1.25),
}
"""What measures it, and for how many minutes in one turn."""
TOLD = 1500
"""Characters of what a part said that are shown when it ends otherwise than it should."""
LEAST_S = 30.0
"""A turn is had when no more than this is left of it; with less than this no part begins."""
TOGETHER = frozenset({"sanitize", "correct", "bfloat16"})
"""These are at work at once."""
UNTIMED = TOGETHER | {"machine"}
"""These may have PyTorch's compiler at work beside them."""
GRACE_S = 15.0
"""So long before a part's end it begins nothing new."""
AHEAD_S = 60.0
"""So long a part that is timed waits for what PyTorch's compiler is at."""
ABORT_S = 3.0
"""So long a process that is out of time may take to say where it was."""
COMPILED = "compiled"
"""Where rows of gpu_rows.py have the caches of PyTorch's compiler, each its own."""
KEPT = ("cache/*", "*/*.best_config")
"""What is kept of them: times of algorithms and what was found for kernels; no code."""
MORE, LOST = 3, 4
"""A part's process ends with these: some is not measured yet; it cannot use the GPU any more."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none named: all of them")
    parser.add_argument("--out", type=Path, default=Path("gpu_results.json"))
    parser.add_argument("--folder", type=Path, default=Path("out/gpu_study"), help="for cost tables and executors")
    parser.add_argument("--state", type=Path, default=None, help="archive of what a further call needs")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts of this call")
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--no-ahead", action="store_true", help="compile none of PyTorch's contenders ahead")
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
    if options.state and options.state.exists() and not turns.exists():
        unpack(options.state, options.folder)
    had = json.loads(turns.read_text()) if turns.exists() else {}
    worst, ahead = 0, Ahead(options)
    try:
        for names in side_by_side(sorted(options.parts or PARTS, key=lambda n: had.get(n, {}).get("turns", 0))):
            names = [n for n in names if had.get(n, {}).get("status") != "done"]
            if names and end - time.monotonic() > GRACE_S + LEAST_S:
                if names[0] in UNTIMED:
                    ahead.begin(had)
                else:
                    ahead.finish(min(AHEAD_S, end - time.monotonic() - GRACE_S))
                before = [had.get(name) for name in names]
                with ThreadPoolExecutor(len(names)) as pool:
                    now = pool.map(partial(one, options=options, end=end), names, before)
                had |= zip(names, now, strict=True)
                worst = max(worst, *(int(had[n]["status"] not in ("done", "more to do")) for n in names))
                write_text(turns, json.dumps(had, indent=1) + "\n")
            collect(options, had)
    finally:
        ahead.finish(max(0.0, end - time.monotonic()))
        if options.state:
            pack(options.folder, options.state)
    print(report(json.loads(options.out.read_text())))
    return worst


def side_by_side(names: Sequence[str]) -> list[list[str]]:
    """In their order, those that may be at work at once in the place of the first of them."""
    together = [name for name in names if name in TOGETHER]
    return [together if name in together else [name] for name in names if name not in together[1:]]


def one(name: str, before: dict[str, Any] | None, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """A part's turn, and what is known of its turns then."""
    before = before or {"turns": 0, "seconds": 0.0, "cut": 0.0}
    print(f"{name} ...", flush=True)
    begun = time.monotonic()
    whole = 60 * PARTS[name][1] - before["cut"]
    given = max(1.0, min(whole, end - begun - ABORT_S))
    status = turn(name, options, given)
    took = time.monotonic() - begun
    cut = given + LEAST_S < whole and status in ("more to do", "out of time")
    print(f"{name}: {status} after {took:.0f} s", flush=True)
    return {
        "turns": before["turns"] + (not cut),
        "status": status,
        "seconds": round(before["seconds"] + took, 1),
        "cut": round(before["cut"] + took, 1) if cut else 0.0,
    }


def turn(name: str, options: argparse.Namespace, seconds: float) -> str:
    """Some minutes of one part, in as many processes as lose the GPU. `done`, `more to do`, or what went wrong."""
    end = time.monotonic() + seconds
    told = in_process(name, options, seconds)
    while told == "lost the GPU" and (left := end - time.monotonic()) > GRACE_S + LEAST_S:
        told = in_process(name, options, left)
    return told


def in_process(name: str, options: argparse.Namespace, seconds: float) -> str:
    command = [sys.executable, __file__, name, "--folder", str(options.folder), "--device", str(options.device)]
    command += ["--within", str(seconds), *(["--null"] if options.null else [])]
    log = log_of(options)
    process, before = started(command, log), log.stat().st_size
    try:
        status = process.wait(seconds)
        told = {0: "done", MORE: "more to do", LOST: "lost the GPU"}.get(status, f"ended with status {status}")
    except subprocess.TimeoutExpired:
        end_all(process, tell=True)
        told = "out of time"
    if told not in ("done", "more to do"):
        print(textwrap.indent(log.read_bytes()[before:].decode(errors="replace")[-TOLD:], "  | "), flush=True)
    return told


def log_of(options: argparse.Namespace) -> Path:
    log: Path = options.out.with_suffix(".log")
    log.touch()
    return log


def started(command: list[str], log: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """In a session of its own, so that it ends with all that it began. `log`: where its errors go; `variables`: more of
    its environment."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    more = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    with log.open("ab") as errors:
        return subprocess.Popen(command, env=os.environ | more | variables, start_new_session=True, stderr=errors)


def end_all(process: "subprocess.Popen[bytes]", tell: bool = False) -> None:
    """`tell`: the process first prints where it was."""
    with contextlib.suppress(ProcessLookupError):
        if tell:
            process.send_signal(signal.SIGABRT)  # Python's fault handler answers it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ABORT_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Ahead:
    """PyTorch's compiler at work beside parts that are not timed: gpu_parts/ahead.py."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = not options.no_ahead

    def begin(self, had: dict[str, Any]) -> None:
        """Not before the first part has shown that there is a GPU."""
        if self._wanted and had.get("machine", {}).get("status") == "done" and "speed" not in had:
            speed.stop_file(self._options.folder).unlink(missing_ok=True)
            script = ROOT / "examples" / "gpu_parts" / "ahead.py"
            command = [sys.executable, str(script), str(self._options.folder), str(self._options.device)]
            self._process = started([*command, *(["null"] if self._options.null else [])], log_of(self._options))
            self._wanted = False

    def finish(self, seconds: float) -> None:
        """It begins nothing new, and is waited for so long at most."""
        self._wanted = False
        if self._process is not None:
            speed.stop_file(self._options.folder).touch()
            try:
                self._process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                end_all(self._process)
            self._process = None


def run_part(options: argparse.Namespace) -> int:
    """0: all is measured; 1: it failed; MORE, LOST."""
    (name,) = options.parts
    file = options.folder / f"{name}.json"
    deadline = time.monotonic() + max(1.0, options.within - GRACE_S)
    study = Study(options.device, options.null, options.folder, file, deadline)
    try:
        study.require_gpu()
        study.found.pop("error", None)
        PARTS[name][0](study)
    except GpuLost:
        traceback.print_exc()
        return LOST
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        study.failed("error", error)
        return 1
    if time.monotonic() > deadline or any(study.may_try(key) for key in study.found):
        return MORE
    return int(any(study.is_failed(key) for key in study.found))


def collect(options: argparse.Namespace, had: dict[str, Any]) -> None:
    """Every part's results so far in one file, and what a further call needs in another."""
    found = {}
    for name in PARTS:
        file = options.folder / f"{name}.json"
        if file.exists() or name in had:
            found[name] = {**had.get(name, {}), "rows": json.loads(file.read_text()) if file.exists() else {}}
    write_text(options.out, json.dumps(found, indent=1) + "\n")
    if options.state:
        pack(options.folder, options.state)


def report(found: dict[str, Any]) -> str:
    """A page: where every part is, and why rows failed."""
    lines = ["", "part          status                    turns  seconds  rows"]
    for name, part in found.items():
        failed = {key: row["error"] for key, row in part["rows"].items() if isinstance(row, dict) and "error" in row}
        rows = f"{len(part['rows']) - len(failed)}" + (f", {len(failed)} failed" if failed else "")
        status = part.get("status", "its first turn did not end")  # nor did the call
        lines.append(f"{name:13} {status:25} {part.get('turns', 0):5} {part.get('seconds', 0.0):8.0f}  {rows}")
        lines += (f"    {key[:60]}: {' '.join(str(error).split())[:160]}" for key, error in list(failed.items())[:8])
    return "\n".join(lines)


def pack(folder: Path, archive: Path) -> None:
    """Cost tables, results, turns, and what PyTorch's compiler has timed; atomically, for the call may be ended at any
    moment."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{archive.name}")
    with tarfile.open(unfinished, "w:gz") as made:
        kept = [file for some in KEPT for file in folder.glob(f"{COMPILED}/*/{some}")]
        for file in sorted([*folder.glob("*.json"), *kept]):
            made.add(file, str(file.relative_to(folder)))
    unfinished.replace(archive)


def unpack(archive: Path, folder: Path) -> None:
    """The files of an archive, none of them outside of the folder (early releases of Python 3.11 have no filters)."""
    with tarfile.open(archive) as given:
        for member in given.getmembers():
            content, to = given.extractfile(member), (folder / member.name).resolve()
            if content is not None and to.is_relative_to(folder.resolve()):
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content.read())


if __name__ == "__main__":
    sys.exit(main())
