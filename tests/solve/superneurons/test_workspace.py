"""Workspaces: the fastest algorithm that fits the bytes free at a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.algorithms import Algorithm
from planner.errors import UserError
from planner.solve.superneurons.workspace import assign, fastest
from planner.units import Bytes

IMPLICIT, GEMM, FFT = (
    Algorithm("implicit", 9, Bytes(0)),
    Algorithm("gemm", 6, Bytes(80)),
    Algorithm("fft", 4, Bytes(300)),
)
ALGORITHMS = st.lists(st.builds(Algorithm, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 99).map(Bytes)))


@pytest.mark.parametrize(("free", "expected"), [(0, IMPLICIT), (79, IMPLICIT), (80, GEMM), (299, GEMM), (300, FFT)])
def test_example_by_hand(free: int, expected: Algorithm) -> None:
    assert fastest([GEMM, FFT, IMPLICIT], free) == expected


def test_the_same_node_may_run_differently_at_two_steps() -> None:
    found = assign([200, 0, 320], 400, {0: [IMPLICIT, GEMM, FFT], 2: [IMPLICIT, GEMM, FFT]})
    assert [(a.step, a.algorithm.name, a.free) for a in found] == [(0, "gemm", 200), (2, "gemm", 80)]


@given(ALGORITHMS, st.integers(0, 100))
def test_nothing_that_fits_is_faster(algorithms: list[Algorithm], free: int) -> None:
    best = fastest(algorithms, free)
    assert (best is None) == all(a.workspace > free for a in algorithms)
    if best is not None:
        assert best.workspace <= free
        assert all(a.ns >= best.ns for a in algorithms if a.workspace <= free)


@given(ALGORITHMS, st.integers(0, 100), st.integers(0, 100))
def test_more_room_is_never_slower(algorithms: list[Algorithm], free: int, more: int) -> None:
    small, large = fastest(algorithms, free), fastest(algorithms, free + more)
    assert small is None or (large is not None and large.ns <= small.ns)


def test_a_step_without_an_algorithm_is_named() -> None:
    with pytest.raises(UserError, match=r"SP1301.*step 1"):
        assign([0, 90], 100, {0: [GEMM], 1: [GEMM]})
