"""DenseNet (Huang et al.) with torchvision's layers and parameter names: every layer reads all features before it."""

from collections.abc import Callable, Sequence

from planner.graph import layers
from planner.graph.builder import GraphBuilder

GROWTH, BOTTLENECK, FIRST = 32, 4, 64


def densenet(counts: Sequence[int]) -> Callable[[GraphBuilder, str, int], str]:
    """A body with `counts` dense layers in its blocks; (6, 12, 24, 16) is DenseNet-121."""

    def body(b: GraphBuilder, images: str, classes: int) -> str:
        x = layers.conv2d(b, images, FIRST, 7, 2, 3, bias=False, name="features.conv0")
        x = layers.max_pool(b, _norm_relu(b, x, "features.norm0", "features.relu0"), 3, 2, 1, name="features.pool0")
        for block, count in enumerate(counts, start=1):
            x = _block(b, x, count, f"features.denseblock{block}")
            if block < len(counts):
                x = _transition(b, x, f"features.transition{block}")
        x = layers.global_avg_pool(b, _norm_relu(b, x, "features.norm5", "relu"), name="avgpool")
        return layers.linear(b, layers.flatten(b, x, name="flatten"), classes, name="classifier")

    return body


def _norm_relu(b: GraphBuilder, x: str, norm: str, relu: str) -> str:
    return layers.relu(b, layers.batch_norm(b, x, name=norm), name=relu)


def _block(b: GraphBuilder, x: str, count: int, name: str) -> str:
    features = [x]
    for index in range(1, count + 1):
        layer = f"{name}.denselayer{index}"
        y = features[0] if len(features) == 1 else layers.concat(b, features, name=f"{layer}.cat")
        y = _norm_relu(b, y, f"{layer}.norm1", f"{layer}.relu1")
        y = layers.conv2d(b, y, BOTTLENECK * GROWTH, 1, bias=False, name=f"{layer}.conv1")
        y = _norm_relu(b, y, f"{layer}.norm2", f"{layer}.relu2")
        features.append(layers.conv2d(b, y, GROWTH, 3, padding=1, bias=False, name=f"{layer}.conv2"))
    return layers.concat(b, features, name=f"{name}.cat")


def _transition(b: GraphBuilder, x: str, name: str) -> str:
    """Half the channels, half the resolution."""
    x = _norm_relu(b, x, f"{name}.norm", f"{name}.relu")
    x = layers.conv2d(b, x, b.shape(x)[1] // 2, 1, bias=False, name=f"{name}.conv")
    return layers.avg_pool(b, x, 2, 2, name=f"{name}.pool")
