"""The regression baselines run on curves and are scored honestly."""

import random

import pytest

from planner.costs.curves import Curve
from planner.costs.regression import Work, baselines, sample_counts, scores

pytest.importorskip("sklearn")


def test_samples_spread_over_the_range() -> None:
    assert sample_counts(range(1, 17), 1) == (16,)
    assert sample_counts(range(1, 17), 4) == (1, 6, 11, 16)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_power_laws_are_predicted_by_linear_models_and_not_by_all() -> None:
    draw = random.Random()
    work = {f"s{i}": Work(draw.randrange(10**6, 10**9), draw.randrange(10**5, 10**8)) for i in range(36)}
    made = [Curve(s, {c: w.flops**0.7 * w.bytes**0.4 / c for c in range(1, 5)}) for s, w in work.items()]
    found = {s.model: s for s in scores(made[:26], made[26:], work, 2)}
    assert set(found) == set(baselines())
    assert found["OLS"].accuracy > 0.999
    assert found["OLS"].r2 > 0.999
    assert found["decision tree"].accuracy < 0.999


def test_nothing_to_predict() -> None:
    curve = Curve("s", {1: 2.0, 2: 1.0})
    assert scores([curve], [curve], {"s": Work(1, 1)}, 2) == []
