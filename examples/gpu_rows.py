"""Rows that take minutes to prepare, all at once: for a machine with a GPU that is there for some minutes only.

    python examples/gpu_rows.py --minutes 9 --state rows.tgz [ROW ...]       # no row: they are listed

gpu_study.py measures one thing after the other, and a compiler at work has the GPU to itself. Here every row is
prepared in a process of its own (profile, plan, build; PyTorch's compiler for its side), `--at-once` of them side by
side, those named first before those named later. When all of these are ready, or `--prepare` minutes are over, they are
timed one after the other while everything else is stopped (SIGSTOP), and the next are begun. Slow rows, those beside
max-autotune and the deepest network, begin at once, nobody waits for them, and each is timed when it is ready.
`--state` keeps cost tables, plans, results and the times of kernels between which PyTorch's compiler chooses in one
archive, read at the beginning: plans that take minutes can be made elsewhere in between, from the tables that came
back, and what that compiler has timed it does not compile to time it again.

On 16 processors with an H200 twelve executors are profiled, planned and built in 170 s, thirteen from tables that are
there in 85; PyTorch's reduce-overhead of one ResNet-50 step takes 60 s beside them, its max-autotune more than 540, or
170 s for 11 of 25 shapes alone: name it first, for processors prefer what is named first. Whoever times a kernel,
profile or PyTorch's compiler, takes a turn; what PyTorch warms up disturbs profiles nevertheless, which choose
algorithms by their times: better bring tables from a call without its rows. What the machine needs: as gpu_study.py.
`--null`: a dry run.
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from gpu_parts.rows import ALL  # noqa: E402
from gpu_study import COMPILED, pack, started, unpack  # noqa: E402

from codegen.cuda.turns import turn  # noqa: E402

Process = subprocess.Popen[bytes]
TIMED_S = 20.0
"""So long a row may take to be timed; then it is ended, for others wait."""
REST_S = 4.0
"""So long before the end everything is ended."""
STOPPED_S = 0.2
"""So long who was stopped may take to stand still."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--folder", type=Path, default=Path("out/gpu_rows"))
    parser.add_argument("--state", type=Path, default=None, help="archive of tables, plans and results")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--prepare", type=float, default=None, help="minutes; unless given, all but 20 s a row")
    parser.add_argument("--at-once", type=int, default=None, help="rows to prepare side by side; unless given, all")
    parser.add_argument("--null", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ALL):
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    if not options.rows:
        print("\n".join(ALL))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.state and options.state.exists():
        unpack(options.state, options.folder)
    begun = time.monotonic()
    end = begun + 60 * options.minutes - REST_S
    prepared = end - TIMED_S * len(options.rows) if options.prepare is None else begun + 60 * options.prepare
    rows = [Row(number, name, options) for number, name in enumerate(options.rows)]
    try:
        while time.monotonic() < end and not all(row.over for row in rows):
            begin(rows, options.at_once or len(rows))
            awaited = [row for row in rows if row.begun and not row.slow and not row.over]
            if all(row.ready for row in awaited) or time.monotonic() > prepared:
                time_those_ready(rows, end, options)
            for row in rows:
                row.tell_failure()
            time.sleep(0.2)
    finally:
        for row in rows:
            row.signal(signal.SIGKILL)
        if options.state:
            pack(options.folder, options.state)
    missing = [row.name for row in rows if not row.measured]
    print(f"not measured: {', '.join(missing) or 'nothing'}")
    return int(bool(missing))


class Row:
    """A row's process and the files by which it is told."""

    def __init__(self, number: int, name: str, options: argparse.Namespace) -> None:
        self.name, self._number, self._options, self._folder = name, number, options, options.folder
        self._process: Process | None = None
        self._told = False
        for ending in ("ready", "go", "json"):
            self.file(ending).unlink(missing_ok=True)

    def begin(self) -> None:
        script = str(ROOT / "examples" / "gpu_parts" / "rows.py")
        command = ["nice", "-n", str(min(19, self._number)), sys.executable, script, self.name]
        command += [str(self._folder), str(self._options.device), *(["null"] if self._options.null else [])]
        variables = {"TORCHINDUCTOR_CACHE_DIR": str((self._folder / COMPILED / self.name).resolve())}
        variables["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, (os.cpu_count() or 1) // 2))
        self._process = started(command, self._folder / "rows.log", **variables)

    def file(self, ending: str) -> Path:
        return Path(self._folder) / f"{self.name}.{ending}"

    @property
    def slow(self) -> bool:
        return self.name.startswith("max-autotune") or self.name == "cap_deepest"

    @property
    def begun(self) -> bool:
        return self._process is not None

    @property
    def over(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    @property
    def ready(self) -> bool:
        return self.begun and self.file("ready").exists() and not self.over

    @property
    def measured(self) -> bool:
        file = self.file("json")
        return file.exists() and "error" not in json.loads(file.read_text())[self.name]

    def tell_failure(self) -> None:
        """Of a process that ended without a word, once."""
        if self.over and not self._told and not self.file("json").exists():
            assert self._process is not None
            print(f"  {self.name}: ended with {self._process.returncode}; see rows.log", flush=True)
            self._told = True

    def measure(self, end: float) -> None:
        end = min(end, time.monotonic() + TIMED_S)
        self.file("go").touch()
        while time.monotonic() < end and not self.over:
            time.sleep(0.05)
        if not self.over:
            print(f"  {self.name}: out of time", flush=True)
            self.signal(signal.SIGKILL)

    def signal(self, what: signal.Signals) -> None:
        """To the process and all that it began: PyTorch's compiler has sessions of its own."""
        if self._process is None or self.over:
            return
        children = collections.defaultdict(list)
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                children[int(status.read_text().rpartition(")")[2].split()[1])].append(int(status.parent.name))
        pending = [self._process.pid]
        while pending:
            process = pending.pop()
            pending += children[process]
            with contextlib.suppress(OSError):
                os.kill(process, what)
        if what is signal.SIGKILL:
            self._process.wait()


def begin(rows: list[Row], at_once: int) -> None:
    """Slow rows, and so many others."""
    at_work = sum(row.begun and not row.over for row in rows if not row.slow)
    for row in rows:
        if not row.begun and (row.slow or at_work < at_once):
            row.begin()
            at_work += not row.slow


def time_those_ready(rows: list[Row], end: float, options: argparse.Namespace) -> None:
    """One after the other; the others do nothing meanwhile."""
    ready = [row for row in rows if row.ready]
    if not ready:
        return
    others = [row for row in rows if row not in ready]
    with turn(options.device, options.null):  # nobody is stopped while it has the turn, which those ready will take
        for row in others:
            row.signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
    for row in ready:
        row.measure(end)
    for row in others:
        row.signal(signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
