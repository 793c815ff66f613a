"""Views of views, equal views and what is moved and back again are no nodes; what they are read for stays."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Init, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.views import join_views
from planner.ops.copy import PermuteAttrs
from tests.frontends.torch_agreement import agree


class Seen(nn.Module):
    def __init__(self, see: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.see = nn.Linear(6, 8), see

    def forward(self, x: Tensor) -> Tensor:
        return self.see(self.inner(x)).flatten(1)


def of_views(x: Tensor) -> Tensor:
    return (x.flatten(1).unflatten(1, (4, 10)) @ torch.arange(10.0).to(x)).tanh()[:, :, None]


def equal(x: Tensor) -> Tensor:
    """One view of what is 3 x 5 x 8, of 15 x 8, and one back."""
    return x.flatten(0, 1).softmax(-1).view(3, 40) * x.flatten(0, 1).log_softmax(-1).view(3, 40)


def to_images_and_back(x: Tensor) -> Tensor:
    """Two convolutions of sequences: what lies between is moved back and there again."""
    weight = (torch.arange(8 * 8 * 3) / 64 - 1).view(8, 8, 3).to(x)  # exact in float32
    y = torch.conv1d(x.transpose(1, 2), weight, padding=1)[..., :4].transpose(1, 2)
    return torch.conv1d(y.transpose(1, 2), weight, padding=1)


def views_of(see: Callable[[Tensor], Tensor], fuse: bool = True) -> Counter[str]:
    graph, _ = capture_module(Seen(see), torch.randn(3, 5, 6), CaptureOptions(loss="mse", fuse=fuse))
    nodes = graph.program["train_step"].nodes
    return Counter(n.op for n in nodes if n.phase == "forward" and n.op in ("reshape", "permute"))


@pytest.mark.parametrize("see", [of_views, equal, to_images_and_back])
def test_fewer_views_and_the_same_numbers(see: Callable[[Tensor], Tensor]) -> None:
    assert views_of(see).total() < views_of(see, fuse=False).total()
    agree(Seen(see), torch.randn(3, 5, 6))


def test_views_of_views_are_views_of_the_first_value() -> None:
    b = GraphBuilder("views")
    x = b.input("x", TensorType(shape=(4, 6)))
    near = layers.reshape(b, x, (24,), name="near")
    far = layers.reshape(b, near, (3, 8), name="far")
    again = layers.reshape(b, layers.reshape(b, near, (2, 12), name="between"), (3, 8), name="again")
    back = layers.reshape(b, far, (4, 6), name="back")
    b.op("add", [far, again], name="sum")
    b.op("add", [back, x], name="other")
    nodes = join_views(b.nodes, b.values, {near})
    assert [(n.id, n.inputs) for n in nodes] == [
        ("near", ("x",)),
        ("far", ("x",)),
        ("between", ("x",)),
        ("sum", (far, far)),
        ("other", ("x", "x")),
    ]


def test_a_wanted_view_stays() -> None:
    b = GraphBuilder("views")
    x = b.input("x", TensorType(shape=(4, 6)))
    one = layers.reshape(b, x, (24,), name="one")
    two = layers.reshape(b, layers.reshape(b, one, (3, 8), name="between"), (24,), name="two")
    same = layers.reshape(b, two, (4, 6), name="same")
    nodes = join_views(b.nodes, b.values, {one, two, same})
    assert [(n.id, n.inputs) for n in nodes if n.id != "between"] == [
        ("one", ("x",)),
        ("two", ("x",)),
        ("same", ("x",)),
    ]


@pytest.mark.parametrize(("second", "left"), [((2, 0, 1), 0), ((1, 2, 0), 2)])
def test_permutations_and_their_inverse(second: tuple[int, ...], left: int) -> None:
    b = GraphBuilder("permutations")
    x = b.input("x", TensorType(shape=(4, 4, 4)))
    (there,) = b.op("permute", [x], PermuteAttrs(axes=(1, 2, 0)))
    (back,) = b.op("permute", [there], PermuteAttrs(axes=second))
    b.op("relu", [back])
    nodes = join_views(b.nodes, b.values, set())
    assert nodes[-1].inputs == ((back,) if left else (x,))
    assert sum(n.op == "permute" for n in nodes) == 1 + left // 2


def test_views_before_and_behind_an_update_are_two() -> None:
    """What is written in place is seen as it is then."""
    b = GraphBuilder("updated")
    state = b.state("state", (4,), Init(kind="zeros"))
    before = layers.reshape(b, state, (2, 2), name="before")
    b.op("state_update", [b.input("x", TensorType(shape=(4,)))], updates=[state])
    behind = layers.reshape(b, state, (2, 2), name="behind")
    b.op("add", [before, behind], name="sum")
    assert [n.id for n in join_views(b.nodes, b.values, set())] == ["before", "state_update", "behind", "sum"]


def test_gradients_of_equal_views_are_added_up_once() -> None:
    b = GraphBuilder("equal")
    x, w = b.input("x", TensorType(shape=(4, 6))), b.parameter("w", (24,), Init(kind="ones"))
    one, two = (layers.reshape(b, w, (4, 6), name=name) for name in ("one", "two"))
    (first,) = b.op("mul", [x, one], name="first")
    (last,) = b.op("mul", [first, two], name="last")
    graph = b.finish(layers.mse(b, last, b.input("target", b.type(last))), last, Optimizer(lr=0.1), keep=[first])
    ops = Counter(n.op for n in graph.program["train_step"].nodes)
    assert ops["reshape"] == 2  # one there, one back
