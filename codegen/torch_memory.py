"""What PyTorch keeps in memory for one training step of a graph: saved tensors and gradients, at the worst moment.

Eager mode, no checkpointing. Every tensor that autograd saves for the backward pass is counted from when it is saved to
when the node that saved it is done, once per storage, however many nodes saved it; gradients from when a node makes
them to when the next one is done with them, those of parameters to the end of the backward pass, as `optimizer.step()`
needs them all. Parameters, buffers and the step's inputs are not counted, nor what kernels allocate for themselves.
"""

import weakref
from collections import Counter
from typing import Any, NamedTuple

import torch

from codegen.torch_twin import Twin
from planner.graph.model import Graph


class Kept(NamedTuple):
    """Bytes at the moment when saved tensors and gradients together are most."""

    saved: int
    gradients: int
    all_saved: int
    """Saved tensors at the end of the forward pass."""

    @property
    def total(self) -> int:
        return self.saved + self.gradients


class _Saved:
    """What autograd holds instead of a tensor; gone when the node that saved it is done."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Count:
    """Bytes of storages, each once."""

    def __init__(self, excluded: set[int]) -> None:
        self._excluded = excluded
        self._holders: Counter[int] = Counter()
        self._size: dict[int, int] = {}
        self.bytes = 0

    def add(self, tensor: torch.Tensor) -> int:
        """The storage's name, for `remove`."""
        storage = tensor.untyped_storage()
        name: int = storage.data_ptr()
        if name and name not in self._excluded:
            if not self._holders[name]:
                self._size[name] = storage.nbytes()
                self.bytes += self._size[name]
            self._holders[name] += 1
        return name

    def remove(self, name: int) -> None:
        if name and name not in self._excluded:
            self._holders[name] -= 1
            if not self._holders[name]:
                self.bytes -= self._size[name]


def torch_keeps(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> Kept:
    """Runs one forward and backward pass of the graph's PyTorch twin on `inputs`."""
    twin = Twin(graph)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.normal_(0, 0.02)
        for buffer in twin.buffers():
            buffer.zero_()
    excluded = {t.untyped_storage().data_ptr() for t in (*twin.parameters(), *twin.buffers(), *inputs)}
    saved, gradients = _Count(excluded), _Count(excluded)

    def pack(tensor: torch.Tensor) -> _Saved:
        held = _Saved(tensor.detach())
        weakref.finalize(held, saved.remove, saved.add(tensor))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        loss = twin(*inputs)[0]
    all_saved = saved.bytes
    pending: dict[Any, list[int]] = {}
    """node -> gradients that wait for it"""
    most = (0, 0)

    def after(node: Any) -> Any:
        def hook(made: Any, given: Any) -> None:
            nonlocal most
            for (following, _), gradient in zip(node.next_functions, made, strict=False):
                if following is not None and gradient is not None:
                    pending.setdefault(following, []).append(gradients.add(gradient))
            most = max(most, (saved.bytes, gradients.bytes), key=sum)
            if not hasattr(node, "variable"):  # what a parameter was given stays
                for name in pending.pop(node, ()):
                    gradients.remove(name)

        return hook

    stack, seen = [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            node.register_hook(after(node))
            stack += [n for n, _ in node.next_functions]
    loss.backward()
    return Kept(*most, all_saved)
