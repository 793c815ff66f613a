"""Indices of which some are masks of data, or rows that such a mask picks: x[:, mask], x[mask, labels[mask]],
x[mask.nonzero()], rows[rows > 0], and the same on the left side. So are slices that end at numbers of data, x[:n]."""

from math import prod
from typing import TYPE_CHECKING, Any

from planner.frontends.torch_figures import Figure
from planner.frontends.torch_one_hot import chosen, is_one_hot, put
from planner.frontends.torch_picked_masks import Mask, refused

if TYPE_CHECKING:
    from planner.frontends.torch_picked import Picked

_WHOLE = slice(None)


def is_mask(torch: Any, x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.bool and x.dim() > 0


def is_cut(torch: Any, x: Any) -> bool:
    """Whether it is a slice from or to a number of data."""
    return isinstance(x, slice) and any(isinstance(bound, Figure | torch.Tensor) for bound in (x.start, x.stop))


def _within(torch: Any, cut: slice, size: int) -> Any:
    """[size], whether a slice has them."""
    if cut.step not in (None, 1):
        raise refused("slices of every other row to a number of data")
    places = torch.arange(size)

    def bound(x: Any) -> Any:
        at = torch.as_tensor(x.tensor if isinstance(x, Figure) else x)
        return torch.where(at < 0, at + size, at)

    behind = torch.ones(size, dtype=torch.bool) if cut.start is None else places >= bound(cut.start)
    return behind if cut.stop is None else behind & (places < bound(cut.stop))


def top(
    picked: "type[Picked]", torch: Any, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """torch.topk of a number of data, in order in any case."""
    axis = dim % x.dim()
    mask = Mask(torch, _within(torch, slice(None, k), x.shape[axis]))
    parts = torch.sort(x, axis, descending=largest)
    return torch.return_types.topk(tuple(picked.of(mask, part, axis) for part in parts))


def is_basic(index: Any) -> bool:
    """Whether it makes a view: a number, a slice, an axis of one."""
    return index is None or isinstance(index, slice) or type(index) is int


def is_whole(index: Any) -> bool:
    return index is Ellipsis or (isinstance(index, slice) and index == _WHOLE)


class Indices:
    """Of a tensor or of picked rows `x`, one for each of its axes, or for several of a mask."""

    def __init__(self, picked: "type[Picked]", torch: Any, x: Any, index: Any) -> None:
        self._picked, self._torch, self._x = picked, torch, x
        given = list(index) if isinstance(index, tuple) else [index]
        taken = sum(self._width(i) for i in given if i is not Ellipsis)
        rest = [_WHOLE] * (x.dim() - taken)
        dots = next((n for n, i in enumerate(given) if i is Ellipsis), None)
        entries = [*given, *rest] if dots is None else [*given[:dots], *rest, *given[dots + 1 :]]
        self.entries = [torch.tensor(i) if isinstance(i, list) and i else i for i in entries]
        axis = 0
        for place, entry in enumerate(self.entries):
            if is_cut(torch, entry):
                if not isinstance(x, torch.Tensor):
                    raise x.refuse("some of them are looked at")
                self.entries[place] = _within(torch, entry, x.shape[axis])
            axis += self._width(entry)

    def _width(self, index: Any) -> int:
        if isinstance(index, self._picked):
            return index.dim() if index.dtype is self._torch.bool else 1
        return index.dim() if is_mask(self._torch, index) else int(index is not None)

    def _alone(self, position: int) -> bool:
        return all(is_basic(e) for i, e in enumerate(self.entries) if i != position)

    def _around(self, position: int) -> tuple[Any, int]:
        """Basic indices with whole axes in place of the mask at a position, and where its first axis is then."""
        before = self.entries[:position]
        mask = [_WHOLE] * self._width(self.entries[position])
        axis = sum(e is None or isinstance(e, slice) for e in before)
        return tuple([*before, *mask, *self.entries[position + 1 :]]), axis

    def _mask_alone(self) -> tuple[Any, Any, int] | None:
        """The one mask beside basic indices, these with whole axes in its place, its axis; None if there is more."""
        masks = [i for i, e in enumerate(self.entries) if is_mask(self._torch, e)]
        if len(masks) != 1 or not self._alone(masks[0]):
            return None
        return self.entries[masks[0]], *self._around(masks[0])

    # -- of tensors ------------------------------------------------------------------------------------------------
    def get(self, function: Any) -> Any:
        torch, x, alone = self._torch, self._x, self._mask_alone()
        if alone is not None:
            mask, basic, axis = alone
            view = function(x, basic)
            self._require_shape(mask, view, axis)
            if is_one_hot(torch, mask):
                return chosen(torch, view, mask, axis)
            flat = view.reshape(*view.shape[:axis], mask.numel(), *view.shape[axis + mask.dim() :])
            return self._picked.of(Mask(torch, mask), flat, axis)
        entries = self._as_places()
        rows = next(e for e in entries if isinstance(e, self._picked))
        return rows.apply(function, "indexing", (x, tuple(entries)), {})

    def put(self, value: Any) -> None:
        torch, x, alone = self._torch, self._x, self._mask_alone()
        if alone is not None:
            mask, basic, axis = alone
            view = x[basic] if not all(map(is_whole, basic)) else x
            self._require_shape(mask, view, axis)
            if isinstance(value, torch.Tensor) and is_one_hot(torch, mask):
                put(torch, view, mask, axis, value)
                return
            _put_where(self._picked, view, Mask(torch, mask), tuple(mask.shape), axis, value)
        else:
            self._put_at(x, self._as_places(), value)

    def _require_shape(self, mask: Any, view: Any, axis: int) -> None:
        found = tuple(view.shape[axis : axis + mask.dim()])
        if found != tuple(mask.shape):
            what = f"The shape of the mask {list(mask.shape)} does not match that of the tensor {list(found)}"
            raise IndexError(what)

    def _as_places(self) -> list[Any]:
        """With whole numbers in place of masks."""
        found: list[Any] = []
        for e in self.entries:
            found += coordinates(self._picked, self._torch, e) if is_mask(self._torch, e) else [e]
        return found

    def _put_at(self, out: Any, entries: list[Any], value: Any) -> None:
        """out[i, j] = value. Where several rows are put into one place it has their mean."""
        total, count = added(self._picked, out, entries, value)
        mean = total / count.clamp(min=1)
        new = total + (mean - total).detach()  # each has the place's whole gradient, as in PyTorch
        out.copy_(self._torch.where(count > 0, new.to(out.dtype), out))

    # -- of picked rows --------------------------------------------------------------------------------------------
    def _own(self) -> int:
        """Which entry is that of the axis of rows."""
        axis = 0
        for position, entry in enumerate(self.entries):
            if axis <= self._x.axis < axis + self._width(entry):
                return position
            axis += self._width(entry)
        raise IndexError("too many indices")

    def get_picked(self, function: Any) -> Any:
        x, torch, position = self._x, self._torch, self._own()
        own = self.entries[position]
        if is_whole(own):
            return x.apply(function, "indexing", (x, tuple(self.entries)), {})
        if not isinstance(own, self._picked):
            raise x.refuse("some of them are looked at")
        if own.dtype is torch.bool:
            mask, basic, axis = self._within(position)
            view = function(x.rows, basic)
            flat = view.reshape(*view.shape[:axis], mask.size, *view.shape[axis + own.dim() :])
            return self._picked.of(mask, flat, axis)
        entries = [*self.entries[:position], self._dense(own), *self.entries[position + 1 :]]
        return own.apply(function, "indexing", (x.rows, tuple(entries)), {})

    def put_picked(self, function: Any, value: Any) -> None:
        x, torch, position = self._x, self._torch, self._own()
        own, x.is_every = self.entries[position], False
        if is_whole(own):
            x.apply(function, "indexing", (x, tuple(self.entries), value), {})
        elif not isinstance(own, self._picked):
            raise x.refuse("some of them are written to")
        elif own.dtype is torch.bool:
            mask, basic, axis = self._within(position)
            _put_where(self._picked, x.rows[basic], mask, tuple(own.rows.shape), axis, value)
        else:
            entries = [*self.entries[:position], self._dense(own), *self.entries[position + 1 :]]
            self._put_at(x.rows, entries, value)

    def _within(self, position: int) -> tuple[Mask, Any, int]:
        """Of a mask of picked rows: that of those that both pick, the other indices, and its axis behind these."""
        own, x = self.entries[position], self._x
        if own.axis or not x.mask.same(own.mask) or not self._alone(position) or x.rows.shape[x.axis] != x.mask.size:
            raise x.refuse("a mask of other rows picks among them")
        basic, axis = self._around(position)
        return Mask(self._torch, own.mask.wide(own.dim(), 0) & own.rows), basic, axis

    def _dense(self, places: "Picked") -> "Picked":
        """Places among the picked rows as those among all."""
        if places.is_every and places.mask.same(self._x.mask):
            return places.like(self._torch.arange(places.mask.size))
        return places.like(self._x.mask.order[places.rows])


def coordinates(picked: "type[Picked]", torch: Any, mask: Any) -> list["Picked"]:
    """Where a mask is true: whole numbers for every axis."""
    own, found = Mask(torch, mask), []
    for axis, extent in enumerate(mask.shape):
        along = torch.arange(extent).reshape(-1, *([1] * (mask.dim() - 1 - axis)))
        found.append(picked.of(own, along.expand(mask.shape).reshape(-1), 0))
    return found


def added(picked: "type[Picked]", out: Any, entries: list[Any], value: Any) -> tuple[Any, Any]:
    """What out[i, j] += value adds, in out's shape, and how many values are added where."""
    rows = next(e for e in entries if isinstance(e, picked))
    torch, mask = rows.torch, rows.mask
    count = sum(not isinstance(e, slice) for e in entries)
    if any(isinstance(e, slice) for e in entries[:count]) or not all(map(is_whole, entries[count:])):
        raise refused("rows are put at indices behind slices")
    flat: Any = 0
    for index, extent in zip(entries[:count], out.shape, strict=False):
        own = rows.whole_of(index, 1, "indexing")
        own = torch.where(own < 0, own + extent, own) if torch.is_tensor(own) else own % extent
        flat = flat * extent + own
    rest = tuple(out.shape[count:])
    kind = out.dtype if out.dtype.is_floating_point else torch.float32
    whole = torch.as_tensor(rows.whole_of(value, 1 + len(rest), "indexing")).to(kind).expand(mask.size, *rest)
    entries_of = prod(out.shape[:count])
    total = torch.zeros(entries_of, *rest, dtype=kind).index_add(0, flat, mask.filled(whole, 0, 0))
    times = torch.zeros(entries_of).index_add(0, flat, mask.flat.float())
    return total.reshape(out.shape), times.reshape(*out.shape[:count], *(1 for _ in rest))


def _put_where(picked: "type[Picked]", view: Any, mask: Mask, shape: tuple[int, ...], axis: int, value: Any) -> None:
    """view[..., mask, ...] = value, of a mask of this shape that lies at `axis`."""
    torch, rank = mask.torch, len(shape)
    behind = view.dim() - axis - rank
    rows = value.rows if isinstance(value, picked) else torch.as_tensor(value)
    place = rows.dim() - behind - 1
    if isinstance(value, picked):
        if not value.mask.same(mask):
            raise value.refuse("they are put where another mask picks")
        if value.axis != place or place > axis:
            raise value.refuse("they are put where rows have other axes")
    elif place >= 0 and rows.shape[place] != 1:
        raise refused("others are put in their place")
    if place >= 0:
        own = shape if isinstance(value, picked) else tuple(1 for _ in shape)
        rows = rows.reshape(*rows.shape[:place], *own, *rows.shape[place + 1 :])
    wide = mask.flat.reshape(*shape, *(1 for _ in range(behind)))
    view.copy_(torch.where(wide, rows.to(view.dtype), view))
