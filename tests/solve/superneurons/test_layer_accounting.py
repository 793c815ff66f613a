"""The paper's accounting: AlexNet's published stages to the kilobyte, sets by hand on a small network."""

from itertools import pairwise

import pytest

from planner import zoo
from planner.errors import UserError
from planner.graph.model import Role
from planner.solve.superneurons.layer_accounting import (
    STAGES,
    Profile,
    Stage,
    offload_bytes,
    profile,
    published_offload_bytes,
)
from planner.solve.superneurons.paper_layers import Kind, Layer, Layers, layers
from planner.solve.superneurons.recompute import Strategy

MB = 2**20


def of(network: str, batch: int) -> Layers:
    graph = zoo.build(network, batch, fuse=False)
    return layers(graph, graph.program["train_step"])


@pytest.fixture(scope="module")
def alexnet() -> Layers:
    return of("alexnet_lrn", 200)


def test_alexnet_is_the_papers(alexnet: Layers) -> None:
    assert len(alexnet.steps) == 23
    assert alexnet.largest()[1] / MB == pytest.approx(886.230, abs=1e-3)


@pytest.mark.parametrize(
    ("stage", "peak", "step", "layer", "tensors"),
    [
        ("liveness", 1489.355, 32, "pool5.backward", 17),
        ("offload", 1132.056, 39, "pool2.backward", 9),
        ("recompute", 886.230, 44, "lrn1.backward", 4),
    ],
)
def test_figure_10(alexnet: Layers, stage: Stage, peak: float, step: int, layer: str, tensors: int) -> None:
    found = profile(alexnet, stage)
    assert found.peak.bytes / MB == pytest.approx(peak, abs=1e-3)
    assert (found.peak.step, found.peak.layer, found.peak.tensors) == (step, layer, tensors)
    assert [s.step for s in found.steps] == list(range(1, 47))


def test_baseline_has_36_tensors_at_every_step(alexnet: Layers) -> None:
    found = profile(alexnet, "baseline")
    assert {(s.bytes, s.tensors) for s in found.steps} == {(found.peak.bytes, 36)}
    assert found.peak.bytes / MB == pytest.approx(2189.437, abs=1e-3)


@pytest.mark.parametrize(
    ("strategy", "peak", "again"), [("speed", 993.018, 14), ("memory", 886.230, 23), ("cost", 886.230, 17)]
)
def test_table_1_peaks_of_alexnet(alexnet: Layers, strategy: Strategy, peak: float, again: int) -> None:
    found = profile(alexnet, "recompute", strategy)
    assert found.peak.bytes / MB == pytest.approx(peak, abs=1e-3)
    assert found.recomputed == again


@pytest.mark.parametrize("network", ["alexnet_lrn", "vgg16", "resnet50"])
def test_every_stage_needs_no_more_than_the_one_before(network: str) -> None:
    found = of(network, 2)
    profiles: list[Profile] = [profile(found, stage) for stage in STAGES]
    for earlier, later in pairwise(profiles):
        assert later.peak.bytes <= earlier.peak.bytes
    for a, b in zip(profiles[0].steps, profiles[1].steps, strict=True):
        assert set(b.live) <= set(a.live)


def test_offloading_moves_every_convolution_out_and_back(alexnet: Layers) -> None:
    # conv1 221.558, conv2 142.383, conv3 and conv4 49.512, conv5 33.008 MB
    assert offload_bytes(alexnet) / MB == pytest.approx(2 * 495.972, abs=1e-3)


@pytest.mark.parametrize(
    ("batch", "published"), [(256, 2.56), (384, 3.72), (512, 4.88), (640, 6.03), (896, 8.35), (1024, 9.50)]
)
def test_table_3_without_the_cache(batch: int, published: float) -> None:
    graph = zoo.build("alexnet_lrn", batch, fuse=False)
    parameters = sum(v.type.bytes for v in graph.values if v.role is Role.PARAMETER)
    images = graph.value["images"].type.bytes
    assert round(published_offload_bytes(of("alexnet_lrn", batch), images, parameters) / 1e9, 2) == published


def fan() -> Layers:
    """data -> conv -> fork -> (act | act) -> join -> fc -> softmax, 1 byte each"""
    rows = (
        ("data", Kind.DATA, ()),
        ("conv", Kind.CONV, ("data",)),
        ("fork", Kind.FORK, ("conv",)),
        ("left", Kind.ACT, ("fork",)),
        ("right", Kind.ACT, ("fork",)),
        ("join", Kind.JOIN, ("left", "right")),
        ("fc", Kind.FC, ("join",)),
        ("softmax", Kind.SOFTMAX, ("fc",)),
    )
    return Layers(tuple(Layer(i, k, inputs, 1) for i, k, inputs in rows))


def test_in_and_out_sets_by_hand() -> None:
    """Section 3.2: what is alive before a step and after it, of what is alive in it."""
    live = {s.layer: set(s.live) for s in profile(fan(), "liveness").steps}
    layers = list(live)

    def before(layer: str) -> set[str]:
        at = layers.index(layer)
        return live[layers[at - 1]] & live[layer] if at else set()

    def after(layer: str) -> set[str]:
        at = layers.index(layer)
        return live[layer] & live[layers[at + 1]] if at + 1 < len(layers) else set()

    assert before("conv") == set() and after("conv") == {"conv"}
    # The convolution's output serves the fork only; the softmax's is overwritten by its gradient.
    assert after("fork") == {"fork"}
    assert before("join") == {"fork", "left", "right"}
    assert after("softmax") == {"fork", "join", "left", "right", "softmax"}
    assert after("fc.backward") == {"fork", "gradient:join", "left", "right"}
    # The join passes its gradient on to both activations: only the last one to read it may write over it.
    assert after("join.backward") == {"fork", "gradient:join", "left", "right"}
    assert after("right.backward") == {"fork", "gradient:fork@right", "gradient:join", "left"}
    assert after("left.backward") == {"gradient:fork@right", "gradient:join"}
    assert after("fork.backward") == {"gradient:fork@right"}
    assert after("conv.backward") == set()


def test_a_route_enters_a_join_last() -> None:
    order = [layer.id for layer in of("resnet50", 1).all]
    assert order.index("layer1.0.downsample.1") < order.index("layer1.0.add")
    assert order.index("layer1.0.bn3") < order.index("layer1.0.add")


def test_fused_graphs_are_refused() -> None:
    graph = zoo.build("resnet18", 1)
    with pytest.raises(UserError, match="SP1350"):
        layers(graph, graph.program["train_step"])
