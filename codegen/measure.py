"""Times cases on a generated executor: warm (operands in the outermost cache) and cold (operands out of it).

Warm is not "the same bytes again": in a step other nodes run in between and push a node's operands out of the inner
caches, so the copies that are run in turn cover more than those hold.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from codegen.build import build
from codegen.cpu.emit import emit_cases
from codegen.native import native_module
from codegen.profile_cases import INDEX_TYPES, Case, Footprint, Programs, case_programs
from planner.graph.model import DType
from planner.plan.crossing import Crossing
from planner.target.model import Target

WARM_REPETITIONS, COLD_REPETITIONS = (5, 60), (3, 30)
"""(least, most)"""
LONG_S = 0.4
"""Kernels so slow that fewer repetitions take this long need no more: what disturbs them is short beside them."""
MOST_ARENA = 2 * 2**30
MOST_OVERWRITTEN = 64 * 2**20
"""Bytes that are written before cold runs. Caches forget a case's operands when twice what they hold was
written; where that is more than this, as on servers (the L3 that a virtual machine is told of may be 300 MiB), the
operands' lines are flushed too, which takes some sixth of the time there and leaves the caches full of the same."""
AWAKE_NS = 20_000
"""Less than a lane looks for a signal before it sleeps, where it has a processor of its own (runtime/lanes.hpp)."""

Progress = Callable[[str, int, int], None]
"""(what, done, total)"""


class Sampled(NamedTuple):
    """Median times per stage, ns, and the cold measurement's interquartile range / median."""

    warm_ns: tuple[float, ...]
    cold_ns: tuple[float, ...]
    spread: float


def quicker(first: Sampled, second: Sampled) -> Sampled:
    """Of two visits of a case the less disturbed one, separately warm and cold: the shorter in total, with all of its
    stages, and the spread of the cold one that is kept."""
    warm = min(first, second, key=lambda visit: sum(visit.warm_ns))
    cold = min(first, second, key=lambda visit: sum(visit.cold_ns))
    return Sampled(warm.warm_ns, cold.cold_ns, cold.spread)


def handovers(stages: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """ns from the end of each stage to the last lane's start of the next, where no lane had gone to sleep meanwhile:
    waking it takes a hundred times as long, and in a step few waits are as long as in a stage of milliseconds.

    `stages`: when every lane's slice started and ended, ns."""
    found = []
    for before, after in pairwise(stages):
        ends = [end for _, end in before]
        if max(ends) - min(ends) <= AWAKE_NS:
            found.append(max(start for start, _ in after) - max(ends))
    return found


class Bench:
    """An executor with one program per case, and the memory to run each at many places."""

    def __init__(self, cases: Sequence[Case], target: Target, cpus: Sequence[int], folder: Path) -> None:
        self._native: Any = None
        self.sync_ns: list[int] = []
        """How long after the end of a stage's last slice another lane began the next stage, where none slept."""
        self.launch_ns: list[int] = []
        """What a run took besides its slices, of every run."""
        if cases:
            self._open(case_programs(cases, target, cpus), folder)

    def _open(self, programs: Programs, folder: Path) -> None:
        """Emit, build and load the programs, and fill nothing yet."""
        target = programs.target
        caches = target.cpu.caches
        self._outermost = caches.l3 or caches.l2 or 2**25
        self._evict = 2 * self._outermost
        self._inner = min(self._outermost // 2, 2 * caches.l2 * len(target.sharing("l2")))
        self._footprints = programs.footprints
        self._arena_bytes = max(2 * self._evict, *(f.bytes * self._replicas(f) for f in self._footprints))
        graph, plan = programs.plan(self._arena_bytes)
        emit_cases(plan, graph, target, folder)
        build(folder, edited=False)
        self._native = native_module(folder)
        self._handle = self._native.create(True, False)
        self._arena = self._native.arena(self._handle)
        rng = np.random.default_rng(0)
        self._noise = rng.uniform(0.5, 1.5, 2**20).astype(np.float32)
        self._halves = (self._noise.view(np.uint32) >> 16).astype(np.uint16)
        """The same as bfloat16."""
        self._small = rng.integers(0, 4, 2**16, dtype=np.uint8)
        self._flushes = self._evict > MOST_OVERWRITTEN and self._native.flush(self._handle, 0, 0)
        if self._flushes:
            self._evict = MOST_OVERWRITTEN
        self._filled: tuple[Footprint, int] | None = None
        self._native.trace(self._handle, True)

    def handoff_ns(self) -> float:
        """A signal between lanes 0 and 1; 0 with one lane or without cases."""
        return float(self._native.handoff_ns(self._handle)) if self._native is not None else 0.0

    def crossing(self) -> Crossing:
        """What bytes cost that two lanes touch in turn; nothing with one lane or without cases."""
        return Crossing(*self._native.crossing(self._handle)) if self._native is not None else Crossing()

    def close(self) -> None:
        if self._native is not None:
            self._native.close(self._handle)

    def quickest(self, case: int, budget_s: float, hopeless_ns: float = math.inf) -> float:
        """The shortest of a few runs with every operand out of the caches, ns: for ranking, where a disturbed run
        should not decide. A case that takes longer than `hopeless_ns` is not run again."""
        return min(sum(run) for run in self._cold_runs(case, budget_s, hopeless_ns))

    def sample(self, case: int, budget_s: float) -> Sampled:
        cold = warm = self._cold_runs(case, budget_s)
        footprint = self._footprints[case]
        if footprint.bytes <= self._outermost:  # what no cache holds is never warm
            turns = max(1, min(self._replicas(footprint), -(-self._inner // max(1, footprint.bytes))))
            for turn in range(turns):
                self._run(case, footprint.bytes * turn)
            warm = self._runs(case, footprint.bytes, turns, budget_s, WARM_REPETITIONS)
        totals = sorted(sum(run) for run in cold)
        spread = (totals[3 * len(totals) // 4] - totals[len(totals) // 4]) / max(1.0, median(totals))
        return Sampled(self._medians(warm), self._medians(cold), spread)

    def _replicas(self, footprint: Footprint) -> int:
        """Enough copies that the caches have forgotten the first when the last has run, within reason. Where lines are
        flushed, they need not be so many."""
        wanted = min(COLD_REPETITIONS[1], -(-self._evict // max(1, footprint.bytes)) + 1)
        return max(1, min(wanted, MOST_ARENA // max(1, footprint.bytes)))

    def _cold_runs(self, case: int, budget_s: float, hopeless_ns: float = math.inf) -> list[tuple[float, ...]]:
        footprint = self._footprints[case]
        replicas = self._replicas(footprint)
        self._fill(footprint, replicas)
        if self._flushes:  # what caches hold then has to be written back, as in a step
            self._overwrite()
        return self._runs(case, footprint.bytes, replicas, budget_s, COLD_REPETITIONS, True, hopeless_ns)

    def _place(self, number: int, stride: int, replicas: int, cold: bool) -> int:
        """Where the run of that number finds its copy. `cold`: in no cache, if no other runs than these touch it."""
        if cold and number % replicas == 0:
            if self._flushes:
                self._native.flush(self._handle, 0, stride * replicas)
            elif stride * replicas < self._evict:  # else copies push each other out
                self._overwrite()
        return stride * (number % replicas)

    def _overwrite(self) -> None:
        self._arena[-self._evict :].fill(0)

    def _fill(self, footprint: Footprint, replicas: int) -> None:
        """Random positive numbers in floats, random valid labels and indices (other ones in every copy), 0 to 3 in
        masks and argmax: valid for every op, and no easier to predict for a branch or a cache than real data. Runs keep
        them valid, so a case with the memory of the one before finds them there."""
        if self._filled == (footprint, replicas):
            return
        self._filled = (footprint, replicas)
        for replica in range(replicas):
            base = replica * footprint.bytes
            for offset, type_, end, numbers in footprint.tensors:
                part = self._arena[base + offset : base + offset + type_.bytes]
                if type_.dtype is DType.UINT8:
                    part[:] = np.resize(self._small, len(part))
                elif type_.dtype in INDEX_TYPES:
                    random = np.random.default_rng(replica)
                    indices = np.array(numbers) if numbers else random.integers(0, end, type_.elements)
                    part[:] = indices.astype(type_.dtype.value).view(np.uint8)
                else:
                    noise = self._halves if type_.dtype is DType.BFLOAT16 else self._noise
                    floats = part.view(noise.dtype)
                    for start in range(0, len(floats), len(noise)):
                        chunk = floats[start : start + len(noise)]
                        chunk[:] = noise[: len(chunk)]

    def _runs(
        self,
        case: int,
        stride: int,
        replicas: int,
        budget_s: float,
        bounds: tuple[int, int],
        cold: bool = False,
        hopeless_ns: float = math.inf,
    ) -> list[tuple[float, ...]]:
        """Stage times of every repetition."""
        least, most = bounds
        runs: list[tuple[float, ...]] = []
        spent = 0.0
        while len(runs) < most:
            place = self._place(len(runs), stride, replicas, cold)
            begun = time.perf_counter()
            runs.append(self._run(case, place))
            spent += time.perf_counter() - begun
            enough = spent > budget_s and (len(runs) >= least or spent > LONG_S)
            if enough or sum(runs[-1]) > hopeless_ns:
                break
        return runs

    def _run(self, case: int, shift: int) -> tuple[float, ...]:
        """The longest slice of every stage, ns."""
        begun = time.perf_counter_ns()
        self._native.run_shifted(self._handle, case, shift)
        wall = time.perf_counter_ns() - begun
        lanes = [lane for lane in self._native.spans(self._handle, case) if lane]
        stages = list(zip(*lanes, strict=True))
        self.launch_ns.append(wall - (max(e for lane in lanes for _, e in lane) - min(lane[0][0] for lane in lanes)))
        if len(lanes) > 1:
            self.sync_ns += handovers(stages)
        return tuple(float(max(end - start for start, end in stage)) for stage in stages)

    @staticmethod
    def _medians(runs: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(median(stage) for stage in zip(*runs, strict=True))
