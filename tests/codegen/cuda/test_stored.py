"""Weights stored as a GPU's library takes them: the same bits as plain ones, wherever they can be seen, without the
launches that turn them."""

from pathlib import Path

import numpy as np
import pytest

from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import facts
from codegen.emit import emit
from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.ops.conv import ConvAttrs
from planner.ops.conv_transpose import ConvTransposeAttrs
from planner.plan.check import check
from planner.plan.diff import diff
from planner.plan.explain import explain
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.cuda.plans import NULL, costs_of, gpu, make
from tests.codegen.cuda.test_null_device import assert_steps_agree, batch
from tests.codegen.test_stored import layouts, same_steps
from tests.graphs import NORMAL, batch_norm, classifier, conv, images
from tests.plan.mutations import edit_node

STORED = {"stem.weight", "c1.weight", "grouped.weight", "up.weight"}
"""Of `net`: not what two convolutions share, nor where both orders are one."""


def net(optimizer: Optimizer) -> Graph:
    """Convolutions of every kind: with a bias, in groups, transposed, twice with the same weights, pointwise, and one
    whose groups have one channel each."""
    b = GraphBuilder("filters")
    same_size = {"padding": (1, 1, 1, 1)}
    x = batch_norm(b, conv(b, images(b, size=6), 8, "stem", bias=True), "bn", "relu")
    x = conv(b, x, 16, "c1")
    weights = b.parameter("grouped.weight", (16, 4, 3, 3), NORMAL)
    (x,) = b.op("conv2d", [x, weights], ConvAttrs(**same_size, groups=4), name="grouped")
    weights = b.parameter("depthwise.weight", (16, 1, 3, 3), NORMAL)
    (x,) = b.op("conv2d", [x, weights], ConvAttrs(**same_size, groups=16), name="depthwise")
    weights = b.parameter("up.weight", (16, 8, 4, 4), NORMAL)
    (x,) = b.op("conv_transpose2d", [x, weights], ConvTransposeAttrs(**same_size, stride=(2, 2)), name="up")
    x = batch_norm(b, conv(b, x, 8, "tied"), "bn2", "relu")
    (x,) = b.op("conv2d", [x, "tied.weight"], ConvAttrs(**same_size), name="again")
    return classifier(b, conv(b, x, 8, "point", kernel=1), optimizer=optimizer)


SGD = net(Optimizer(lr=0.05, momentum=0.9, weight_decay=1e-3))
ADAM = net(Optimizer(kind="adam", lr=1e-3, weight_decay=1e-2))


def plans(graph: Graph, **options: object) -> tuple[Plan, Plan]:
    """With plain weights, and with stored ones."""
    chosen = PlanOptions(policy="sequential").model_copy(update=options)
    costs = costs_of(graph)
    plain, stored = (make_plan(graph, gpu(), costs, chosen.model_copy(update={"plain_weights": p})) for p in (1, 0))
    return plain, stored


def launched(executor: CudaExecutor) -> int:
    """Kernels and copies of a step."""
    executor._native.log(executor._handle, True)
    executor.step(*batch(executor._graph, 7)).wait()
    lines = executor._native.lines(executor._handle)
    executor._native.log(executor._handle, False)
    return len(lines)


@pytest.mark.parametrize(
    ("graph", "turns"),
    [(SGD, 4 + 3 + 4), (mixed_precision(SGD), 4), (mixed_precision(ADAM), 4)],
    ids=["float32", "bfloat16", "bfloat16 and adam"],
)
def test_the_bits_are_those_of_plain_weights(graph: Graph, turns: int, tmp_path: Path) -> None:
    """`turns`: launches that turn weights forward, for the gradients of data, and gradients of weights back. (Rounding
    for bfloat16 stays, in one launch.)"""
    keep = tuple(v.id for v in graph.values if v.gradient_of in STORED)
    plain_plan, stored_plan = plans(graph, keep=keep)
    assert not layouts(plain_plan) and set(layouts(stored_plan).values()) == {"ohwi"}
    assert {v for v in layouts(stored_plan) if graph.value[v].role == "parameter"} == STORED
    assert layouts(stored_plan).keys() >= {*keep, *(v.id for v in graph.values if v.id.startswith("c1.weight."))} - {
        "c1.weight.bf16"
    }
    made = [make(p, graph, tmp_path / str(i)) for i, p in enumerate((plain_plan, stored_plan))]
    with made[0](seed=3, null_device=NULL) as plain, made[1](seed=3, null_device=NULL, poison=True) as stored:
        same_steps(graph, plain, stored, tuple(keep))
        if not NULL:
            return
        assert launched(plain) - launched(stored) == turns
        for name in STORED:
            seen = np.from_dlpack(stored.array(name))
            assert np.array_equal(seen, stored.state_dict()[name]) and not seen.flags.c_contiguous


def test_budgets_and_streams_leave_them_stored(tmp_path: Path) -> None:
    _, whole = plans(SGD)
    plain, plan = plans(SGD, memory_budget=int(0.7 * whole.pools[0].arena))
    assert plan.program["train_step"].rewrite and layouts(plan) == layouts(whole) and not layouts(plain)
    with make(plan, SGD, tmp_path)(poison=True, null_device=NULL) as executor:
        assert_steps_agree(executor, 2, tolerance=2e-4)
    _, plan = plans(SGD, lanes=2, policy="liu", strategies=(1, 3))
    assert layouts(plan) == layouts(whole)


def test_the_least_budget_that_is_named_can_be_met() -> None:
    """Estimates know that nothing packs: what they call too small is too small."""
    with pytest.raises(UserError, match="SP1301") as told:
        plans(SGD, memory_budget=1024)
    plain_least = int(told.value.fix.split(" is ")[1].split()[0])
    costs = modelled_costs(SGD, gpu(), facts)
    chosen = PlanOptions(policy="sequential", memory_budget=1024)
    with pytest.raises(UserError, match="SP1301") as told:
        make_plan(SGD, gpu(), costs, chosen)
    least = int(told.value.fix.split(" is ")[1].split()[0])
    assert least <= plain_least
    plan = make_plan(SGD, gpu(), costs, chosen.model_copy(update={"memory_budget": least}))
    assert plan.pools[0].arena <= least and set(layouts(plan).values()) == {"ohwi"}
    assert check(SGD, plan, gpu()) == []


def test_people_see_them(tmp_path: Path) -> None:
    plain, stored = plans(SGD)
    changes = {c.value: (c.change, c.before, c.after) for c in diff(plain, stored, SGD).placement.changes}
    assert changes["c1.weight"] == ("layout", "plain", "ohwi")
    assert explain("c1.weight", SGD, stored).values[0].layout == "ohwi"
    emit(stored, SGD, gpu(), tmp_path)
    assert '"layout": "ohwi"' in (tmp_path / "plan.json").read_text()
    assert "stored as ohwi" in (tmp_path / "values.hpp").read_text()


def test_scratch_that_kernels_would_run_over_is_refused(tmp_path: Path) -> None:
    plain, stored = plans(SGD)
    node = plain.program["train_step"].node["c1"]
    found = {k: v for k, v in node.facts.items() if k != "packed_bytes"}
    with pytest.raises(UserError, match="SP1517"):
        emit(edit_node(plain, "train_step", "c1", facts=found, scratch_bytes=0), SGD, gpu(), tmp_path)
    with pytest.raises(UserError, match="SP1438"):
        emit(edit_node(plain, "train_step", "c1", facts={"stored_o": 1}, scratch_bytes=0), SGD, gpu(), tmp_path)
    with pytest.raises(UserError, match="SP1438"):
        emit(edit_node(stored, "train_step", "c1", facts={}), SGD, gpu(), tmp_path)
