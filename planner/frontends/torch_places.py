"""Where in the user's code it happened: of nodes of exported programs, of errors, and of what runs right now."""

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from planner.errors import UserError

OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The package's folder."""


def calling_line() -> str:
    """The innermost line of the running code that is neither PyTorch's nor ours."""
    frames = [(f.filename, f.lineno) for f in traceback.extract_stack()]
    return line_of([(file, str(line)) for file, line in frames if not file.startswith(OURS)])


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def raised_at(error: BaseException) -> str:
    """The user's innermost line that an error comes from; empty where there is none, as in a loss of PyTorch's."""
    return line_of([f for f in frames_of(error) if is_own(f[0])])


def frames_of(error: BaseException) -> list[tuple[str, str]]:
    """(file, line) of all that an error comes from."""
    return [(f.filename, str(f.lineno)) for e in causes(error) for f in traceback.extract_tb(e.__traceback__)]


def source_line(node: Any) -> str:
    """`models/net.py:12`: the user's innermost line, relative to where it is imported from; empty where all lines are
    PyTorch's, as within nn.Sequential."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return line_of([f for f in frames if is_own(f[0])])


def is_own(file: str) -> bool:
    """Neither PyTorch's, nor Python's, nor ours, nor made up while running."""
    if f"{os.sep}torch{os.sep}" in file or file.startswith(("<", OURS)):
        return False
    packages = "site-packages" in file  # which may lie within the library's folder
    return packages or os.path.join(sysconfig.get_path("stdlib"), "") not in file


def place_of(node: Any) -> str:
    """The user's line, or the layer's path, or that it is the loss, whose lines PyTorch does not note where it is a
    function; empty where nothing is known."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = re.sub(r"@\d+", "", stack[-1]) if stack else ""
    called_by_us = OURS in (node.meta.get("stack_trace") or "")
    return source_line(node) or (f"layer {path}" if path else "the loss" if called_by_us else "")


def line_of(frames: Sequence[tuple[str, str]]) -> str:
    """The innermost frame that is not PyTorch's."""
    own = [(f, line) for f, line in frames if f"{os.sep}torch{os.sep}" not in f] or frames
    if not own:
        return ""
    file, line = own[-1]
    roots = [os.path.join(os.path.abspath(root), "") for root in (*sys.path, os.getcwd())]
    root = max((r for r in roots if file.startswith(r)), key=len, default=os.path.join(os.path.dirname(file), ""))
    return f"{file.removeprefix(root)}:{line}"


def located_error(error: UserError, node: Any) -> UserError:
    """The same error with the source line of the operator that caused it."""
    return UserError(error.code, f"{error.problem}{in_brackets(node)}", error.fix)


def in_brackets(node: Any) -> str:
    return bracketed(place_of(node))


def bracketed(place: str) -> str:
    return f" ({place})" if place else ""


def here() -> str:
    """The line that runs, in brackets."""
    return bracketed(calling_line())
