"""PyTorch with an executor's random numbers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.graph.model import Graph
from planner.ops.random import DrawAttrs, drawn


class Replayed(TorchDispatchMode):
    """Within it, the captured module's calls of randn_like, randint and the like return, one after the other, what the
    graph's nodes draw in a step."""

    def __init__(self, graph: Graph, seed: int, step: int) -> None:
        super().__init__()
        self.seed, self.step = seed, step
        nodes = graph.program["train_step"].nodes
        self.attrs = [n.attrs for n in nodes if isinstance(n.attrs, DrawAttrs)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        numbers = torch.from_numpy(drawn(self.attrs.pop(0), self.seed, self.step))
        assert numbers.shape == result.shape and numbers.is_floating_point() == result.is_floating_point()
        return numbers.to(result.dtype)
