"""Which lanes a node's slices get: those whose cores hold its operands, then neighbours that share a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.solve.schedule import Schedule


class Places:
    """The idle lanes of one group: the cores' first threads, or their siblings."""

    def __init__(self, lanes: Sequence[int], tiles: Sequence[int]) -> None:
        """`tiles`: for each of `lanes` the cache that it shares with its neighbours."""
        self.count = len(lanes)
        self._tile = dict(zip(lanes, tiles, strict=True))
        self._idle = dict.fromkeys(lanes, True)
        self.idle = len(lanes)

    def take(self, count: int, before: tuple[int, ...] = (), affinity: str = "compact") -> tuple[int, ...]:
        """Occupy `count` idle lanes. `before`: the lanes that made the node's largest operand, slice by slice.

        The same lanes again where they are free and as many: then slice i finds what slice i left. Otherwise whole
        tiles, those with the operand's lanes first; with affinity spread one lane of every tile first.
        """
        idle = self._idle
        if len(before) == count and all(idle.get(lane, False) for lane in before):
            chosen = before
        elif count == self.idle:
            chosen = tuple(lane for lane, free in idle.items() if free)
        else:
            chosen = self._near(count, frozenset(before), affinity)
        for lane in chosen:
            idle[lane] = False
        self.idle -= count
        return chosen

    def _near(self, count: int, before: frozenset[int], affinity: str) -> tuple[int, ...]:
        groups: dict[int, list[int]] = {}
        for lane, free in self._idle.items():
            if free:
                groups.setdefault(self._tile[lane], []).append(lane)
        ranked = sorted(groups.values(), key=lambda g: (-sum(lane in before for lane in g), -len(g), g[0]))
        if affinity == "spread":
            longest = max(map(len, ranked))
            flat = [g[turn] for turn in range(longest) for g in ranked if turn < len(g)]
        else:
            # A tile that fits what is left exactly spares a larger one.
            flat = []
            while len(flat) < count:
                left = count - len(flat)
                fitting = next((g for g in ranked if len(g) <= left), ranked[-1])
                ranked.remove(fitting)
                flat += sorted(fitting, key=lambda lane: (lane not in before, lane))
        return tuple(sorted(flat[:count]))

    def release(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self._idle[lane] = True
        self.idle += len(lanes)


def without_unused_lanes(schedules: Mapping[str, Schedule], cores: int) -> tuple[dict[str, Schedule], tuple[int, ...]]:
    """Lanes on second threads that no program uses are dropped, those behind move up.

    Returns the schedules and, for every second thread that is used, which it was: 0 for the sibling of lane 0.
    """
    used = sorted({lane for s in schedules.values() for lanes in s.lanes.values() for lane in lanes if lane >= cores})
    if not used:
        return dict(schedules), ()
    new = {lane: lane for lane in range(cores)} | {lane: cores + i for i, lane in enumerate(used)}
    moved = {
        name: replace(s, lanes={n: tuple(new[lane] for lane in lanes) for n, lanes in s.lanes.items()})
        for name, s in schedules.items()
    }
    return moved, tuple(lane - cores for lane in used)
