"""What goes with a step, by trying: what nobody reads any more goes, until nothing else does."""

import random
from collections.abc import Mapping

from planner.solve.memory.needless import going_ns


def tried(start: int, readers: Mapping[int, set[int]]) -> set[int]:
    gone = {start}
    while more := {at for at, by in readers.items() if by and by <= gone} - gone:
        gone |= more
    return gone


def test_what_only_one_step_needs_goes_with_it() -> None:
    # a: 0, b: 1, c: 2, d: 3, e: 4, which 5 reads, and stays
    readers = {0: {1}, 1: {2, 3}, 2: {4}, 3: {4}, 4: {5}}
    assert going_ns([1, 10, 100, 1000, 10000, 0], readers) == [1, 11, 100, 1000, 11111, 0]
    assert going_ns([1, 10, 100, 1000, 10000, 0], {**readers, 3: {4, 5}}) == [1, 11, 100, 1000, 10100, 0]


def test_times_are_those_of_all_that_goes() -> None:
    rng = random.Random(5)
    for _ in range(300):
        count = rng.randrange(1, 30)
        ns = [float(rng.randrange(100)) for _ in range(count)]
        may_go = [at for at in range(count) if rng.random() < 0.9]
        near = rng.randrange(1, count + 1)
        readers = {
            at: {rng.randrange(at + 1, min(count, at + near) + 1) for _ in range(rng.randrange(4)) if at < count - 1}
            for at in may_go
        }
        found = going_ns(ns, readers)
        assert [found[at] for at in may_go] == [sum(ns[x] for x in tried(at, readers)) for at in may_go]
