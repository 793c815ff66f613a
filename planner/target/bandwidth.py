"""A short measurement of the memory bandwidth: NumPy copies, first on one core, then on all at once."""

import os
from collections.abc import Sequence
from contextlib import suppress
from threading import Barrier, Thread
from time import perf_counter

import numpy as np

from planner.target.numa import buffer

_ROUNDS = 3
_SECONDS = 0.1
"""Each of the two measurements takes the best of three rounds this long: other programs only slow copies down."""
_ROUNDING = 100_000_000


def measure_bandwidth(cpus: Sequence[int], l3: int, memory: int, nodes: Sequence[int] = ()) -> tuple[int, int]:
    """(one thread's, all threads') bytes per second read plus written, rounded to 0.1 GB/s.

    `cpus`: one logical processor per core, to pin threads to. The buffers exceed `l3` (bytes) four times but take at
    most an eighth of `memory` (bytes) together. `nodes`: the NUMA nodes whose memory it is; none: every thread's own.
    """
    wanted = max(4 * l3, 64 << 20)
    total = min(wanted, memory // 16)  # source and destination
    alone = _copy(cpus[:1], max(total, 1 << 16), nodes)
    together = _copy(cpus, max(total // len(cpus), 1 << 16), nodes) if len(cpus) > 1 else alone
    # Two runs on a noisy machine can contradict each other; a target may not.
    return alone, max(alone, together)


def _copy(cpus: Sequence[int], size: int, nodes: Sequence[int]) -> int:
    barrier = Barrier(len(cpus))
    rates = [[0.0] * len(cpus) for _ in range(_ROUNDS)]

    # Allocated here, so that a lack of memory is raised in the caller; touched by the thread, so that the pages are
    # near its core, unless they are to lie elsewhere.
    buffers = [(buffer(size, nodes), buffer(size, nodes)) for _ in cpus]

    def work(index: int) -> None:
        with suppress(OSError, AttributeError):  # without pinning the figure is only less exact
            os.sched_setaffinity(0, {cpus[index]})
        source, destination = buffers[index]
        source.fill(1)
        destination.fill(0)
        for round_rates in rates:
            barrier.wait()
            start = now = perf_counter()
            copies = 0
            while now - start < _SECONDS:
                np.copyto(destination, source)
                copies += 1
                now = perf_counter()
            round_rates[index] = 2 * size * copies / (now - start)

    threads = [Thread(target=work, args=(i,)) for i in range(len(cpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(round(max(map(sum, rates)) / _ROUNDING), 1) * _ROUNDING
