"""Executors in processes that were forked off, whose threads do not exist there."""

import multiprocessing
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from codegen.executor import Executor
from planner.errors import UserError
from tests.codegen.following import batch
from tests.graphs import small_net


def test_a_forked_process_cannot_step(small: Executor) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_step_in_child, args=(small, answers))
    process.start()
    assert answers.get(timeout=60) == "SP1606"
    process.join()


def test_forked_off_while_a_thread_uses_it(small: Executor) -> None:
    """The thread does not exist in the child, which must not wait for it: not for its lock, not for its lanes."""
    answers = multiprocessing.get_context("fork").Queue()
    uses = (small.state_dict, small.handoff_ns, small.crossing, small.crowding)
    for held in (False, True):
        taken, done = threading.Event(), threading.Event()

        def hold(held: bool = held, taken: threading.Event = taken, done: threading.Event = done) -> None:
            with small._lock if held else nullcontext():
                taken.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        process = multiprocessing.get_context("fork").Process(target=_codes_in_child, args=(uses, answers))
        process.start()
        found = answers.get(timeout=60)
        process.join()
        done.set()
        thread.join()
        assert found == ["SP1606" if held else "none", *["SP1606"] * 3]
    small.step(*batch(small_net()))


def _codes_in_child(uses: Any, answers: Any) -> None:
    found = []
    for use in uses:
        try:
            use()
            found.append("none")
        except UserError as error:
            found.append(error.code)
    answers.put(found)


def _step_in_child(executor: Executor, answers: Any) -> None:
    try:
        executor.step(*batch(small_net()))
    except UserError as error:
        answers.put(error.code)


def test_forked_processes_end(small_class: type[Executor], small_folder: Path) -> None:
    """A child that closes what it was forked with, or leaves through Python's own exit, waits for no thread of its
    parent's; the parent goes on."""
    script = """
import os, sys
from codegen.load import executor_class
kept, closed = (executor_class(sys.argv[1])(seed=0) for _ in range(2))
if not (child := os.fork()):
    closed.close()
    del closed
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
kept.close()
closed.close()
"""
    command = [sys.executable, "-c", script, str(small_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n" and done.returncode == 0, done.stderr
