"""Which of a program's calls count where two programs take turns."""

from collections.abc import Callable, Iterator

import pytest

from codegen import steps
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, TensorType
from planner.graph.optimizer import Optimizer


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], Iterator[float]]:
    """Makes calls take the given ms, one after the other."""

    def take(ms: list[float]) -> Iterator[float]:
        left = iter(ms)
        monkeypatch.setattr(steps, "timed", lambda step, repetitions: iter([next(left) * 1e6]))
        return left

    return take


def test_short_steps_count_behind_others_of_their_own(taking: Callable[[list[float]], Iterator[float]]) -> None:
    left = taking([19.0, 17.0, 9.0, 8.0, 7.0, 6.0])  # 19 + 17 + 9 + 8 >= 50: the fifth begins behind that
    assert steps.settled(lambda: None) == 7.0e6
    assert list(left) == [6.0]


def test_a_long_step_counts_at_once(taking: Callable[[list[float]], Iterator[float]]) -> None:
    left = taking([310.0, 300.0])
    assert steps.settled(lambda: None) == 310.0e6
    assert list(left) == [300.0]


def test_pairs_are_of_settled_steps(taking: Callable[[list[float]], Iterator[float]]) -> None:
    taking([60.0, 20.0, 60.0, 40.0, 60.0, 30.0, 60.0, 40.0])  # executor, contender, executor, contender
    found = steps.paired(lambda: None, lambda: None, 2)
    assert found == {"ms": 40.0, "stepplan_ms": 25.0, "ratio": (20 / 40 + 30 / 40) / 2}


def test_random_sequences_are_of_full_length() -> None:
    b = GraphBuilder("ctc")
    scores, skips = b.input("scores", TensorType(shape=(3, 9, 7))), b.input("skips", TensorType(shape=(3, 7)))
    lengths = [b.input(name, TensorType(shape=(3,), dtype=DType.INT64)) for name in ("frames", "labels")]
    scale = b.parameter("scale", (7,), Init(kind="ones"))
    losses = b.op("ctc_loss", [layers.mul(b, scores, scale, name="scaled"), skips, *lengths], name="losses")
    graph = b.finish(layers.sum_over(b, losses[0], (0,), name="loss"), "losses.loss", Optimizer())
    *_, frames, labels = steps.random_inputs(graph)
    assert frames.tolist() == [9, 9, 9] and labels.tolist() == [3, 3, 3]
