"""Waits for whole stages in a replay: one count per stage, as the executor has it.

In lists of waits, numbers from `total` on are gates: `total + g` is gate g. A gate opens when the last slice of its
stage ends. A lane sees its own slice at once and those of others a signal later, so a gate remembers the last end and
the last end on another lane.
"""

from collections.abc import Mapping, Sequence


class Gates:
    """The stages that somebody waits for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.members: list[tuple[int, ...]] = []
        self.of: dict[int, int] = {}
        """slice -> its gate"""
        self._number: dict[str, int] = {}
        self._left: list[int] = []
        self._last: list[tuple[float, int]] = []
        """Per gate (end, lane) of the last slice; `_other`: the end of the last one on another lane than that."""
        self._other: list[float] = []

    def known(self, wait: str) -> int:
        """The number of a gate that was asked for before; -1."""
        return self._number.get(wait, -1 - self.total) + self.total

    def number(self, wait: str, index: Mapping[str, int], slices: int) -> int:
        """The gate of a wait `node/stage#*`. KeyError: one of the stage's slices runs nowhere."""
        if wait not in self._number:
            rows = tuple(index[f"{wait[:-1]}{i}"] for i in range(slices))
            gate = self._number[wait] = len(self.members)
            self.members.append(rows)
            self.of.update(dict.fromkeys(rows, gate))
            self._left.append(len(rows))
            self._last.append((-1.0, -1))
            self._other.append(-1.0)
        return self.total + self._number[wait]

    def arrive(self, row: int, lane: int, end: float) -> int:
        """A slice has ended. The number of its gate when that opens it, else -1."""
        gate = self.of.get(row, -1)
        if gate < 0:
            return -1
        last = self._last[gate]
        if end >= last[0]:
            if last[1] != lane:
                self._other[gate] = last[0]
            self._last[gate] = (end, lane)
        elif end > self._other[gate]:  # on another lane: the ends on one lane only grow
            self._other[gate] = end
        self._left[gate] -= 1
        return self.total + gate if not self._left[gate] else -1

    def seen(self, wait: int, lane: int, sync_ns: float) -> float:
        """When the lane sees the gate open; -1 while it is closed."""
        gate = wait - self.total
        if self._left[gate]:
            return -1.0
        end, where = self._last[gate]
        if where != lane:
            return end + sync_ns
        other = self._other[gate]
        return max(end, other + sync_ns) if other >= 0 else end

    def unfinished(self, wait: int, end: Sequence[float]) -> int:
        """A slice that a wait (for a slice or a gate) still lacks; -1 when there is none."""
        rows = self.members[wait - self.total] if wait >= self.total else (wait,)
        return next((row for row in rows if end[row] < 0), -1)
