"""VGG-16, configuration D (Simonyan and Zisserman), with torchvision's parameter names."""

from planner.graph import layers
from planner.graph.builder import GraphBuilder

_CONFIGURATION = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of each 3 x 3 convolution; 0 is a max pooling."""


def vgg16(b: GraphBuilder, images: str, classes: int) -> str:
    x, index = images, 0
    for channels in _CONFIGURATION:
        if channels:
            x = layers.conv2d(b, x, channels, 3, padding=1, name=f"features.{index}")
            x = layers.relu(b, x, name=f"features.{index + 1}")
            index += 2
        else:
            x = layers.max_pool(b, x, 2, 2, name=f"features.{index}")
            index += 1
    x = layers.flatten(b, layers.adaptive_avg_pool(b, x, 7, name="avgpool"), name="flatten")
    for position in (0, 3):
        x = layers.relu(b, layers.linear(b, x, 4096, name=f"classifier.{position}"), name=f"classifier.{position + 1}")
        x = layers.dropout(b, x, 0.5, name=f"classifier.{position + 2}")
    return layers.linear(b, x, classes, name="classifier.6")
