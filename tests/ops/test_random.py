"""Random numbers: their distributions, what they depend on, and that nobody takes two draws for one."""

import numpy as np
import pytest
import torch

from planner.graph.builder import GraphBuilder
from planner.graph.model import Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.random import DrawAttrs, RandomAttrs, RandomWholeAttrs, drawn
from planner.ops.reduce import ReduceAttrs
from planner.solve.superneurons.recompute import expand, plan, work_of
from tests.interpreter import run_program

MANY = 10**6


def sample(distribution: str, stream: int = 5, shape: tuple[int, ...] = (MANY,)) -> np.ndarray:
    return drawn(RandomAttrs.model_validate({"distribution": distribution, "stream": stream, "shape": shape}), 3, 2)


CUMULATIVE = {
    "uniform": lambda x: x,
    "normal": lambda x: torch.special.ndtr(torch.from_numpy(x)).numpy(),
    "exponential": lambda x: -np.expm1(-x),
}
MOMENTS = {"uniform": (1 / 2, 1 / 3, 1 / 4, 1 / 5), "normal": (0, 1, 0, 3), "exponential": (1, 2, 6, 24)}


@pytest.mark.parametrize("name", CUMULATIVE)
def test_distributions(name):
    """Kolmogorov's distance is below 1.63 / sqrt(n) in 99 of 100 samples; moments lie within five deviations."""
    x = sample(name)
    share = CUMULATIVE[name](np.sort(x))
    places = np.arange(MANY) / MANY
    assert np.maximum(share - places, places + 1 / MANY - share).max() < 1.63 / MANY**0.5
    for order, moment in enumerate(MOMENTS[name], start=1):
        power = x**order
        assert abs(power.mean() - moment) < 5 * power.std() / MANY**0.5, order
    assert np.isfinite(x).all()


def test_neighbours_and_streams_are_independent():
    x = sample("normal")
    others = [x[1:], x[2:], x[4:], sample("normal", stream=6)]
    others.append(drawn(RandomAttrs(distribution="normal", stream=5, shape=(MANY,)), 3, 3))
    others.append(drawn(RandomAttrs(distribution="normal", stream=5, shape=(MANY,)), 4, 2))
    for other in others:
        for function in (np.asarray, np.square):
            a, b = function(x[: len(other)]), function(other)
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / MANY**0.5


def test_extremes():
    """Of all words the bounds that are documented: no number is infinite."""
    from planner.ops.random import _numbers

    def of(distribution, *words):
        return _numbers(RandomAttrs(distribution=distribution, shape=(4,)), np.array(words, np.uint32))

    top = 2**32 - 1
    np.testing.assert_array_equal(of("uniform", 0, top), [0.0, 1 - 2.0**-24])
    assert of("exponential", top, 0).tolist() == [-np.log(1 - 2.0**-24), 24 * np.log(2)]
    assert of("normal", 0, 0)[0] == np.sqrt(48 * np.log(2)) < 5.78
    whole = RandomWholeAttrs(low=-3, high=2**32 - 3, shape=(2,))
    assert _numbers(whole, np.array([0, top], np.uint32)).tolist() == [-3, 2**32 - 4]


def test_whole_numbers_are_equally_likely():
    x = drawn(RandomWholeAttrs(low=-2, high=5, stream=1, shape=(70000,)), 0, 1)
    counts = np.bincount(x + 2)
    assert x.dtype == np.int64 and len(counts) == 7
    assert ((counts - 10000) ** 2 / 10000).sum() < 18.5  # chi squared with 6 degrees of freedom, 99.5 %


def test_numbers_depend_on_position_only():
    np.testing.assert_array_equal(sample("normal", shape=(77,)), sample("normal")[:77])
    np.testing.assert_array_equal(sample("normal", shape=(7, 11)).reshape(-1), sample("normal")[:77])
    last = RandomAttrs(distribution="normal", stream=5, shape=(2, 3, 4, 5), layout=Layout.CHANNELS_LAST)
    by_memory = drawn(last, 3, 2).transpose(0, 2, 3, 1).reshape(-1)
    np.testing.assert_array_equal(by_memory, sample("normal")[:120])


def noisy(attrs: DrawAttrs):
    """y = (x w + noise + noise) with two draws of one kind; their node ids are noise and noise_1."""
    b = GraphBuilder("noisy")
    x = b.input("x", TensorType(shape=(6, 4)))
    y = b.op("linear", [x, b.parameter("w", (5, 4), Init(kind="normal", value=1.0))], name="fc")[0]
    for _ in range(2):
        (noise,) = b.op("random", [], attrs, name="noise")
        (y,) = b.op("add", [y, noise], name="noisy")
    (y,) = b.op("tanh", [y], name="bent")
    (loss,) = b.op("reduce_sum", [y], ReduceAttrs(axes=(0, 1)), name="loss")
    return b.finish(loss, y, Optimizer())


def test_two_draws_are_two_streams_in_training_and_the_same_ones_in_evaluation():
    graph = noisy(RandomAttrs(distribution="normal", shape=(6, 5)))
    streams = {
        p.name: {n.id.removeprefix("predict."): n.attrs.stream for n in p.nodes if n.op == "random"}
        for p in graph.programs
    }
    assert set(streams["train_step"]) == {"noise", "noise_1"} and len(set(streams["train_step"].values())) == 2
    assert streams["predict"] == streams["train_step"]
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((6, 4)), "w": rng.standard_normal((5, 4))}
    trained, predicted = (run_program(graph, p, values) for p in ("train_step", "predict"))
    assert not np.array_equal(trained["noise.y"], trained["noise_1.y"])
    np.testing.assert_array_equal(predicted[graph.program["predict"].outputs[0]], trained["bent.y"])


def test_numbers_are_made_again_rather_than_kept():
    """Speed-centric recomputation starts from them: they are no checkpoints."""
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(6, 4)))
    y = b.op("linear", [x, b.parameter("w", (4, 4), Init(kind="normal", value=1.0))], name="fc")[0]
    (noise,) = b.op("random", [], RandomAttrs(distribution="normal", shape=(6, 4)), name="noise")
    (y,) = b.op("mul", [y, noise], name="noisy")
    (y,) = b.op("linear", [y, b.parameter("v", (4, 4), Init(kind="normal", value=1.0))], name="out")
    (loss,) = b.op("reduce_sum", [y], ReduceAttrs(axes=(0, 1)), name="loss")
    graph = b.finish(loss, y, Optimizer())
    work = work_of(graph, graph.program["train_step"])
    assert "noise" not in work.checkpoints
    again = [s.task for s in expand(work, plan(work, "speed")) if s.before]
    assert again == ["noise"]
