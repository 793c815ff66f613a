"""Modelled convolution algorithms: what each needs, by hand; gradients as their forward convolution."""

import pytest

from planner.costs.algorithms import Algorithm, conv_algorithms
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.ops.conv import ConvAttrs
from tests.graphs import NORMAL, classifier, images

FLOPS = 1e12


def graph(kernel: int = 3, stride: int = 1) -> Graph:
    b = GraphBuilder("one")
    first = b.op("conv2d", [images(b, 2, 3, 8), b.parameter("a", (4, 3, 1, 1), NORMAL)], ConvAttrs(), name="first")[0]
    attrs = ConvAttrs(stride=(stride, stride), padding=(kernel // 2,) * 4)
    (y,) = b.op("conv2d", [first, b.parameter("w", (6, 4, kernel, kernel), NORMAL)], attrs, name="conv")
    return classifier(b, y)


def of(node: str, kernel: int = 3, stride: int = 1) -> dict[str, Algorithm]:
    g = graph(kernel, stride)
    return {a.name: a for a in conv_algorithms(g, g.program["train_step"].node[node], FLOPS)}


def test_workspaces_by_hand() -> None:
    # 2 images, 4 -> 6 channels, 8 x 8, 3 x 3 filters.
    found = of("conv")
    assert found["implicit_gemm"].workspace == 0
    assert found["gemm"].workspace == 4 * 2 * 64 * 4 * 9
    assert found["winograd"].workspace == 4 * 16 * (2 * 16 * (4 + 6) + 4 * 6)
    # 8 + 2 padded to 16: 16 x 9 frequencies of 2 x 4 + 2 x 6 + 4 x 6 planes.
    assert found["fft"].workspace == 8 * 44 * 16 * 9


def test_times_by_hand() -> None:
    direct = 2 * 2 * 64 * 6 * 4 * 9
    found = of("conv")
    assert found["implicit_gemm"].ns == round(direct / 0.25 / FLOPS * 1e9)
    assert found["gemm"].ns < found["implicit_precomp_gemm"].ns < found["implicit_gemm"].ns


@pytest.mark.parametrize("direction", ["conv.backward_data", "conv.backward_weights"])
def test_gradients_choose_among_the_same(direction: str) -> None:
    assert of(direction) == of("conv")


def test_strided_and_pointwise_convolutions_have_fewer() -> None:
    assert set(of("conv", stride=2)) == {"implicit_gemm", "implicit_precomp_gemm", "gemm"}
    assert "fft" not in of("conv", kernel=1) and "winograd" not in of("conv", kernel=5)


def test_other_nodes_have_none() -> None:
    assert of("pool") == {}
