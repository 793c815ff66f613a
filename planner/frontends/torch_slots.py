"""Where Python holds what a module's forward finds and leaves: attributes of the module's parts and of other objects
there, lists and dicts in them, attributes of classes, and, as far as the code that forward may call names them, global
names, variables of outer functions, and defaults of arguments."""

import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from planner.frontends.torch_alike import is_of_data
from planner.frontends.torch_figures import Figure
from planner.frontends.torch_places import is_own

REGISTERED = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module has what it knows by name."""
LONGEST = 10_000
"""Elements; nobody looks into longer lists."""
MOST = 50_000
"""Lists, dicts and objects."""
_Keeping: Any = type(cache(int))
_AROUND = MethodType | partial | property | staticmethod | classmethod | cached_property | _Keeping
"""What stands around functions, which are in one of"""
WITHIN = ("__func__", "__wrapped__", "fget", "fset", "func", "__self__", "args", "keywords")
_UNCALLED = frozenset({"__init__", "__new__", "__del__", "__init_subclass__", "__repr__"})

_BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
"""Their own methods are called: those of subclasses do more."""

Holder = Any
"""A list, dict, set or deque; a class; a variable of an outer function; (global names, those that are looked at)."""


def contents_of(holder: Holder) -> dict[Any, Any]:
    """key, name or place -> what is held there."""
    match holder:
        case type():
            return {n: x for n, x in vars(holder).items() if not (n.startswith("__") or hasattr(type(x), "__get__"))}
        case CellType():
            return dict(enumerate(_variable(holder)))
        case tuple():
            names, found = holder
            return {n: names[n] for n in found if n in names}
        case dict():
            return dict(_base(holder).items(holder))
        case _:
            return dict(enumerate(_base(holder).__iter__(holder)))


def are_same(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Whether the same is held under the same names, in the same order."""
    return list(first) == list(second) and all(second[k] is x for k, x in first.items())


def put(holder: Holder, contents: dict[Any, Any]) -> None:
    """So that contents_of returns them."""
    held = contents_of(holder)
    if are_same(held, contents):
        return
    match holder:
        case type() | tuple():
            names = holder if isinstance(holder, type) else holder[0]
            for name in held.keys() - contents.keys():
                delattr(names, name) if isinstance(names, type) else names.pop(name)
            for name, x in contents.items():
                if held.get(name, put) is not x:
                    setattr(names, name, x) if isinstance(names, type) else names.update({name: x})
        case CellType():
            for x in contents.values():
                holder.cell_contents = x
        case _:
            base = _base(holder)
            base.clear(holder)
            for key, x in contents.items():
                if isinstance(holder, dict):
                    base.__setitem__(holder, key, x)
                else:
                    (base.add if base is set else base.append)(holder, x)


def _base(holder: Any) -> Any:
    return next(kind for kind in _BASES if isinstance(holder, kind))


def _variable(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing yet
        return ()


class Slots:
    """What is held where, at one time."""

    def __init__(self, torch: Any, module: Any, prefix: str = "", others: Mapping[str, Any] | None = None) -> None:
        """`others`: by name, what forward may reach besides."""
        self.tensors: dict[str, Any] = {}
        """All but parameters and buffers, and figures, by name. `prefix`: of the module's names, which are without."""
        self.cached: list[tuple[str, Any]] = []
        """The functions' names and the tensors that they keep as results."""
        self.held: dict[int, tuple[Holder, dict[Any, Any]]] = {}
        """By the holder's id: (holder, what it held)."""
        self.of_parts: set[int] = set()
        """The ids of holders that are attributes of the module's parts."""
        self.of_registered: set[int] = set()
        """Of those that hold parameters, buffers or parts."""
        self.registered: dict[str, set[str]] = {}
        """The names of parameters, buffers and parts, by the path of the part that has them."""
        self.caches: list[Any] = []
        """Functions that functools keeps results of."""
        self._torch = torch
        self._parts = {id(part) for part in module.modules()}
        self._open = deque[tuple[str, Any]]()
        """What is still to be looked at."""
        self._added, self._seen = set[tuple[int, str]](), set[int]()
        self._classes: dict[type, None] = {}
        self._names: set[str] = {"forward"}
        self._globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._packages = {_package(c) for part in module.modules() for c in type(part).__mro__}
        for path, part in module.named_modules():
            self._part(path, part, prefix)
        self._open += (others or {}).items()
        while self._open:
            while self._open:
                self._look(*self._open.popleft())
            self._go_on()

    def restore(self) -> None:
        for holder, contents in self.held.values():
            put(holder, contents)

    def changed(self) -> bool:
        """Whether something else is held by now."""
        return not all(are_same(old, contents_of(holder)) for holder, old in self.held.values())

    def exchanged(self) -> bool:
        """Whether a tensor of data is held by now that was not, or no more. Parameters, buffers and parts apart."""
        for holder, old in (held for key, held in self.held.items() if key not in self.of_registered):
            now = contents_of(holder)
            for name in now.keys() | old.keys():
                before, after = old.get(name), now.get(name)
                if before is not after and (self._has_data(before) or self._has_data(after)):
                    return True
        return False

    def _has_data(self, held: Any, depth: int = 9) -> bool:
        if isinstance(held, self._torch.Tensor | Figure):
            return is_of_data(held.tensor if isinstance(held, Figure) else held)
        if isinstance(held, tuple | list | dict | set) and depth:
            return any(self._has_data(x, depth - 1) for x in (held.values() if isinstance(held, dict) else held))
        return False

    def _part(self, path: str, part: Any, prefix: str) -> None:
        attributes = vars(part)
        own = [attributes[kind] for kind in REGISTERED]
        self.registered[path] = {name for held in own for name in held}
        self.of_parts.add(id(attributes))
        self.of_registered |= set(map(id, own))
        for holder in (attributes, *own):
            self.held[id(holder)] = holder, dict(holder)
        self._class(type(part))
        for name, held in attributes.items():
            if name not in REGISTERED:
                self._open.append((f"{path}.{name}".lstrip(".").removeprefix(prefix), held))

    def _look(self, name: str, held: Any) -> None:
        kind = type(held)
        if isinstance(held, self._torch.Tensor | Figure):
            self.tensors[name] = held
        elif isinstance(held, str | int | float | CodeType | ModuleType | None) or id(held) in self._seen | self._parts:
            return
        elif isinstance(held, type):
            self._class(held)
        elif isinstance(held, FunctionType):
            self._function(held)
        elif isinstance(held, _AROUND):
            self._seen.add(id(held))
            if isinstance(held, _Keeping):
                self.caches.append(held)
                self.cached += [(f"{name}()", tensor) for tensor in self._results(held)]
            self._open += [(name, getattr(held, inner, None)) for inner in WITHIN]
        elif len(self.held) > MOST:
            return
        elif isinstance(held, (tuple, *_BASES)):
            self._seen.add(id(held))
            contents = dict(enumerate(tuple.__iter__(held))) if isinstance(held, tuple) else contents_of(held)
            if not isinstance(held, tuple):
                self.held[id(held)] = held, contents
            if len(contents) <= LONGEST:
                self._open += [(f"{name}[{_shown(key)}]", one) for key, one in contents.items()]
        elif isinstance(getattr(held, "__dict__", None), dict) and self._is_object(kind):
            self._seen.add(id(held))
            self.held[id(vars(held))] = vars(held), dict(vars(held))
            self._class(kind)
            self._open += [(f"{name}.{key}", one) for key, one in vars(held).items()]

    def _is_object(self, kind: type) -> bool:
        """Neither PyTorch's nor Python's."""
        known = (SimpleNamespace, self._torch.nn.Module, self._torch.distributions.Distribution)
        return issubclass(kind, known) or kind.__module__ == "__main__" or is_own(_file(kind))

    # -- code ------------------------------------------------------------------------------------------------------
    def _results(self, function: Any) -> Iterator[Any]:
        """The tensors that a function with a cache keeps; not of results that are tuples, where keys look alike."""
        for held in gc.get_referents(function):
            kept = held.values() if type(held) is dict else (held,)
            yield from (x for x in kept if isinstance(x, self._torch.Tensor))

    def _class(self, kind: type) -> None:
        for c in kind.__mro__:
            if c not in self._classes and self._is_walked(_file(c), _package(c)):
                self._classes[c] = None

    def _function(self, function: FunctionType) -> None:
        self._seen.add(id(function))
        code = function.__code__
        if not self._is_walked(code.co_filename, str(function.__globals__.get("__name__", "")).split(".")[0]):
            return
        names = {name for c in codes_of(code) for name in c.co_names}
        self._names |= names
        self._name(function.__globals__, names)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.held[id(cell)] = cell, contents_of(cell)
            self._open += [(f"{function.__qualname__}.{name}", held) for held in _variable(cell)]
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._open += [(f"{function.__qualname__}()", held) for held in defaults]

    def _name(self, names: dict[str, Any], found: set[str]) -> None:
        """`found`: names in code, of `names` or of modules there."""
        _, known = self._globals.setdefault(id(names), (names, set()))
        new = found - known
        known |= new
        for module in [names[n] for n in new if isinstance(names.get(n), ModuleType)]:
            if self._is_walked(getattr(module, "__file__", None) or "", module.__name__.split(".")[0]):
                self._name(vars(module), found)

    def _is_walked(self, file: str, package: str) -> bool:
        """Whether it is the user's code, or of a package that the module's parts are of."""
        known = package in self._packages or "site-packages" not in file
        return known and package not in ("torch", "builtins") and (is_own(file) or file.startswith("<"))

    def _go_on(self) -> None:
        """To what names in code mean, as far as it has not been looked at."""
        for kind in self._classes:
            self.held[id(kind)] = kind, contents_of(kind)
            for name, held in vars(kind).items():
                called = name in self._names or (name.startswith("__") and name not in _UNCALLED)
                if called if hasattr(type(held), "__get__") else not name.startswith("__"):
                    self._add(kind, kind.__name__, name, held)
        for names, found in self._globals.values():
            holder = names, found
            self.held[id(names)] = holder, contents_of(holder)
            for name, held in contents_of(holder).items():
                self._add(names, names.get("__name__", ""), name, held)

    def _add(self, owner: Any, path: str, name: str, held: Any) -> None:
        if (id(owner), name) not in self._added:
            self._added.add((id(owner), name))
            self._open.append((f"{path}.{name}", held))


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """It, and that of functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_of(inner)


def _package(kind: type) -> str:
    return kind.__module__.split(".")[0]


def _file(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<>"


def _shown(key: Any) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    return repr(key) if all(isinstance(p, str | int | float | None) for p in parts) else type(key).__name__
