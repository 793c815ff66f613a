"""What sessions record and when they run it, with an engine that computes plans' graphs in NumPy."""

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from planner import narray as na
from planner.errors import UserError
from planner.graph.model import Role
from planner.graph.text import validate
from planner.narray.record import Recipe
from planner.narray.session import Session
from tests.interpreter import run_program
from tests.narray.catalogue import CASES, DATA, require_near

Array = np.ndarray[Any, Any]


class Interpreted:
    """One step."""

    def __init__(self, recipe: Recipe) -> None:
        assert recipe.graph is not None
        validate(recipe.graph)
        self.graph, self.weights, self.runs = recipe.graph, recipe.weights, 0
        self.bytes = sum(v.type.bytes for v in recipe.graph.values if v.role is not Role.INPUT)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        self.runs += 1
        program = self.graph.programs[0]
        held = {v.id: self.weights[v.name] for v in self.graph.values if v.name}
        held |= dict(zip(program.inputs, inputs, strict=True))
        results = run_program(self.graph, program.name, held)
        return [np.array(results[v], self.graph.value[v].type.dtype.value) for v in program.outputs]


class Engine:
    """The engine of these tests."""

    def __init__(self) -> None:
        self.steps: dict[Hashable, Interpreted] = {}
        self.rooms: list[int | None] = []

    def ready(self, key: Hashable, made: Callable[[], Recipe], room: int | None) -> tuple[Interpreted, int]:
        self.rooms.append(room)
        if key not in self.steps:
            self.steps[key] = Interpreted(made())
        return self.steps[key], sum(s.bytes for s in self.steps.values())

    def close(self) -> None:
        self.steps.clear()

    @property
    def runs(self) -> int:
        return sum(s.runs for s in self.steps.values())

    @property
    def only(self) -> Interpreted:
        (step,) = self.steps.values()
        return step


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(na, "_engines", [lambda: made])
    na.start()
    yield made
    na.start(dataflow=False)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_every_operation_in_one_graph(engine: Engine) -> None:
    values = {k: na.array(v, v.dtype, k) for k, v in DATA.items()}
    results = {name: lazy(values) for name, (lazy, _) in CASES.items()}
    assert engine.runs == 0, "nothing is computed before it is asked for"
    na.wait_for_all()
    assert engine.only.runs == 1
    for name, result in results.items():
        require_near(result.to_numpy(), name)
    assert engine.runs == 1


def sgd(w: na.NArray, x: na.NArray, t: na.NArray, rate: float = 0.1) -> tuple[na.NArray, na.NArray]:
    """(loss, new weights)."""
    error = x @ w - t
    return (error * error).mean(), w - rate * (x.T @ error)


def test_the_same_operations_on_new_data_find_the_same_step(engine: Engine) -> None:
    w = na.array(np.ones((3, 2)))
    for i in range(5):
        loss, w = sgd(w, na.array(np.full((4, 3), i)), na.array(np.ones((4, 2))))
        float(loss)
    assert len(engine.steps) == 1 and engine.runs == 5


def test_only_what_is_held_is_kept(engine: Engine) -> None:
    w = na.array(np.ones((3, 2)))
    loss, w = sgd(w, na.array(np.ones((4, 3))), na.array(np.ones((4, 2))))
    dropped = na.exp(w)
    del dropped
    float(loss)
    graph = engine.only.graph
    assert len(graph.programs[0].outputs) == 2 and "exp" not in {n.op for n in graph.programs[0].nodes}


def test_numbers_that_change_are_inputs_from_then_on(engine: Engine) -> None:
    w, x, t = na.array(np.ones((3, 2))), na.array(np.ones((4, 3))), na.array(np.ones((4, 2)))
    plain = np.ones((3, 2))
    for i in range(6):
        rate = 0.01 / (i + 1)
        loss, w = sgd(w, x, t, rate)
        error = np.ones((4, 3)) @ plain - 1
        assert np.isclose(float(loss), (error**2).mean())
        plain = plain - rate * (np.ones((3, 4)) @ error)
    np.testing.assert_allclose(w.to_numpy(), plain, rtol=1e-5)
    assert len(engine.steps) == 2


def test_names(engine: Engine) -> None:
    x = na.array(np.ones((2, 3)), name="images")
    (na.relu(x).named("hidden") * 2).named("doubled").to_numpy()
    program = engine.only.graph.programs[0]
    assert program.inputs == ("images",) and [n.id for n in program.nodes] == ["hidden", "doubled"]


def test_results_that_are_arguments(engine: Engine) -> None:
    x = na.array(np.arange(6.0).reshape(2, 3))
    same, turned = x.reshape(2, 3), x.reshape(3, 2)
    assert (same.to_numpy() == x.to_numpy()).all() and turned.to_numpy().shape == (3, 2)


def test_a_failure_leaves_the_recording(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    y = na.array(np.ones(3)) + 1

    def broken(*_: Any) -> Any:
        raise UserError("SP1301", "too much", "less")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "ready", broken)
        with pytest.raises(UserError, match="SP1301"):
            y.to_numpy()
    assert (y.to_numpy() == 2).all()


def test_a_step_is_recorded_once(engine: Engine) -> None:
    calls = []

    @na.step
    def train(x: na.NArray, t: na.NArray, w: na.NArray, rate: na.NArray) -> dict[str, Any]:
        calls.append(1)
        error = x @ w - t
        return {"loss": (error * error).mean(), "weights": [w - rate * (x.T @ error)], "same": t}

    w, plain = na.array(np.ones((3, 2))), np.ones((3, 2))
    rng = np.random.default_rng(0)
    for i in range(4):
        x, t = rng.standard_normal((4, 3)), rng.standard_normal((4, 2))
        found = train(x, t, w, 0.1 / (i + 1))
        (w,) = found["weights"]
        error = x @ plain - t
        plain = plain - 0.1 / (i + 1) * (x.T @ error)
        assert np.isclose(found["loss"].item(), (error**2).mean(), rtol=1e-4)
        np.testing.assert_allclose(found["same"].to_numpy(), t, rtol=1e-6)
    np.testing.assert_allclose(w.to_numpy(), plain, rtol=1e-4)
    assert len(calls) == 1 and engine.only.runs == 4 and engine.only.graph.programs[0].inputs[0] == "x"
    train(np.ones((5, 3)), np.ones((5, 2)), w, 0.1)
    assert len(calls) == 2 and len(engine.steps) == 2, "other shapes are another step"


def test_what_a_step_cannot_do(engine: Engine) -> None:
    outside = na.array(np.ones(3))
    for function in (
        lambda x: x + outside,
        lambda x: x if float(x.sum()) > 0 else -x,
        lambda x: x + na.normal((3,)),
        lambda x: 3,
        lambda x: [],
        lambda x: outside,
    ):
        with pytest.raises(UserError, match="SP1021"):
            na.step(function)(np.ones(3))
    assert (na.step(lambda x: x + na.ones((3,)) * np.float32([1, 2, 3]))(np.zeros(3)).to_numpy() == [1, 2, 3]).all()
    na.start(dataflow=False)
    assert (na.step(lambda x: x + 1)(np.zeros(3)).to_numpy() == 1).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_without_end(engine: Engine) -> None:
    """They are no part of a plan: inputs."""
    x = na.array(np.float32([0, 1, -2]))
    for number in (np.nan, np.inf, 2.0):
        np.testing.assert_array_equal((x + number).to_numpy(), np.float32([0, 1, -2]) + np.float32(number))
    np.testing.assert_array_equal((x / 0).to_numpy(), [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal((x / -0.0).to_numpy(), [np.nan, -np.inf, np.inf])


def test_values_of_a_session_that_has_ended(engine: Engine) -> None:
    given = na.array(np.ones(2))
    late = given + 1
    na.start()
    assert given.to_numpy().tolist() == [1, 1]
    with pytest.raises(UserError, match=r"SP1021: .* belongs to a session that has ended"):
        late.to_numpy()


def limited(engine: Engine, bytes_: int | str) -> Session:
    return na.start(memory_limit=bytes_)


def test_recording_does_not_run_ahead_of_the_memory(engine: Engine) -> None:
    """Minerva loaded ten batches before it began to train on the first one."""
    batch = np.ones((100, 100), np.float32)
    session = limited(engine, 4 * batch.nbytes + 100_000)
    total, most = na.zeros(()), 0
    for _ in range(10):
        x = na.array(batch)
        total = total + x.sum()
        del x
        most = max(most, session.held)
    assert float(total) == 10 * batch.size
    assert most <= session.limit and engine.runs > 1  # type: ignore[operator]


def test_the_limit_is_kept(engine: Engine) -> None:
    batch = np.ones((100, 100), np.float32)
    session = limited(engine, "120KiB")
    x = na.array(batch)
    assert session.held == batch.nbytes
    kept = [na.array(batch), na.array(batch)]
    with pytest.raises(UserError, match="SP1041"):
        na.array(batch)
    del kept
    gc.collect()
    assert session.held == batch.nbytes
    y = x * 2
    y.wait()
    assert engine.rooms == [120 * 1024 - 2 * batch.nbytes]


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(na, "_engines", [])
    with pytest.raises(UserError, match="SP1042"):
        na.start()


@pytest.mark.parametrize("limit", [-1, "-1", 2.5e30])
def test_a_memory_limit_is_a_size(limit: Any) -> None:
    with pytest.raises(UserError, match="SP1801"):
        na.start(memory_limit=limit)


@pytest.mark.parametrize(
    ("option", "code"),
    [({"seed": -1}, "SP1610"), ({"seed": "x"}, "SP1610"), ({"name": ""}, "SP1503"), ({"name": "a b"}, "SP1503")],
)
def test_seeds_and_names_that_are_none(option: dict[str, Any], code: str) -> None:
    session = na.session()
    with pytest.raises(UserError, match=code):
        na.start(dataflow=False, **option)
    assert na.session() is session, "nothing has changed"
