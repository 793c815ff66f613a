"""Rows that a mask of data picks, `loss[mask].mean()`: how many there are is not known where a module is exported, so
PyTorch refuses them. Here all rows go on, and what was not picked counts nothing in the end.

    x[mask]                    Picked: the rows of x, in place of those that are not picked a copy of the first that is
    functions of single rows   the same of all rows; so nothing is computed of numbers that were not to be looked at,
                               such as the logarithm of zero, and no gradient of it is infinite
    sums, means, losses        of the picked rows; means are divided by their number (torch_picked_across.py)
    len, shape                 a number of data, how many there are (torch_picked_masks.py)
    indices                    places among the picked rows, masks of them (torch_picked_indices.py)
    out[mask] = rows           the picked rows, and what is there elsewhere

Where nothing is picked a mean is NaN, as in PyTorch, and a sum is 0; so is a largest or smallest number NaN, of which
PyTorch says that there is none. Whatever else is computed of such rows is refused (SP1014)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_figures import Figure
from planner.frontends.torch_one_hot import chosen, is_one_hot
from planner.frontends.torch_picked_across import across, batch_norm
from planner.frontends.torch_picked_functions import (
    ADDING,
    ALONG,
    ELEMENTS,
    IN_PLACE,
    LAYERS,
    MOVED,
    PLAIN,
    PRODUCTS,
    USUAL_AXIS,
)
from planner.frontends.torch_picked_indices import Indices, added, coordinates, is_cut, is_mask, is_whole, top
from planner.frontends.torch_picked_losses import LOSSES, loss
from planner.frontends.torch_picked_masks import Count, Mask, Rows, asked_of_rows, factories, refused
from planner.frontends.torch_picked_shapes import reshaped
from planner.frontends.torch_places import calling_line
from planner.frontends.torch_stand_ins import in_place_of

_MANY = 7919
"""Rows, where it is looked at what becomes of their axis: no other has this size."""


@contextmanager
def picked_rows(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported. SP1014: more is done with what a mask picks than is known here, or forward
    returns it."""

    def made(rows: Any, mask: Mask, axis: int) -> Picked:
        return Picked(torch, mask, rows, axis)

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        import torch._decomp.decompositions_for_jvp  # it compiles calls of what gets stand-ins here

        with _mode(torch), in_place_of(factories(torch, made) | asked_of_rows(torch)):
            result = forward(*inputs, **named)
        for part in torch.utils._pytree.tree_leaves(result):
            if isinstance(part, Picked):
                raise part.refuse("forward returns them", part.made_at)
        return result

    with forward_through(module, watched):
        yield


def _mode(torch: Any) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not is_recorded(torch):
                return function(*args, **kwargs)
            name = getattr(function, "__name__", "")
            picks = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Picked)]
            if not (args and isinstance(args[0], torch.Tensor)):
                return picks[0].call(function, args, kwargs) if picks else function(*args, **kwargs)
            if name == "masked_select" and len(args) == 2 and not picks:
                if args[0].shape == args[1].shape and is_one_hot(torch, args[1]):
                    return chosen(torch, args[0], args[1], 0)
                x, mask = torch.broadcast_tensors(*args)
                return Picked.of(Mask(torch, mask), x.reshape(-1), 0)
            if not picks and (name in ("nonzero", "argwhere") or (name == "where" and len(args) == 1)):
                return _nonzero(torch, args[0], name == "where" or kwargs.get("as_tuple", False))
            if name == "topk" and not picks and isinstance((*args[1:2], kwargs.get("k"))[0], Figure):
                return top(Picked, torch, *args, **kwargs)
            if name in ("__getitem__", "__setitem__"):
                listed = args[1] if isinstance(args[1], tuple) else (args[1],)
                masks, cut = [i for i in listed if is_mask(torch, i)], any(is_cut(torch, i) for i in listed)
                alone = bool(masks) and all(i is masks[0] or is_whole(i) for i in listed)
                known = name == "__setitem__" and not picks and alone
                if known and isinstance(args[2], torch.Tensor) and args[2].numel() > 1:
                    known = not is_one_hot(torch, masks[0])
                if (masks or picks or cut) and not known:
                    return _indexed(torch, name, function, args)
                return function(*args, **kwargs)
            return picks[0].call(function, args, kwargs) if picks else function(*args, **kwargs)

    return Mode()


def _indexed(torch: Any, name: str, function: Any, args: Any) -> Any:
    indices = Indices(Picked, torch, *args[:2])
    return indices.get(function) if name == "__getitem__" else indices.put(args[2])


def _nonzero(torch: Any, x: Any, as_tuple: bool) -> Any:
    found = coordinates(Picked, torch, x if x.dtype is torch.bool else x != 0)
    return tuple(found) if as_tuple else found[0].like(torch.stack([p.rows for p in found], 1))


class Picked(Rows):
    """In the place of a tensor of picked rows. `rows`: all rows, along `axis`; `mask`: which of them are picked;
    `is_every`: whether they are 0, 1, ..., the places of all."""

    def __init__(self, torch: Any, mask: Mask, rows: Any, axis: int) -> None:
        self.torch, self.mask, self.rows, self.axis, self.made_at = torch, mask, rows, axis, calling_line()
        self.is_every = False

    @classmethod
    def of(cls, mask: Mask, rows: Any, axis: int) -> "Picked":
        """Those of all rows that are picked."""
        import torch

        return cls(torch, mask, mask.copied(rows, axis), axis)

    def like(self, rows: Any, axis: int | None = None, mask: Mask | None = None) -> "Picked":
        made = object.__new__(Picked)
        made.__dict__.update(self.__dict__, rows=rows, is_every=False)
        made.__dict__.update({"axis": axis} if axis is not None else {}, **({"mask": mask} if mask else {}))
        return made

    def first_ones(self) -> Mask:
        """As many rows, in front of all others."""
        return Mask(self.torch, self.torch.arange(self.mask.size) < self.mask.count)

    # -- as a tensor -----------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        """A method of tensors."""
        if name.startswith("__"):
            raise AttributeError(name)
        torch = self.torch
        if name in PLAIN:
            return getattr(self.rows, name)
        if name in ("T", "mT") and self.rows.dim() == 2:
            return self.call(torch.Tensor.transpose, (self, 0, 1), {})
        method = getattr(torch.Tensor, name, None)
        if not callable(method):
            raise self.refuse(f"{name} of them is asked for")
        return lambda *args, **kwargs: self.call(method, (self, *args), kwargs)

    @property
    def shape(self) -> tuple[Any, ...]:
        count = Count(self.torch, self.mask)
        return tuple(count if a == self.axis else d for a, d in enumerate(self.rows.shape))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> Any:
        return Count(self.torch, self.mask, self.rows.numel() // self.mask.size)

    def numbered(self) -> Count:
        if self.axis:
            raise self.refuse("len of them, along another axis")
        return Count(self.torch, self.mask)

    def __len__(self) -> int:
        raise self.refuse("their number is asked for")

    def __bool__(self) -> bool:
        raise self.refuse("a branch depends on them")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import torch

        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        return next(x for x in leaves if isinstance(x, Picked)).call(function, args, kwargs or {})

    def refuse(self, what: str, place: str = "") -> UserError:
        return refused(what, place)

    # -- functions -------------------------------------------------------------------------------------------------
    def call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", str(function))
        plain = name.strip("_")
        in_place = plain in IN_PLACE or (name.endswith("_") and not name.startswith("_"))
        if name in ("__getitem__", "__setitem__"):
            indices = Indices(Picked, self.torch, *args[:2])
            own = isinstance(args[0], Picked)
            if name == "__getitem__":
                return indices.get_picked(function) if own else indices.get(function)
            return indices.put_picked(function, args[2]) if own else indices.put(args[2])
        if plain in ADDING:
            return self._added(function, plain, in_place, args, kwargs)
        if plain in ("index_select", "gather") and not isinstance(args[0], Picked):
            return self._looked_up(plain, *args, **kwargs)
        if plain.startswith("new_"):
            return function(args[0].rows if isinstance(args[0], Picked) else args[0], *args[1:], **kwargs)
        if plain in ("cat", "concat", "concatenate"):
            return self._joined(function, args, kwargs)
        if plain in ("view", "reshape", "flatten", "ravel") and not kwargs:
            return reshaped(self, args[1:], plain)
        if plain in LOSSES:
            return loss(self, function, plain, args, kwargs)
        if plain == "batch_norm" and isinstance(args[0], Picked) and args[0].axis != 1:
            return batch_norm(*args, **kwargs)
        if plain == "nonzero" or (plain == "where" and len(args) == 1):
            return self._nonzero(plain == "where" or kwargs.get("as_tuple", False))
        if plain == "cpu":
            return args[0]
        if plain == "type":
            kind = self.torch.empty(0).type(*args[1:], **kwargs)
            return args[0].to(kind.dtype) if (*args[1:], *kwargs.values()) else self.rows.type()
        if plain in ("type_as", "to") and len(args) > 1 and hasattr(args[1], "dtype"):
            return args[0].to(args[1].dtype)
        two = plain in ("max", "min") and len(args) > 1 and not isinstance(args[1], int | tuple | list)
        if plain in ALONG and not in_place and not two:
            return self._along(function, plain, args, kwargs)
        if in_place and plain in ELEMENTS | IN_PLACE and isinstance(args[0], Picked):
            args[0].apply(function, plain, args, kwargs)
            args[0].is_every = False
            return args[0]
        free = two or plain in ELEMENTS | MOVED | PRODUCTS
        if not in_place and (free or (plain in LAYERS and self._is_batch(plain, args, kwargs))):
            return self.apply(function, plain, args, kwargs, plain in PRODUCTS)
        raise self.refuse(f"{plain or name} of them")

    def _is_batch(self, name: str, args: Any, kwargs: dict[str, Any]) -> bool:
        rows = [x for x in (*args, *kwargs.values()) if isinstance(x, Picked)]
        alone = name == "scaled_dot_product_attention" or (len(rows) == 1 and rows[0] is args[0])
        least = {"embedding": 1, "scaled_dot_product_attention": 3}.get(name, 2)
        return alone and all(p.axis == 0 and p.dim() >= least for p in rows)

    def apply(self, function: Any, name: str, args: Any, kwargs: dict[str, Any], products: bool = False) -> Any:
        """`function` of all rows. Of `products`, the axis of rows may be summed over."""
        shapes = self._shapes(function, name, args, kwargs)
        places = [[a for a, d in enumerate(shape) if d == _MANY] for shape in shapes]
        if any(len(p) > 1 for p in places) or (not products and not all(places)):
            raise self.refuse(f"{name} across them")
        whole = self.torch.utils._pytree.tree_map(lambda x: self._whole(x, name, products), (args, kwargs))
        found, form = self.torch.utils._pytree.tree_flatten(function(*whole[0], **whole[1]))
        if not shapes:
            return None
        results = []
        for x, shape, place in zip(found, shapes, places, strict=True):
            if tuple(x.shape) != tuple(self.mask.size if d == _MANY else d for d in shape):
                raise self.refuse(f"{name} of them, of which there may be one")
            if place and products:
                x = self.mask.copied(x, place[0])
            results.append(self.like(x, place[0]) if place else x)
        return self.torch.utils._pytree.tree_unflatten(results, form)

    def _whole(self, x: Any, name: str, zeros: bool) -> Any:
        if isinstance(x, Count):
            if not self.mask.same(x.mask) or x.each != 1:
                raise self.refuse(f"{name} with the number of others")
            return self.mask.size if name in MOVED else x.tensor
        if not isinstance(x, Picked):
            return x
        self._require_same(x, name)
        return x.mask.filled(x.rows, x.axis, 0) if zeros else x.rows

    def whole_of(self, x: Any, rank: int, name: str) -> Any:
        """Rows of this many axes that the same mask picks, along the first, or what is the same for all rows."""
        if isinstance(x, Picked):
            self._require_same(x, name)
            if x.axis + rank != x.rows.dim() or x.axis:
                raise self.refuse(f"{name} of rows with different numbers of axes")
            return x.rows
        if isinstance(x, self.torch.Tensor) and x.dim() >= rank and x.shape[-rank] != 1:
            raise self.refuse(f"{name} with a tensor of shape {tuple(x.shape)}")
        return x

    def _shapes(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[tuple[int, ...]]:
        """The results' shapes if there were `_MANY` rows."""
        from torch._dispatch.python import no_python_dispatcher
        from torch.utils._python_dispatch import _disable_current_modes

        torch, tree = self.torch, self.torch.utils._pytree

        def shape(x: Any) -> Any:
            if isinstance(x, Picked):
                sizes = [_MANY if a == x.axis else d for a, d in enumerate(x.rows.shape)]
                return torch.empty(sizes, dtype=x.dtype, device="meta")
            if isinstance(x, Count) and name in MOVED:
                return _MANY
            if isinstance(x, Figure):
                return torch.empty((), dtype=x.tensor.dtype, device="meta")
            if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
                return "meta"
            return torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x

        try:
            apart = (_disable_current_modes(), no_python_dispatcher(), torch._C.DisableTorchFunction())
            with apart[0], apart[1], apart[2], torch.no_grad():
                given = tree.tree_map(shape, (args, kwargs))
                found = function(*given[0], **given[1])
        except Exception as error:
            plain = [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            beside = f" with a tensor of shape {plain[0]}" if plain else ""
            several = sum(isinstance(x, Picked) for x in (*args, *kwargs.values())) > 1
            axes = " of rows with different numbers of axes" if several and not plain else ""
            raise self.refuse(f"{name}{beside or axes or ' of them'}") from error
        return [tuple(x.shape) for x in tree.tree_leaves(found) if x is not None]  # of what is written to: nothing

    def _require_same(self, other: "Picked", name: str) -> None:
        if other.mask.size != self.mask.size and not self.mask.same(other.mask):
            raise self.refuse(f"{name} of rows and of their elements")
        if not self.mask.same(other.mask):
            raise self.refuse(f"{name} of rows that different masks pick")

    def _nonzero(self, as_tuple: bool) -> Any:
        """Places among the picked rows."""
        if self.rows.dim() != 1:
            raise self.refuse("nonzero of them")
        chosen = self.rows if self.rows.dtype is self.torch.bool else self.rows != 0
        found = Picked.of(Mask(self.torch, self.mask.flat & chosen), self.mask.places, 0)
        return (found,) if as_tuple else found.like(found.rows[:, None])

    def _looked_up(self, name: str, x: Any, dim: int, index: Any) -> Any:
        """Parts of a tensor whose places are such rows."""
        if name != "index_select":
            raise self.refuse(f"{name} of others by them")
        return x[(slice(None),) * (dim % x.dim()) + (index,)]

    # -- what becomes of several, or of all ------------------------------------------------------------------------
    def _joined(self, function: Any, args: Any, kwargs: dict[str, Any]) -> "Picked":
        parts = list(args[0] if args else kwargs["tensors"])
        axis = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0)) % self.rows.dim()
        if axis != self.axis:
            return self.apply(function, "cat", args, kwargs)  # type: ignore[no-any-return]
        torch, masks = self.torch, []
        for part in parts:
            if isinstance(part, Picked) and part.axis != axis:
                raise self.refuse("cat of rows along another axis")
            own = part.mask.flat if isinstance(part, Picked) else torch.ones(part.shape[axis], dtype=torch.bool)
            masks.append(own)
        rows = function([p.rows if isinstance(p, Picked) else p for p in parts], axis)
        return Picked.of(Mask(torch, torch.cat(masks)), rows, axis)

    def _added(self, function: Any, name: str, in_place: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        """What is added by index: nothing for what is not picked."""
        if isinstance(args[0], Picked):
            raise self.refuse(f"{name} to them")
        if name == "index_put":
            accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
            if not accumulate or len(args) < 3:
                raise self.refuse(f"{name} of them")
            rest = [slice(None)] * (args[0].dim() - len(args[1]))
            total = added(Picked, args[0], list(args[1]) + rest, args[2])[0]
            return args[0].add_(total) if in_place else args[0] + total
        named = [kwargs[k] for k in ("dim", "index", "source", "src") if k in kwargs]
        if len(args) + len(named) != 4:
            raise self.refuse(f"{name} with other arguments")
        out, axis, index, source = list(args) + named
        if name == "index_copy":
            made = out if in_place else out.clone()
            made[(slice(None),) * (axis % out.dim()) + (index,)] = source
            return made
        if not isinstance(index, Picked) or not isinstance(source, Picked):
            raise self.refuse(f"{name} of rows and of others")
        index._require_same(source, name)
        if (name == "index_add" and source.axis != axis % source.dim()) or (
            name == "scatter_add" and source.axis != index.axis
        ):
            raise self.refuse(f"{name} across them")
        scaled = {"alpha": kwargs["alpha"]} if "alpha" in kwargs else {}
        return function(out, axis, index.rows, source.mask.filled(source.rows, source.axis, 0), **scaled)

    def _along(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        place, rank = ALONG[name], self.rows.dim()
        axis = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else USUAL_AXIS.get(name)))
        if isinstance(axis, bool):  # var(unbiased)
            axis = None
        axes = tuple(a % rank for a in (axis if isinstance(axis, tuple | list) else () if axis is None else (axis,)))
        if axes and self.axis not in axes:
            return self.apply(function, name, args, kwargs)
        if sum(isinstance(x, Picked) for x in (*args, *kwargs.values())) > 1 or args[0] is not self:
            raise self.refuse(f"{name} across them")
        keep = kwargs.get("keepdim", args[place + 1] if len(args) > place + 1 else False)
        return across(self, function, name, axes, keep is True, args, kwargs)


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Picked, *args: Any) -> Any:
        return self.call(getattr(self.torch.Tensor, name), (self, *args), {})

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "pow",
    "rpow", "neg", "abs", "invert", "and", "or", "xor", "matmul", "rmatmul", "eq", "ne", "lt", "le", "gt", "ge",
    "getitem", "setitem", *IN_PLACE,
):  # fmt: skip
    setattr(Picked, f"__{_name}__", _operator(f"__{_name}__"))
