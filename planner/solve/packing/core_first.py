"""Packing the core first: blocks that live long or are large by themselves, then the small ones into the gaps.

Where few blocks make up most bytes and time, the many small ones only get in the way: without them the core can be
packed in many ways in the time that one packing of all takes, and the small ones fit between.
"""

from collections.abc import Iterator

import numpy as np

from planner.solve.packing.best_fit import fit_between
from planner.solve.packing.chains import Taste, fill_chains
from planner.solve.packing.sections import Instance, height, loads

CORES = ((0.97, 0.01), (0.97, 0.002), (0.95, 0.005))
"""(share of all bytes and time that the longest-lived blocks of the core take, share of the load from which any other
block belongs to it)"""
TASTES = tuple(Taste(tall, urgent) for tall in (0.15, 0.25, 0.35) for urgent in (15.0, 20.0, 30.0, 40.0))
MOST = 0.5
"""Share of all blocks beyond which a core is none."""
STEPS_PER_FIT = 200
"""Work of fitting one small block in."""


def core_first(problem: Instance) -> Iterator[tuple[list[int], int]]:
    """Packings, one per core: offsets, and the work in steps as in exact.py."""
    for share, large in CORES:
        core = _core(problem, share, large)
        if not core or len(core) > MOST * problem.blocks:
            continue
        inner = _only(problem, core)
        packings = [fill_chains(inner, taste) for taste in TASTES]
        best = min((offsets for offsets, _ in packings), key=lambda offsets: height(inner, offsets))
        fixed = dict(zip(core, best, strict=True))
        rest = sorted(set(range(problem.blocks)) - set(core), key=lambda b: (-problem.size[b], problem.lower[b], b))
        work = sum(steps for _, steps in packings) + STEPS_PER_FIT * len(rest)
        yield fit_between(problem, fixed, rest), work


def _core(problem: Instance, share: float, large: float) -> list[int]:
    """In the order of the problem's blocks."""
    size = np.array(problem.size, float)
    width = np.array(problem.upper) - np.array(problem.lower)
    longest = np.lexsort((-size, -width))
    taken = np.cumsum((size * width)[longest])
    found = size > large * problem.load
    found[longest[: int(np.searchsorted(taken, share * taken[-1])) + 1]] = True
    return [int(b) for b in np.flatnonzero(found)]


def _only(problem: Instance, core: list[int]) -> Instance:
    """The same sections with fewer blocks."""
    lower, upper, size = (tuple(side[b] for b in core) for side in (problem.lower, problem.upper, problem.size))
    ids = tuple(problem.ids[b] for b in core)
    inner = Instance(ids, lower, upper, size, problem.count, problem.unit, problem.load)
    return Instance(**{**vars(inner), "load": int(loads(inner).max(initial=0))})
