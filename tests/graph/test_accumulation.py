"""Gradients of several batches that are added up before a step: which nodes do it."""

import pytest

from planner.capturing import capture
from planner.errors import UserError
from planner.graph.model import Graph, Node, Role
from planner.graph.precision import mixed_precision
from planner.zoo import build
from tests.graphs import small_net


def nodes(graph: Graph, op: str) -> list[Node]:
    return [n for n in graph.program["train_step"].nodes if n.op == op]


def test_updates_read_sums_that_outlive_the_step() -> None:
    graph = small_net(accumulate=True)
    updates, sums = nodes(graph, "sgd_update"), nodes(graph, "gradient_sum")
    assert len(updates) == 8  # two convolutions, two batch norms, a linear layer
    assert [u.inputs for u in updates] == [s.updates for s in sums]
    for node, update in zip(sums, updates, strict=True):
        held, parameter = graph.value[node.updates[0]], graph.value[update.updates[0]]
        assert held.role is Role.STATE and held.type == parameter.type
        assert held.name == f"{parameter.name}.gradient_sum" and held.init is not None and held.init.kind == "zeros"
        assert graph.value[node.inputs[0]].gradient_of == parameter.id


def test_without_it_nothing_is_added() -> None:
    assert small_net() == small_net(accumulate=False)
    assert not nodes(small_net(), "gradient_sum")


def test_the_norm_is_that_of_the_sums() -> None:
    graph = small_net(clip_norm=1.0, accumulate=True)
    assert [n.inputs for n in nodes(graph, "square_sum")] == [n.updates for n in nodes(graph, "gradient_sum")]
    assert {n.inputs[1] for n in nodes(graph, "sgd_update")} == {"clip.factor"}


def test_every_loss_has_its_sums() -> None:
    graph = build("dcgan", 2, accumulate=True)
    assert len(nodes(graph, "gradient_sum")) == len(nodes(graph, "adam_update")) > 20


def test_an_embedding_is_updated_densely() -> None:
    plain, summed = (build("lstm", 2, accumulate=accumulate) for accumulate in (False, True))
    assert nodes(plain, "embedding_sgd_update") and not nodes(plain, "embedding_backward")
    assert nodes(summed, "embedding_backward") and not nodes(summed, "embedding_sgd_update")


def test_bfloat16_gradients_are_added_up_in_float32() -> None:
    graph = mixed_precision(small_net(accumulate=True))
    sums = nodes(graph, "gradient_sum")
    low = [n for n in sums if graph.value[n.inputs[0]].type.dtype == "bfloat16"]
    assert len(low) == 2  # of the convolutions
    assert {graph.value[n.updates[0]].type.dtype for n in sums} == {"float32"}


def test_the_callers_gradients_are_the_callers() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UserError, match="call backward several times") as caught:
        capture(torch.nn.Linear(3, 2), (torch.randn(4, 3),), loss="caller", accumulate=True)
    assert caught.value.code == "SP1023"
