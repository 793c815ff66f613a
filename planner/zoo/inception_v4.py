"""Inception v4 without residuals (Szegedy et al., 2016, figures 3 to 9), with the parameter names of timm and of
pretrainedmodels (`features.0.conv.weight`, ..., `last_linear.weight`).

Convolutions are bias-free with batch norm (eps 0.001) and relu; average pools leave the frame out of their mean, as
those models do. Images have 299 pixels; 75 is the least. The paper keeps 80 % before the classifier: dropout 0.2.
"""

from collections.abc import Sequence

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.layers import Pair
from planner.zoo.inception_v3 import unit

Step = tuple[int, int | Pair] | tuple[int, int | Pair, int]
"""(channels, kernel[, stride])"""


def inception_v4(b: GraphBuilder, images: str, classes: int) -> str:
    x = _chain(b, images, "features", ((32, 3, 2), (32, 3)), valid=True)
    x = unit(b, x, 64, 3, "features.2", padding=1)
    x = _joined(b, "features.3", [_pool(b, x, "features.3"), unit(b, x, 96, 3, "features.3.conv", stride=2)])
    x = _stem_fork(b, x, "features.4")
    x = _joined(b, "features.5", [unit(b, x, 192, 3, "features.5.conv", stride=2), _pool(b, x, "features.5")])
    for index in range(6, 10):
        x = _inception_a(b, x, f"features.{index}")
    x = _reduction_a(b, x, "features.10")
    for index in range(11, 18):
        x = _inception_b(b, x, f"features.{index}")
    x = _reduction_b(b, x, "features.18")
    for index in range(19, 22):
        x = _inception_c(b, x, f"features.{index}")
    x = layers.dropout(b, layers.global_avg_pool(b, x, name="avg_pool"), 0.2, name="dropout")
    return layers.linear(b, layers.flatten(b, x, name="flatten"), classes, name="last_linear")


def _chain(b: GraphBuilder, x: str, name: str, steps: Sequence[Step], valid: bool = False) -> str:
    """Units `name.0`, `name.1`, ...; padded so that stride 1 keeps the size, unless strided or `valid`."""
    for index, (channels, kernel, *stride) in enumerate(steps):
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = 0 if valid or stride else (high // 2, wide // 2)
        step = stride[0] if stride else 1
        x = unit(b, x, channels, kernel, f"{name}.{index}", stride=step, padding=padding)
    return x


def _joined(b: GraphBuilder, name: str, parts: Sequence[str]) -> str:
    return layers.concat(b, parts, name=f"{name}.cat")


def _pool(b: GraphBuilder, x: str, name: str) -> str:
    return layers.max_pool(b, x, 3, 2, name=f"{name}.maxpool")


def _averaged(b: GraphBuilder, x: str, channels: int, name: str) -> str:
    x = layers.avg_pool(b, x, 3, 1, 1, count_include_pad=False, name=f"{name}.0")
    return unit(b, x, channels, 1, f"{name}.1")


def _stem_fork(b: GraphBuilder, x: str, name: str) -> str:
    """Figure 3's second filter concatenation: 160 x 73 x 73 -> 192 x 71 x 71."""
    left = unit(b, unit(b, x, 64, 1, f"{name}.branch0.0"), 96, 3, f"{name}.branch0.1")
    right = _chain(b, x, f"{name}.branch1", ((64, 1), (64, (1, 7)), (64, (7, 1))))
    return _joined(b, name, [left, unit(b, right, 96, 3, f"{name}.branch1.3")])


def _inception_a(b: GraphBuilder, x: str, name: str) -> str:
    parts = [
        unit(b, x, 96, 1, f"{name}.branch0"),
        _chain(b, x, f"{name}.branch1", ((64, 1), (96, 3))),
        _chain(b, x, f"{name}.branch2", ((64, 1), (96, 3), (96, 3))),
        _averaged(b, x, 96, f"{name}.branch3"),
    ]
    return _joined(b, name, parts)


def _reduction_a(b: GraphBuilder, x: str, name: str) -> str:
    parts = [
        unit(b, x, 384, 3, f"{name}.branch0", stride=2),
        _chain(b, x, f"{name}.branch1", ((192, 1), (224, 3), (256, 3, 2))),
        _pool(b, x, name),
    ]
    return _joined(b, name, parts)


def _inception_b(b: GraphBuilder, x: str, name: str) -> str:
    long = ((192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7)))
    parts = [
        unit(b, x, 384, 1, f"{name}.branch0"),
        _chain(b, x, f"{name}.branch1", ((192, 1), (224, (1, 7)), (256, (7, 1)))),
        _chain(b, x, f"{name}.branch2", long),
        _averaged(b, x, 128, f"{name}.branch3"),
    ]
    return _joined(b, name, parts)


def _reduction_b(b: GraphBuilder, x: str, name: str) -> str:
    parts = [
        _chain(b, x, f"{name}.branch0", ((192, 1), (192, 3, 2))),
        _chain(b, x, f"{name}.branch1", ((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2))),
        _pool(b, x, name),
    ]
    return _joined(b, name, parts)


def _inception_c(b: GraphBuilder, x: str, name: str) -> str:
    def fork(x: str, first: str, second: str) -> list[str]:
        return [
            unit(b, x, 256, (1, 3), f"{name}.{first}", padding=(0, 1)),
            unit(b, x, 256, (3, 1), f"{name}.{second}", padding=(1, 0)),
        ]

    left = unit(b, x, 384, 1, f"{name}.branch1_0")
    right = unit(b, x, 384, 1, f"{name}.branch2_0")
    right = unit(b, right, 448, (3, 1), f"{name}.branch2_1", padding=(1, 0))
    right = unit(b, right, 512, (1, 3), f"{name}.branch2_2", padding=(0, 1))
    parts = [
        unit(b, x, 256, 1, f"{name}.branch0"),
        *fork(left, "branch1_1a", "branch1_1b"),
        *fork(right, "branch2_3a", "branch2_3b"),
        _averaged(b, x, 256, f"{name}.branch3"),
    ]
    return _joined(b, name, parts)
