"""Weights stored as kernels want them: the same bits as plain ones, wherever they can be seen, and no races."""

import random
from pathlib import Path

import numpy as np
import pytest

from codegen.cpu.emit import emit
from codegen.executor import Executor
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from tests.codegen.following import batch
from tests.codegen.plans import make, plan_for
from tests.codegen.test_lanes import no_races, sanitizer
from tests.graphs import batch_norm, classifier, conv, images

__all__ = ["sanitizer"]

OPTIMIZERS = (
    Optimizer(lr=0.05, momentum=0.9, weight_decay=1e-3),
    Optimizer(kind="adam", lr=1e-3, weight_decay=1e-2),
)


def net(seed: int, optimizer: Optimizer = OPTIMIZERS[0]) -> Graph:
    """A chain of convolutions whose channels come in whole blocks, or, sometimes, do not."""
    rng, b = random.Random(seed), GraphBuilder("stored_net")
    x = conv(b, images(b), 32, "stem", bias=True)
    for index in range(4):
        out, kernel = rng.choice([24, 32, 64, 128]), rng.choice([1, 3, 3])
        x = batch_norm(b, conv(b, x, out, f"c{index}", kernel, bias=rng.random() < 0.5), f"bn{index}", "relu")
    return classifier(b, x, optimizer=optimizer)


def layouts(plan: Plan) -> dict[str, str]:
    return {p.value: p.layout for p in plan.placements if p.layout}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


@pytest.mark.parametrize("seed,lanes,policy", [(7, 3, "liu")])
def test_the_bits_are_those_of_plain_weights(tmp_path: Path, seed: int, lanes: int, policy: str) -> None:
    graph = net(seed, OPTIMIZERS[seed % 2])
    keep = tuple(v.id for v in graph.values if v.gradient_of and len(v.type.shape) == 4)
    options = PlanOptions(policy=policy, strategies=(1, 3) if policy == "liu" else (), keep=keep)
    plain_class = make(graph, tmp_path / "plain", lanes, options=options.model_copy(update={"plain_weights": True}))
    stored_class = make(graph, tmp_path / "stored", lanes, options=options)
    assert not layouts(plain_class.plan)
    assert {"ohwi"} <= {text[:4] for text in layouts(stored_class.plan).values()}, "no weights are stored in blocks"
    with plain_class(seed=3, pin=False) as plain, stored_class(seed=3, pin=False, poison=True) as stored:
        stored.delays(seed)
        same_steps(graph, plain, stored, keep)


def same_steps(graph: Graph, plain: Executor, stored: Executor, keep: tuple[str, ...]) -> None:
    """Whatever can be asked of two executors has the same bits; also after a state was loaded."""
    same(plain.state_dict(), stored.state_dict())
    for number in range(3):
        assert float(plain.step(*batch(graph, number))) == float(stored.step(*batch(graph, number)))
        same(plain.state_dict(), stored.state_dict())
        for name in keep:
            assert np.array_equal(plain.value(name), stored.value(name)), name
    (loss, gradients), (other_loss, others) = (e.gradients(*batch(graph, 9)) for e in (plain, stored))
    assert loss == other_loss
    same(gradients, others)
    assert np.array_equal(plain.predict(batch(graph)[0]), stored.predict(batch(graph)[0]))
    before = plain.state_dict()
    stored.step(*batch(graph, 4))
    stored.load_state_dict(before)
    same(before, stored.state_dict())
    packed = next(v for v in layouts(stored.plan) if graph.value[v].name.endswith(".weight"))
    assert stored.shared(graph.value[packed].name) is None and plain.shared(graph.value[packed].name) is not None
    plain.load_state_dict(stored.state_dict())
    assert float(plain.step(*batch(graph, 5))) == float(stored.step(*batch(graph, 5)))
    same(plain.state_dict(), stored.state_dict())


def test_no_races_under_thread_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    graph = net(1)
    plan, target = plan_for(graph, 3)
    assert layouts(plan)
    emit(plan, graph, target, tmp_path)
    no_races(tmp_path, sanitizer)


def test_plans_name_the_layouts(tmp_path: Path) -> None:
    graph = net(1)
    plan, target = plan_for(graph, 2)
    emit(plan, graph, target, tmp_path)
    (name, layout), *_ = layouts(plan).items()
    assert f'"layout": "{layout}"' in (tmp_path / "plan.json").read_text()
    assert f"stored as {layout}" in (tmp_path / "values.hpp").read_text()
    assert graph.value[name].role == "parameter"
