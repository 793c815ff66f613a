"""Tensor cache (SuperNeurons, section 3.3.2): which values leave a fast pool and come back, so that every step fits.

Transfers happen only when the pool is short of bytes (algorithm 2). The published victim is the least recently used
value; a plan knows the future, so Belady's rule is possible: the value whose next use is farthest away.

    capacity 3, all values 1 byte; a b c are written, then read again c b a, while d needs a byte
        write a, b, c, d; read d, c, b, a
    d finds the pool full. LRU evicts a, the least recently used, and so does Belady, because a is used last:
    1 byte out, 1 byte back.

A value that the slow pool already holds unchanged is dropped without being written again. Bytes are counted, not
placed: `residencies` are what pass *offsets* places.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.errors import InternalError, UserError
from planner.solve.liveness import Block
from planner.units import Bytes, format_bytes

Policy = Literal["lru", "belady"]
POLICIES: tuple[Policy, ...] = ("lru", "belady")


@dataclass(frozen=True)
class Access:
    """What one step touches; all of it must be in the fast pool while the step runs."""

    step: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    """Values that the step creates or changes: a copy in the slow pool is worth nothing afterwards."""

    @property
    def touches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


@dataclass(frozen=True)
class Transfer:
    """A copy between the pools, which may overlap all steps between `after` and `before`."""

    value: str
    kind: Literal["offload", "prefetch"]
    bytes: Bytes
    after: int
    """The copy may start when this step is done: for an offload the value's last touch, for a prefetch the step whose
    end makes room. -1: before the first step."""
    before: int
    """The copy must be finished when this step starts: for an offload the step that needs the room, for a prefetch the
    one that reads the value. The number of steps: at the end."""


@dataclass(frozen=True)
class Schedule:
    """Steps are positions in the accesses."""

    policy: Policy
    transfers: tuple[Transfer, ...]
    resident: tuple[Bytes, ...]
    """Bytes in the fast pool while each step runs, those on their way included."""
    slow: Bytes
    """The most bytes that the slow pool holds at once."""

    @property
    def moved(self) -> Bytes:
        return Bytes(sum(t.bytes for t in self.transfers))

    @property
    def fetched(self) -> Bytes:
        return Bytes(sum(t.bytes for t in self.transfers if t.kind == "prefetch"))


def smallest_capacity(accesses: Sequence[Access], sizes: Mapping[str, int]) -> tuple[Bytes, str]:
    """The bytes that the largest step touches, and that step: no cache can do with less."""
    needs = ((sum(sizes[v] for v in a.touches), a.step) for a in accesses)
    need, step = max(needs, key=lambda pair: pair[0], default=(0, ""))
    return Bytes(need), step


def schedule(
    accesses: Sequence[Access],
    sizes: Mapping[str, int],
    capacity: int,
    policy: Policy = "belady",
    *,
    home: Collection[str] = (),
    lookahead: int = 0,
) -> Schedule:
    """Transfers that keep the fast pool within `capacity` bytes.

    home: values that the slow pool holds before the first step and again after the last one (inputs, parameters);
    those that a step changes are written back.
    lookahead: by how many steps a prefetch may start early where there is room.
    SP1301: a step touches more than the capacity.
    """
    need, step = smallest_capacity(accesses, sizes)
    if need > capacity:
        raise UserError(
            "SP1301",
            f"step {step} touches {need} bytes ({format_bytes(need)}) but the budget is {capacity}",
            f"the smallest budget is {need} bytes ({format_bytes(need)}), or use a smaller batch",
        )
    cache = _Cache(accesses, sizes, capacity, policy, home)
    for position in range(len(accesses)):
        cache.run(position)
    transfers, resident = _early(cache.transfers, cache.resident, capacity, lookahead)
    return Schedule(policy, transfers, resident, Bytes(cache.slow_peak))


def residencies(
    accesses: Sequence[Access], transfers: Sequence[Transfer], sizes: Mapping[str, int]
) -> tuple[Block, ...]:
    """When each value is in the fast pool, from step `lower` up to `upper`: `VALUE`, `VALUE.2` when it has come back.

    From its first touch, or from where its prefetch may start, to its last touch before it leaves, or to where its
    offload ends. What is dropped without a copy is gone after its last touch.
    """
    touches: dict[str, list[int]] = {}
    for position, access in enumerate(accesses):
        for value in access.touches:
            touches.setdefault(value, []).append(position)
    back = {(t.value, t.before): t.after + 1 for t in transfers if t.kind == "prefetch"}
    away = {(t.value, t.after): t.before for t in transfers if t.kind == "offload"}
    found = []
    for value, positions in touches.items():
        starts = [i for i, p in enumerate(positions) if i == 0 or (value, p) in back]
        for number, (start, end) in enumerate(zip(starts, (*starts[1:], len(positions)), strict=True), 1):
            first, last = positions[start], positions[end - 1]
            lower, upper = back.get((value, first), first), away.get((value, last), last + 1)
            name = value if number == 1 else f"{value}.{number}"
            found.append(Block(name, lower, max(upper, last + 1), Bytes(sizes[value])))
    return tuple(found)


class _Cache:
    """The fast pool, step after step."""

    def __init__(
        self,
        accesses: Sequence[Access],
        sizes: Mapping[str, int],
        capacity: int,
        policy: Policy,
        home: Collection[str],
    ) -> None:
        self.accesses, self.sizes, self.capacity, self.policy = accesses, sizes, capacity, policy
        self.uses: dict[str, list[int]] = {}
        """Future touches of each value, the next one last."""
        for position in range(len(accesses) - 1, -1, -1):
            for value in accesses[position].touches:
                self.uses.setdefault(value, []).append(position)
        self.home = frozenset(home)
        self.here: dict[str, int] = {}
        """Value in the fast pool -> the step that touched it last."""
        self.used = 0
        self.slow = {v for v in home if v in self.uses}
        """Values of which the slow pool has a good copy."""
        self.slow_bytes = self.slow_peak = sum(sizes[v] for v in self.slow)
        """A value that has its home in the slow pool has its bytes there all the time."""
        self.queue: list[tuple[int, str, int]] = []
        """(priority, value, last touch): the next victim first. Entries of an older touch are stale."""
        self.left: dict[str, int] = {}
        """Value -> the step before which it left the fast pool."""
        self.transfers: list[Transfer] = []
        self.resident: list[int] = []

    def run(self, position: int) -> None:
        access = self.accesses[position]
        touched = access.touches
        written = frozenset(access.writes)
        missing = [v for v in touched if v not in self.here]
        self._make_room(sum(self.sizes[v] for v in missing), position, frozenset(touched))
        for value in missing:
            self.used += self.sizes[value]
            if value in access.reads:
                self._fetch(value, position)
        self.resident.append(self.used)
        for value in touched:
            self.uses[value].pop()
            self.here[value] = position
            if value in written:
                self._outdate(value)
            if not self.uses[value]:
                self._release(value, position)
                continue
            next_use = self.uses[value][-1]
            heapq.heappush(self.queue, (position if self.policy == "lru" else -next_use, value, position))

    def _fetch(self, value: str, position: int) -> None:
        if value not in self.slow:
            raise InternalError(f"step {self.accesses[position].step} reads {value}, which nothing has written")
        # It can come back only once it has left; `_early` decides when.
        left = self.left.get(value, -1)
        self.transfers.append(Transfer(value, "prefetch", Bytes(self.sizes[value]), left, position))

    def _make_room(self, size: int, position: int, locked: Collection[str]) -> None:
        short = self.used + size - self.capacity
        passed: list[tuple[int, str, int]] = []
        victims: list[tuple[int, str, int]] = []
        while short > 0:
            entry = heapq.heappop(self.queue)
            _, value, touched = entry
            if self.here.get(value) != touched:
                continue
            (passed if value in locked else victims).append(entry)
            short -= 0 if value in locked else self.sizes[value]
        for entry in reversed(victims) if self.policy == "belady" else ():
            # A large last victim may have made others needless: spare those that are used first.
            if short + self.sizes[entry[1]] <= 0:
                short += self.sizes[entry[1]]
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self.queue, entry)
        spared = {value for _, value, _ in passed}
        for _, value, _ in victims:
            if value not in spared:
                self._evict(value, position)

    def _evict(self, value: str, position: int) -> None:
        touched = self.here.pop(value)
        self.used -= self.sizes[value]
        self.left[value] = position
        if value not in self.slow:
            self._offload(value, touched, position)

    def _offload(self, value: str, after: int, before: int) -> None:
        self.transfers.append(Transfer(value, "offload", Bytes(self.sizes[value]), after, before))
        self.slow.add(value)
        if value not in self.home:
            self.slow_bytes += self.sizes[value]
            self.slow_peak = max(self.slow_peak, self.slow_bytes)

    def _outdate(self, value: str) -> None:
        """The copy in the slow pool, if any, is worth nothing any more."""
        if value in self.slow:
            self.slow.discard(value)
            if value not in self.home:
                self.slow_bytes -= self.sizes[value]

    def _release(self, value: str, position: int) -> None:
        """The value's last touch is over. Bytes count as free from the next step on, so a write-back ends before it."""
        if value not in self.home:
            self._outdate(value)
        elif value not in self.slow:
            self._offload(value, position, position + 1)
        del self.here[value]
        self.used -= self.sizes[value]


def _early(
    transfers: Sequence[Transfer], resident: Sequence[int], capacity: int, lookahead: int
) -> tuple[tuple[Transfer, ...], tuple[Bytes, ...]]:
    """Let every prefetch start as many steps ahead, up to `lookahead`, as have room for its value."""
    held = list(resident)
    result = []
    for transfer in transfers:
        if transfer.kind == "offload":
            result.append(transfer)
            continue
        start = transfer.before
        floor = max(transfer.after + 1, transfer.before - lookahead)
        while start > floor and held[start - 1] + transfer.bytes <= capacity:
            start -= 1
            held[start] += transfer.bytes
        result.append(replace(transfer, after=start - 1))
    return tuple(result), tuple(Bytes(b) for b in held)
