"""The papers' networks, and GPT-2, by name: `build("resnet50", batch=16)`.

`resnet_6_32_10_6` is a bottleneck ResNet of any depth by its four stage counts, as SuperNeurons' table 4 builds them
(6, 32, N, 6): 3 (n1 + n2 + n3 + n4) + 2 layers.

Inputs, in this order: classifiers take `images` (channels-last float32) and `labels` (int64); dcgan, gpt2, lstm and
wide_deep say theirs in their modules. Weights start as PyTorch's layers do, where a module does not say otherwise.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Literal

from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.zoo.alexnet import alexnet, alexnet_lrn
from planner.zoo.dcgan import ADAM, dcgan, dcgan_discriminator, dcgan_generator
from planner.zoo.densenet import densenet
from planner.zoo.gpt2 import ADAMW, gpt2
from planner.zoo.inception_v3 import inception_v3
from planner.zoo.inception_v4 import inception_v4
from planner.zoo.lstm import lstm
from planner.zoo.network import Body, Network, Sizes, classifier
from planner.zoo.resnet import resnet
from planner.zoo.small import digits_cnn, mlp
from planner.zoo.vgg import vgg16
from planner.zoo.wide_deep import wide_deep

__all__ = ["NETWORKS", "Network", "Sizes", "build", "find", "gpt2", "lstm", "wide_deep"]

SGD = Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-4)
SLOW = Optimizer(lr=0.01, momentum=0.9, weight_decay=5e-4)


def _images(body: Body, batch: int, size: int = 224, optimizer: Optimizer = SGD) -> Network:
    """A classifier of ImageNet's 1000 classes."""
    return Network(classifier(body), Sizes(batch, size, 1000), optimizer)


def _resnet(block: Literal["basic", "bottleneck"], counts: tuple[int, int, int, int], batch: int = 16) -> Network:
    return _images(resnet(block, counts), batch)


NETWORKS: dict[str, Network] = {
    "mlp": Network(classifier(mlp, 1), Sizes(64, 28, 10), Optimizer(lr=0.1)),
    "digits_cnn": Network(
        classifier(digits_cnn, 1), Sizes(64, 8, 10), Optimizer(lr=0.05, momentum=0.9, weight_decay=1e-4)
    ),
    "alexnet": _images(alexnet, 32, optimizer=SLOW),
    "alexnet_lrn": _images(alexnet_lrn, 200, 227, SLOW),
    "vgg16": _images(vgg16, 32, optimizer=SLOW),
    "resnet18": _resnet("basic", (2, 2, 2, 2), 32),
    "resnet34": _resnet("basic", (3, 4, 6, 3), 32),
    "resnet50": _resnet("bottleneck", (3, 4, 6, 3)),
    "resnet101": _resnet("bottleneck", (3, 4, 23, 3)),
    "resnet152": _resnet("bottleneck", (3, 8, 36, 3)),
    "inception_v3": _images(inception_v3, 16, 299),
    "inception_v4": _images(inception_v4, 32, 299),
    "densenet121": _images(densenet((6, 12, 24, 16)), 32),
    "dcgan": Network(dcgan, Sizes(64), ADAM),
    "dcgan_generator": Network(dcgan_generator, Sizes(64), ADAM),
    "dcgan_discriminator": Network(dcgan_discriminator, Sizes(64), ADAM),
    "gpt2": Network(gpt2(), Sizes(4, classes=50_257), ADAMW),
    "lstm": Network(lstm(), Sizes(20, classes=10_000), Optimizer(lr=1.0)),
    "wide_deep": Network(wide_deep(), Sizes(256), Optimizer(lr=0.05)),
}


def find(name: str) -> Network:
    """The network of that name; SP1010 names the nearest ones."""
    counts = re.fullmatch(r"resnet_(\d{1,4})_(\d{1,4})_(\d{1,4})_(\d{1,4})", name)
    if counts and all(int(c) for c in counts.groups()):
        n1, n2, n3, n4 = (int(c) for c in counts.groups())
        return _resnet("bottleneck", (n1, n2, n3, n4))
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, 3, 0.4)
        raise UserError(
            "SP1010",
            f"the zoo has no network {name!r}",
            (f"did you mean {', '.join(near)}?" if near else f"choose one of {', '.join(NETWORKS)};")
            + " a model of your own is named as package.module:factory",
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
    keep: Sequence[str] = (),
    clip_norm: float | None = None,
    accumulate: bool = False,
) -> Graph:
    """A training graph called `<name>_b<batch>`, with the network's own sizes where none are given.

    SP1010: no such network. SP1011: a size below 1, or one that the network does not have.
    """
    network = find(name)
    given = {"batch": batch, "image_size": image_size, "classes": classes}
    chosen = {what: size for what, size in given.items() if size is not None}
    for what, size in chosen.items():
        if size < 1:
            raise UserError("SP1011", f"the {_WORDS[what]} of {name} is {size}", "use a number of at least 1")
        if not getattr(network.sizes, what):
            raise UserError("SP1011", f"{name} has no {_WORDS[what]}", "leave it out")
    sizes = network.sizes._replace(**chosen)
    suffix = f"_{sizes.image_size}px" if sizes.image_size != network.sizes.image_size else ""
    b = GraphBuilder(f"{name}_b{sizes.batch}{suffix}")
    ends = network.model(b, sizes)
    return b.finish(
        ends.loss,
        ends.prediction,
        optimizer or network.optimizer,
        fuse=fuse,
        keep=keep,
        clip_norm=clip_norm,
        accumulate=accumulate,
    )


_WORDS = {"batch": "batch", "image_size": "image size", "classes": "number of classes"}
