"""Bytes while nodes start out of turn, against counting them from nothing."""

import random
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solve.liveness import liveness
from planner.solve.memory.room import Lifetimes, Room, lifetimes
from planner.units import align
from tests.graphs import small_net
from tests.rewrites import Rewriter


def lives(touches: dict[str, tuple[str, ...]], size: dict[str, int], always: int = 0) -> Lifetimes:
    """Nodes in the lean order with the blocks that they touch."""
    places = {b: tuple(at for at, n in enumerate(touches) if b in touches[n]) for b in size}
    alive = [
        always + sum(size[b] for b in size if places[b][0] <= at <= places[b][-1]) for at in range(len(touches) + 1)
    ]
    return Lifetimes({n: at for at, n in enumerate(touches)}, touches, places, size, always, np.array(alive))


def example() -> Lifetimes:
    """The one of room.py: x lives from a to d, y is made and left by d."""
    found = lives({"a": ("x",), "b": (), "c": ("x",), "d": ("x", "y")}, {"x": 8, "y": 4})
    return Lifetimes(
        found.place, found.touches, {**found.places, "y": (3, 4)}, found.size, 0, np.array([8, 8, 8, 12, 4])
    )


def test_the_example() -> None:
    room = Room(example())
    room.take("a", 10.0)
    # d out of turn: y is there from b on, 8 + 4 = 12 bytes at b and at c; x goes after c.
    assert room.leaves_enough("d", 12)
    assert not room.leaves_enough("d", 11)
    assert room.leaves_enough("b", 0)  # its turn
    room.take("d", 20.0)
    assert room.head == 1  # b has not started
    room.take("b", 30.0)
    room.take("c", 40.0)
    assert room.head == 4  # d has


def test_bytes_are_free_when_the_last_that_needs_them_ends() -> None:
    room = Room(lives({"a": ("x",), "b": ("x",), "c": ("y",)}, {"x": 8, "y": 8}, always=1))
    room.take("a", 10.0)
    assert room.free_at("c", 3.0, 17) == 3.0  # 1 + 8 + 8
    assert room.free_at("c", 3.0, 16) == inf  # not before b has run
    room.take("b", 15.0)
    assert room.free_at("c", 3.0, 16) == 15.0
    assert room.free_at("c", 16.0, 16) == 16.0
    assert room.free_at("c", 3.0, 8) == inf


@pytest.mark.parametrize("keep", [(), ("conv1.y",)])
def test_lifetimes_are_those_of_blocks(keep: tuple[str, ...]) -> None:
    rewriter = Rewriter(small_net(), 1)
    graph, schedules = rewriter.graph, rewriter.schedules
    blocks = liveness(graph, schedules, keep).blocks
    first = 0
    for program in graph.programs:
        nodes = schedules[program.name].order
        for elsewhere in (set[str](), {"bn1.y"}, {b.id for b in blocks}):
            counted = [b for b in blocks if b.id not in elsewhere]
            expected = [
                sum(align(b.size) for b in counted if b.lower <= first + at < b.upper) for at in range(len(nodes) + 1)
            ]
            found = lifetimes(graph, schedules, program.name, keep, elsewhere)
            assert found.alive.tolist() == expected
            assert found.peak == max(expected)
        first += len(nodes) + 1


@given(seed=st.integers(0, 10**6))
def test_like_counting_from_nothing(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [f"n{i}" for i in range(rng.randint(2, 12))]
    size = {f"b{i}": rng.randint(1, 20) for i in range(rng.randint(1, 10))}
    touches: dict[str, tuple[str, ...]] = {n: () for n in nodes}
    for block in size:
        for node in rng.sample(nodes, rng.randint(1, min(4, len(nodes)))):
            touches[node] += (block,)
    lean = lives(touches, size, always=rng.randint(0, 5))
    room, started = Room(lean), list[str]()

    def least(node: str) -> int:
        """Run the rest in the lean order and add up at every node what has been made and is still needed; where that is
        no more than before, it is no objection."""
        done = {*started, node}
        rest, found = [n for n in nodes if n not in done], 0
        before = [n for n in nodes if n not in started]
        head, at = nodes.index(before[0]), nodes.index(node)
        for number, other in enumerate(rest):
            if not head <= nodes.index(other) < at:
                continue
            needed = {b for n in rest[number:] for b in touches[n]}
            seen = {b for n in (*done, *rest[: number + 1]) for b in touches[n]}
            had = {b for n in (*started, *before[: before.index(other) + 1]) for b in touches[n]}
            wanted = {b for n in before[before.index(other) :] for b in touches[n]}
            bytes_, now = (lean.always + sum(size[b] for b in both) for both in (needed & seen, had & wanted))
            found = max(found, bytes_ if bytes_ > now else 0)
        return found

    def free(node: str, start: float, limit: int) -> float:
        """Try the start and every end behind it: what others are still to need is there, and what still runs."""
        wanted = {b for n in nodes if n not in started for b in touches[n]}
        until = {b: max(ends[n] for n in started if b in touches[n]) for b in {b for n in started for b in touches[n]}}
        for when in sorted({start, *(end for end in until.values() if end > start)}):
            there = {b for b, end in until.items() if b in wanted or end > when} | set(touches[node])
            if lean.always + sum(size[b] for b in there) <= limit:
                return when
        return inf

    ends, now = dict[str, float](), 0.0
    while len(started) < len(nodes):
        # What a block's first node makes cannot be touched before.
        ready = [
            n for n in nodes if n not in started and all(lean.places[b][0] == lean.place[n] or b in
            {x for s in started for x in touches[s]} for b in touches[n])
        ]  # fmt: skip
        node = rng.choice(ready)
        enough = least(node)
        assert room.leaves_enough(node, enough) and (not enough or not room.leaves_enough(node, enough - 1))
        start = now + rng.randint(0, 3)
        for limit in range(lean.always, sum(size.values(), lean.always) + 1):
            assert room.free_at(node, start, limit) == free(node, start, limit)
        ends[node] = start + rng.randint(0, 5)
        room.take(node, ends[node])
        started.append(node)
        if rng.random() < 0.3:
            now = start
            room.forget(now)
        rest = [n for n in nodes if n not in started]
        assert room.head == (nodes.index(rest[0]) if rest else len(nodes))


@given(seed=st.integers(0, 10**6))
def test_answers_are_the_same_between_the_limits_that_are_told(seed: int) -> None:
    rng = random.Random(seed)
    nodes, size = [f"n{i}" for i in range(8)], {f"b{i}": rng.randint(1, 20) for i in range(6)}
    lean = lives({n: tuple(b for b in size if rng.random() < 0.4) for n in nodes} | {"all": tuple(size)}, size)
    order = rng.sample(nodes, 5)

    def answers(limit: int) -> tuple[list[tuple[bool, float]], Room]:
        room, found = Room(lean), []
        for at, node in enumerate(order):
            found.append((room.leaves_enough(node, limit), room.free_at(node, float(at), limit)))
            room.take(node, at + 2.5)
        return found, room

    limit = rng.randint(1, lean.peak)
    expected, room = answers(limit)
    assert room.least <= limit < room.below
    for other in range(room.least, int(min(room.below, lean.peak + 1))):
        assert answers(other)[0] == expected
    if room.least:
        assert answers(room.least - 1)[1].below == room.least
    if room.below < inf:
        assert answers(int(room.below))[1].least == room.below


def test_a_peak_is_told() -> None:
    assert lives({"a": ("x",), "b": ("x", "y")}, {"x": 3, "y": 4}, always=2).peak == 9


@pytest.mark.parametrize("limit", [15, 16])
def test_what_the_order_needs_anyway_is_no_objection(limit: int) -> None:
    room = Room(lives({"a": ("x",), "b": ("x", "y"), "c": ("y",), "d": ()}, {"x": 8, "y": 8}))
    room.take("a", 1.0)
    assert room.leaves_enough("d", limit)  # b needs 16 bytes with d or without it
