"""Gradients that are clipped by their norm: which nodes do it."""

import math

import pytest

from planner.capturing import capture
from planner.errors import UserError
from planner.graph.model import Graph, Node
from planner.graph.precision import mixed_precision
from planner.zoo import build
from tests.graphs import small_net


def nodes(graph: Graph, op: str) -> list[Node]:
    return [n for n in graph.program["train_step"].nodes if n.op == op]


def test_one_factor_for_all_gradients() -> None:
    graph = small_net(clip_norm=0.5)
    updates, sums = nodes(graph, "sgd_update"), nodes(graph, "square_sum")
    assert len(updates) == 8  # two convolutions, two batch norms, a linear layer
    assert [s.inputs for s in sums] == [u.inputs[:1] for u in updates]
    (joined,), (clip,) = nodes(graph, "concat"), nodes(graph, "clip_factor")
    assert joined.inputs == tuple(s.outputs[0] for s in sums) and clip.inputs == joined.outputs
    assert {u.inputs[1] for u in updates} == {"clip.factor"} and clip.outputs == ("clip.factor", "clip.norm")


def test_without_a_norm_nothing_is_added() -> None:
    assert small_net() == small_net(clip_norm=None)
    assert {n.op for n in small_net(clip_norm=1.0).program["train_step"].nodes} - {
        n.op for n in small_net().program["train_step"].nodes
    } == {"square_sum", "concat", "clip_factor"}


def test_the_norm_costs_nothing_to_change() -> None:
    """Plans and measured costs are for any norm."""
    one, other = (nodes(small_net(clip_norm=norm), "clip_factor")[0].attrs for norm in (0.5, 2.0))
    assert one != other and one.text() == other.text()


def test_every_loss_has_a_norm_of_its_own() -> None:
    graph = build("dcgan", 2, clip_norm=1.0)
    factors = [n.outputs[0] for n in nodes(graph, "clip_factor")]
    assert len(factors) == 2
    assert {n.inputs[1] for n in nodes(graph, "adam_update")} == set(factors)
    assert len(nodes(graph, "square_sum")) == len(nodes(graph, "adam_update"))


def test_an_embedding_is_updated_densely() -> None:
    plain, clipped = (build("lstm", 2, clip_norm=norm) for norm in (None, 5.0))
    assert nodes(plain, "embedding_sgd_update") and not nodes(plain, "embedding_backward")
    assert nodes(clipped, "embedding_backward") and not nodes(clipped, "embedding_sgd_update")


def test_bfloat16_gradients_are_read_as_they_are() -> None:
    graph = mixed_precision(small_net(clip_norm=0.5))
    low = [n for n in nodes(graph, "square_sum") if graph.value[n.inputs[0]].type.dtype == "bfloat16"]
    assert len(low) == 2  # of the convolutions


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_no_norm(norm: float) -> None:
    with pytest.raises(UserError, match="SP1023"):
        capture("mlp", clip_norm=norm)


def test_the_callers_gradients_are_the_callers() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UserError, match="clip_grad_norm_") as caught:
        capture(torch.nn.Linear(3, 2), (torch.randn(4, 3),), loss="caller", clip_norm=1.0)
    assert caught.value.code == "SP1023"
