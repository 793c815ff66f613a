"""What a network of the zoo is: a function that makes its inputs and layers, and the sizes that it starts from."""

from collections.abc import Callable
from typing import NamedTuple

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Layout, TensorType
from planner.graph.optimizer import Optimizer


class Sizes(NamedTuple):
    """What a caller may choose. 0: the network has no such size."""

    batch: int
    image_size: int = 0
    """Height and width of the images."""
    classes: int = 0


class Ends(NamedTuple):
    """Where a network's forward pass ends."""

    loss: str
    prediction: str


Model = Callable[[GraphBuilder, Sizes], Ends]
"""Makes the inputs and the forward pass; all but the last of several objectives are closed with `b.objective`."""


class Network(NamedTuple):
    model: Model
    sizes: Sizes
    optimizer: Optimizer


Body = Callable[[GraphBuilder, str, int], str]
"""(builder, images, classes) -> logits"""


def images_of(b: GraphBuilder, sizes: Sizes, channels: int = 3) -> str:
    """The input `images`: channels-last float32."""
    shape = (sizes.batch, channels, sizes.image_size, sizes.image_size)
    return b.input("images", TensorType(shape=shape, layout=Layout.CHANNELS_LAST))


def classifier(body: Body, channels: int = 3) -> Model:
    """An image classifier with the inputs `images` and `labels` (int64) and cross entropy as its loss."""

    def model(b: GraphBuilder, sizes: Sizes) -> Ends:
        images = images_of(b, sizes, channels)
        labels = b.input("labels", TensorType(shape=(sizes.batch,), dtype=DType.INT64))
        logits = body(b, images, sizes.classes)
        return Ends(layers.cross_entropy(b, logits, labels), logits)

    return model
