"""The lanes themselves: races under ThreadSanitizer, allocations, and machines that do not fit the plan."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from planner.solve.memory.steps import Decision
from tests.codegen.plans import make, plan_for
from tests.codegen.quick import QUICK
from tests.graphs import small_net
from tests.rewrites import Rewriter

ROOT = Path(__file__).parents[2]

STEPS = """
    import numpy as np
    from codegen.load import executor_class
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, 4)
    make = executor_class({folder!r})
"""


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; it starts with `make`, the folder's Executor, and a batch x, y."""
    script = textwrap.dedent(STEPS.format(folder=str(folder))) + textwrap.dedent(code)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def sanitizer() -> str:
    found = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("this toolchain has no ThreadSanitizer")
    return found


def test_no_races_under_thread_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    plan, target = plan_for(small_net(), 3)
    emit(plan, small_net(), target, tmp_path)
    no_races_but_without_waits(tmp_path, sanitizer, "train_step on lane 1")


def test_copy_lanes_under_thread_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    rewriter = Rewriter(small_net(), 2)
    ways: dict[str, Decision] = {**rewriter.everything("fresh"), **rewriter.everything("move")}
    ways |= {"bn1.y": "share", "conv1.y": "fresh"}
    emit(rewriter.plan(ways), small_net(), rewriter.target, tmp_path)
    no_races_but_without_waits(tmp_path, sanitizer, "train_step on lane 2, which copies")


def no_races(folder: Path, sanitizer: str) -> None:
    """Build and run everything under the sanitizer, with delays; the output is in the assertion."""
    build(folder, sanitize="thread")
    done = sanitized_run(folder, sanitizer)
    assert done.returncode == 0, done.stderr[:4000]


def sanitized_run(folder: Path, sanitizer: str) -> subprocess.CompletedProcess[str]:
    code = """
        for seed in (0, 1, 2):
            with make(pin=False) as executor:
                executor.delays(seed)
                for _ in range(10):
                    executor.step(x, y)
                executor.predict(x)
                executor.gradients(x, y)
                if seed == 0:  # takes seconds, whatever the delays
                    executor.handoff_ns(), executor.crossing(), executor.crowding()
    """
    return python(code, folder, LD_PRELOAD=sanitizer, TSAN_OPTIONS="exitcode=66")


def no_races_but_without_waits(folder: Path, sanitizer: str, lane: str) -> None:
    """No races; but some without the waits of a lane's program, as proof that the sanitizer sees them."""
    no_races(folder, sanitizer)
    lanes = folder / "lanes.cpp"
    start, rest = lanes.read_text().split(lane, 1)
    lanes.write_text(start + lane + without_waits(rest))
    build(folder, sanitize="thread")
    done = sanitized_run(folder, sanitizer)
    # The races may well crash it before it ends; either way the sanitizer has told them.
    assert done.returncode != 0 and "data race" in done.stderr


def without_waits(text: str) -> str:
    lines = [line.split(", {{")[0] + ", {}}," if ", {{" in line else line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


COUNTER = """
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_memalign(size_t, size_t);
static long made;
/* Only calls from the executor's own code count: what oneDNN does inside an execution is its own affair. */
static void count(const void *caller) {
  Dl_info info;
  if (dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/_executor."))
    __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
}
long allocations(void) { return __atomic_load_n(&made, __ATOMIC_RELAXED); }
void *malloc(size_t n) { count(__builtin_return_address(0)); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { count(__builtin_return_address(0)); return __libc_calloc(n, m); }
void *_Znwm(size_t n) { count(__builtin_return_address(0)); return __libc_malloc(n); }
void *_ZnwmSt11align_val_t(size_t n, size_t a) { count(__builtin_return_address(0)); return __libc_memalign(a, n); }
void _ZdlPv(void *p) { free(p); }
void _ZdlPvm(void *p, size_t n) { free(p); }
"""


def test_a_step_allocates_nothing(small_class: type[Executor], small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "count.c").write_text(COUNTER)
    library = tmp_path / "count.so"
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-O1", "-w", "-fPIC", "-shared", tmp_path / "count.c", "-o", library], check=True
    )
    code = """
        import ctypes
        allocations = ctypes.CDLL(None).allocations
        with make(pin=False) as executor:
            started = allocations()
            for _ in range(5):
                executor.step(x, y)
            executor.predict(x)
            print(started, allocations() - started)
    """
    done = python(code, small_folder, LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stderr
    started, made = map(int, done.stdout.split())
    # The binding holds each array that it is given: two for a step, one for predict. Nothing else is made.
    assert started > 0 and made <= 5 * 2 + 1


REPORT = """
    from planner.errors import UserError
    try:
        make(pin=PIN).close()
        print("made")
    except UserError as error:
        print(error)
"""


def test_fewer_threads_than_lanes(tmp_path: Path) -> None:
    make(small_net(), tmp_path, lanes=3)
    done = python(REPORT.replace("PIN", "False"), tmp_path, OMP_THREAD_LIMIT="1")
    assert "SP1602: the plan needs 2 threads beside the caller's, but OpenMP gave 1" in done.stdout, done.stderr
    done = python(REPORT.replace("PIN", "False"), tmp_path, OMP_THREAD_LIMIT="2", OMP_DYNAMIC="true")
    assert "made" in done.stdout, done.stderr


def test_signals_between_lanes_take_time(small: Executor) -> None:
    assert all(10 < small.handoff_ns() < 1e9 for _ in range(3))


def test_bytes_that_two_lanes_touch_in_turn(small: Executor) -> None:
    assert all(0 <= ns < 1e6 for _ in range(2) for ns in small.crossing())


def test_lanes_that_work_together(small: Executor) -> None:
    assert all(1 <= small.crowding() < 1e3 for _ in range(2))


def test_the_caller_is_left_as_it_was(small_class: type[Executor], small_folder: Path) -> None:
    code = """
        import os, torch
        torch.set_num_threads(3)
        with make(pin=True) as executor:
            before = os.sched_getaffinity(0)
            executor.step(x, y)
            print(os.sched_getaffinity(0) == before, torch.get_num_threads())
    """
    done = python(code, small_folder)
    assert done.stdout.split() == ["True", "3"], done.stderr


def edited(folder: Path, source: Path, file: str, old: str, new: str) -> Path:
    """A copy of an emitted folder with one line changed, built."""
    folder.mkdir()
    for each in source.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    build(folder, flags=QUICK)
    return folder


def test_processors_that_do_not_exist(small_class: type[Executor], small_folder: Path, tmp_path: Path) -> None:
    folder = edited(tmp_path / "far", small_folder, "executor.cpp", "lane_cpus[] = {0, 1}", "lane_cpus[] = {0, 1000}")
    done = python(REPORT.replace("PIN", "True"), folder)
    assert "SP1603: lane 1 cannot run on logical processor 1000" in done.stdout and "pin=False" in done.stdout
    assert "made" in python(REPORT.replace("PIN", "False"), folder).stdout


def test_two_lanes_on_one_processor_make_progress(small_class: type[Executor], small_folder: Path) -> None:
    code = """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with make(pin=False) as executor:
            print([executor.step(x, y) for _ in range(5)])
    """
    done = python(code, small_folder)
    assert done.returncode == 0 and done.stdout.count(",") == 4, done.stderr


def test_an_arena_that_does_not_fit(small_class: type[Executor], small_folder: Path, tmp_path: Path) -> None:
    arena = f", {small_class.plan.pools[0].arena}, lane_cpus"
    folder = edited(tmp_path / "large", small_folder, "executor.cpp", arena, f", {2**62}, lane_cpus")
    done = python(REPORT.replace("PIN", "False"), folder)
    assert f"SP1604: cannot allocate the plan's arena of {2**62} bytes" in done.stdout, done.stderr


def test_a_library_that_wants_other_sizes(small_class: type[Executor], small_folder: Path, tmp_path: Path) -> None:
    old = 'require_sizes("conv1", conv1, 2, {'
    folder = edited(tmp_path / "other", small_folder, "kernels.cpp", old, f"{old}64 + ")
    done = python(REPORT.replace("PIN", "False"), folder)
    assert "SP1605: node conv1: the kernel library needs" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["brgconv:of_another_processor", "depthwise"])
def test_a_library_without_a_planned_kernel(
    name: str, small_class: type[Executor], small_folder: Path, tmp_path: Path
) -> None:
    """Of the library, or of ours where it does not fit the shape: `check` knows neither."""
    old = re.search(r"    : conv1\(.*\"(.*)\"", (small_folder / "kernels.cpp").read_text())
    assert old
    folder = edited(tmp_path / "lacks", small_folder, "kernels.cpp", old[0], old[0].replace(f'"{old[1]}"', f'"{name}"'))
    done = python(REPORT.replace("PIN", "False"), folder)
    assert "SP1605: the kernel library lacks a kernel of the plan: " in done.stdout and name in done.stdout, done.stderr


def test_a_kernel_that_throws_leaves_the_executor_usable(
    small_class: type[Executor], small_folder: Path, tmp_path: Path
) -> None:
    old = '#include "optimizer.hpp"\n'
    broken = 'if (run.lr == 7) throw std::runtime_error("broken kernel");'
    folder = edited(tmp_path / "throws", small_folder, "update.cpp", old, f"#include <stdexcept>\n{old}")
    source = folder / "update.cpp"
    source.write_text(source.read_text().replace("if (!run.apply_updates)", f"{broken}\n  if (!run.apply_updates)"))
    build(folder, flags=QUICK)
    code = """
        from planner.errors import InternalError
        with make(pin=False) as executor:
            for _ in range(3):
                try:
                    executor.step(x, y, lr=7.0)
                except InternalError as error:
                    print(error)
                executor.step(x, y, lr=0.1)
            print(executor.steps_done)
    """
    done = python(code, folder)
    assert done.stdout.count("broken kernel") == 3 and done.stdout.endswith("3\n"), done.stderr
