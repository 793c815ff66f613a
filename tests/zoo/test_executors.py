"""Executors of the networks that are no image classifiers: against NumPy in float64, and what only they do (several
losses, carried states, columns of categories)."""

from collections.abc import Callable

import numpy as np
import pytest

from codegen.executor import Executor
from codegen.steps import random_inputs
from planner import zoo
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import PERSISTENT, Graph, Role
from planner.graph.optimizer import Optimizer
from planner.zoo.network import Model, Sizes
from tests.codegen.plans import make
from tests.interpreter import run_program

ROWS = tuple(3 + 5 * i for i in range(26))


def made(model: Model, sizes: Sizes) -> Graph:
    b = GraphBuilder("net")
    ends = model(b, sizes)
    return b.finish(ends.loss, ends.prediction, Optimizer(lr=0.5))


CASES: dict[str, Callable[[], Graph]] = {
    "dcgan": lambda: zoo.build("dcgan", 2),
    "gpt2": lambda: made(zoo.gpt2(length=9, depth=2, width=12, heads=3, dropout=0.0), Sizes(2, classes=29)),
    "lstm": lambda: made(zoo.lstm(steps=4, depth=2, hidden=20), Sizes(6, classes=50)),
    "wide_deep": lambda: made(zoo.wide_deep(ROWS, 60), Sizes(9)),
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[Executor]]:
    return {name: make(case(), tmp_path_factory.mktemp(name)) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_two_steps_against_numpy(name: str, classes: dict[str, type[Executor]]) -> None:
    with classes[name](seed=1, pin=False, poison=True) as executor:
        graph = executor._graph
        names = {v.name for v in graph.values if v.role in PERSISTENT}
        before = {k: v.astype(np.float64) for k, v in executor.state_dict().items() if k in names}
        held = before
        for number in range(2 if name != "dcgan" else 1):  # the reference of Adam knows its first step only
            batch = random_inputs(graph, number)
            given = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in batch]
            values = run_program(graph, "train_step", held | dict(zip(executor.input_names, given, strict=True)))
            held = {k: values[k] for k in held}
            loss = executor.step(*batch)
            wanted = {o: float(values[o]) for o in graph.program["train_step"].outputs}
            assert executor.losses() == pytest.approx(wanted, rel=2e-5)
            assert loss == next(iter(executor.losses().values()))
        found = executor.state_dict()
        bar = 2e-2 if name == "dcgan" else 2e-4
        for key, true in held.items():
            moved = np.linalg.norm(true - before[key])
            error = found[key] - true
            # Adam's first step is nearly +-lr wherever a gradient is not zero: signs of gradients near zero decide.
            turned = (np.abs(error) > executor.lr) & (np.abs(error) < 2.01 * executor.lr) & (name == "dcgan")
            assert turned.sum() <= max(2, 1e-3 * true.size), key
            assert np.linalg.norm(error[~turned]) <= bar * moved + 1e-6 * np.linalg.norm(true), key


def test_random_inputs_are_valid(classes: dict[str, type[Executor]]) -> None:
    graph = classes["wide_deep"]._graph
    wide, categories, dense, labels = random_inputs(graph, 0)
    assert wide.max() < 60 and categories.min() >= 0 and (categories < np.array(ROWS)).all()
    assert categories[:, 25].max() > ROWS[10], "every column has its own range"
    assert set(np.unique(labels)) <= {0.0, 1.0} and dense.dtype == np.float32


@pytest.mark.parametrize("column", [0, 25])
@pytest.mark.parametrize("value", [-1, "rows"])
def test_a_category_out_of_its_columns_range_changes_nothing(
    column: int, value: int | str, classes: dict[str, type[Executor]]
) -> None:
    with classes["wide_deep"](seed=1, pin=False) as executor:
        batch = random_inputs(executor._graph, 0)
        before = executor.state_dict()
        batch[1][4, column] = ROWS[column] if value == "rows" else value
        with pytest.raises(UserError, match="SP1608") as caught:
            executor.step(*batch)
        assert "categories" in caught.value.problem and str(4 * 26 + column) in caught.value.problem
        after = executor.state_dict()
        assert all((before[k] == after[k]).all() for k in before)


def test_carried_states(classes: dict[str, type[Executor]]) -> None:
    """Steps carry them, `gradients` and `predict` do not; weights of nn.LSTM load without them; they can be reset."""
    with classes["lstm"](seed=1, pin=False) as executor:
        graph = executor._graph
        states = [v.name for v in graph.values if v.role is Role.STATE]
        assert states == ["lstm.h_l0", "lstm.c_l0", "lstm.h_l1", "lstm.c_l1"]
        batch = random_inputs(graph, 0)
        executor.gradients(*batch)
        first = executor.predict(batch[0])
        assert not any(executor.state_dict()[s].any() for s in states)
        executor.step(*batch, lr=0.0)
        assert all(executor.state_dict()[s].any() for s in states)
        assert (executor.predict(batch[0]) != first).any()
        weights = {v.name: executor.state_dict()[v.name] for v in graph.values if v.role is Role.PARAMETER}
        executor.load_state_dict(weights)
        executor.load_state_dict({s: np.zeros((6, 20), np.float32) for s in states}, strict=False)
        assert (executor.predict(batch[0]) == first).all()


def test_both_networks_of_dcgan_have_gradients(classes: dict[str, type[Executor]]) -> None:
    with classes["dcgan"](seed=1, pin=False) as executor:
        loss, gradients = executor.gradients(*random_inputs(executor._graph, 0))
        assert {k.split(".")[0] for k, g in gradients.items() if g.any()} == {"generator", "discriminator"}
        assert list(executor.losses()) == ["discriminator.loss.y", "generator.loss.loss"]
        assert executor.losses()["discriminator.loss.y"] == loss
