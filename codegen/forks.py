"""Executors in a process that was forked off: a thread that held the lock of one does not exist there."""

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codegen.executor import Executor

_executors: "weakref.WeakSet[Executor]" = weakref.WeakSet()


def give_lock(executor: "Executor") -> None:
    """One call at a time. The thread that holds the lock may take it again, as a handler of a signal does that saves
    the state. Of Python's own kind: no Ctrl-C comes between its being taken and the block that gives it back."""
    executor._lock = threading.RLock()
    _executors.add(executor)


def _in_child() -> None:
    for executor in _executors:
        if executor._lock.acquire(blocking=False):
            executor._lock.release()
        else:
            executor._lock, executor._torn = threading.RLock(), True


os.register_at_fork(after_in_child=_in_child)
