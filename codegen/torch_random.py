"""Random numbers in a PyTorch twin (torch_twin.py): the executor's, or always the same ones without dropout. Needs
torch."""

from collections.abc import Mapping

import torch
from torch import Tensor

from codegen.torch_attention import attention, matrices
from codegen.torch_twin import Call
from planner.graph.model import Layout, Node
from planner.ops.attention_base import AttentionAttrs
from planner.ops.dropout import DropoutAttrs, factors
from planner.ops.random import DrawAttrs, drawn


class Drawn:
    """What a twin calls in step `step` (1, 2, ...). Does not know the twin: a cycle would keep its tensors beside the
    next one's."""

    def __init__(self, seed: int, step: int) -> None:
        self.seed, self.step = seed, step

    def calls(self) -> dict[str, Call]:
        return {"dropout": self._dropout, "attention": self._attention, **self.numbers()}

    def numbers(self) -> dict[str, Call]:
        """Of what draws numbers out of nothing."""
        return {"random": self._random, "random_whole": self._random}

    def _random(self, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        (like,), attrs = inputs, node.attrs
        assert isinstance(attrs, DrawAttrs)
        found = torch.from_numpy(drawn(attrs, self.seed, self.step))
        return found.to(like) if found.is_floating_point() else found.to(like.device)

    def _dropout(self, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        """`layout` says in which memory order the executor counts elements."""
        (x,), attrs = inputs, node.attrs
        assert isinstance(attrs, DropoutAttrs)
        if attrs.layout is Layout.CHANNELS_LAST:
            n, c, h, w = x.shape
            return (x * self._factors(attrs.stream, attrs.p, (n, h, w, c), x).permute(0, 3, 1, 2)).to(x.dtype)
        return (x * self._factors(attrs.stream, attrs.p, tuple(x.shape), x)).to(x.dtype)

    def _attention(self, node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
        attrs = node.attrs
        assert isinstance(attrs, AttentionAttrs)
        if not attrs.dropout:
            return attention(attrs, inputs)
        q, k, _ = matrices(attrs, inputs)
        shape = (*q.shape[:-1], k.shape[-2])
        return attention(attrs, inputs, self._factors(attrs.stream, attrs.dropout, shape, q))

    def _factors(self, stream: int, p: float, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """At least in float32: rounded to 8 bits, 1 / (1 - p) would scale everything by another number."""
        found = torch.from_numpy(factors(self.seed, stream, self.step, p, shape))
        return found.to(like.device, torch.promote_types(like.dtype, torch.float32))


def _whole(node: Node, inputs: list[Tensor], updates: list[Tensor]) -> Tensor:
    assert isinstance(node.attrs, AttentionAttrs)
    return attention(node.attrs.model_copy(update={"dropout": 0.0}), inputs)


FIXED: Mapping[str, Call] = {
    "dropout": lambda node, inputs, updates: inputs[0],
    "attention": _whole,
    **Drawn(seed=0, step=1).numbers(),
}
"""What a twin calls to compute the same every time: dropout is left out, numbers are those of one step."""
