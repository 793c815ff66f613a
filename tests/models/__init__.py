"""Families of networks as plain torch.nn modules, small: what users bring.

Each function of `FAMILIES` returns (module, example inputs, capture's options), the form of a factory.
"""

from collections.abc import Callable

from tests.models import derivatives, graphs, mixture, mobile, recurrent, transformers, vision
from tests.models.parts import Made

FAMILIES: dict[str, Callable[..., Made]] = {
    f.__name__: f
    for f in (
        *mobile.FACTORIES,
        *vision.FACTORIES,
        *transformers.FACTORIES,
        *graphs.FACTORIES,
        *mixture.FACTORIES,
        *recurrent.FACTORIES,
        *derivatives.FACTORIES,
    )
}  # fmt: skip
