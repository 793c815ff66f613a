"""`Executor.value`: what a program computed, as long as its bytes are there."""

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from codegen.executor import Executor
from codegen.intact import require_intact
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, TensorType
from planner.ops.shape import ReshapeAttrs
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from tests.codegen.following import batch, reference_state
from tests.codegen.plans import make
from tests.graphs import random_net, small_net
from tests.interpreter import run_program
from tests.plan.mutations import edit_program
from tests.plan.plans import GRAPH, PLAN, STEP
from tests.plan.reference import make as made_by_reference

KEEP = PlanOptions(policy="sequential", keep=("*",))


@pytest.fixture(scope="module", params=["small", "random"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, type[Executor]]:
    graph = small_net() if request.param == "small" else random_net(random.Random(5))
    return graph, make(graph, tmp_path_factory.mktemp("kept"), options=KEEP)


def told(executor: Executor, value: str) -> str:
    with pytest.raises(UserError, match="SP1614") as caught:
        executor.value(value)
    return caught.value.problem


def agree(got: np.ndarray, want: np.ndarray) -> bool:
    return got.shape == want.shape and np.abs(got - want).max() <= 1e-3 * np.abs(want).max() + 1e-6


def test_all_kept_values_are_what_the_reference_computes(kept: tuple[Graph, type[Executor]]) -> None:
    graph, executors = kept
    with executors(seed=2, pin=False, poison=True) as executor:
        images, labels = batch(graph)
        given = {"images": images.astype(np.float64), "labels": labels}
        want = run_program(graph, "train_step", reference_state(executor, graph) | given)
        executor.step(images, labels)
        made = [v for n in graph.program["train_step"].nodes for v in n.outputs]
        assert len(made) > 20 and [v for v in made if not agree(executor.value(v), want[v])] == []
        parameter = next(v for v in graph.values if v.name == "fc.weight")
        assert agree(executor.value(parameter.id), want[parameter.id])


def test_without_keep_a_value_is_right_or_refused(small: Executor) -> None:
    graph = small_net()
    images, labels = batch(graph)
    given = {"images": images.astype(np.float64), "labels": labels}
    want = run_program(graph, "train_step", reference_state(small, graph) | given)
    small.step(images, labels)
    gone = 0
    for node in graph.program["train_step"].nodes:
        for value in node.outputs:
            try:
                assert agree(small.value(value), want[value]), value
            except UserError as error:
                assert error.code == "SP1614" and "wrote over it" in error.problem and value in error.fix
                gone += 1
    assert 0 < gone < len(graph.values)


def test_keeping_changes_no_bit(kept: tuple[Graph, type[Executor]], tmp_path: Path) -> None:
    graph, executors = kept
    found = []
    for each in (executors, make(graph, tmp_path / "plain")):
        with each(seed=3, pin=False, poison=True) as executor:
            losses = [executor.step(*batch(graph, number)) for number in range(3)]
            found.append({"loss": np.array(losses), **executor.state_dict()})
    assert [n for n, array in found[0].items() if array.tobytes() != found[1][n].tobytes()] == []


def test_what_is_not_there_is_told(kept: tuple[Graph, type[Executor]]) -> None:
    graph, executors = kept
    with executors(seed=1, pin=False) as executor:
        images, labels = batch(graph)
        output = graph.program["predict"].outputs[0]
        assert "not been computed yet" in told(executor, "fc.y")
        executor.step(images, labels)
        assert "no value 'typo'" in told(executor, "typo")
        assert "is an input" in told(executor, "images")
        assert f"does not compute value {output}" in told(executor, output)
        assert executor.value("fc.y").shape == (4, 5)
        prediction = executor.predict(images)
        assert (executor.value(output) == prediction).all()
        assert "predict, which ran last" in told(executor, "fc.y")


def intact(plan: Plan) -> set[str]:
    """What a step leaves there, of what it computes."""
    found = set()
    for node in GRAPH.program[STEP].nodes:
        for value in node.outputs:
            with contextlib.suppress(UserError):
                require_intact(GRAPH, plan, STEP, value)
                found.add(value)
    return found


def test_lanes_say_what_was_overwritten_not_the_order_of_the_list_of_nodes() -> None:
    nodes = PLAN.program[STEP].nodes
    moved = edit_program(PLAN, STEP, nodes=(nodes[-1], *nodes[1:-1], nodes[0]))
    backwards = edit_program(PLAN, STEP, nodes=nodes[::-1])
    assert check(GRAPH, moved) == []
    assert intact(moved) == intact(backwards) == intact(PLAN)
    assert 0 < len(intact(PLAN)) < sum(len(n.outputs) for n in GRAPH.program[STEP].nodes)


def test_a_view_shows_what_took_over_its_bytes() -> None:
    """As in a module that views the result of an in-place division: nothing wrote over that."""
    b = GraphBuilder("viewed")
    (x,) = b.op("exp", [b.input("x", TensorType(shape=(4, 6)))], name="first")
    (y,) = b.op("relu", [x], name="second")
    (y,) = b.op("reshape", [y], ReshapeAttrs(shape=(2, 12)), name="wide")
    (y,) = b.op("reshape", [y], ReshapeAttrs(shape=(24,)), name="flat")
    graph = b.finish_inference(b.op("mul", [y, y], name="last")[0], fuse=False)
    plan = made_by_reference(graph)
    assert plan.placement["predict.second.y"].shares == "predict.first.y"
    for name in ("second", "wide", "flat"):
        require_intact(graph, plan, "predict", f"predict.{name}.y")
    with pytest.raises(UserError, match=r"predict\.second, which wrote over it"):
        require_intact(graph, plan, "predict", "predict.first.y")
