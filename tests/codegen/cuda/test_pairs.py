"""Pairs on streams: what is measured, what a factor is, and that the table holds it; a dry run on the null device."""

import pytest

from codegen.cost_table import fill
from codegen.cuda.pairs import profile_pairs
from codegen.pairs import PairTime
from tests.codegen.cuda.plans import gpu
from tests.graphs import small_net


def test_factors_and_gain() -> None:
    # Each takes 100 ns alone and 150 beside the other, 150 of them together: 1.5 times as long, a third gained.
    found = PairTime((100.0, 100.0), (150.0, 150.0), 150.0)
    assert found.factors == pytest.approx((1.5, 1.5))
    assert found.gain == pytest.approx(200 / 150)
    assert PairTime((100.0, 100.0), (100.0, 100.0), 10.0).factors == (1.0, 1.0)


def test_the_pairs_of_a_plan_are_measured_once() -> None:
    graph, target = small_net(), gpu()
    table = fill([graph], target, modelled=True)
    saved = []
    found = profile_pairs([graph], target, table, null_device=True, save=saved.append)
    assert found.coruns and saved[-1] == found
    assert all(p.first.factor == p.second.factor == 1.0 for p in found.coruns)  # no time passes on the null device
