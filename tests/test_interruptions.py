"""A full disk, a read-only folder, Ctrl-C and defects: nothing half-written, no traceback but for defects."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import codegen.cli
import planner.plan.check
from codegen.__main__ import main
from codegen.build import build
from planner.errors import InternalError
from tests.cli import Files, everything_below, fails, run, succeeds

WAYS = {
    "write": (os, "fdopen"),
    "flush": (os, "fsync"),
    "rename": (os, "replace"),
    "create": (os, "open"),
}


def commands(files: Files) -> dict[str, tuple[object, ...]]:
    """Every command that writes files, over files that are there already."""
    out = files.folder / "out"
    plan = ("plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", out)
    return {
        "detect": ("detect", "-o", files.target),
        "capture": ("capture", "mlp", "--batch", 2, "-o", files.graph),
        "plan": (*plan, "--lanes", 1),
        "check": ("check", "--accept-edits", files.plan),
        "show": ("show", files.plan, "--html", files.folder / "page.html", "--trace", files.folder / "page.trace"),
        "emit": ("emit", files.plan, "-o", files.folder / "emitted"),
        "profile": ("profile", files.graph, "--target", files.target, "-o", files.costs),
    }


@pytest.fixture
def old(files: Files) -> dict[str, bytes]:
    """Files that must survive."""
    succeeds(*commands(files)["plan"])
    succeeds(*commands(files)["emit"])
    (files.folder / "page.html").write_text("old")
    (files.folder / "page.trace").write_text("old")
    return everything_below(files.folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["detect", "capture", "plan", "check", "show", "emit", "profile"])
def test_a_full_disk(
    command: str, way: str, files: Files, old: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*WAYS[way], full)
    assert "No space left" in fails("SP1702", *commands(files)[command])
    monkeypatch.undo()
    assert everything_below(files.folder) == old


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["detect", "capture", "plan", "check", "show", "emit", "profile"])
def test_interrupted(
    command: str, way: str, files: Files, old: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*WAYS[way], interrupted)
    result = run(*commands(files)[command])
    assert result.exit_code == 130 and "interrupted" in result.stderr and "Traceback" not in result.output
    monkeypatch.undo()
    assert everything_below(files.folder) == old


@pytest.mark.parametrize("last", range(1, 5))
def test_a_disk_that_fills_up_between_two_files(
    last: int, files: Files, old: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is old or new, never something else, and a mixed folder is noticed."""
    real, count = os.replace, [0]

    def fills_up(source: str, target: str) -> None:
        count[0] += 1
        if count[0] >= last:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", fills_up)
    out = files.folder / "out"
    plan = ("plan", files.graph, "--costs", files.costs, "--target", "cpu16", "-o", out)
    result = run(*plan)
    monkeypatch.undo()
    assert set(everything_below(files.folder)) == set(old), "no temporary files"
    if result.exit_code == 0:
        assert last > 3
        succeeds("check", out)
        return
    assert result.stderr.count("SP1702") == 1
    mixed = run("check", out)
    assert mixed.exit_code == 0 or "SP1404" in mixed.stderr or "SP1403" in mixed.stderr


def test_links_stay_links(files: Files) -> None:
    link = files.folder / "link.toml"
    link.symlink_to(files.target.name)
    succeeds("detect", "-o", link, "--name", "linked")
    assert link.is_symlink() and 'name = "linked"' in files.target.read_text()


def test_who_may_read_a_file(files: Files) -> None:
    """New files are as the user's umask has them; what replaces a file is as that was."""
    before = os.umask(0o077)
    try:
        succeeds("detect", "-o", files.folder / "new.toml")
        succeeds("emit", files.plan, "-o", files.folder / "generated")
        module = build(files.folder / "generated")
        files.target.chmod(0o664)
        succeeds("detect", "-o", files.target)
    finally:
        os.umask(before)
    modes = [f.stat().st_mode & 0o777 for f in (files.folder / "new.toml", module, files.target)]
    assert modes == [0o600, 0o700, 0o664]


def test_what_is_no_file_is_written_to(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    """A device must not become a file, as a rename by root would have it."""
    pipe = files.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    succeeds("detect", "-o", pipe, "--name", "piped")
    assert b'name = "piped"' in os.read(reader, 2**16) and pipe.is_fifo()
    os.close(reader)
    full = Path("/dev/full")
    if full.is_char_device():
        assert "No space left" in fails("SP1702", "detect", "-o", full)
        assert full.is_char_device()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", [("--help",), ("check", "--help"), ("check", "PLAN")])
def test_results_that_cannot_be_printed(command: tuple[str, ...], files: Files) -> None:
    arguments = [sys.executable, "-m", "codegen", *(str(files.plan) if a == "PLAN" else a for a in command)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.startswith("SP1702: ") and "Traceback" not in done.stderr


def test_names_beyond_the_terminals_characters(files: Files) -> None:
    command = [sys.executable, "-m", "codegen", "detect", "-o", str(files.folder / "t\xe4\udcff.toml")]
    for encoding, told in (("ascii", "t\\xe4\\udcff.toml\n"), ("utf-8", "t\xe4\\udcff.toml\n")):
        environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"}
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0 and done.stdout.decode().endswith(told), done.stderr


def test_read_only_folders(files: Files) -> None:
    blocked = files.folder / "file"
    blocked.write_text("in the way")
    fails("SP1702", "plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", blocked)
    fails("SP1702", "capture", "mlp", "-o", blocked / "graph.json")
    fails("SP1702", "emit", files.plan, "-o", blocked)
    fails("SP1702", "show", files.plan, "--html", blocked / "page.html")
    fails("SP1702", "show", files.plan, "--html", files.folder)
    assert blocked.read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_without_permission(files: Files) -> None:
    closed = files.folder / "closed"
    closed.mkdir(mode=0o555)
    fails("SP1702", "emit", files.plan, "-o", closed)
    fails("SP1702", "emit", files.plan, "-o", closed / "below")


def test_permission_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "somewhere")

    monkeypatch.setattr(planner.plan.check, "check", refuse)
    assert "somewhere" in fails("SP1703", "check", files.plan)


@pytest.mark.parametrize("defect", [InternalError("two lanes\nat once"), ValueError("odd"), KeyError("conv")])
def test_defects_ask_for_a_report(defect: Exception, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise defect

    monkeypatch.setattr(planner.plan.check, "check", broken)
    result = run("check", files.plan)
    assert result.exit_code == 70
    assert "Traceback" in result.stderr and "please report it" in result.stderr.splitlines()[-1]


def test_a_closed_pipe_is_no_defect(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*args: object) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(planner.plan.check, "check", closed)
    result = run("check", files.plan)
    assert "Traceback" not in result.stderr and "SP" not in result.stderr


def test_no_file_is_left_in_the_working_folder(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.folder)
    before = set(everything_below(files.folder))
    for command in (("check", files.plan), ("show", files.plan), ("simulate", files.plan), ("explain", "plan", "fc1")):
        succeeds(*command)
    assert set(everything_below(Path.cwd())) == before


@pytest.mark.parametrize("ended", [SystemExit(0), KeyboardInterrupt()])
def test_an_interrupt_when_all_is_done(
    ended: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python raises it in whatever runs next, such as the call behind which interrupts are ignored."""
    calls: list[int] = []

    def run() -> None:
        raise ended

    def ignore(number: int, handler: object) -> None:
        calls.append(number)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(codegen.cli, "main", run)
    monkeypatch.setattr(signal, "signal", ignore)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130 and capsys.readouterr().err == "interrupted\n"
    assert calls == [signal.SIGINT] * 2
