"""Lazy arrays, planned, built and run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.dataflow import Dataflow
from codegen.load import executor_class
from examples.narray_perceptron import Lazy, Plain, digits, initial, run_lazy, step, train
from planner import narray as na
from planner.errors import UserError
from planner.narray.session import Session
from planner.plan.explain import explain
from tests.codegen.plans import target_of
from tests.narray.catalogue import CASES, DATA, require_near

EPOCHS = 3


def begin(folder: Path, limit: int | str | None = None, policy: str = "auto") -> tuple[Session, Dataflow]:
    session = na.start(memory_limit=limit, folder=folder, target=target_of(2), policy=policy, pin=False)
    assert isinstance(session.engine, Dataflow)
    return session, session.engine


@pytest.fixture(autouse=True)
def end() -> Iterator[None]:
    yield
    na.start(dataflow=False)


def test_every_operation(tmp_path: Path) -> None:
    """One graph of all of them; a second round runs the same executor."""
    _, engine = begin(tmp_path, policy="sequential")
    for _ in range(2):
        values = {k: na.array(v, v.dtype, k) for k, v in DATA.items()}
        results = {name: lazy(values) for name, (lazy, _) in CASES.items()}
        na.wait_for_all()
        for name, result in results.items():
            require_near(result.to_numpy(), name)
        del results
    assert engine.planned == 1


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return train(digits(), EPOCHS, list(initial(32).values()), lambda *a: step(Plain, *a))[0]


def test_the_perceptron(tmp_path: Path, plain: list[float]) -> None:
    session, engine = begin(tmp_path, "1MiB")
    lazy = [na.array(w, name=n) for n, w in initial(32).items()]
    losses, _ = train(digits(), EPOCHS, lazy, lambda *a: run_lazy(None, *a))
    np.testing.assert_allclose(losses, plain, rtol=0, atol=1e-5)
    assert engine.planned == 1 and len(losses) > 30, "every step after the first runs what is built"
    assert session.held + session.allocated <= session.limit  # type: ignore[operator]
    (made,) = engine.steps.values()
    beside = {n: explain(n, made.graph, made.plan).nodes[0].beside for n in ("s2", "gw2", "gb2")}
    assert any(name.startswith(("gw2", "gb2")) for name in beside["s2"]), beside
    na.start(dataflow=False)
    eager = [na.array(w) for w in initial(32).values()]
    losses, _ = train(digits(), EPOCHS, eager, lambda *a: run_lazy(None, *a))
    np.testing.assert_allclose(losses, plain, rtol=0, atol=1e-5)


def test_the_perceptron_recorded_once(tmp_path: Path, plain: list[float]) -> None:
    calls = []

    @na.step
    def recorded(*arguments: na.NArray) -> tuple[na.NArray, ...]:
        calls.append(1)
        return step(Lazy, *arguments)

    _, engine = begin(tmp_path)
    lazy = [na.array(w) for w in initial(32).values()]
    losses, _ = train(digits(), EPOCHS, lazy, lambda *a: run_lazy(recorded, *a))
    np.testing.assert_allclose(losses, plain, rtol=0, atol=1e-5)
    assert len(calls) == 1 and engine.planned == 1


def test_the_memory_limit(tmp_path: Path) -> None:
    """What was planned last makes room for what is new; what cannot fit is refused before it runs."""
    data = np.ones((64, 64), np.float32)
    session, engine = begin(tmp_path, 4 * data.nbytes, policy="sequential")
    x = na.array(data)
    np.testing.assert_allclose(na.exp(x).to_numpy(), np.exp(data), rtol=1e-6)
    sums = na.exp(na.exp(x) + 1).sum(1).to_numpy()  # pytest would hold what stands in an assert
    np.testing.assert_allclose(sums, np.exp(np.exp(data) + 1).sum(1), rtol=1e-5)
    assert len(engine.steps) == 1 and engine.planned == 2 and session.allocated <= 3 * data.nbytes
    too_much = na.concatenate([x, x, x, x])
    with pytest.raises(UserError, match=r"SP1301|SP1041"):
        too_much.wait()
    assert session.held + session.allocated <= session.limit  # type: ignore[operator]


def test_outputs_before_a_run(tmp_path: Path) -> None:
    _, engine = begin(tmp_path, policy="sequential")
    (na.array(np.ones(3)) + 1).wait()
    (made,) = engine.steps.values()
    with executor_class(made.folder)(pin=False) as fresh, pytest.raises(UserError, match="SP1614"):
        fresh.outputs()


@pytest.mark.parametrize(("option", "code"), [({"costs": "x"}, "SP1201"), ({"policy": "x"}, "SP1305")])
def test_options_that_there_are_not(option: dict[str, Any], code: str) -> None:
    with pytest.raises(UserError, match=code):
        na.start(**option)
