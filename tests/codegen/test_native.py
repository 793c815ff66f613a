"""Where a built module may be loaded at all."""

import subprocess
import sys

SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = '''
import sys
sys.path[:0] = {path!r}
from codegen.native import require_main_interpreter
from planner.errors import UserError
try:
    require_main_interpreter()
except UserError as error:
    print(error.code, flush=True)
'''.format(path=sys.path)
failed = interpreters.run_string(interpreters.create(), code)
assert not failed, failed
"""


def test_subinterpreters_are_refused() -> None:
    """Their first step would wait for ever. In a process of its own: other libraries can be loaded but once."""
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["SP1623"], done.stderr
