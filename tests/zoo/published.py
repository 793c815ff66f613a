"""What other people's implementations of the same networks say: torchvision 0.29 (inception_v3 without auxiliary head,
densenet121) and timm 1.0 (inception_v4).

`NAMES` digests their parameters and running statistics, by name and shape; `LOGITS` are the first logits that they
compute in evaluation mode, in float64, from `contents` and `image`.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from codegen.initial import draw
from planner.graph.model import Init, Role, TensorType, Value
from planner.ops.base import Array

SIZES = {"inception_v3": 79, "inception_v4": 79, "densenet121": 35}

NAMES = {
    "inception_v3": "5beceaea5a4204b9",
    "inception_v4": "0a05fc3a4a2a6aa4",
    "densenet121": "222a58d1fd8d2818",
}

LOGITS = {
    "inception_v3": (
        (-0.15935709745115537, 0.32443446394495445, -0.7610177918929022),
        (-0.20684361224869854, 0.3748932065887585, -0.7439671798454248),
    ),
    "inception_v4": (
        (0.45754610946333923, 0.7759352735079964, -0.09943464061307641),
        (0.47611247889440694, 0.748941505931843, -0.11394254733958323),
    ),
    "densenet121": (
        (-1.981883638399192, 2.1699111654032026, 1.6868361487533776),
        (-2.127598757497328, 2.156665895898429, 1.679245208875002),
    ),
}
"""The first three logits of two images."""


def digest(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    text = "\n".join(f"{name} {tuple(shape)}" for name, shape in sorted(shapes))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def contents(name: str, shape: tuple[int, ...]) -> Array:
    """Numbers for a parameter or running statistic that depend on nothing but its name: weights that keep the variance
    of what they multiply, and everything else near that of a fresh layer."""
    bound = 0.3 if len(shape) == 1 else (6 / np.prod(shape[1:])) ** 0.5
    value = Value(id=name, type=TensorType(shape=shape), role=Role.PARAMETER, init=Init(kind="uniform", value=bound))
    drawn = draw(value, 7).astype(np.float64)
    return drawn + 1 if len(shape) == 1 and name.endswith(("running_var", "weight")) else drawn


def image(size: int) -> Array:
    """Two images."""
    start = Init(kind="normal", value=1)
    value = Value(id="image", type=TensorType(shape=(2, 3, size, size)), role=Role.INPUT, init=start)
    return draw(value, 7).astype(np.float64)
