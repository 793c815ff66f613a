"""Part of `check`: happens-before, the transitive closure of lane order and waits, as vector clocks.

Row s of `clock` says how many entries of every lane are certain to be finished when slice s starts. So slice a
happens before slice b exactly if clock[b, lane of a] > position of a: one comparison, whatever lies in between.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from planner.plan.check_structure import Slices
from planner.plan.findings import Report

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

CLOCK_ENTRIES = 2**30
"""Slices x lanes of the largest program that is checked: 4 GiB of clocks."""

CYCLE_SHOWN = 12
"""Slices of a deadlock's cycle that are spelled out."""


@dataclass(frozen=True)
class Order:
    """Happens-before of one program that does not deadlock."""

    lane: IntArray
    position: IntArray
    clock: np.ndarray[Any, np.dtype[np.int32]]
    """(slices, lanes)"""
    rank: IntArray
    """Position of every slice in one legal order, which follows the plan's order of nodes where it can."""

    def before(self, first: IntArray, second: IntArray) -> BoolArray:
        """Element by element (with broadcasting): has `first` finished, under every timing, when `second` starts?"""
        result: BoolArray = self.clock[second, self.lane[first]] > self.position[first]
        return result

    def missing(self, names: Sequence[str], earlier: int, later: int) -> str:
        """What the order lacks between two slices, as the middle of a sentence about the later one. A wait does not
        help where the plan runs the two the other way round: it would be a deadlock."""
        if not self.before(np.asarray(later), np.asarray(earlier)):
            return f"without waiting for {names[earlier]}"
        same = self.lane[earlier] == self.lane[later]
        what = f"lane {self.lane[later]} runs" if same else "lane order and waits put"
        return f"although {what} it before {names[earlier]}"


def happens_before(slices: Slices, report: Report) -> Order | None:
    """The program's order, or None and a finding when some slices wait for each other.

    Slices are visited in a topological order that prefers low numbers; numbers follow the plan's order of nodes. A
    gate (a wait for a whole stage) has a row of its own: what is certain once all slices of the stage have ended.
    """
    count, lanes = len(slices.names), len(slices.plan.lanes)
    if count * lanes > CLOCK_ENTRIES:
        report.add("SP1433", slices.plan.name, f"{count} slices on {lanes} lanes are too many to check")
        return None
    lane_of, position_of = slices.lane, slices.position
    program: list[list[int]] = [[-1] * len(entries) for entries in slices.plan.lanes]
    for number, (where, at) in enumerate(zip(lane_of, position_of, strict=True)):
        program[where][at] = number
    blockers = [len(w) + (at > 0) for w, at in zip(slices.waits, position_of, strict=True)]
    blockers += map(len, slices.gates)
    begin, waiting = _followers(slices)
    # While building, a row says what is finished when the slice has ended: its own entry counts too.
    clock = np.zeros((count + len(slices.gates), lanes), np.int32)
    rank = np.zeros(count, np.int64)
    ready = [number for number, blocked in enumerate(blockers) if not blocked]  # in order: a heap
    done = 0
    while ready:
        number = heapq.heappop(ready)
        where, at = lane_of[number], position_of[number]
        row, waits = clock[number], slices.waits[number]
        before = clock[program[where][at - 1]] if at else row
        if not waits:
            row[:] = before
        else:
            np.maximum(before, clock[waits[0]] if len(waits) == 1 else clock[list(waits)].max(axis=0), out=row)
        row[where] = at + 1
        rank[number] = done
        done += 1
        released = waiting[begin[number] : begin[number + 1]]
        if at + 1 < len(program[where]):
            released.append(program[where][at + 1])
        while released:
            follower = released.pop()
            blockers[follower] -= 1
            if blockers[follower]:
                continue
            if follower < count:
                heapq.heappush(ready, follower)
            else:
                members = slices.gates[follower - count]
                clock[follower] = clock[members.start : members.stop].max(axis=0)
                released += waiting[begin[follower] : begin[follower + 1]]
    if done < count:
        report.add("SP1413", slices.plan.name, _cycle(slices, program, blockers))
        return None
    lane = np.asarray(lane_of, np.int64)
    clock = clock[:count]
    clock[np.arange(count), lane] -= 1
    return Order(lane, np.asarray(position_of, np.int64), clock, rank)


def _followers(slices: Slices) -> tuple[list[int], list[int]]:
    """Slice or gate s is waited for by waiting[begin[s]:begin[s + 1]]: two flat lists, because hundreds of thousands
    of small ones keep the garbage collector busy. Gates wait for the slices of their stages."""
    waits = (*slices.waits, *slices.gates)
    sizes = np.fromiter(map(len, waits), np.int64, len(waits))
    waited = np.fromiter(chain.from_iterable(waits), np.int64, int(sizes.sum()))
    order = np.argsort(waited, kind="stable")
    begin = np.searchsorted(waited[order], np.arange(len(sizes) + 1))
    return begin.tolist(), np.repeat(np.arange(len(sizes)), sizes)[order].tolist()


def _blocked(slices: Slices, blockers: list[int], wait: int) -> int:
    """A slice that never starts, of those that a wait is for; -1 when all do."""
    gate = wait - len(slices.names)
    members = slices.gates[gate] if gate >= 0 else (wait,)
    return next((m for m in members if blockers[m]), -1)


def _cycle(slices: Slices, program: list[list[int]], blockers: list[int]) -> str:
    """Spell out a cycle: from any slice that never starts, some predecessor never starts either, so walking
    backwards must come around."""
    number = next(i for i, blocked in enumerate(blockers) if blocked)
    seen: dict[int, int] = {}
    steps: list[tuple[int, str]] = []
    while number not in seen:
        seen[number] = len(steps)
        where, at = slices.lane[number], slices.position[number]
        stuck = [b for b in (_blocked(slices, blockers, w) for w in slices.waits[number]) if b >= 0]
        if stuck:
            steps.append((number, "waits for"))
            number = stuck[0]
        else:
            steps.append((number, f"comes in lane {where} after"))
            number = program[where][at - 1]
    cycle = steps[seen[number] :]
    text = " ".join(f"{slices.names[i]} {how}" for i, how in cycle[:CYCLE_SHOWN])
    if len(cycle) > CYCLE_SHOWN:
        text += f" ({len(cycle) - CYCLE_SHOWN} more slices)"
    return f"deadlock: {text} {slices.names[number]}"
