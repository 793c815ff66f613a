"""Layouts that weights cannot have, or that their nodes do not know of, are refused."""

import random

import numpy as np
import pytest

from planner.graph.model import DType, Graph, TensorType
from planner.ops.base import Mode, Signature
from planner.ops.conv import ConvAttrs, ConvGradAttrs
from planner.ops.stored import BLOCKS, FILTERS, PLAIN, Stored, from_stored, parse_stored, takes, to_stored
from planner.plan.check import check
from planner.plan.check_storage import check_storage
from planner.plan.findings import Report
from planner.plan.schema import Plan
from planner.target.text import load_target
from tests.plan.mutations import edit_node, edit_value
from tests.solve.test_stored import TARGET, layouts, net, stored_plan

GRAPH = net()
PLAN = stored_plan(GRAPH)
PARAMETER, GRADIENT, MOMENTUM = "c1.weight", "c1.backward_weights.dw", "c1.weight.momentum"


def codes(plan: Plan, graph: Graph = GRAPH) -> set[str]:
    return {f.code for f in check(graph, plan, load_target(TARGET))}


def test_a_plan_with_stored_weights_is_safe() -> None:
    assert {PARAMETER, GRADIENT, MOMENTUM} <= layouts(PLAN).keys() and codes(PLAN) == set()


@pytest.mark.parametrize("value", [PARAMETER, GRADIENT, MOMENTUM])
@pytest.mark.parametrize("layout", ["", "ohwi", "ohwi16o", "ihwo32i", "ihwo48i"])
def test_all_that_an_update_touches_is_stored_alike(value: str, layout: str) -> None:
    assert layouts(PLAN)[value] == "ohwi32o"
    assert "SP1438" in codes(edit_value(PLAN, value, layout=layout))


@pytest.mark.parametrize("value", ["bn1.weight", "images", "c1.y", "fc.weight", "bn1.running_mean"])
def test_only_weights_of_convolutions_are_stored_in_blocks(value: str) -> None:
    assert "SP1438" in codes(edit_value(PLAN, value, layout="ohwi16o"))


def told(graph: Graph, plan: Plan = PLAN) -> list[str]:
    """Of placements alone, whatever nodes know of them."""
    report = Report()
    check_storage(graph, plan, (), report)
    return [f.message for f in report.findings()]


def test_what_callers_see_is_stored_plainly() -> None:
    assert told(GRAPH) == []
    train, *others = GRAPH.programs
    plain = f"value {PARAMETER} is stored as ohwi32o, but its caller takes it plain"
    for change in ({"inputs": (*train.inputs, PARAMETER)}, {"outputs": (*train.outputs, PARAMETER)}):
        assert told(GRAPH.model_copy(update={"programs": (train.model_copy(update=change), *others)})) == [plain]
    whole = GRAPH.value[PARAMETER].type.model_copy(update={"dtype": DType.INT64})
    values = tuple(v.model_copy(update={"type": whole}) if v.id == PARAMETER else v for v in GRAPH.values)
    assert told(GRAPH.model_copy(update={"values": values})) == [plain]
    assert told(GRAPH, edit_value(PLAN, PARAMETER, pool="elsewhere")) == [plain]


def test_a_module_that_holds_the_parameters_has_them_plain() -> None:
    train, *others = GRAPH.programs
    nodes = (*train.nodes, train.nodes[0].model_copy(update={"op": "caller_gradient"}))
    (found,) = told(GRAPH.model_copy(update={"programs": (train.model_copy(update={"nodes": nodes}), *others)}))
    assert "the caller holds them" in found


@pytest.mark.parametrize("node", ["c1", "c1.backward_data", "c1.backward_weights"])
@pytest.mark.parametrize("facts", [{"stored_o": 16}, {"stored_i": 32}, {"stored_o": 32, "stored_i": 32}, {}])
def test_nodes_know_how_their_weights_are_stored(node: str, facts: dict[str, int]) -> None:
    own = {k: v for k, v in PLAN.program["train_step"].node[node].facts.items() if not k.startswith("stored")}
    assert codes(edit_node(PLAN, "train_step", node, facts={**own, **facts})) & {"SP1438", "SP1408", "SP1409"}


def test_a_slice_that_would_make_half_a_block() -> None:
    """All that touches the weights agrees on blocks of 64, but each slice of their gradient makes 32 filters."""
    plan = PLAN
    for value in (PARAMETER, GRADIENT, MOMENTUM):
        plan = edit_value(plan, value, layout="ohwi64o")
    for program, names in (
        ("train_step", ("c1", "c1.backward_data", "c1.backward_weights")),
        ("predict", ("predict.c1",)),
    ):
        for name in names:
            plan = edit_node(plan, program, name, facts={**plan.program[program].node[name].facts, "stored_o": 64})
    (found,) = check(GRAPH, plan, load_target(TARGET))
    assert (found.code, found.program) == ("SP1438", "train_step")
    assert found.message == "node c1.backward_weights in its mode cannot use weights stored as ohwi64o"


def test_only_element_wise_ops_may_not_care(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that are all stored alike are not enough."""
    monkeypatch.setattr("planner.plan.check_storage.ELEMENTWISE", frozenset())
    found = check(GRAPH, PLAN, load_target(TARGET))
    assert any("c1.weight.update (sgd_update) uses values whose layouts it does not know" in f.message for f in found)


def test_random_damage_to_layouts_is_noticed() -> None:
    rng = random.Random(0)
    texts = [f"ohwi{b}o" for b in BLOCKS] + [f"ihwo{b}i" for b in BLOCKS] + ["", "hwio16o", "ohwi31o"]
    for _ in range(60):
        plan = PLAN
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.5:
                plan = edit_value(plan, rng.choice(PLAN.placements).value, layout=rng.choice(texts))
            else:
                planned = rng.choice(PLAN.program["train_step"].nodes)
                key = rng.choice(["stored_o", "stored_i"])
                facts = {**planned.facts, key: rng.choice([16, 31, 32, 2**70])}
                plan = edit_node(plan, "train_step", planned.node, facts=facts)
        if plan != PLAN:
            assert codes(plan) & {"SP1438", "SP1431"}


@pytest.mark.parametrize("stored", [FILTERS, Stored(16, 0), Stored(0, 16), Stored(48, 0), Stored(0, 64)])
def test_arrays_go_there_and_back(stored: Stored) -> None:
    plain = np.random.default_rng(0).standard_normal((96, 64, 3, 2)).astype(np.float32)
    flat = to_stored(plain, stored)
    assert np.array_equal(from_stored(flat, plain.shape, stored), plain) and parse_stored(stored.text) == stored
    block = max(stored)
    first = plain[:block, 0, 0, 0] if stored.o_block else plain[0, :block, 0, 0]
    assert np.array_equal(flat[:block], first)


def test_names_of_layouts() -> None:
    assert parse_stored("") == PLAIN == parse_stored(PLAIN.text)
    assert [parse_stored(t) for t in ("ohwi31o", "oihw", "ohwi1o", "ohwi16", "ihwo16o", "ohwi16i16o")] == [None] * 6


def weights_gradient(shape: tuple[int, int, int, int]) -> Signature:
    o, i, kh, kw = shape
    x, dy = TensorType(shape=(4, i, 8, 8)), TensorType(shape=(4, o, 8 - kh + 1, 8 - kw + 1))
    attrs = ConvGradAttrs(**ConvAttrs().model_dump(), shape=shape)
    return Signature("conv2d_backward_weights", attrs, (x, dy), (TensorType(shape=shape),))


def test_which_gradients_of_weights_can_be_stored_in_blocks() -> None:
    reduced = Mode("onednn", "batch", 2, "jit:avx512_core")
    whole = Mode("onednn", "channels", 2, "jit:avx512_core")
    thirds = Mode("onednn", "channels", 3, "jit:avx512_core")
    square, pointwise = weights_gradient((64, 64, 3, 3)), weights_gradient((64, 64, 1, 1))
    assert takes(square, reduced, {"partial_bytes": 64}, Stored(64, 0)) and not takes(
        square, reduced, {}, Stored(64, 0)
    )
    assert takes(square, whole, {}, Stored(32, 0)) and takes(square, thirds, {}, Stored(0, 64))
    assert not takes(square, whole, {}, Stored(64, 0)), "a slice makes half a block"
    assert takes(pointwise, reduced, {"partial_bytes": 64}, Stored(64, 0))
    assert not takes(pointwise, whole, {}, Stored(32, 0)), "it may be written straight away"
    assert not takes(square, Mode("cudnn", "whole", 1), {"partial_bytes": 64}, Stored(32, 0))
    assert takes(square, Mode("cudnn", "whole", 1), {}, FILTERS)
    assert not takes(square, reduced, {"partial_bytes": 64}, FILTERS)
