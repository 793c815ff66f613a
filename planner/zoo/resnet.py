"""Residual networks (He et al.) as torchvision builds them: the stride is in the 3 x 3 convolution."""

from collections.abc import Callable
from typing import Literal

from planner.graph import layers
from planner.graph.builder import GraphBuilder


def resnet(
    block: Literal["basic", "bottleneck"], counts: tuple[int, int, int, int]
) -> Callable[[GraphBuilder, str, int], str]:
    """A body with `counts` blocks in its four stages of 64, 128, 256 and 512 channels."""

    def body(b: GraphBuilder, images: str, classes: int) -> str:
        x = _conv_bn(b, images, 64, 7, 2, "conv1", "bn1")
        x = layers.max_pool(b, layers.relu(b, x, name="relu"), 3, 2, 1, name="maxpool")
        for stage, (count, width) in enumerate(zip(counts, (64, 128, 256, 512), strict=True), start=1):
            for index in range(count):
                stride = 2 if stage > 1 and index == 0 else 1
                x = (_basic if block == "basic" else _bottleneck)(b, x, width, stride, f"layer{stage}.{index}")
        x = layers.flatten(b, layers.adaptive_avg_pool(b, x, 1, name="avgpool"), name="flatten")
        return layers.linear(b, x, classes, name="fc")

    return body


def _conv_bn(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int, conv: str, norm: str) -> str:
    x = layers.conv2d(b, x, channels, kernel, stride, kernel // 2, bias=False, name=conv)
    return layers.batch_norm(b, x, name=norm)


def _shortcut(b: GraphBuilder, x: str, channels: int, stride: int, name: str) -> str:
    """The input itself, or a strided 1 x 1 convolution where the shape changes."""
    if stride == 1 and b.shape(x)[1] == channels:
        return x
    return _conv_bn(b, x, channels, 1, stride, f"{name}.downsample.0", f"{name}.downsample.1")


def _basic(b: GraphBuilder, x: str, width: int, stride: int, name: str) -> str:
    y = layers.relu(b, _conv_bn(b, x, width, 3, stride, f"{name}.conv1", f"{name}.bn1"), name=f"{name}.relu1")
    y = _conv_bn(b, y, width, 3, 1, f"{name}.conv2", f"{name}.bn2")
    return _join(b, y, _shortcut(b, x, width, stride, name), name)


def _bottleneck(b: GraphBuilder, x: str, width: int, stride: int, name: str) -> str:
    y = layers.relu(b, _conv_bn(b, x, width, 1, 1, f"{name}.conv1", f"{name}.bn1"), name=f"{name}.relu1")
    y = layers.relu(b, _conv_bn(b, y, width, 3, stride, f"{name}.conv2", f"{name}.bn2"), name=f"{name}.relu2")
    y = _conv_bn(b, y, 4 * width, 1, 1, f"{name}.conv3", f"{name}.bn3")
    return _join(b, y, _shortcut(b, x, 4 * width, stride, name), name)


def _join(b: GraphBuilder, y: str, shortcut: str, name: str) -> str:
    return layers.relu(b, layers.add(b, y, shortcut, name=f"{name}.add"), name=f"{name}.relu")
