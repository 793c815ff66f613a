"""Replay a program's lane programs: when every slice starts and ends if each takes its predicted time.

The replay is exact for the executor's rules (DESIGN section 9): a lane runs its entries in order; an entry starts
when its lane is free and every slice that it waits for has finished, plus the latency of seeing a signal when that
slice ran on another lane. Slice i of stage s of node n takes `NodePlan.stage_ns[s]`, whatever i is.

Example, sync 10 ns, a takes 100 ns and b 50 ns:

    lane 0:  a/0#0                 0..100
    lane 1:  b/0#0 after a/0#0         110..160      total 160, lane 1 waited 110

With a `Contention`, nodes that run at the same time slow each other down (rates.py).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.plan.contention import Contention, contention_of
from planner.plan.gates import Gates
from planner.plan.rates import Replay
from planner.plan.schema import Plan, ProgramPlan, parse_slice

Times = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Timeline:
    """When every slice ran. Arrays are parallel, lane by lane and in each lane's own order; times in ns."""

    program: str
    slices: tuple[str, ...]
    lane: Indices
    start_ns: Times
    end_ns: Times
    lanes: int
    busy_ns: Times
    """Per lane: time inside slices."""
    waits: int
    """How many waits the lane programs list."""

    @property
    def total_ns(self) -> float:
        return float(self.end_ns.max()) if len(self.end_ns) else 0.0

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Slice name -> its row in the arrays."""
        return {name: row for row, name in enumerate(self.slices)}

    def rows(self) -> list[tuple[str, int, float, float]]:
        """(slice, lane, start_ns, end_ns) of every slice: the form that measured traces have as well."""
        columns = (self.lane.tolist(), self.start_ns.tolist(), self.end_ns.tolist())
        return list(zip(self.slices, *columns, strict=True))


def simulate(
    program: ProgramPlan,
    *,
    sync_ns: float = 200.0,
    noise: float = 0.0,
    seed: int = 0,
    stage_ns: Mapping[str, Sequence[float]] | None = None,
    contention: Contention | None = None,
) -> Timeline:
    """Replay `program`.

    `sync_ns`: latency of a signal between two lanes. `noise`: every slice's time is multiplied by a log-normal
    factor of median 1 and this sigma (0.1: mostly within 10 %); `seed` fixes all of them. `stage_ns`: ns per stage
    of some nodes, instead of the plan's own. `contention`: how nodes slow each other down; None: not at all.
    SP1452: the lanes cannot finish, because slices wait for each other in a circle or for one that never runs.
    """
    names = [entry.run for lane in program.lanes for entry in lane]
    index = {name: row for row, name in enumerate(names)}
    if len(index) < len(names):
        twice = next(n for i, n in enumerate(names) if index[n] != i)
        raise _stuck(program, f"slice {twice!r} is listed more than once")
    gates = Gates(len(names))
    # Slices of a stage mostly wait for the same: their lists are looked up once.
    known: dict[tuple[str, ...], tuple[int, ...]] = {(): ()}
    waits: list[tuple[int, ...]] = []
    for entry in (e for lane in program.lanes for e in lane):
        numbers = known.get(entry.wait)
        if numbers is None:
            numbers = known[entry.wait] = _rows(program, index, gates, entry.run, entry.wait)
        waits.append(numbers)
    took = _durations(program, names, stage_ns or {})
    if noise:
        draw = random.Random(seed)
        took = [time * draw.lognormvariate(0.0, noise) for time in took]
    lane_of = [lane for lane, entries in enumerate(program.lanes) for _ in entries]
    if contention is None:
        start, end = _replay(program, names, waits, gates, took, lane_of, float(sync_ns))
    else:
        start, end = _replay_rates(program, names, waits, gates, took, lane_of, float(sync_ns), contention)

    lanes = np.array(lane_of, dtype=np.int64)
    starts, ends = np.array(start, dtype=np.float64), np.array(end, dtype=np.float64)
    busy = np.zeros(len(program.lanes))
    np.add.at(busy, lanes, ends - starts)
    return Timeline(
        program=program.name,
        slices=tuple(names),
        lane=lanes,
        start_ns=starts,
        end_ns=ends,
        lanes=len(busy),
        busy_ns=busy,
        waits=sum(map(len, waits)),
    )


def replay(plan: Plan, program: ProgramPlan, *, sync_ns: float = 200.0, noise: float = 0.0, seed: int = 0) -> Timeline:
    """`simulate` a program of `plan` with what its lanes share."""
    return simulate(program, sync_ns=sync_ns, noise=noise, seed=seed, contention=contention_of(plan.sharing, program))


def _replay(
    program: ProgramPlan,
    names: Sequence[str],
    waits: Sequence[tuple[int, ...]],
    gates: Gates,
    took: Sequence[float],
    lane_of: Sequence[int],
    sync_ns: float,
) -> tuple[list[float], list[float]]:
    """Start and end of every slice. Each lane runs until it meets a wait that is not finished and is
    queued again when that slice ends: every slice is looked at once per wait, whatever the number of lanes."""
    total = len(names)
    start, end = [0.0] * total, [-1.0] * total
    at, stop = [], []
    position = 0
    for entries in program.lanes:
        at.append(position)
        position += len(entries)
        stop.append(position)
    free = [0.0] * len(program.lanes)
    sleeping: dict[int, list[int]] = {}
    """slice or gate -> lanes that wait for it"""
    runnable = list(range(len(program.lanes)))
    done = 0
    while runnable:
        lane = runnable.pop()
        row = at[lane]
        while row < stop[lane]:
            begin, blocked = free[lane], -1
            for other in waits[row]:
                if other >= total:
                    finished = gates.seen(other, lane, sync_ns)
                else:
                    finished = end[other]
                    if lane_of[other] != lane and finished >= 0:
                        finished += sync_ns
                if finished < 0:
                    blocked = other
                    break
                if finished > begin:
                    begin = finished
            if blocked >= 0:
                sleeping.setdefault(blocked, []).append(lane)
                break
            start[row] = begin
            end[row] = free[lane] = begin + took[row]
            done += 1
            if row in sleeping:
                runnable.extend(sleeping.pop(row))
            if gates.of and (opened := gates.arrive(row, lane, end[row])) in sleeping:
                runnable.extend(sleeping.pop(opened))
            row += 1
        at[lane] = row
    if done < total:
        raise _stuck(program, _circle(names, waits, gates, at, stop, end, lane_of))
    return start, end


def _replay_rates(
    program: ProgramPlan,
    names: Sequence[str],
    waits: Sequence[tuple[int, ...]],
    gates: Gates,
    took: Sequence[float],
    lane_of: Sequence[int],
    sync_ns: float,
    contention: Contention,
) -> tuple[list[float], list[float]]:
    nodes = [n.node for n in program.nodes]
    number = {node: i for i, node in enumerate(nodes)}
    node_of = [number[name.rpartition("/")[0]] for name in names]
    lengths = [len(entries) for entries in program.lanes]
    run = Replay(waits, gates, took, lane_of, lengths, node_of, nodes, sync_ns, contention)
    run.run()
    if run.done < len(names):
        raise _stuck(program, _circle(names, waits, gates, run.at, run.stop, run.end, lane_of))
    return run.start, run.end


def _rows(
    program: ProgramPlan, index: Mapping[str, int], gates: Gates, run: str, wait: Sequence[str]
) -> tuple[int, ...]:
    """The waits as numbers of slices and gates."""

    def number(name: str) -> int:
        found = index.get(name, -1)
        if found < 0:
            found = gates.known(name)
        if found < 0:
            node = program.node.get(name.rpartition("/")[0])
            if node is None or not name.endswith("#*"):
                raise KeyError(name)
            found = gates.number(name, index, node.slices)
        return found

    try:
        return tuple(map(number, wait))
    except KeyError as error:
        raise _stuck(program, f"{run!r} waits for {error.args[0]!r}, which no lane runs") from None


def _durations(program: ProgramPlan, names: Sequence[str], override: Mapping[str, Sequence[float]]) -> list[float]:
    times = {node.node: override.get(node.node, node.stage_ns) for node in program.nodes}
    by_stage: dict[str, float] = {}
    found = []
    for name in names:
        stage_of, _, index = name.rpartition("#")
        time = by_stage.get(stage_of)
        if time is None or not index.isdecimal():
            try:
                node, stage, _ = parse_slice(name)
                time = by_stage[stage_of] = float(times[node][stage])
            except (KeyError, ValueError, IndexError):
                raise _stuck(program, f"{name!r} is no slice of a planned node's stage") from None
        found.append(time)
    return found


def _circle(
    names: Sequence[str],
    waits: Sequence[tuple[int, ...]],
    gates: Gates,
    at: Sequence[int],
    stop: Sequence[int],
    end: Sequence[float],
    lane_of: Sequence[int],
) -> str:
    """Name the circle: each stuck lane's next slice waits for one that lies on, or behind, another lane's."""
    lane = next(i for i, row in enumerate(at) if row < stop[i])
    seen: list[int] = []
    while lane not in seen:
        seen.append(lane)
        blocked = next(b for b in (gates.unfinished(w, end) for w in waits[at[lane]]) if b >= 0)
        lane = lane_of[blocked]
    steps = []
    for member in seen[seen.index(lane) :]:
        blocked = next(b for b in (gates.unfinished(w, end) for w in waits[at[member]]) if b >= 0)
        steps.append(f"{names[at[member]]} (lane {member}) waits for {names[blocked]} (lane {lane_of[blocked]})")
    return "; ".join(steps)


def _stuck(program: ProgramPlan, why: str) -> UserError:
    return UserError("SP1452", f"program {program.name!r} can never finish: {why}", "plan again, or undo the edit")
