"""PyTorch as a contender of `stepplan bench`: its step runs in a process of its own.

A contender may fail to compile, or take its process down with it (PyTorch 2.13's compiler does, on some networks); what
was measured of the others and of the executor stays. It is timed where it runs, so what the processes tell each other
costs neither of them anything. `python -m codegen.contender PIPE` is that process.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from codegen.steps import settled, timed
from planner.errors import UserError
from planner.graph.model import Graph

WAYS = ("eager NCHW", "eager NHWC", "compile NCHW", "compile NHWC")
WARM_STEPS = 3
LEAVES_S = 5.0
"""A process that was told to end has so long."""


class Failed(Exception):
    """What became of a contender, in PyTorch's own words."""


class Work(NamedTuple):
    """What a contender trains."""

    graph: Graph
    inputs: list[np.ndarray]
    """Random, as `random_inputs` gives them."""
    state: dict[str, Any]
    """The executor's, where both start."""
    threads: int


def require_torch() -> None:
    """SP1012: PyTorch is not."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("SP1012", "comparing with PyTorch needs PyTorch", "pip install torch==2.13.0")


class Contender:
    """One way of PyTorch, its step warmed up. `Failed` when it cannot be prepared; a UserError of the child's is raised
    here."""

    def __init__(self, way: str, work: Work) -> None:
        ours, theirs = Pipe()
        self._pipe = ours
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (until close)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __spec__.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            self._ask(way, work)
        except BaseException:
            self.close()
            raise

    def settled(self) -> float:
        """ns of a step that follows others of its own."""
        return float(self._ask("settled")[0])

    def timed(self, repetitions: int) -> list[float]:
        """ns of each of so many steps."""
        return list(self._ask("timed", repetitions))

    def _ask(self, *what: Any) -> Any:
        try:
            self._pipe.send(what)
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Failed(self._last_words()) from error
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, str):
            raise Failed(answer)
        return answer

    def _last_words(self) -> str:
        """How the process ended, and the last that it said."""
        ended = self._process.wait()
        how = signal.Signals(-ended).name if ended < 0 else f"exit status {ended}"
        self._words.seek(0)
        said = self._words.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process ended with {how}" + (f": {said}" if said else "")

    def close(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(LEAVES_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def serve(pipe: Connection) -> None:
    """Prepare what is asked for first, then time its steps until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for who asks
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            way, work = pipe.recv()
            from codegen.torch_steps import prepare

            step = prepare(work.graph, work.inputs, work.state, work.threads, way)
            for _ in range(WARM_STEPS):
                step()
            pipe.send([])
            for what, *given in _requests(pipe):
                pipe.send([settled(step)] if what == "settled" else list(timed(step, *given)))
        except (EOFError, BrokenPipeError):
            raise
        except UserError as error:
            pipe.send(error)
        except Exception as error:
            pipe.send(str(error).strip().split("\n")[0] or type(error).__name__)


def _requests(pipe: Connection) -> Iterator[Any]:
    while True:
        yield pipe.recv()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
