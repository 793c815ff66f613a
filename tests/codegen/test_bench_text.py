"""What `bench` says about the machine: nothing where it is as it was profiled, and what has changed where it is not."""

from typing import Any

import pytest

from codegen.bench_text import CHANGED, CROWDED, FARTHER, bench_text

CALM = {
    "name": "net",
    "target": "cpu2",
    "lanes": 2,
    "step_ms": 12.0,
    "spread": 0.02,
    "predicted_ms": 10.0,
    "measured_over_predicted": 1.2,
    "memory": {"planned_bytes": 2**20, "gained_bytes": 2**20, "over": 0},
    "handoff_ns": 50.0,
    "profiled_handoff_ns": 50.0,
    "crossing_ns_per_kib": {"fetch_ns": 0.5, "reclaim_ns": 25.0, "stream_ns": 20.0},
    "planned_reclaim_ns": 25.0,
    "crowding": 1.02,
    "lanes_share_cores": False,
}


def crossed(reclaim_ns: float) -> dict[str, Any]:
    return {"crossing_ns_per_kib": {"fetch_ns": 0.5, "reclaim_ns": reclaim_ns, "stream_ns": 20.0}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"crowding": CROWDED + 0.1}, "Lanes share a core"),
        ({"handoff_ns": 50 * CHANGED + 1}, "farther from"),
        ({"handoff_ns": 50 / CHANGED - 1}, "nearer to"),
        (crossed(25 * FARTHER + 1), "farther from"),
    ],
)
def test_a_machine_in_another_state(changed: dict[str, Any], said: str) -> None:
    text = bench_text({**CALM, **changed})
    assert said in text and "cannot be compared" in text


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"crowding": 2.0, "lanes_share_cores": True},  # as planned
        {"handoff_ns": 900.0, "profiled_handoff_ns": 0.0},  # nothing to compare with
        crossed(900.0) | {"planned_reclaim_ns": 0.0},
        {"handoff_ns": 50 * CHANGED - 1},
        crossed(25 * FARTHER - 1),
    ],
)
def test_a_machine_as_it_was(changed: dict[str, Any]) -> None:
    assert "cannot be compared" not in bench_text({**CALM, **changed})


def test_one_lane_has_nobody_to_signal_to() -> None:
    assert "signal" not in bench_text({**CALM, "lanes": 1, "handoff_ns": 0.0, "crowding": 1.0})
