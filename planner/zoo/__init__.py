"""The papers' networks, by name: `build("resnet50", batch=16)`.

`resnet_3_4_6_3` is a bottleneck ResNet of any depth by its four stage counts.
"""

import difflib
import re
from collections.abc import Callable
from typing import NamedTuple

from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.zoo.alexnet import alexnet, alexnet_lrn
from planner.zoo.resnet import resnet
from planner.zoo.small import digits_cnn, mlp
from planner.zoo.vgg import vgg16

Body = Callable[[GraphBuilder, str, int], str]
"""(builder, images, classes) -> logits"""

SGD = Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-4)


class Network(NamedTuple):
    body: Body
    batch: int
    channels: int
    image_size: int
    classes: int
    optimizer: Optimizer = SGD


NETWORKS: dict[str, Network] = {
    "mlp": Network(mlp, 64, 1, 28, 10, Optimizer(lr=0.1)),
    "digits_cnn": Network(digits_cnn, 64, 1, 8, 10, Optimizer(lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "alexnet": Network(alexnet, 32, 3, 224, 1000, Optimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)),
    "alexnet_lrn": Network(alexnet_lrn, 200, 3, 227, 1000, Optimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)),
    "vgg16": Network(vgg16, 32, 3, 224, 1000, Optimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)),
    "resnet18": Network(resnet("basic", (2, 2, 2, 2)), 32, 3, 224, 1000),
    "resnet34": Network(resnet("basic", (3, 4, 6, 3)), 32, 3, 224, 1000),
    "resnet50": Network(resnet("bottleneck", (3, 4, 6, 3)), 16, 3, 224, 1000),
    "resnet101": Network(resnet("bottleneck", (3, 4, 23, 3)), 16, 3, 224, 1000),
    "resnet152": Network(resnet("bottleneck", (3, 8, 36, 3)), 16, 3, 224, 1000),
}


def find(name: str) -> Network:
    """The network of that name; SP1010 names the nearest ones."""
    counts = re.fullmatch(r"resnet_(\d{1,4})_(\d{1,4})_(\d{1,4})_(\d{1,4})", name)
    if counts and all(int(c) for c in counts.groups()):
        n1, n2, n3, n4 = (int(c) for c in counts.groups())
        return Network(resnet("bottleneck", (n1, n2, n3, n4)), 16, 3, 224, 1000)
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, 3, 0.4)
        raise UserError(
            "SP1010",
            f"the zoo has no network {name!r}",
            f"did you mean {', '.join(near)}?" if near else f"choose one of {', '.join(NETWORKS)}",
        )
    return NETWORKS[name]


def build(
    name: str,
    batch: int | None = None,
    *,
    image_size: int | None = None,
    classes: int | None = None,
    optimizer: Optimizer | None = None,
    fuse: bool = True,
) -> Graph:
    """A training graph called `<name>_b<batch>` with inputs `images` (channels-last float32) and `labels` (int64)."""
    network = find(name)
    for what, given in (("batch", batch), ("image size", image_size), ("number of classes", classes)):
        if given is not None and given < 1:
            raise UserError("SP1011", f"the {what} of {name} is {given}", "use a number of at least 1")
    n, size = batch or network.batch, image_size or network.image_size
    suffix = f"_{size}px" if size != network.image_size else ""
    b = GraphBuilder(f"{name}_b{n}{suffix}")
    images = b.input("images", TensorType(shape=(n, network.channels, size, size), layout=Layout.CHANNELS_LAST))
    labels = b.input("labels", TensorType(shape=(n,), dtype=DType.INT64))
    logits = network.body(b, images, classes or network.classes)
    return b.finish(layers.cross_entropy(b, logits, labels), logits, optimizer or network.optimizer, fuse=fuse)
