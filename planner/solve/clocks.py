"""Vector clocks over lane programs under construction: which waits a new stage's slices need, and which are implied.

A slice is (lane, position). A row of knowledge says, per lane, how many entries are certain to be finished when a
slice starts. All slices of a stage are added at once, as arrays: with 68 lanes a slice at a time would be 68 times the
work of the interpreter for the same arithmetic.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]

COMPACT = 3
"""Waits for so many slices of one stage are written as one wait for the whole stage."""


@dataclass(frozen=True)
class Stage:
    """The slices of one stage of one node, in the order of their indices."""

    name: str
    """`node/stage`"""
    lanes: Longs
    ends: Ints
    """Position + 1 of every slice in its lane: what a clock must reach for it to be finished."""
    places: tuple[tuple[int, int], ...]
    """(lane, end) of every slice: most questions concern one of few, for which arrays are slow."""
    first: int
    """The number of its first slice, where slices are numbered through all stages."""


class Clocks:
    """What every lane knows, and what has been added to it so far."""

    def __init__(self, lanes: int) -> None:
        self._latest = np.zeros((lanes, lanes), np.int32)
        """Per lane: what is finished when its next entry starts, as far as lane order and waits say."""
        self._length = np.zeros(lanes, np.int32)
        self._stages: list[Stage] = []
        self._where: dict[tuple[int, ...], tuple[Longs, Longs]] = {}
        """Lanes -> the same as an array, and one of as many numbers from 0 on."""
        self._stage_of = np.zeros(64, np.int32)
        """The stage of every slice."""
        self._known = np.zeros((64, lanes), np.int32)
        """Per slice: what is finished when it starts."""
        self._at = np.zeros((64, lanes), np.int32)
        """(position, lane): the slice that is that entry."""

    def certain(self, lanes: tuple[int, ...]) -> list[int]:
        """Per lane: the entries that are certain to be finished when the next slice on any of `lanes` starts."""
        where, _ = self._arrays(lanes)
        least: list[int] = np.minimum.reduce(self._latest.take(where, axis=0)).tolist()
        return least

    def _arrays(self, lanes: tuple[int, ...]) -> tuple[Longs, Longs]:
        """The lanes, and their places among them."""
        if lanes not in self._where:
            self._where[lanes] = np.array(lanes, np.int64), np.arange(len(lanes))
        return self._where[lanes]

    def add(self, name: str, lanes: tuple[int, ...], needed: Ints | None) -> tuple[Stage, list[tuple[str, ...]]]:
        """Append one slice to each of `lanes` (all different).

        `needed`: (slices, lanes), position + 1 of the last entry there that a slice needs; 0 where it needs none.
        None: no slice needs any.
        Returns the stage, and for every slice the waits that nothing implies: names of slices and of whole stages.
        """
        (where, rows), count = self._arrays(lanes), len(lanes)
        heard = self._latest.take(where, axis=0)
        waits: list[tuple[str, ...]] = [()] * count
        if needed is not None:
            missing = needed * (needed > heard)
            missing[rows, where] = 0  # lane order
            latest = np.maximum.reduce(missing)
            if latest.any():
                heard = self._heard(heard, missing, latest, where, rows)
                # A wait is superfluous when the knowledge that comes with another wait covers it.
                chosen = missing > heard
                np.maximum(heard, missing, out=heard)
                self._name(chosen, missing, heard, waits)
        ends = self._length[where]
        first = self._stages[-1].first + len(self._stages[-1].places) if self._stages else 0
        behind_ends = ends + 1
        stage = Stage(name, where, behind_ends, tuple(zip(lanes, behind_ends.tolist(), strict=True)), first)
        behind = first + count
        self._known, self._stage_of = _grown(self._known, behind), _grown(self._stage_of, behind)
        self._known[first:behind] = heard
        self._stage_of[first:behind] = len(self._stages)
        self._at = _grown(self._at, max(end for _, end in stage.places))
        self._at[ends, where] = rows + first
        self._length[where] = heard[rows, where] = stage.ends
        self._latest[where] = heard
        self._stages.append(stage)
        return stage, waits

    def _heard(self, base: Ints, missing: Ints, latest: Ints, where: Longs, rows: Longs) -> Ints:
        """What the slices know once everything missing has finished, without the waits' own positions. `latest`: the
        most that is missing of every lane."""
        common = missing == latest
        common[rows, where] = True
        if common.all():  # mostly, all slices need the same: then they come to know the same
            (lanes_of,) = latest.nonzero()
            everything: Ints = np.maximum(base, np.maximum.reduce(self._knowledge(lanes_of, latest[lanes_of] - 1)))
            return everything
        slices, at = missing.nonzero()
        # Slices mostly need the same others (all of an earlier stage); a distinct one is looked up once.
        keys = at.astype(np.int64) << 32 | missing[slices, at]
        distinct, which = np.unique(keys, return_inverse=True)
        wanted = np.zeros((len(base), len(distinct)), bool)
        wanted[slices, which] = True
        known = self._knowledge(distinct >> 32, (distinct & 0xFFFFFFFF) - 1)
        heard = base.copy()
        for row in np.flatnonzero(wanted.any(axis=1)).tolist():
            np.maximum(heard[row], known[wanted[row]].max(axis=0), out=heard[row])
        return heard

    def _knowledge(self, lanes: Any, positions: Any) -> Ints:
        """What was finished when these entries started, a row each."""
        known: Ints = self._known[self._at[positions, lanes]]
        return known

    def _name(self, chosen: Any, missing: Ints, heard: Ints, waits: list[tuple[str, ...]]) -> None:
        """The chosen waits by name; several for slices of one stage become one for the stage, where all of its
        slices are certain to be finished then."""
        rows, lanes = np.nonzero(chosen)
        slices = self._at[missing[rows, lanes] - 1, lanes]
        stages = self._stage_of[slices]
        distinct = sorted(set(stages.tolist()))
        for number in distinct:
            stage = self._stages[number]
            ours = stages == number if len(distinct) > 1 else np.ones(len(rows), bool)
            if len(rows) >= COMPACT:
                whole = np.bincount(rows[ours], minlength=len(waits)) >= COMPACT
                if whole.any():
                    whole &= (heard[:, stage.lanes] >= stage.ends).all(axis=1)
                    ours &= ~whole[rows]
                    for row in np.flatnonzero(whole).tolist():
                        waits[row] += (f"{stage.name}#*",)
            for row, index in zip(rows[ours].tolist(), slices[ours].tolist(), strict=True):
                waits[row] += (f"{stage.name}#{index - stage.first}",)


def _grown(array: Ints, size: int) -> Ints:
    """With at least `size` rows."""
    if size <= len(array):
        return array
    return np.concatenate((array, np.zeros((max(size, 2 * len(array)) - len(array), *array.shape[1:]), array.dtype)))
