"""What is timed on a GPU is timed alone."""

import time
from pathlib import Path
from threading import Thread

import pytest

from codegen.cuda.turns import turn, turns_file


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPLAN_CACHE", str(tmp_path))
    order: list[str] = []

    def other() -> None:
        with turn(0):
            order.append("other")

    with turn(0):
        waiting = Thread(target=other)
        waiting.start()
        time.sleep(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]
    with turn(0), turn(1), turn(0, null_device=True):  # another GPU's, and what has no times
        assert turns_file(0) != turns_file(1) and tmp_path in turns_file(0).parents
