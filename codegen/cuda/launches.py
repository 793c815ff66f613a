"""Threads per block and blocks of the kernels that stepplan wrote itself (Liu et al., section VII.B).

A kernel loops over what its threads do not cover, so any shape computes the same; which is fastest depends on the GPU
and on the node. The shape is a mode: `256x2112` in `implementation`, empty for the runtime's own choice. Profiling
searches one dimension after the other, as the paper does: threads per block first, then blocks with the best of these.

    256x2112: 10 us; 128x2112: 9 us, 512x2112: 12 us; then 128x132: 30 us, 128x4224: 8 us    takes 128x4224

Batch norms also run in one launch, where else they take three: `clusters:512x8`, in clusters of 8 blocks that wait for
each other's sums (templates/runtime/cuda/clusters.hpp). Their blocks are searched first, then their threads.
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
CLUSTER_BLOCKS = (1, 2, 4, 8)
"""Blocks of a cluster: eight are what every GPU that has clusters allows."""
CLUSTER_THREADS = (512, 256)
FIRST_WITH_CLUSTERS = 90
"""The architecture, sm_90."""
LEAST_GAIN = 0.03
"""Of a node's time: less may be noise, and the runtime's own shape is kept."""


class Launch(NamedTuple):
    """0 x 0: the runtime's own. `clusters`: `blocks` are those of one cluster."""

    threads: int = 0
    blocks: int = 0
    clusters: bool = False

    @property
    def text(self) -> str:
        return f"{'clusters:' if self.clusters else ''}{self.threads}x{self.blocks}" if self.threads else ""


LEFT_OUT = Launch(-1)
"""A node that is not to be timed."""


def parsed(implementation: str) -> Launch | None:
    """None: it is no shape that a GPU can launch."""
    if not implementation:
        return Launch()
    found = re.fullmatch(r"(clusters:)?([0-9]{2,4})x([0-9]{1,6})", implementation)
    if not found:
        return None
    launch = Launch(int(found[2]), int(found[3]), bool(found[1]))
    wrong = launch.threads % 32 or not 32 <= launch.threads <= MOST_THREADS or launch.blocks < 1
    return None if wrong or (launch.clusters and launch.blocks not in CLUSTER_BLOCKS) else launch


def launch_of(node: str, implementation: str) -> Launch:
    """SP1517: it is no shape that a GPU can launch."""
    launch = parsed(implementation)
    if launch is None:
        raise UserError(
            "SP1517",
            f"node {node}: {implementation[:80]!r} is no number of threads per block and of blocks",
            "plan again: shapes such as 256x2112, with a multiple of 32 threads up to 512, or clusters:512x8",
        )
    return launch


def clusters_on(arch: str) -> tuple[int, ...]:
    """Of how many blocks a GPU's clusters can be; of one everywhere. `arch`: like sm_90."""
    found = re.fullmatch(r"sm_([0-9]+)[a-z]?", arch)
    return CLUSTER_BLOCKS if found and int(found[1]) >= FIRST_WITH_CLUSTERS else CLUSTER_BLOCKS[:1]


Times = list[float]
TimeAll = Callable[[Sequence[Launch]], Times]
"""Times every node once in the shape that is given for it; ns."""


class _Trials:
    """Of every node the shapes that were tried, with the least time of each."""

    def __init__(self, time_all: TimeAll, nodes: int) -> None:
        self._time_all = time_all
        self.tried: list[dict[Launch, float]] = [{} for _ in range(nodes)]

    def run(self, launches: Sequence[Launch]) -> None:
        for known, launch, ns in zip(self.tried, launches, self._time_all(launches), strict=True):
            known[launch] = min(ns, known.get(launch, ns))


def search(time_all: TimeAll, nodes: int, sms: int) -> list[dict[Launch, float]]:
    """Per node: every shape that was tried, with its time; the runtime's own among them. All nodes are timed in one go
    per trial: as many passes as there are values in both dimensions."""
    trials = _Trials(time_all, nodes)
    trials.run([Launch()] * nodes)
    for threads in THREADS:
        trials.run([Launch(threads, DEFAULT_BLOCKS_PER_SM * sms)] * nodes)
    fastest = [min((t for t in known if t.threads), key=known.__getitem__).threads for known in trials.tried]
    for share in BLOCKS_PER_SM:
        if share != DEFAULT_BLOCKS_PER_SM:
            trials.run([Launch(threads, share * sms) for threads in fastest])
    return trials.tried


def search_clusters(time_all: TimeAll, possible: Sequence[Sequence[int]]) -> list[dict[Launch, float]]:
    """As `search`, per node in clusters of as many blocks as are `possible`, smaller ones first."""
    trials = _Trials(time_all, len(possible))
    for number in range(max(map(len, possible), default=0)):
        trials.run([Launch(CLUSTER_THREADS[0], sizes[min(number, len(sizes) - 1)], True) for sizes in possible])
    fastest = [min(known, key=known.__getitem__).blocks for known in trials.tried]
    for threads in CLUSTER_THREADS[1:]:
        trials.run([Launch(threads, blocks, True) for blocks in fastest])
    return trials.tried


def worth_keeping(tried: dict[Launch, float]) -> dict[Launch, float]:
    """The runtime's own shape, and the fastest where it gains enough."""
    own = tried[Launch()]
    best = min(tried, key=lambda launch: (tried[launch], launch))
    return {Launch(): own} | ({best: tried[best]} if tried[best] < (1 - LEAST_GAIN) * own else {})
