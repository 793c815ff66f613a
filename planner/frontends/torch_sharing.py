"""Tensors of a module that share memory without being one: what a step writes to one would have to change the others.
A tied parameter is one under several names; `b.weight.data = a.weight.data` only looks like it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_buffers import changed_buffers, moving_statistics


def require_apart(torch: Any, module: Any, program: Any) -> None:
    """SP1026: a parameter that is trained, or a buffer that forward writes to, shares elements with another tensor of
    the module."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    written = {id(p) for p in parameters.values() if p.requires_grad}
    held = parameters | buffers
    written |= {id(held[n]) for n in (*changed_buffers(program), *moving_statistics(program)) if n in held}
    tensors = {n: t for n, t in program.constants.items() if isinstance(t, torch.Tensor)} | parameters | buffers
    unique = {id(t): _Held(n.removeprefix("model."), t) for n, t in tensors.items()}
    for first, second in _overlapping(torch, list(unique.values())):
        if not written.isdisjoint((id(first.tensor), id(second.tensor))):
            names = f"{first.name!r} and {second.name!r}"
            problem = f"{names} share memory, but are two tensors: what changes one changes the other"
            fix = "let them be one, as in b.weight = a.weight, or give each its own memory, as clone() does"
            raise UserError("SP1026", problem, fix)


class _Held(NamedTuple):
    name: str
    tensor: Any

    @property
    def place(self) -> tuple[int, int]:
        """From its first byte in its storage to behind its last one."""
        size, t = self.tensor.element_size(), self.tensor
        last = sum((n - 1) * abs(step) for n, step in zip(t.shape, t.stride(), strict=True))
        return t.storage_offset() * size, (t.storage_offset() + last + 1) * size


def _overlapping(torch: Any, held: list[_Held]) -> Iterator[tuple[_Held, _Held]]:
    by_storage: dict[int, list[_Held]] = defaultdict(list)
    for one in held:
        address = one.tensor.untyped_storage().data_ptr() if one.tensor.layout is torch.strided else 0
        if address and one.tensor.numel():
            by_storage[address].append(one)
    for group in by_storage.values():
        group.sort(key=lambda one: one.place)
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                if second.place[0] >= first.place[1]:
                    break
                if _share(torch, first.tensor, second.tensor):
                    yield first, second


def _share(torch: Any, a: Any, b: Any) -> bool:
    """Whether tensors of one storage have elements in common: rows of a matrix may lie between those of another."""
    if a.dtype is not b.dtype:
        return True
    marks = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    marks.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset()).any())
