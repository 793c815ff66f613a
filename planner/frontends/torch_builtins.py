"""Python's functions of numbers, which know those of data (torch_figures.py) while a module is exported."""

import builtins
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from planner.frontends.torch_figures import BranchAsked, Figure
from planner.frontends.torch_stand_ins import in_place_of

_MATH = frozenset({
    "cos", "exp", "expm1", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "sin", "sqrt", "tan", "tanh",
})  # fmt: skip


@contextmanager
def functions_of_figures(torch: Any, among: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Within it, max and min choose between numbers of data by torch.where, the first of equal ones; functions of
    `math` are PyTorch's of them; and so are float() and int() for code whose global names are in `among`: not for all,
    as some asks whether a type is Python's."""
    replaced = {(math, name): _of_math(torch, name) for name in _MATH}
    replaced[builtins, "max"] = _choosing(torch, max, operator.gt)
    replaced[builtins, "min"] = _choosing(torch, min, operator.lt)
    classes = {"float": _class(torch, float, lambda x: x.as_float()), "int": _class(torch, int, lambda x: x.as_int())}
    kept = [{name: names[name] for name in classes.keys() & names.keys()} for names in among]
    for names in among:
        names.update(classes)
    try:
        with in_place_of(replaced):
            yield
    finally:
        for names, own in zip(among, kept, strict=True):
            for name in classes:
                del names[name]
            names.update(own)


def _figure(torch: Any, x: Any) -> Any:
    """The number that a tensor of one element holds."""
    return x.item() if isinstance(x, torch.Tensor) and x.numel() == 1 else x


def _of_math(torch: Any, name: str) -> Callable[..., Any]:
    original, function = getattr(math, name), getattr(torch, name)

    def of_figures(*args: Any) -> Any:
        figure = _figure(torch, args[0]) if len(args) == 1 else None
        return figure.of(lambda x: function(x.float())) if isinstance(figure, Figure) else original(*args)

    return of_figures


def _class(torch: Any, plain: type, converted: Callable[[Figure], Figure]) -> type:
    """In the place of a builtin class, of which all else is the builtin's."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            figure = _figure(torch, args[0]) if len(args) == 1 and not kwargs else None
            return converted(figure) if isinstance(figure, Figure) else plain(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, plain)

        def __getattr__(cls, name: str) -> Any:
            return getattr(plain, name)

        def __eq__(cls, other: object) -> bool:
            return other is cls or other is plain

        def __hash__(cls) -> int:
            return hash(plain)

    return Meta(plain.__name__, (), {})


def _choosing(torch: Any, original: Callable[..., Any], better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return original(*args, **kwargs)
        items = list(args[0]) if len(args) == 1 else list(args)
        try:
            return original(items)
        except BranchAsked:
            return reduce(lambda a, b: _chosen(torch, better(b, a), b, a), items)

    return chosen


def _chosen(torch: Any, condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b."""
    if isinstance(condition, bool):
        return a if condition else b
    made = torch.where(*(x.tensor if isinstance(x, Figure) else x for x in (condition, a, b)))
    return made if any(map(torch.is_tensor, (a, b))) else condition.like(made)
