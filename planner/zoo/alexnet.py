"""AlexNet: torchvision's single tower, and the network of the SuperNeurons paper with local response norms."""

from planner.graph import layers
from planner.graph.builder import GraphBuilder


def alexnet(b: GraphBuilder, images: str, classes: int) -> str:
    """Krizhevsky's "one weird trick" variant as torchvision builds it."""
    x = images
    for index, channels, kernel, stride, padding, pool in (
        (0, 64, 11, 4, 2, 2),
        (3, 192, 5, 1, 2, 5),
        (6, 384, 3, 1, 1, 0),
        (8, 256, 3, 1, 1, 0),
        (10, 256, 3, 1, 1, 12),
    ):
        x = layers.conv2d(b, x, channels, kernel, stride, padding, name=f"features.{index}")
        x = layers.relu(b, x, name=f"features.{index + 1}")
        if pool:
            x = layers.max_pool(b, x, 3, 2, name=f"features.{pool}")
    x = layers.flatten(b, layers.adaptive_avg_pool(b, x, 6, name="avgpool"), name="flatten")
    for position in (1, 4):
        x = layers.dropout(b, x, 0.5, name=f"classifier.{position - 1}")
        x = layers.relu(b, layers.linear(b, x, 4096, name=f"classifier.{position}"), name=f"classifier.{position + 1}")
    return layers.linear(b, x, classes, name="classifier.6")


def alexnet_lrn(b: GraphBuilder, images: str, classes: int) -> str:
    """The layers of SuperNeurons' AlexNet: 227 x 227 images, conv1 96 x 55 x 55, response norms after pool 1 and 2's
    activations, dropout after both hidden layers."""
    x = images
    for index, channels, kernel, stride, padding, normal, pool in (
        (1, 96, 11, 4, 0, True, True),
        (2, 256, 5, 1, 2, True, True),
        (3, 384, 3, 1, 1, False, False),
        (4, 384, 3, 1, 1, False, False),
        (5, 256, 3, 1, 1, False, True),
    ):
        x = layers.conv2d(b, x, channels, kernel, stride, padding, name=f"conv{index}")
        x = layers.relu(b, x, name=f"relu{index}")
        if normal:
            x = layers.lrn(b, x, size=5, alpha=1e-4, beta=0.75, k=1.0, name=f"lrn{index}")
        if pool:
            x = layers.max_pool(b, x, 3, 2, name=f"pool{index}")
    x = layers.flatten(b, x, name="flatten")
    for index in (6, 7):
        x = layers.relu(b, layers.linear(b, x, 4096, name=f"fc{index}"), name=f"relu{index}")
        x = layers.dropout(b, x, 0.5, name=f"drop{index}")
    return layers.linear(b, x, classes, name="fc8")
