"""Which elements of a tensor a value shows that reshapes, permutations and splits made of it."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from planner.ops.head_views import HeadView

Factor = tuple[int, int]
"""How many, and the elements from one to the next."""


class Strided(NamedTuple):
    """Of a row-major tensor: the element that is shown first, and every dimension as factors, the outermost first.
    `[3, 4]` moved and then seen as `[12]` is still two of them, and may be seen as `[3, 4]` again."""

    dims: tuple[tuple[Factor, ...], ...]
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(extent for extent, _ in dim) for dim in self.dims)

    def permuted(self, axes: Sequence[int]) -> "Strided":
        return Strided(tuple(self.dims[a] for a in axes), self.first)

    def part(self, axis: int, start: int, size: int) -> "Strided | None":
        """None: of a dimension of several factors."""
        dim = self.dims[axis]
        if len(dim) > 1:
            return None
        step = dim[0][1] if dim else 0
        part = _merged([(size, step)])
        return Strided((*self.dims[:axis], part, *self.dims[axis + 1 :]), self.first + start * step)

    def reshaped(self, shape: Sequence[int]) -> "Strided | None":
        """None: a dimension would begin or end within one that cannot be divided there."""
        factors = list(_merged(factor for dim in self.dims for factor in dim))
        dims: list[tuple[Factor, ...]] = []
        for wanted in reversed(shape):
            own: list[Factor] = []
            while wanted > 1:
                extent, step = factors.pop()
                if wanted % extent == 0:
                    own.append((extent, step))
                    wanted //= extent
                elif extent % wanted == 0:
                    own.append((wanted, step))
                    factors.append((extent // wanted, step * wanted))
                    wanted = 1
                else:
                    return None
            dims.append(tuple(reversed(own)))
        return Strided(tuple(reversed(dims)), self.first)

    def heads(self) -> HeadView | None:
        """As matrices [..., heads, rows, width] whose rows are contiguous and in which all dimensions before the heads
        are one; None: they are not."""
        if len(self.dims) < 3:
            return None
        batch = _merged(factor for dim in self.dims[:-3] for factor in dim)
        dims = (batch, *(_merged(dim) for dim in self.dims[-3:]))
        if any(len(dim) > 1 for dim in dims):
            return None
        steps = [dim[0][1] if dim else 0 for dim in dims]
        return HeadView(self.shape, self.first, *steps[:3]) if steps[3] in (0, 1) else None


def _merged(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """Factors that go on where the next one ends are one with it; those of one element are none."""
    found: list[Factor] = []
    for extent, step in factors:
        if extent == 1:
            continue
        if found and found[-1][1] == extent * step:
            found[-1] = (found[-1][0] * extent, step)
        else:
            found.append((extent, step))
    return tuple(found)


def all_of(shape: Sequence[int]) -> Strided:
    """A tensor of this shape as it is."""
    return Strided(tuple(_merged([(extent, prod(shape[i + 1 :]))]) for i, extent in enumerate(shape)))
