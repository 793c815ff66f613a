"""Commands that are interrupted or killed at any moment, or run out of space, in processes of their own: afterwards
the folder is as before, complete, or says what is wrong with it; and running the command again repairs it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.load import executor_class
from planner.errors import UserError
from tests.cli import Files, succeeds

pytestmark = pytest.mark.xdist_group("killed")
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


def stop(process: subprocess.Popen[str], when: Callable[[], bool], how: signal.Signals) -> tuple[int, str]:
    """Signal the whole group, as a terminal does, when something has happened."""
    deadline = time.monotonic() + 60
    while process.poll() is None and not when() and time.monotonic() < deadline:
        time.sleep(0.002)
    if process.poll() is None:
        os.killpg(process.pid, how)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


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
            now = {p.name: p.stat().st_mtime_ns for p in list(out.iterdir()) if p.exists()}
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


@pytest.mark.parametrize("limit", [20_000, 200_000])
def test_a_full_disk(files: Files, tmp_path: Path, limit: int) -> None:
    """Files may grow to so many bytes: one clear error, and nothing half-written."""
    out = files.folder / "out"
    process = start("emit", files.plan, "-o", out, cache=tmp_path, limit=limit)
    _, errors = process.communicate(timeout=120)
    if process.returncode:
        assert process.returncode == 2 and "SP1702" in errors and "Traceback" not in errors, errors
        assert not list(out.glob(".*"))
        succeeds("emit", files.plan, "-o", out)
    process = start("build", out, cache=tmp_path, limit=limit)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2, errors
    assert "SP1514" in errors and "Traceback" not in errors, errors
    assert not list(out.glob("_executor.*.so"))
    with pytest.raises(UserError, match="SP1512"):
        executor_class(out)
