"""The command line, planning half: thin. Each command parses, calls one function and prints.

codegen/cli.py adds the commands that need a compiler (profile, emit, build, bench, make) to the same application.
Commands import what they call when they run, so that `stepplan --help` answers at once and `stepplan check` does not
wait for the solvers.
"""

from planner.cli import planning, reading
from planner.console import app

__all__ = ["app", "planning", "reading"]
