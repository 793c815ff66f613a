"""Which implementations of every op are worth timing at every slice count: each on all lanes, cold, and the best two
per slice dimension stay.

A contender that was disturbed (see codegen/profile.py) would be dropped for good, so those that lost by no more than a
disturbance adds are looked at once more, together with the winners, after all others had their turn.
"""

import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from codegen.facts import Refused, facts, implementations
from codegen.instructions import usable, width
from codegen.measure import Bench, Progress
from codegen.profile_cases import Case
from planner.ops.base import Mode, Signature, op_named
from planner.target.model import Target

KEPT = 2
"""Implementations per (signature, dimension) that stay,"""
CLOSE = 1.15
"""unless they take this many times as long as the quickest."""
HOPELESS = 1.6
"""An implementation that takes this many times as long as the best so far runs once."""
DISTURBED = 2.2
"""Disturbances about double a time. What took longer than this many times the best is slower undisturbed, too."""

SHARE_STREAMED = 4
"""Loops are also timed with results that bypass the caches where these fill at least that part of the outermost one."""

LEAST_STREAMED = 2**16
"""So are updates of at least so many bytes of parameters: smaller ones take no time."""

MEASURABLE_BYTES = 2**26
"""A loop over fewer bytes says nothing about memory bandwidth."""


class Finalist(NamedTuple):
    """What is to be timed at every slice count."""

    signature: Signature
    widest: Mode
    """On as many lanes as it can use."""

    def at(self, slices: int) -> Mode:
        return self.widest._replace(slices=slices)


def choose(
    todo: Sequence[Signature], target: Target, cpus: Sequence[int], budget_s: float, progress: Progress
) -> list[Finalist]:
    """What is worth a closer look, those of a signature one after the other. `budget_s`: for each look at a case."""
    contests: list[list[Case]] = []
    finalists: list[Finalist] = []
    for signature in todo:
        for (kernel, dim), limit in sorted(op_named(signature.op).dims(signature).items()):
            mode = Mode(kernel, dim, min(limit, len(cpus)))
            if op_named(signature.op).redundant(signature, mode):
                continue
            names: Sequence[str] = usable(implementations(signature, mode), target)
            if kernel != "loops":
                names = _worth_timing(names)
            elif not _may_stream(signature, target):
                names = []
            found = [mode._replace(implementation=name) for name in names] or [mode]
            if len(found) <= KEPT:
                finalists += [Finalist(signature, m) for m in found]
            else:
                contests.append([Case(signature, m, facts(signature, m)) for m in found])
    with tempfile.TemporaryDirectory(prefix="stepplan-profile-") as folder:
        bench = Bench([case for cases in contests for case in cases], target, cpus, Path(folder) / "round1")
        times = _times(contests, bench, budget_s, progress)
        bench.close()
    for cases, took in zip(contests, times, strict=True):
        finalists += [Finalist(cases[i].signature, cases[i].mode) for i in _winners(cases, took)]
    finalists += [f for s in todo if (f := _on_one_lane(s, [f for f in finalists if f.signature == s], target))]
    place = {signature.text: number for number, signature in enumerate(todo)}
    return sorted(finalists, key=lambda f: place[f.signature.text])


def _on_one_lane(signature: Signature, finalists: Sequence[Finalist], target: Target) -> Finalist | None:
    """The library's favourite for the whole of it, where it has none of the finalists but for parts: plans for one
    lane, and those that give a node one, need a time."""
    for finalist in finalists:
        with suppress(Refused):
            facts(signature, finalist.at(1))
            return None
    alone = finalists[0].at(1)._replace(implementation="")
    names = _worth_timing(usable(implementations(signature, alone), target))
    return Finalist(signature, alone._replace(implementation=names[0]))


def _times(contests: Sequence[Sequence[Case]], bench: Bench, budget_s: float, progress: Progress) -> list[list[float]]:
    """The quickest run of every contender, ns."""
    *firsts, total = accumulate(map(len, contests), initial=0)
    times: list[list[float]] = []
    for first, cases in zip(firsts, contests, strict=True):
        took: list[float] = []
        for number in range(first, first + len(cases)):  # the library lists what it thinks fastest first
            progress("choosing implementations", number, total)
            took.append(bench.quickest(number, budget_s, HOPELESS * min(took, default=math.inf)))
        times.append(took)
    again = [
        (contest, i)
        for contest, (cases, took) in enumerate(zip(contests, times, strict=True))
        for i in _in_doubt(took, _winners(cases, took))
    ]
    for done, (contest, i) in enumerate(again, total):
        progress("choosing implementations", done, total + len(again))
        took = times[contest]
        took[i] = min(took[i], bench.quickest(firsts[contest] + i, budget_s, HOPELESS * min(took)))
    return times


def _in_doubt(took: Sequence[float], winners: Sequence[int]) -> list[int]:
    """Which of a contest's cases to look at again: the losers that may have been disturbed, and with them the winners,
    or what had disturbed all of them would now count against these alone."""
    near = [i for i, time in enumerate(took) if i in winners or time <= DISTURBED * min(took)]
    return near if len(near) > len(winners) else []


def _winners(cases: Sequence[Case], took: Sequence[float]) -> list[int]:
    """Which of the cases stay, the quickest first."""
    ranked = sorted(range(len(cases)), key=took.__getitem__)
    kept = [i for i in ranked[:KEPT] if took[i] <= CLOSE * took[ranked[0]]]
    # A loop that streams serves only where its results are read from memory: the plain one stays.
    modes = [case.mode for case in cases]
    return kept + [i for i in ranked if modes[i].kernel == "loops" and not modes[i].implementation and i not in kept]


def _may_stream(signature: Signature, target: Target) -> bool:
    """Whether results are so large that others may push them out of the caches before they are read; parameters are
    pushed out by the rest of the step."""
    if signature.updates:
        return signature.updates[0].bytes >= LEAST_STREAMED
    caches = target.cpu.caches
    return SHARE_STREAMED * sum(t.bytes for t in signature.outputs) >= (caches.l3 or caches.l2 or MEASURABLE_BYTES)


def _worth_timing(names: Sequence[str]) -> list[str]:
    """Of a library's kernels: without reference code, and without narrower vectors where wider ones are on offer; names
    that say nothing of vectors (oneDNN's gemm, and ours) take what the processor has."""
    real = [n for n in names if "ref" not in n.split("/")[-1].split(":")] or list(names)
    widest = max(map(width, real))
    return [n for n in real if width(n) in (0, widest)]
