"""Indices that are one number of data each: x[i], x[:, y.argmax()], x[n.item(), 1:3] = v. To PyTorch's export such a
number is a place that nobody knows; here the row is looked up, as by a vector of one place, and one that is written to
is chosen among all.

What PyTorch returns is a view of x, and is none here: SP1014 where that matters, since one of the two is written to and
the other read later. `x[i] += 1` puts what it has written to back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import is_of_data, is_recorded, node_of
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_figures import Figure
from planner.frontends.torch_places import here
from planner.frontends.torch_writes import alike, is_torn

_WHOLE = slice(None)
_KINDS = ("int8", "int16", "int32", "int64")


class _Row(NamedTuple):
    """One that was looked up. `node`, `source`: the nodes of it and of what it is a row of; `place`: where."""

    node: Any
    source: Any
    place: str

    def readers(self) -> int:
        return sum(len(n.users) for n in alike(self.node))


@contextmanager
def selected_rows(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported."""

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        rows = _Rows(torch)
        with _mode(torch, rows):
            result = forward(*inputs, **named)
        rows.require_apart()
        return result

    with forward_through(module, watched):
        yield


def _mode(torch: Any, rows: "_Rows") -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return rows.call(function, args, kwargs or {})

    return Mode()


class _Rows:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found: list[_Row] = []
        self._put_back: list[tuple[_Row, int]] = []
        """And how many had read each by then."""

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        torch, name = self._torch, getattr(function, "__name__", "")
        if not (is_recorded(torch) and args and isinstance(args[0], torch.Tensor)):
            return function(*args, **kwargs)
        if name == "select" and len(args) == 3 and self._is_number(args[2]):
            x, axis, index = args
            return self._get(torch.Tensor.__getitem__, x, [_WHOLE] * (axis % x.dim()) + [index])
        if name in ("__getitem__", "__setitem__"):
            entries = self._entries(*args[:2])
            if any(map(self._is_number, entries)):
                given = (function, args[0], entries)
                return self._get(*given) if name == "__getitem__" else self._put(*given, args[2])
        return function(*args, **kwargs)

    def require_apart(self) -> None:
        """SP1014: it matters that a row is no view."""
        torn = [row for row in self._found if is_torn(row.node, [row.source])]
        torn += [row for row, readers in self._put_back if row.readers() != readers]
        for row in torn:
            problem = f"a view of a row is written to, or reads what is written, and which row is data{row.place}"
            raise UserError("SP1014", problem, "clone() the row, or put it back where it was: x[i] = row")

    # -- indices ---------------------------------------------------------------------------------------------------
    def _is_number(self, index: Any) -> bool:
        if isinstance(index, Figure):
            return not index.tensor.is_floating_point() and index.tensor.dtype is not self._torch.bool
        whole = isinstance(index, self._torch.Tensor) and str(index.dtype).removeprefix("torch.") in _KINDS
        return whole and index.dim() == 0 and is_of_data(index)

    def _entries(self, x: Any, index: Any) -> list[Any]:
        """One for each axis, or for several of a mask; and Nones."""
        given = list(index) if isinstance(index, tuple) else [index]
        dots = [n for n, i in enumerate(given) if i is Ellipsis]
        rest = [_WHOLE] * (x.dim() - sum(map(self._width, given)))
        return [*given[: dots[0]], *rest, *given[dots[0] + 1 :]] if dots else given + rest

    def _width(self, index: Any) -> int:
        if index is None or index is Ellipsis or isinstance(index, bool):
            return 0
        mask = getattr(index, "dtype", None) is self._torch.bool
        return int(index.dim()) if mask else 1

    def _place(self, index: Any, extent: int) -> Any:
        """Counted from the beginning."""
        at = index.tensor if isinstance(index, Figure) else index.long()
        return self._torch.where(at < 0, at + extent, at)

    # -- rows ------------------------------------------------------------------------------------------------------
    def _get(self, function: Any, x: Any, entries: list[Any]) -> Any:
        row, axis, rest, numbers = x, 0, list[Any](), list[tuple[int, Any]]()
        for entry in entries:
            number = self._is_number(entry)
            numbers += [(axis, entry)] if number else []
            rest += [] if number else [entry]
            axis += self._width(entry)
        for axis, number in reversed(numbers):
            row = row.index_select(axis, self._place(number, row.shape[axis]).reshape(1)).squeeze(axis)
        self._found.append(_Row(node_of(row), node_of(x), here()))
        return row if all(isinstance(e, slice) and e == _WHOLE for e in rest) else function(row, tuple(rest))

    def _put(self, function: Any, x: Any, entries: list[Any], value: Any) -> None:
        torch = self._torch
        if not all(self._is_number(e) or e is None or type(e) is int or isinstance(e, slice) for e in entries):
            function(x, tuple(entries), value)
            return
        back = self._taken(x, value)
        view = x[tuple(_WHOLE if self._is_number(e) else e for e in entries)]
        kept = [e for e in entries if type(e) is not int]
        axes = [axis for axis, e in enumerate(kept) if self._is_number(e)]
        chosen = torch.ones((), dtype=torch.bool)
        for axis in axes:
            extent = view.shape[axis]
            own = torch.arange(extent) == self._place(kept[axis], extent)
            chosen = chosen & own.reshape(*(extent if a == axis else 1 for a in range(view.dim())))
        new = torch.as_tensor(value.tensor if isinstance(value, Figure) else value).to(x.dtype)
        new = new.expand([d for axis, d in enumerate(view.shape) if axis not in axes])
        for axis in axes:
            new = new.unsqueeze(axis)
        view.copy_(torch.where(chosen, new, view))
        self._put_back += [(row, row.readers()) for row in back]

    def _taken(self, x: Any, value: Any) -> list[_Row]:
        """The rows of x that `value` is: written to since, and put back before anything reads x."""
        node = node_of(value) if isinstance(value, self._torch.Tensor) else None
        lies = alike(node) if node is not None else set()
        taken = [r for r in self._found if r.node in lies and not is_torn(r.node, [r.source], held=False)]
        taken = [r for r in taken if r.source is not None and node_of(x) in alike(r.source)]
        self._found = [r for r in self._found if r not in taken]
        return taken
