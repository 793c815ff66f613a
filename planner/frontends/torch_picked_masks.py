"""Which rows a mask of data picks, and how many: where a module is exported that is a number of data."""

import builtins
from collections.abc import Callable
from functools import cached_property
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import equal
from planner.frontends.torch_figures import Figure, NumberAsked
from planner.frontends.torch_places import bracketed, calling_line

_FIX = (
    "rows that a mask picks go through functions of single rows, and sums, means and losses of these; multiply by the "
    "mask instead, or use torch.where"
)


def refused(what: str, place: str = "") -> UserError:
    where = bracketed(place or calling_line())
    return UserError("SP1014", f"a mask of data picks rows, whose number depends on the data: {what}{where}", _FIX)


class Mask:
    """flat: [rows], whether each is picked. It is as it was when the rows were picked, whatever is written to later."""

    def __init__(self, torch: Any, mask: Any) -> None:
        self.torch, self.flat = torch, mask.reshape(-1).clone()
        self.of: tuple[Mask, int] | None = None
        """That of rows of which these are the parts, and how many each has."""

    @property
    def size(self) -> int:
        """Of all rows."""
        return int(self.flat.shape[0])

    @cached_property
    def count(self) -> Any:
        """How many are picked: a whole number."""
        return self.flat.sum()

    @cached_property
    def any(self) -> Any:
        return self.flat.any()

    @cached_property
    def places(self) -> Any:
        """[rows]: where each picked one is among the picked ones."""
        return self.flat.cumsum(0) - 1

    @cached_property
    def order(self) -> Any:
        """[rows]: the picked ones, then the others."""
        return self.torch.argsort((~self.flat).long(), stable=True)

    @cached_property
    def _first(self) -> Any:
        return self.flat.long().argmax(0, keepdim=True)

    def same(self, other: "Mask") -> bool:
        """Whether it certainly picks the same rows."""
        return other is self or bool(equal(self.torch, self.flat, other.flat))

    def times(self, each: int) -> "Mask":
        """That of `each` rows in the place of one."""
        wide = self.flat[:, None].expand(self.size, each)
        if each == 1:
            return self
        made = Mask(self.torch, wide)
        made.of = self, each
        return made

    def wide(self, rank: int, axis: int) -> Any:
        """In the shape of so many axes, of which one is that of rows."""
        return self.flat.reshape(*(self.size if a == axis else 1 for a in range(rank)))

    def filled(self, rows: Any, axis: int, number: Any) -> Any:
        """With a number in place of what is not picked."""
        other = self.torch.full((), number, dtype=rows.dtype)
        return self.torch.where(self.wide(rows.dim(), axis), rows, other)

    def copied(self, rows: Any, axis: int) -> Any:
        """With copies of the first picked row in place of those that are not; of whole numbers zeros if none is, since
        rows may be looked up by them."""
        copies = rows.detach().index_select(axis, self._first)
        if not (rows.is_floating_point() or rows.is_complex()):
            copies = copies & self.any if rows.dtype is self.torch.bool else copies * self.any
        return self.torch.where(self.wide(rows.dim(), axis), rows, copies)


class Rows:
    """What stands for rows whose number is a Count."""

    def numbered(self) -> "Count":
        raise NotImplementedError


class Count(Figure):
    """How many rows are picked, times `each`."""

    def __init__(self, torch: Any, mask: Mask, each: int = 1) -> None:
        self.torch, self.mask, self.each = torch, mask, each

    @cached_property
    def tensor(self) -> Any:
        return self.mask.count * self.each

    def as_int(self) -> "Count":
        return self

    def __mul__(self, other: Any) -> Any:
        return Count(self.torch, self.mask, self.each * other) if type(other) is int else super().__mul__(other)

    def __rmul__(self, other: Any) -> Any:
        return Count(self.torch, self.mask, self.each * other) if type(other) is int else super().__rmul__(other)

    def __eq__(self, other: Any) -> Any:
        same = isinstance(other, Count) and other.each == self.each and self.mask.same(other.mask)
        return True if same else super().__eq__(other)

    __hash__ = Figure.__hash__


def factories(torch: Any, made: Callable[[Any, Mask, int], Any]) -> dict[tuple[Any, str], Any]:
    """Functions that make tensors of as many rows as there are: (owner, name) -> another in its place, that takes a
    Count as a size, too. `made(rows, mask, axis)`: what it returns then."""

    def of(owner: Any, name: str) -> Any:
        function, bound = getattr(owner, name), owner is torch.Tensor

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            own, given = args[:bound], args[bound:]
            listed = bool(given) and isinstance(given[0], tuple | list)
            sizes = tuple(given[0]) if listed else given
            found = [i for i, size in enumerate(sizes) if isinstance(size, Count)]
            if not found and any(isinstance(size, Figure) for size in sizes):
                raise NumberAsked("__index__")
            if not found:
                return function(*args, **kwargs)
            if len(found) > 1 or (name == "arange" and len(given) > 1):
                raise refused(f"{name} of their number twice, or from elsewhere")
            axis, count = found[0], sizes[found[0]]
            mask = count.mask.times(count.each)
            if name == "arange":
                places = made(mask.copied(mask.places, 0), mask, 0)
                places.is_every = True
                return places
            whole = (*sizes[:axis], mask.size, *sizes[axis + 1 :])
            return made(function(*own, *((whole, *given[1:]) if listed else whole), **kwargs), mask, axis)

        stand_in.__name__ = name  # no more: PyTorch looks for the source of what is wrapped
        return stand_in

    places = [(torch, n) for n in ("arange", "empty", "full", "ones", "rand", "randn", "zeros")]
    places += [(torch.Tensor, n) for n in ("expand", "new_empty", "new_full", "new_ones", "new_zeros")]
    return {place: of(*place) for place in places}


def asked_of_rows(torch: Any) -> dict[tuple[Any, str], Any]:
    """Functions that are asked what rows are, with others in their places: Python's len, which returns a Count of them,
    and torch.is_tensor."""
    length, is_tensor = len, torch.is_tensor
    return {
        (builtins, "len"): lambda x: x.numbered() if isinstance(x, Rows) else length(x),
        (torch, "is_tensor"): lambda x: isinstance(x, Rows) or is_tensor(x),
    }
