"""Inception v3 (Szegedy et al., 2015) with torchvision's layers and parameter names.

Convolutions are bias-free with batch norm (eps 0.001) and relu. Images have 299 pixels; 75 is the least. The auxiliary
classifier is left out, as with torchvision's `aux_logits=False`: it only helps deep training, and its loss would be a
second one.
"""

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.layers import Pair


def unit(
    b: GraphBuilder,
    x: str,
    channels: int,
    kernel: int | Pair,
    name: str,
    *,
    stride: int = 1,
    padding: int | Pair = 0,
) -> str:
    """Convolution, batch norm, relu: `name.conv`, `name.bn`."""
    x = layers.conv2d(b, x, channels, kernel, stride, padding, bias=False, name=f"{name}.conv")
    return layers.relu(b, layers.batch_norm(b, x, eps=1e-3, name=f"{name}.bn"), name=f"{name}.relu")


def inception_v3(b: GraphBuilder, images: str, classes: int) -> str:
    x = unit(b, images, 32, 3, "Conv2d_1a_3x3", stride=2)
    x = unit(b, x, 32, 3, "Conv2d_2a_3x3")
    x = unit(b, x, 64, 3, "Conv2d_2b_3x3", padding=1)
    x = layers.max_pool(b, x, 3, 2, name="maxpool1")
    x = unit(b, x, 80, 1, "Conv2d_3b_1x1")
    x = unit(b, x, 192, 3, "Conv2d_4a_3x3")
    x = layers.max_pool(b, x, 3, 2, name="maxpool2")
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        x = _mixed_35(b, x, pooled, f"Mixed_5{letter}")
    x = _reduction_17(b, x, "Mixed_6a")
    for letter, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        x = _mixed_17(b, x, width, f"Mixed_6{letter}")
    x = _reduction_8(b, x, "Mixed_7a")
    for letter in "bc":
        x = _mixed_8(b, x, f"Mixed_7{letter}")
    x = layers.dropout(b, layers.global_avg_pool(b, x, name="avgpool"), 0.5, name="dropout")
    return layers.linear(b, layers.flatten(b, x, name="flatten"), classes, name="fc")


def _pooled(b: GraphBuilder, x: str, channels: int, name: str) -> str:
    x = layers.avg_pool(b, x, 3, 1, 1, name=f"{name}.pool")
    return unit(b, x, channels, 1, f"{name}.branch_pool")


def _mixed_35(b: GraphBuilder, x: str, pooled: int, name: str) -> str:
    """torchvision's InceptionA."""
    five = unit(b, x, 48, 1, f"{name}.branch5x5_1")
    three = unit(b, x, 64, 1, f"{name}.branch3x3dbl_1")
    three = unit(b, three, 96, 3, f"{name}.branch3x3dbl_2", padding=1)
    parts = [
        unit(b, x, 64, 1, f"{name}.branch1x1"),
        unit(b, five, 64, 5, f"{name}.branch5x5_2", padding=2),
        unit(b, three, 96, 3, f"{name}.branch3x3dbl_3", padding=1),
        _pooled(b, x, pooled, name),
    ]
    return layers.concat(b, parts, name=f"{name}.cat")


def _reduction_17(b: GraphBuilder, x: str, name: str) -> str:
    """torchvision's InceptionB."""
    three = unit(b, x, 64, 1, f"{name}.branch3x3dbl_1")
    three = unit(b, three, 96, 3, f"{name}.branch3x3dbl_2", padding=1)
    parts = [
        unit(b, x, 384, 3, f"{name}.branch3x3", stride=2),
        unit(b, three, 96, 3, f"{name}.branch3x3dbl_3", stride=2),
        layers.max_pool(b, x, 3, 2, name=f"{name}.pool"),
    ]
    return layers.concat(b, parts, name=f"{name}.cat")


def _along(b: GraphBuilder, x: str, channels: int, name: str) -> str:
    return unit(b, x, channels, (1, 7), name, padding=(0, 3))


def _across(b: GraphBuilder, x: str, channels: int, name: str) -> str:
    return unit(b, x, channels, (7, 1), name, padding=(3, 0))


def _mixed_17(b: GraphBuilder, x: str, width: int, name: str) -> str:
    """torchvision's InceptionC."""
    seven = _along(b, unit(b, x, width, 1, f"{name}.branch7x7_1"), width, f"{name}.branch7x7_2")
    double = unit(b, x, width, 1, f"{name}.branch7x7dbl_1")
    for index, step in enumerate((_across, _along, _across), start=2):
        double = step(b, double, width, f"{name}.branch7x7dbl_{index}")
    parts = [
        unit(b, x, 192, 1, f"{name}.branch1x1"),
        _across(b, seven, 192, f"{name}.branch7x7_3"),
        _along(b, double, 192, f"{name}.branch7x7dbl_5"),
        _pooled(b, x, 192, name),
    ]
    return layers.concat(b, parts, name=f"{name}.cat")


def _reduction_8(b: GraphBuilder, x: str, name: str) -> str:
    """torchvision's InceptionD."""
    three = unit(b, x, 192, 1, f"{name}.branch3x3_1")
    seven = unit(b, x, 192, 1, f"{name}.branch7x7x3_1")
    seven = _across(b, _along(b, seven, 192, f"{name}.branch7x7x3_2"), 192, f"{name}.branch7x7x3_3")
    parts = [
        unit(b, three, 320, 3, f"{name}.branch3x3_2", stride=2),
        unit(b, seven, 192, 3, f"{name}.branch7x7x3_4", stride=2),
        layers.max_pool(b, x, 3, 2, name=f"{name}.pool"),
    ]
    return layers.concat(b, parts, name=f"{name}.cat")


def _mixed_8(b: GraphBuilder, x: str, name: str) -> str:
    """torchvision's InceptionE."""

    def fork(x: str, branch: str, first: str, second: str) -> list[str]:
        return [
            unit(b, x, 384, (1, 3), f"{name}.{branch}_{first}", padding=(0, 1)),
            unit(b, x, 384, (3, 1), f"{name}.{branch}_{second}", padding=(1, 0)),
        ]

    three = unit(b, x, 384, 1, f"{name}.branch3x3_1")
    double = unit(b, x, 448, 1, f"{name}.branch3x3dbl_1")
    double = unit(b, double, 384, 3, f"{name}.branch3x3dbl_2", padding=1)
    parts = [
        unit(b, x, 320, 1, f"{name}.branch1x1"),
        *fork(three, "branch3x3", "2a", "2b"),
        *fork(double, "branch3x3dbl", "3a", "3b"),
        _pooled(b, x, 192, name),
    ]
    return layers.concat(b, parts, name=f"{name}.cat")
