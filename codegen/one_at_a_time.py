"""The lock of an executor: one call at a time, and none that waits for a thread which does not exist."""

import os
import threading

from planner.errors import UserError


class OneAtATime:
    """A lock that the thread which holds it may take again, as a handler of a signal does that saves the state.

    SP1606: another thread held it while this process was forked off, and is not here to give it back; what it was
    changing is half-changed here.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=os.getpid() == self._process):
            what = "this process was forked off while another thread used the executor"
            raise UserError("SP1606", what, "make the executor in the process that runs it")

    def __exit__(self, *error: object) -> None:
        self._lock.release()
