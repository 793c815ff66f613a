"""Small networks: a multi-layer perceptron and a convolutional network for 8 x 8 handwritten digits."""

from planner.graph import layers
from planner.graph.builder import GraphBuilder


def mlp(b: GraphBuilder, images: str, classes: int) -> str:
    """Two hidden layers of 256 with relu."""
    x = layers.flatten(b, images, name="flatten")
    for name, features in (("fc1", 256), ("fc2", 256)):
        x = layers.relu(b, layers.linear(b, x, features, name=name), name=f"{name}.relu")
    return layers.linear(b, x, classes, name="fc3")


def digits_cnn(b: GraphBuilder, images: str, classes: int) -> str:
    """Three 3 x 3 convolutions with batch norm, one max pooling, a linear classifier."""
    x = images
    for index, channels in enumerate((32, 64, 64), start=1):
        x = layers.conv2d(b, x, channels, 3, padding=1, bias=False, name=f"conv{index}")
        x = layers.relu(b, layers.batch_norm(b, x, name=f"bn{index}"), name=f"relu{index}")
        if index == 2:
            x = layers.max_pool(b, x, 2, 2, name="pool")
    x = layers.adaptive_avg_pool(b, x, 2, name="shrink")
    return layers.linear(b, layers.flatten(b, x, name="flatten"), classes, name="fc")
