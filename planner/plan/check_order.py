"""Part of `check`: happens-before, the transitive closure of lane order and waits, as vector clocks.

Row s of `clock` says how many entries of every lane are certain to be finished when slice s starts. So slice a
happens before slice b exactly if clock[b, lane of a] > position of a: one comparison, whatever lies in between.
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.plan.check_structure import Slices
from planner.plan.findings import Report

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

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


def happens_before(slices: Slices, report: Report) -> Order | None:
    """The program's order, or None and a finding when some slices wait for each other.

    Slices are visited in a topological order that prefers low numbers; numbers follow the plan's order of nodes.
    """
    count, lanes = len(slices.names), len(slices.plan.lanes)
    lane_of, position_of = slices.lane, slices.position
    program: list[list[int]] = [[-1] * len(entries) for entries in slices.plan.lanes]
    for number, (where, at) in enumerate(zip(lane_of, position_of, strict=True)):
        program[where][at] = number
    blockers = [len(w) + (at > 0) for w, at in zip(slices.waits, position_of, strict=True)]
    waiting: list[list[int]] = [[] for _ in range(count)]
    for number, waits in enumerate(slices.waits):
        for wait in waits:
            waiting[wait].append(number)
    clock = np.zeros((count, lanes), np.int32)
    rank = np.zeros(count, np.int64)
    ready = [number for number, blocked in enumerate(blockers) if not blocked]
    heapq.heapify(ready)
    done = 0
    while ready:
        number = heapq.heappop(ready)
        where, at = lane_of[number], position_of[number]
        row = clock[number]
        if at:
            row[:] = clock[program[where][at - 1]]
        for wait in slices.waits[number]:
            np.maximum(row, clock[wait], out=row)
            row[lane_of[wait]] = max(row[lane_of[wait]], position_of[wait] + 1)
        row[where] = at
        rank[number] = done
        done += 1
        released = waiting[number]
        if at + 1 < len(program[where]):
            released = [*released, program[where][at + 1]]
        for follower in released:
            blockers[follower] -= 1
            if not blockers[follower]:
                heapq.heappush(ready, follower)
    if done < count:
        report.add("SP1413", slices.plan.name, _cycle(slices, program, blockers))
        return None
    return Order(np.asarray(lane_of, np.int64), np.asarray(position_of, np.int64), clock, rank)


def _cycle(slices: Slices, program: list[list[int]], blockers: list[int]) -> str:
    """Spell out a cycle: from any slice that never starts, some predecessor never starts either, so walking
    backwards must come around."""
    number = next(i for i, blocked in enumerate(blockers) if blocked)
    seen: dict[int, int] = {}
    steps: list[tuple[int, str]] = []
    while number not in seen:
        seen[number] = len(steps)
        where, at = slices.lane[number], slices.position[number]
        stuck = [w for w in slices.waits[number] if blockers[w]]
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
