"""Commands that are interrupted or killed at any moment, or run out of space, in processes of their own: afterwards
the folder is as before, complete, or says what is wrong with it; and running the command again repairs it."""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen import toolchain
from codegen.build import CONVOLUTIONS
from codegen.load import executor_class
from planner.costs.table import read_costs, write_costs
from planner.errors import UserError
from tests.cli import Files, succeeds

ROOT = Path(__file__).resolve().parents[1]


def start(*arguments: object, cache: Path, limit: int | None = None) -> subprocess.Popen[str]:
    """A command in its own process group, with an object cache of its own."""
    environment = {**os.environ, "STEPPLAN_CACHE": str(cache), "PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"}

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-c", "from codegen.__main__ import main; main()", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=limited,
    )


@pytest.fixture
def cache(made_workspace: Files, tmp_path: Path) -> Path:
    """An object cache of the test's own. It has what takes longest to compile: the libraries' code, not the plan's nor
    the bindings."""
    succeeds("emit", made_workspace.plan, "-o", tmp_path / "before")
    succeeds("build", tmp_path / "before")
    objects = tmp_path / "cache" / "objects"
    objects.mkdir(parents=True)
    libraries = ("nb_combined-", *(f"{group[-1].stem}-" for group in CONVOLUTIONS))
    for made in (toolchain.cache_folder() / "objects").glob("*.o"):
        if made.name.startswith(libraries):
            shutil.copy(made, objects)
    return objects.parent


def stop(process: subprocess.Popen[str], when: Callable[[], bool], how: signal.Signals) -> tuple[int, str]:
    """Signal the whole group, as a terminal does, when something has happened."""
    deadline = time.monotonic() + 60
    while process.poll() is None and not when() and time.monotonic() < deadline:
        time.sleep(0.002)
    if process.poll() is None:
        os.killpg(process.pid, how)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def finish(process: subprocess.Popen[str]) -> None:
    """Undisturbed, it succeeds."""
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def require_clean(code: int, errors: str, how: signal.Signals) -> None:
    assert code in (0, 130, -how), errors
    assert "Traceback" not in errors, errors


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_emit_between_files(files: Files, tmp_path: Path, how: signal.Signals) -> None:
    """Stopped over an older executor when 1, 4, 8, 12 of its files are new: the mixture is never taken for one."""
    out, other = files.folder / "out", files.folder / "other"
    succeeds("plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", other, "--lanes", 1)
    for count in (1, 4, 8, 12):
        shutil.rmtree(out, ignore_errors=True)
        succeeds("emit", files.plan, "-o", out)
        before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}

        def several(before: dict[str, int] = before, count: int = count) -> bool:
            now = {}
            for file in list(out.iterdir()):
                with contextlib.suppress(FileNotFoundError):  # it had the name of an unfinished one
                    now[file.name] = file.stat().st_mtime_ns
            return sum(now.get(n) != t for n, t in before.items()) >= count

        code, errors = stop(start("emit", other, "-o", out, cache=tmp_path), several, how)
        require_clean(code, errors, how)
        succeeds("check", files.plan)
        old, new = (files.plan / "plan.json").read_bytes(), (other / "plan.json").read_bytes()
        assert (out / "plan.json").read_bytes() in (old, new)
        with pytest.raises(UserError) as caught:  # it is not built, or it is a mixture
            executor_class(out)
        assert caught.value.code in ("SP1511", "SP1512")
        succeeds("emit", other, "-o", out)
        assert (out / "plan.json").read_bytes() == new
        if how is signal.SIGINT:
            assert not list(out.glob(".*")), "no temporary files"


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since this call."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def test_build(files: Files, cache: Path) -> None:
    """Stopped at a random moment and with a few objects complete; the next build goes on with those."""
    out = files.folder / "out"
    succeeds("emit", files.plan, "-o", out)
    before = len(list((cache / "objects").glob("*.o")))

    def objects(count: int) -> Callable[[], bool]:
        return lambda: len(list((cache / "objects").glob("*.o"))) >= before + count

    seconds = random.uniform(0.2, 4)
    for when, how in ((after(seconds), signal.SIGKILL), (objects(2), signal.SIGINT)):
        code, errors = stop(start("build", out, cache=cache), when, how)
        require_clean(code, errors, how)
        if list(out.glob("_executor.*.so")):  # stopped after its last rename: then it is complete
            executor_class(out)(pin=False).close()
        else:
            assert code, f"after {seconds} s"
            with pytest.raises(UserError, match="SP1512"):
                executor_class(out)
    complete = {p: p.stat().st_ino for p in (cache / "objects").glob("*.o")}
    assert len(complete) > before
    finish(start("build", out, cache=cache))
    assert all(p.stat().st_ino == i for p, i in complete.items()), "complete objects are used again"
    executor_class(out)(pin=False).close()


def test_profile(files: Files, cache: Path) -> None:
    """The table stays readable and keeps what it had, and profiling goes on from it."""
    table = read_costs(files.costs)
    entries = tuple(e for e in table.entries if not e.signature.startswith("sgd_update"))
    write_costs(table.model_copy(update={"entries": entries}), files.costs)
    command = ("profile", files.graph, "--target", files.target, "-o", files.costs, "--budget", 0.1, "--no-pairs")
    written = files.costs.stat().st_mtime_ns
    seconds = random.uniform(0.2, 4)
    for when, how in (
        (after(seconds), signal.SIGKILL),
        (lambda: files.costs.stat().st_mtime_ns != written, signal.SIGINT),
    ):
        code, errors = stop(start(*command, cache=cache), when, how)
        require_clean(code, errors, how)
        known = read_costs(files.costs).entries
        assert all(e in known for e in entries), f"after {seconds} s"
    finish(start(*command, cache=cache))
    succeeds("plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", files.folder / "made")


@pytest.mark.parametrize("limit", [20_000, 200_000])
def test_a_full_disk(files: Files, cache: Path, limit: int) -> None:
    """Files may grow to so many bytes: one clear error, and nothing half-written."""
    out = files.folder / "out"
    process = start("emit", files.plan, "-o", out, cache=cache, limit=limit)
    _, errors = process.communicate(timeout=120)
    if process.returncode:
        assert process.returncode == 2 and "SP1702" in errors and "Traceback" not in errors, errors
        assert not list(out.glob(".*"))
        succeeds("emit", files.plan, "-o", out)
    process = start("build", out, cache=cache, limit=limit)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2, errors
    assert "SP1514" in errors and "Traceback" not in errors, errors
    assert not list(out.glob("_executor.*.so"))
    with pytest.raises(UserError, match="SP1512"):
        executor_class(out)
