"""Tensor cache: reads find their values, the pool never holds too much, Belady's rule brings back no more than LRU."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InternalError, UserError
from planner.solve.superneurons.tensor_cache import (
    POLICIES,
    Access,
    Policy,
    Schedule,
    Transfer,
    residencies,
    schedule,
    smallest_capacity,
)
from planner.units import Bytes


def random_accesses(rng: random.Random, steps: int) -> tuple[list[Access], set[str]]:
    """Steps that read what was written before (or is at home in the slow pool), with values changed in between."""
    home = {f"h{i}" for i in range(rng.randint(0, 3))}
    known, accesses = sorted(home), []
    for index in range(steps):
        reads = rng.sample(known, min(len(known), rng.randint(0, 3)))
        changed = [v for v in reads if rng.random() < 0.2]
        known.append(f"v{index}")
        accesses.append(Access(f"s{index}", tuple(reads), (f"v{index}", *changed)))
    return accesses, home


def training(layers: int, size: int = 1) -> tuple[list[Access], dict[str, int]]:
    """Forward steps write v0 .. vn, backward steps read vn .. v0."""
    forward = [Access(f"f{i}", (f"v{i - 1}",) if i else (), (f"v{i}",)) for i in range(layers)]
    backward = [Access(f"b{i}", (f"v{i}",), ()) for i in reversed(range(layers))]
    return forward + backward, {f"v{i}": size for i in range(layers)}


def replay(accesses: list[Access], sizes: dict[str, int], home: set[str], found: Schedule) -> list[int]:
    """Bytes in the fast pool at each step, from the transfers alone; fails where a read would find nothing or
    something old."""
    held = [0] * len(accesses)
    for value, size in sizes.items():
        touches = [p for p, a in enumerate(accesses) if value in a.touches]
        writes = [p for p, a in enumerate(accesses) if value in a.writes]
        out = [t for t in found.transfers if t.value == value and t.kind == "offload"]
        back = [t for t in found.transfers if t.value == value and t.kind == "prefetch"]
        made = [touches[0]] if touches and value not in home else []
        arrivals, readable = sorted([*made, *(t.after + 1 for t in back)]), sorted([*made, *(t.before for t in back)])
        for begin, first, stop in zip(arrivals, readable, [*arrivals, len(accesses)][1:], strict=True):
            here = [p for p in touches if first <= p < stop]
            assert here, "nothing comes back for nothing"
            leaving = [t for t in out if t.after == here[-1]]
            end = max([here[-1]] + [t.before - 1 for t in leaving])
            assert end < stop or not back
            for position in range(begin, min(end, len(accesses) - 1) + 1):
                held[position] += size
            touches = [p for p in touches if p not in here]
        assert not touches, "every touch lies within a stay"
        for t in back:
            written = max([p for p in writes if p <= t.after], default=-1)
            copies = [o for o in out if o.before <= t.after and o.after >= written]
            assert copies or (value in home and written < 0), "the slow pool has the newest content"
        if value in home and writes:
            assert any(o.after >= writes[-1] for o in out), "what has its home in the slow pool returns there"
        assert all(t.bytes == size and t.after < t.before for t in (*out, *back))
    return held


@given(st.integers(0, 10**9), st.integers(1, 25), st.integers(0, 20), st.sampled_from(POLICIES), st.integers(0, 9))
def test_reads_find_their_values_and_the_pool_holds_them(
    seed: int, steps: int, extra: int, policy: Policy, lookahead: int
) -> None:
    rng = random.Random(seed)
    accesses, home = random_accesses(rng, steps)
    sizes = {v: rng.randint(1, 9) for v in sorted({v for a in accesses for v in a.touches} | home)}
    capacity = smallest_capacity(accesses, sizes)[0] + extra
    found = schedule(accesses, sizes, capacity, policy, home=home, lookahead=lookahead)
    held = replay(accesses, sizes, home, found)
    assert max(held, default=0) <= capacity
    assert all(h <= r <= capacity for h, r in zip(held, found.resident, strict=True))


@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(0, 6), st.sampled_from(POLICIES))
def test_stays_are_what_a_replay_finds(seed: int, steps: int, extra: int, policy: Policy) -> None:
    rng = random.Random(seed)
    accesses, home = random_accesses(rng, steps)
    sizes = {v: rng.randint(1, 4) for v in sorted({v for a in accesses for v in a.touches})}
    capacity = smallest_capacity(accesses, sizes)[0] + extra
    found = schedule(accesses, sizes, capacity, policy, home=home, lookahead=3)
    stays = residencies(accesses, found.transfers, sizes)
    assert len({b.id for b in stays}) == len(stays)
    held = [sum(b.size for b in stays if b.lower <= at < b.upper) for at in range(steps)]
    assert held == replay(accesses, sizes, home, found)
    assert max(held) <= capacity


@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(0, 6))
def test_belady_brings_back_no_more_than_lru(seed: int, steps: int, extra: int) -> None:
    accesses, home = random_accesses(random.Random(seed), steps)
    sizes = dict.fromkeys({v for a in accesses for v in a.touches} | home, 7)
    capacity = smallest_capacity(accesses, sizes)[0] + 7 * extra
    belady, lru = (schedule(accesses, sizes, capacity, p, home=home) for p in ("belady", "lru"))
    assert belady.fetched <= lru.fetched


@given(st.integers(1, 30), st.integers(2, 12))
def test_belady_moves_no_more_than_lru_in_training_steps(layers: int, capacity: int) -> None:
    accesses, sizes = training(layers)
    belady, lru = (schedule(accesses, sizes, capacity, p) for p in ("belady", "lru"))
    assert belady.moved <= lru.moved


@given(st.integers(0, 10**9), st.integers(1, 25), st.sampled_from(POLICIES))
def test_nothing_moves_where_everything_fits(seed: int, steps: int, policy: Policy) -> None:
    accesses, _ = random_accesses(random.Random(seed), steps)
    written = {v for a in accesses for v in a.writes}
    accesses = [Access(a.step, tuple(v for v in a.reads if v in written), a.writes) for a in accesses if a.step]
    accesses = [Access(a.step, tuple(v for v in a.reads if not v.startswith("h")), a.writes) for a in accesses]
    sizes = dict.fromkeys({v for a in accesses for v in a.touches}, 5)
    assert schedule(accesses, sizes, sum(sizes.values()), policy).transfers == ()


def test_example_by_hand() -> None:
    # Capacity 3. f3 finds v0 v1 v2 and needs room for v3 while it reads v2: both rules send v0 away, LRU because it was
    # touched first, Belady because it is read last. In the backward pass v3, v2, v1 go and v0 comes back.
    accesses, sizes = training(4)
    for policy in POLICIES:
        found = schedule(accesses, sizes, 3, policy)
        assert found.transfers == (
            Transfer("v0", "offload", Bytes(1), 1, 3),
            Transfer("v0", "prefetch", Bytes(1), 6, 7),
        )
        assert (found.moved, found.slow) == (2, 1)
        # v3 and v2 are gone by step 6 (b1), so v0 may already come back then, and while b2 runs.
        assert schedule(accesses, sizes, 3, policy, lookahead=2).transfers[1].after == 4


def test_where_the_rules_differ() -> None:
    # a is used last but read next: LRU sends b away (older), Belady c (read last).
    accesses = [
        Access("s0", (), ("b",)),
        Access("s1", (), ("c",)),
        Access("s2", (), ("d",)),
        Access("s3", ("b",), ()),
        Access("s4", ("d",), ()),
        Access("s5", ("c",), ()),
    ]
    sizes = dict.fromkeys("bcd", 1)
    assert [t.value for t in schedule(accesses, sizes, 2, "lru").transfers] == ["b", "c", "b", "c"]
    assert [t.value for t in schedule(accesses, sizes, 2, "belady").transfers] == ["c", "c"]


def test_a_value_that_is_not_changed_leaves_only_once() -> None:
    big = [Access(f"big{i}", (), (f"x{i}",)) for i in range(2)]
    accesses = [Access("make", (), ("v",)), big[0], Access("use", ("v",), ()), big[1], Access("last", ("v",), ())]
    found = schedule(accesses, {"v": 2, "x0": 3, "x1": 3}, 4)
    assert [t.kind for t in found.transfers] == ["offload", "prefetch", "prefetch"]


def test_a_changed_parameter_returns_home() -> None:
    found = schedule([Access("update", ("w",), ("w",))], {"w": 8}, 8, home={"w"})
    assert found.transfers == (
        Transfer("w", "prefetch", Bytes(8), -1, 0),
        Transfer("w", "offload", Bytes(8), 0, 1),
    )
    assert found.slow == 8


def test_a_step_that_cannot_fit_is_named() -> None:
    accesses, sizes = training(3, 10)
    with pytest.raises(UserError, match=r"SP1301.*f1"):
        schedule(accesses, sizes, 19)


def test_reading_what_nobody_wrote_is_a_defect() -> None:
    with pytest.raises(InternalError, match="nothing has written"):
        schedule([Access("s", ("v",), ())], {"v": 1}, 1)
