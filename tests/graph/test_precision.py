"""Mixed precision as a pass over graphs: which values change their type, and what that does to the numbers."""

import json

import numpy as np
import pytest
import torch

from codegen.torch_twin import Twin
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import PERSISTENT, DType, Graph, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.precision import full_precision, mixed_precision, require_precision
from planner.graph.text import graph_text, parse_graph
from planner.ops.base import Array, round_bfloat16
from planner.ops.conv import ConvAttrs
from planner.ops.random import RandomAttrs
from planner.plan.text import plan_text
from planner.solve.options import PlanOptions
from planner.zoo import build
from tests.codegen.cuda.plans import plan_for
from tests.graphs import classifier, conv, images, small_net
from tests.interpreter import draw_values, run_program

COPY = "round_weights"


def types(graph: Graph) -> dict[str, str]:
    return {v.id: v.type.text() for v in graph.values}


def test_what_is_rounded_and_what_is_not() -> None:
    graph = mixed_precision(small_net())
    found = types(graph)
    assert graph.name == "small_net_bf16" and parse_graph(json.loads(graph_text(graph))) == graph
    assert {v.type.dtype for v in graph.values if v.role in PERSISTENT} == {DType.FLOAT32}
    step = graph.program["train_step"]
    # images (f32) are cast once, the master weights rounded once for both directions; the update reads their gradient
    # as the library rounded it.
    conv, weights = step.node["conv1"], step.node["conv1.backward_weights"]
    assert [found[v] for v in conv.inputs] == ["bf16[4,3,8,8]cl", "bf16[8,3,3,3]cl"]
    assert step.node["conv2"].inputs[1] == step.node["conv2.backward_data"].inputs[1] == "conv2.weight.bf16"
    assert weights.inputs[0] == conv.inputs[0] and found[weights.outputs[0]] == "bf16[8,3,3,3]"
    assert [found[v] for v in step.node["bn1"].outputs] == ["bf16[4,8,8,8]cl", "f32[8]", "f32[8]"]
    assert all(
        found[v].startswith("f32") for v in (*step.node["loss"].outputs, *step.node["bn1.backward"].outputs[1:3])
    )
    updates = {n.updates[0]: n for n in step.nodes if n.op == "sgd_update"}
    low = {name for name, n in updates.items() if found[n.inputs[0]].startswith("bf16")}
    assert low == {"conv1.weight", "conv2.weight"}
    assert all(found[v].startswith("f32") for n in updates.values() for v in n.updates)
    assert [found[v] for p in graph.programs for v in p.outputs] == [
        types(small_net())[v] for p in small_net().programs for v in p.outputs
    ]
    made = [{v for n in p.nodes for v in n.outputs} for p in graph.programs]
    assert not made[0] & made[1]  # what both wrote would hold its bytes from one to the other
    casts = [n.id for n in step.nodes if n.op == "cast"]
    assert casts == ["images.bf16"]  # the loss reads bfloat16 logits, and its gradient of them is such
    copies = [n.id for n in step.nodes if n.op == COPY]
    assert copies == ["conv1.weight.bf16", "conv2.weight.bf16", "fc.weight.bf16", "fc.bias.bf16"]


def test_activations_take_half_the_bytes() -> None:
    """Per image of ResNet-18 every activation and its gradient, but for those around the loss."""

    def size(graph: Graph) -> int:
        kept = {Role.ACTIVATION, Role.GRADIENT}
        images = [v for v in graph.values if v.role in kept and len(v.type.shape) == 4]
        return sum(v.type.bytes for v in images if "weight" not in v.id)

    graph = build("resnet18", 64, image_size=64)
    mixed = mixed_precision(graph)
    casts = sum(mixed.value[v].type.bytes for v in ("images.bf16", "predict.images.bf16"))
    assert size(mixed) - casts == size(graph) // 2
    held = sum(v.type.bytes for v in graph.values if v.role in PERSISTENT)
    plan, full = plan_for(mixed), plan_for(graph)
    copies = sum(mixed.value[n.outputs[0]].type.bytes for n in mixed.program["train_step"].nodes if n.op == COPY)
    assert plan.pools[0].arena - held - copies < 0.6 * (full.pools[0].arena - held)
    assert "images.bf16" in plan_text(plan)


def drawn(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    values = draw_values(graph, rng)
    values["labels"] = rng.integers(0, 5, 4)
    return values


def parameter_gradients(graph: Graph, held: dict[str, Array]) -> dict[str, Array]:
    return {n.updates[0]: held[n.inputs[0]] for n in graph.program["train_step"].nodes if n.op == "sgd_update"}


def test_no_further_off_than_autocast() -> None:
    """Loss and gradients of one step against the same in float64: the pass's rounding errs no more than PyTorch's."""
    graph = small_net()
    mixed, values = mixed_precision(graph), drawn(graph)
    exact, rounded = (run_program(g, "train_step", values) for g in (graph, mixed))
    twin = Twin(graph).load({v.name: values[v.id] for v in graph.values if v.name})
    images = torch.from_numpy(values["images"]).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = twin(images, torch.from_numpy(values["labels"]))[0]
    loss.backward()
    theirs = {twin.value[slot].id: p.grad.double().numpy() for slot, p in twin.named_parameters() if p.grad is not None}
    want, ours = parameter_gradients(graph, exact), parameter_gradients(mixed, rounded)

    def off(found: dict[str, Array]) -> float:
        return float(np.median([np.linalg.norm(found[k] - want[k]) / np.linalg.norm(want[k]) for k in want]))

    assert 1e-5 < off(ours) <= 1.1 * off(theirs)
    name = graph.program["train_step"].outputs[0]
    assert abs(rounded[name] - exact[name]) <= 1.1 * abs(loss.item() - exact[name]) + 1e-3


def test_rounding() -> None:
    given = np.array([1.0, 1.00390625, 1.01171875, 1.005, -3.14159, np.inf, np.nan, 3.4e38])
    found = round_bfloat16(given)
    expected = torch.from_numpy(given).to(torch.bfloat16).double().numpy()
    np.testing.assert_array_equal(found, expected)


def test_processors_without_instructions_for_it() -> None:
    from planner.costs.model import modelled_costs
    from planner.solve.pipeline import make_plan
    from planner.target.text import load_target

    graph, target = mixed_precision(small_net()), load_target("knl7250")
    with pytest.raises(UserError, match="SP1033") as told:
        make_plan(graph, target, modelled_costs(graph, target), PlanOptions())
    assert "node 'images.bf16' (cast) of train_step" in told.value.problem
    assert "knl7250" in told.value.problem
    make_plan(small_net(), target, modelled_costs(small_net(), target), PlanOptions())
    for able in ("cpu2", "h200"):
        require_precision(graph, able, load_target(able).bfloat16)


@pytest.mark.parametrize("name", ["resnet18", "wide_deep"])
def test_there_and_back(name: str) -> None:
    graph = build(name, 4)
    assert full_precision(mixed_precision(graph)) == graph


def test_gradients_that_are_added_up_are_added_in_float32() -> None:
    """Two convolutions with the same weights: what the library rounded is cast, then added; the way back finds it."""
    b = GraphBuilder("tied")
    x = conv(b, images(b), 8, "stem")
    x = conv(b, x, 8, "c1")
    (x,) = b.op("conv2d", [x, "c1.weight"], ConvAttrs(padding=(1, 1, 1, 1)), name="c2")
    graph = classifier(b, x)
    mixed = mixed_precision(graph)
    step, found = mixed.program["train_step"], types(mixed)
    update = next(n for n in step.nodes if n.op == "sgd_update" and n.updates[0] == "c1.weight")
    made = {v: n for n in step.nodes for v in n.outputs}
    assert made[update.inputs[0]].op == "add" and found[update.inputs[0]] == "f32[8,8,3,3]"
    for name in ("c1", "c2"):
        given = made[update.inputs[0]].inputs
        rounded = step.node[f"{name}.backward_weights"].outputs[0]
        assert found[rounded] == "bf16[8,8,3,3]"
        assert any(made[v].op == "cast" and made[v].inputs == (rounded,) for v in given)
    assert full_precision(mixed) == graph


def test_random_numbers_are_drawn_in_float32() -> None:
    """And rounded for who computes in bfloat16: the numbers of the float32 graph, nearly."""
    b = GraphBuilder("net")
    x, noise = b.input("x", TensorType(shape=(4, 8))), RandomAttrs(distribution="normal", shape=(4, 8))
    y = layers.linear(b, x, 8, name="fc")
    y = layers.linear(b, layers.mul(b, y, b.op("random", [], noise, name="noise")[0], name="noisy"), 3, name="out")
    graph = b.finish(layers.mse(b, y, b.input("target", TensorType(shape=(4, 3)))), y, Optimizer())
    mixed = mixed_precision(graph)
    found = types(mixed)
    assert found["noise.y"] == "f32[4,8]" and found["noise.y.bf16"] == found["noisy.y"] == "bf16[4,8]"
    assert full_precision(mixed) == graph
    assert mixed.program["predict"].node["predict.noise"].attrs == mixed.program["train_step"].node["noise"].attrs


def test_only_from_float32() -> None:
    with pytest.raises(UserError, match="SP1033"):
        mixed_precision(mixed_precision(small_net()))


def test_types_must_agree() -> None:
    """A bfloat16 operand beside a float32 one."""
    graph = mixed_precision(small_net())
    program = graph.program["train_step"]
    swapped = [
        n.model_copy(update={"inputs": ("images", *n.inputs[1:])}) if n.id == "conv1.backward_weights" else n
        for n in program.nodes
    ]
    broken = graph.model_copy(
        update={"programs": (program.model_copy(update={"nodes": tuple(swapped)}), *graph.programs[1:])}
    )
    with pytest.raises(UserError, match=r"SP1002.*conv1\.backward_weights"):
        parse_graph(json.loads(graph_text(broken)))
