"""Python ends while one of its threads, which it does not wait for, is in the middle of a step."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from codegen.executor import Executor

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
    import threading
    import time
    from pathlib import Path

    import numpy as np

    from codegen.load import executor_class

    executor = executor_class(Path({folder!r}))(pin=False)
    executor.delays(1)  # nearly all of the time is spent in the step
    arrays = [np.zeros(executor._graph.value[name].type.shape, executor._graph.value[name].type.dtype.value)
              for name in executor.input_names]
    begun = threading.Event()

    def steps():
        while True:
            executor.step(*arrays)
            begun.set()

    threading.Thread(target=steps, daemon=True).start()
    begun.wait()
    time.sleep({pause})
"""


def test_a_daemon_thread_that_steps_aborts_nothing(small_class: type[Executor], small_folder: Path) -> None:
    """Before Python 3.14 the interpreter ends such a thread where it asks for the GIL again."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    for pause in (0, 0.01, 0.03):
        code = textwrap.dedent(SCRIPT).format(folder=str(small_folder), pause=pause)
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0 and not done.stderr, (done.returncode, done.stderr[-2000:])
