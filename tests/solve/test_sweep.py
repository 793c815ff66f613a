"""Reading who takes whose bytes from left to right, on rectangles whose packing is known to exist."""

from examples.pack_study import cut_rectangle
from planner.solve.sections import height, instance
from planner.solve.sweep import Sweep
from planner.solve.tight import pack_tight


def swept(pieces: int, seed: int, work_limit: int = 10**9) -> Sweep:
    problem = instance(cut_rectangle(pieces, 2 * pieces, 2**20, seed), 1)
    sweep = Sweep(problem.lower, problem.upper, problem.size, problem.count, work_limit)
    assert (sweep.run() is not None) == (work_limit > 1)
    return sweep


def test_every_moment_hands_over_equal_sums() -> None:
    sweep = swept(2_000, 1)
    for moment in range(1, sweep.sections):
        old = [b for group, _ in sweep.chosen[moment] for b in group]
        new = [b for _, group in sweep.chosen[moment] for b in group]
        assert sorted(old) == sweep.ending[moment] and sorted(new) == sorted(sweep.beginning[moment])
        for ending, beginning in sweep.chosen[moment]:
            assert sum(sweep.size[b] for b in ending) == sum(sweep.size[b] for b in beginning)


def test_what_the_sweep_reads_can_be_drawn() -> None:
    problem = instance(cut_rectangle(2_000, 4_000, 2**20, 2), 1)
    offsets, work = pack_tight(problem, 10**8)
    assert offsets is not None and work > 0
    assert height(problem, offsets) == problem.load == 2**20


def test_the_sweep_stops_at_its_work_limit() -> None:
    assert swept(300, 1, work_limit=1).work > 1
