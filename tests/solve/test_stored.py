"""Which parameters are stored as kernels want them, and what that spares."""

from collections.abc import Mapping

import pytest

from planner.costs.model import modelled_costs, modelled_facts
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import Facts, Mode, Signature, op_named
from planner.ops.conv import ConvAttrs
from planner.plan.check import check
from planner.plan.diff import diff
from planner.plan.explain import explain
from planner.plan.schema import Plan
from planner.plan.text import plan_text
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import NORMAL, batch_norm, classifier, conv, images

TARGET = "cpu2"
WISHES = {"conv2d": "packs_o", "conv2d_backward_data": "packs_i"}


def net(channels: int = 64, tied: bool = False, optimizer: Optimizer | None = None, size: int = 8) -> Graph:
    b = GraphBuilder("stored_net")
    x = batch_norm(b, conv(b, images(b, size=size), channels, "stem"), "bn0", "relu")
    x = batch_norm(b, conv(b, x, channels, "c1"), "bn1", "relu")
    if tied:
        (x,) = b.op("conv2d", [x, "c1.weight"], ConvAttrs(padding=(1, 1, 1, 1)), name="c2")
    return classifier(b, x, optimizer=optimizer)


def library(signature: Signature, mode: Mode) -> Facts:
    """Kernels that pack into blocks of 32, and gradients of weights that are reduced."""
    found = dict(modelled_facts(op_named(signature.op), signature, mode))
    if wish := WISHES.get(signature.op):
        weights = signature.inputs[1]
        found["packed_bytes"] = weights.bytes
        if weights.shape[0 if wish == "packs_o" else 1] % 32 == 0:
            found[wish] = 32
    if signature.op == "conv2d_backward_weights" and mode.dim == "batch":
        found["partial_bytes"] = mode.slices * signature.outputs[0].bytes
    return found


def stored_plan(graph: Graph, **options: object) -> Plan:
    target = load_target(TARGET)
    chosen = PlanOptions(policy="sequential").model_copy(update=options)
    return make_plan(graph, target, modelled_costs(graph, target, library), chosen)


def layouts(plan: Plan) -> Mapping[str, str]:
    return {p.value: p.layout for p in plan.placements if p.layout}


def test_a_parameter_its_gradient_and_its_momentum_are_stored_as_the_forward_kernel_wants() -> None:
    graph = net()
    plan, plain = stored_plan(graph), stored_plan(graph, plain_weights=True)
    group = {f"{name}{rest}" for name in ("stem", "c1") for rest in (".weight", ".weight.momentum")}
    assert layouts(plan).keys() == group | {"stem.backward_weights.dw", "c1.backward_weights.dw"}
    assert set(layouts(plan).values()) == {"ohwi32o"} and layouts(plain) == {}
    step, before = plan.program["train_step"], plain.program["train_step"]
    assert (step.node["c1"].stages, before.node["c1"].stages) == (1, 2)
    assert step.node["c1"].scratch_bytes < before.node["c1"].scratch_bytes
    assert step.node["c1.backward_data"].stages == 2, "it packs from the forward kernel's layout"
    for program in plan.programs:
        assert plain.program[program.name].predicted_ns > program.predicted_ns >= program.bounds.best_ns
    assert check(graph, plan, load_target(TARGET)) == []


def test_people_see_the_layouts() -> None:
    graph = net()
    plan, plain = stored_plan(graph), stored_plan(graph, plain_weights=True)
    assert '"layout": "ohwi32o"' in plan_text(plan) and '"layout"' not in plan_text(plain)
    changes = {c.value: (c.change, c.before, c.after) for c in diff(plain, plan, graph).placement.changes}
    assert changes["c1.weight"] == ("layout", "plain", "ohwi32o")
    assert explain("c1.weight", graph, plan).values[0].layout == "ohwi32o"


@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1), Optimizer(kind="adam", lr=0.1)])
def test_every_optimizer_works_on_them(optimizer: Optimizer) -> None:
    plan = stored_plan(net(optimizer=optimizer))
    assert "c1.weight" in layouts(plan) and len(layouts(plan)) % 2 == 0


def test_what_anything_else_touches_stays_plain() -> None:
    tied = net(tied=True)
    assert layouts(stored_plan(tied)).keys() == {"stem.weight", "stem.weight.momentum", "stem.backward_weights.dw"}
    b = GraphBuilder("read")
    x = conv(b, images(b), 32, "stem")
    (w,) = b.op("mul", [b.parameter("c1.weight", (32, 32, 1, 1), NORMAL), "c1.weight"], name="square")
    (x,) = b.op("conv2d", [x, w], ConvAttrs(), name="c1")
    assert not [v for v in layouts(stored_plan(classifier(b, x))) if v.startswith(("c1", "square"))]


def test_no_padding_and_no_weights_that_a_caller_holds() -> None:
    assert layouts(stored_plan(net(channels=40))) == {}


def test_a_plan_for_a_budget_keeps_its_weights_plain() -> None:
    graph = net(channels=32, size=24)
    arena = stored_plan(graph, plain_weights=True).pools[0].arena
    plan = stored_plan(graph, memory_budget=int(arena * 0.9))
    assert plan.program["train_step"].rewrite and layouts(plan) == {}
