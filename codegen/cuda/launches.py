"""Threads per block and blocks of the kernels that stepplan wrote itself (Liu et al., section VII.B).

A kernel loops over what its threads do not cover, so any shape computes the same; which is fastest depends on the GPU
and on the node. The shape is a mode: `256x2112` in `implementation`, empty for the runtime's own choice. Profiling
searches one dimension after the other, as the paper does: threads per block first, then blocks with the best of these.

    256x2112: 10 us; 128x2112: 9 us, 512x2112: 12 us; then 128x132: 30 us, 128x4224: 8 us    takes 128x4224
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from planner.errors import UserError

THREADS = (64, 128, 256, 512)
MOST_THREADS = 512
BLOCKS_PER_SM = (2, 4, 8, 16, 32, 64)
DEFAULT_BLOCKS_PER_SM = 16
"""As templates/runtime/cuda/queue.hpp, on a GPU of 132 multiprocessors."""
LEAST_GAIN = 0.03
"""Of a node's time: less may be noise, and the runtime's own shape is kept."""


class Launch(NamedTuple):
    """0 x 0: the runtime's own."""

    threads: int = 0
    blocks: int = 0

    @property
    def text(self) -> str:
        return f"{self.threads}x{self.blocks}" if self.threads else ""


LEFT_OUT = Launch(-1)
"""A node that is not to be timed."""


def launch_of(node: str, implementation: str) -> Launch:
    """SP1517: it is no shape that a GPU can launch."""
    if not implementation:
        return Launch()
    found = re.fullmatch(r"([0-9]{2,4})x([0-9]{1,6})", implementation)
    launch = Launch(*map(int, found.groups())) if found else Launch()
    if launch.threads % 32 or not 32 <= launch.threads <= MOST_THREADS or launch.blocks < 1:
        raise UserError(
            "SP1517",
            f"node {node}: {implementation[:80]!r} is no number of threads per block and of blocks",
            "plan again: shapes such as 256x2112, with a multiple of 32 threads up to 512",
        )
    return launch


Times = list[float]
TimeAll = Callable[[Sequence[Launch]], Times]
"""Times every node once in the shape that is given for it; ns."""


def search(time_all: TimeAll, nodes: int, sms: int) -> list[dict[Launch, float]]:
    """Per node: every shape that was tried, with its time; the runtime's own among them. All nodes are timed in one go
    per trial: as many passes as there are values in both dimensions."""
    tried: list[dict[Launch, float]] = [{} for _ in range(nodes)]

    def run(launches: Sequence[Launch]) -> None:
        for known, launch, ns in zip(tried, launches, time_all(launches), strict=True):
            known[launch] = min(ns, known.get(launch, ns))

    run([Launch()] * nodes)
    for threads in THREADS:
        run([Launch(threads, DEFAULT_BLOCKS_PER_SM * sms)] * nodes)
    fastest = [min((t for t in known if t.threads), key=known.__getitem__).threads for known in tried]
    for share in BLOCKS_PER_SM:
        if share != DEFAULT_BLOCKS_PER_SM:
            run([Launch(threads, share * sms) for threads in fastest])
    return tried


def worth_keeping(tried: dict[Launch, float]) -> dict[Launch, float]:
    """The runtime's own shape, and the fastest where it gains enough."""
    own = tried[Launch()]
    best = min(tried, key=lambda launch: (tried[launch], launch))
    return {Launch(): own} | ({best: tried[best]} if tried[best] < (1 - LEAST_GAIN) * own else {})
