"""What is timed on a GPU is timed alone."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from codegen.cuda.turns import compilers_turns, turn, turns_file


def waits_its_turn(other: Callable[[], None], order: list[str]) -> None:
    """What `other` does once it may, when it was asked while somebody else had the turn."""
    with turn(0):
        waiting = Thread(target=other)
        waiting.start()
        time.sleep(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "other"]


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPLAN_CACHE", str(tmp_path))
    order: list[str] = []

    def other() -> None:
        with turn(0):
            order.append("other")

    waits_its_turn(other, order)
    with turn(0), turn(1), turn(0, null_device=True):  # another GPU's, and what has no times
        assert turns_file(0) != turns_file(1) and tmp_path in turns_file(0).parents


def test_pytorchs_compiler_takes_a_turn_to_time_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it times one by way of another; and only while it is asked to."""
    from torch._inductor.runtime.benchmarking import benchmarker

    monkeypatch.setenv("STEPPLAN_CACHE", str(tmp_path))
    order: list[str] = []

    def time_kernel(kernel: Callable[[], None], *, again: bool = False) -> float:
        kernel()
        return benchmarker.benchmark_gpu(kernel) if again else 0.25

    def compile_and_time() -> None:
        with pytest.raises(StopIteration):
            benchmarker.benchmark_gpu(iter([None]).__next__)  # compiled by its first run, timed by the second
        order.append("other")

    monkeypatch.setattr(benchmarker, "benchmark_gpu", time_kernel)
    with compilers_turns(0):
        waits_its_turn(compile_and_time, order)
        assert benchmarker.benchmark_gpu(lambda: order.append("run"), again=True) == 0.25
    assert order == ["first", "other", *3 * ["run"]] and benchmarker.benchmark_gpu is time_kernel
