"""Vector clocks over lane programs under construction: which waits a new stage's slices need, and which are implied.

A slice is (lane, position). A row of knowledge says, per lane, how many entries are certain to be finished when a
slice starts. All slices of a stage are added at once, as arrays: with 68 lanes a slice at a time would be 68 times the
work of the interpreter for the same arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]

COMPACT = 3
"""Waits for so many slices of one stage are written as one wait for the whole stage."""


@dataclass(frozen=True)
class Stage:
    """The slices of one stage of one node, in the order of their indices."""

    name: str
    """`node/stage`"""
    lanes: Ints
    ends: Ints
    """Position + 1 of every slice in its lane: what a clock must reach for it to be finished."""
    places: tuple[tuple[int, int], ...]
    """(lane, end) of every slice: most questions concern one of few, for which arrays are slow."""


class Clocks:
    """What every lane knows, and what has been added to it so far."""

    def __init__(self, lanes: int) -> None:
        self._latest = np.zeros((lanes, lanes), np.int32)
        """Per lane: what is finished when its next entry starts, as far as lane order and waits say."""
        self._length = np.zeros(lanes, np.int32)
        self._stages: list[Stage] = []
        self._known: list[Ints] = []
        """Per stage: one row per slice, what is finished when it starts."""
        self._at = np.zeros((2, lanes, 64), np.int32)
        """(stage, slice) of every lane's entries so far."""

    def certain(self, lanes: Sequence[int]) -> list[int]:
        """Per lane: the entries that are certain to be finished when the next slice on any of `lanes` starts."""
        least: list[int] = self._latest[np.asarray(lanes, np.intp)].min(axis=0).tolist()
        return least

    def add(self, name: str, lanes: Sequence[int], needed: Ints) -> tuple[Stage, list[tuple[str, ...]]]:
        """Append one slice to each of `lanes` (all different).

        `needed`: (slices, lanes), position + 1 of the last entry there that a slice needs; 0 where it needs none.
        Returns the stage, and for every slice the waits that nothing implies: names of slices and of whole stages.
        """
        where = np.asarray(lanes, np.intp)
        rows = np.arange(len(where))
        heard = self._latest[where]
        missing = np.where(needed > heard, needed, 0)
        missing[rows, where] = 0  # lane order
        waits: list[tuple[str, ...]] = [()] * len(where)
        if missing.any():
            heard = self._heard(heard, missing, where)
            # A wait is superfluous when the knowledge that comes with another wait covers it.
            chosen = missing > heard
            np.maximum(heard, missing, out=heard)
            self._name(chosen, missing, heard, waits)
        self._known.append(heard.copy())
        if self._length.max(initial=0) + 1 >= self._at.shape[2]:
            self._at = np.concatenate((self._at, np.zeros_like(self._at)), axis=2)
        self._at[0, where, self._length[where]] = len(self._stages)
        self._at[1, where, self._length[where]] = rows
        self._length[where] += 1
        heard[rows, where] = self._length[where]
        self._latest[where] = heard
        ends = self._length[where]
        stage = Stage(name, where.astype(np.int32), ends, tuple(zip(lanes, ends.tolist(), strict=True)))
        self._stages.append(stage)
        return stage, waits

    def _heard(self, base: Ints, missing: Ints, where: Any) -> Ints:
        """What the slices know once everything missing has finished, without the waits' own positions."""
        latest = missing.max(axis=0)
        common = missing == latest[None, :]
        common[np.arange(len(where)), where] = True
        if common.all():  # mostly, all slices need the same: then they come to know the same
            lanes_of = np.flatnonzero(latest)
            everything: Ints = np.maximum(base, self._knowledge(lanes_of, latest[lanes_of] - 1).max(axis=0)[None, :])
            return everything
        rows, at = np.nonzero(missing)
        # Slices mostly need the same others (all of an earlier stage); a distinct one is looked up once.
        keys = at.astype(np.int64) << 32 | missing[rows, at]
        distinct, which = np.unique(keys, return_inverse=True)
        wanted = np.zeros((len(base), len(distinct)), bool)
        wanted[rows, which] = True
        known = self._knowledge(distinct >> 32, (distinct & 0xFFFFFFFF) - 1)
        heard = base.copy()
        for row in np.flatnonzero(wanted.any(axis=1)).tolist():
            np.maximum(heard[row], known[wanted[row]].max(axis=0), out=heard[row])
        return heard

    def _knowledge(self, lanes: Any, positions: Any) -> Ints:
        """What was finished when these entries started, a row each."""
        stages, slices = self._at[0, lanes, positions], self._at[1, lanes, positions]
        known = np.empty((len(stages), self._latest.shape[1]), np.int32)
        for number in _distinct(stages):
            these = np.flatnonzero(stages == number)
            known[these] = self._known[number][slices[these]]
        return known

    def _name(self, chosen: Any, missing: Ints, heard: Ints, waits: list[tuple[str, ...]]) -> None:
        """The chosen waits by name; several for slices of one stage become one for the stage, where all of its
        slices are certain to be finished then."""
        rows, lanes = np.nonzero(chosen)
        position = missing[rows, lanes] - 1
        stages, slices = self._at[0, lanes, position], self._at[1, lanes, position]
        for number in _distinct(stages):
            stage = self._stages[number]
            ours = stages == number
            count = np.bincount(rows[ours], minlength=len(waits))
            whole = count >= COMPACT
            if whole.any():
                whole &= (heard[:, stage.lanes] >= stage.ends[None, :]).all(axis=1)
                compact = (f"{stage.name}#*",)
                for row in np.flatnonzero(whole).tolist():
                    waits[row] += compact
            for index in np.flatnonzero(ours & ~whole[rows]).tolist():
                waits[rows[index]] += (f"{stage.name}#{slices[index]}",)


def _distinct(numbers: Ints) -> list[int]:
    """In order; mostly there is one."""
    if not len(numbers):
        return []
    least, most = int(numbers.min()), int(numbers.max())
    return [least] if least == most else [int(n) for n in np.unique(numbers)]
