"""Hill climbing replayed on curves whose every count is known."""

import pytest

from planner.costs.curves import Curve, climb, curves
from planner.costs.table import CostEntry, CostTable


def test_a_straight_line_is_predicted_exactly() -> None:
    line = Curve("a", {c: 1000.0 - 10 * c for c in range(1, 18)})
    found = climb([line], 4)  # times 1, 5, 9, 13, 17
    assert found.accuracy == pytest.approx(1.0)
    assert found.timed == 5
    assert found.lost == 0


def test_what_climbing_skips_is_what_it_can_miss() -> None:
    # 1: 100, 3: 60, 5: 80 (stop), and 17, the last, always: 90. Best is 4 with 50, which nobody looked at.
    times = {c: 90.0 for c in range(1, 18)} | {1: 100.0, 2: 80.0, 3: 60.0, 4: 50.0, 5: 80.0}
    found = climb([Curve("a", times)], 2)
    assert found.timed == 4
    # 2: 80 right; 4: 70 for 50; 6..16: from 80 to 90 for 90
    errors = [0.0, 20 / 50, *((90 - (80 + 10 * (c - 5) / 12)) / 90 for c in range(6, 17))]
    assert found.accuracy == pytest.approx(1 - sum(errors) / len(errors))
    assert found.lost == pytest.approx(60 / 50 - 1)


def test_every_count_timed_leaves_nothing_to_predict() -> None:
    assert climb([Curve("a", {1: 3.0, 2: 2.0, 3: 1.0})], 1).accuracy is None


def test_curves_are_of_timed_counts_only() -> None:
    def entry(slices: int, **more: str) -> CostEntry:
        ns = (100.0 / slices, 1.0)
        return CostEntry(signature="s", kernel="k", dim="d", slices=slices, warm_ns=ns, cold_ns=ns, **more)

    entries = (entry(1), entry(2, source="interpolated"), entry(4), entry(1, affinity="spread"))
    table = CostTable(target="t", fingerprint="f", entries=entries)
    assert [c.times for c in curves(table, ["s"])] == [{1: 101.0, 4: 26.0}, {1: 101.0}]
