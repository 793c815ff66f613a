"""What all commands share: registering, results, progress and errors.

Results go to standard output, everything else to standard error, so that results can be piped. Exit codes: 0 done,
1 `check` found something or `diff` found a difference, 2 the user's mistake, 70 a defect of stepplan, 130 interrupted.
"""

import argparse
import errno
import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from planner import __version__
from planner.errors import InternalError, UserError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

DEFECT = 70
INTERRUPTED = 130
LINE_S = 20.0
"""Seconds between two lines about what takes long."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"stepplan {__version__}")
        raise typer.Exit


@app.callback()
def stepplan(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Plan a neural network's training step ahead of time and generate its executor.

    MODEL is a zoo name, package.module:factory or an .onnx file. PLAN is a folder or its plan.json. `stepplan make`
    does everything in one go; docs/cli.md has examples.
    """


def emit_result(as_json: bool, document: dict[str, Any], text: str) -> None:
    """Print a command's result: the object with --json, else the text."""
    print(json.dumps(document, sort_keys=True) if as_json else text)


def warn(text: str) -> None:
    print(f"warning {one_terminal_line(text)}", file=sys.stderr)


def one_terminal_line(text: str) -> str:
    """Text that may quote a stranger's file: no control character but the line end reaches the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@contextmanager
def friendly_errors() -> Iterator[None]:
    """A user's mistake is one readable message and exit code 2; only a defect of stepplan shows a traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except UserError as error:
        raise _ended(str(error), 2) from None
    except KeyboardInterrupt:
        raise _ended("interrupted; nothing is half-written", INTERRUPTED) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of a pipe left
            raise
        name = f"{error.filename}: " if error.filename else ""
        what = f"{name}{error.strerror or error}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # of a temporary folder, for instance
        raise _ended(str(_no_room(what) if full else _refused(what)), 2) from None
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
        lines = (str(error) or "no message").splitlines()
        raise _ended(f"defect of stepplan, please report it with the lines above: {kind}{lines[0]}", DEFECT) from None


def _refused(what: str) -> UserError:
    return UserError("SP1703", f"the system refused access: {what}", "check the path, its permissions and free space")


def _no_room(what: str) -> UserError:
    return UserError("SP1702", f"a file cannot be written: {what}", "free space or choose a writable folder")


def _ended(text: str, code: int) -> typer.Exit:
    print(one_terminal_line(text), file=sys.stderr)
    return typer.Exit(code)


def script(main: Callable[[], int | None]) -> NoReturn:
    """Run an example's main as commands run: with readable errors, and its result as the exit code."""
    try:
        with friendly_errors():
            code = main()
    except typer.Exit as ended:
        code = ended.exit_code
    sys.exit(code)


def positive(text: str) -> int:
    """For argparse: a whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """For argparse, whose `choices` take no list as the default."""

    def chosen(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"there is no {text!r}; choose from {', '.join(names)}")
        return text

    return chosen


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Register a function as a command with readable errors."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with friendly_errors():
            return function(*args, **kwargs)

    return app.command()(wrapped)


@cache
def stderr() -> "Console":
    """Where everything but results is printed."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on standard error while the block runs: call with (what, done, total), one bar per first word.

    Where standard error is no terminal, a line now and then: logs stay short, and whoever waits in front of a notebook
    sees that it goes on.
    """
    if not stderr().is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr(), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            kind = what.split()[0]
            if kind not in tasks:
                tasks[kind] = bar.add_task(what, total=total)
            bar.update(tasks[kind], description=what, completed=done, total=total)

        yield update


def _lines() -> Callable[[str, int, int], None]:
    """What takes less than LINE_S is silent."""
    due = time.monotonic() + LINE_S

    def update(what: str, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)
            due = time.monotonic() + LINE_S

    return update
