"""ATen's complex numbers, as two values, of real and of imaginary parts; and Fourier transforms, as products with their
matrices.

What moves elements is done to both parts. A complex parameter is a value of pairs, as torch.view_as_real has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.frontends.aten import HANDLERS, Context, bind, packet
from planner.ops.base import Array

FIX = "write it with real and imaginary parts: torch.view_as_real"


@dataclass(frozen=True)
class Complex:
    """Each part a value or a constant; no imaginary part: a real number among complex ones."""

    re: Any
    im: Any = None


Handler = Callable[..., Any]
COMPLEX: dict[str, Handler] = {}
"""Operators whose parts depend on each other."""
PARTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *(
            "view",
            "reshape",
            "_unsafe_view",
            "view_copy",
            "flatten",
            "unflatten",
            "permute",
            "permute_copy",
            "transpose",
        ),
        *(
            "t",
            "unsqueeze",
            "squeeze",
            "expand",
            "repeat",
            "cat",
            "stack",
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
        ),
        *("select", "slice", "slice_scatter", "select_scatter", "index", "index_select", "index_put", "roll", "flip"),
        *(
            "constant_pad_nd",
            "copy",
            "clone",
            "contiguous",
            "alias",
            "lift_fresh_copy",
            "sum",
            "mean",
            "neg",
            "diagonal",
        ),
    )
) | {"stepplan.detach"}
"""Operators that do the same to both parts; what is real among their operands has no imaginary part."""


def of_complex(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        COMPLEX.update({f"aten.{name}": handler for name in names})
        return handler

    return add


def is_complex(context: Context, node: Any, arguments: Sequence[Any]) -> bool:
    """Whether the operator takes or makes complex numbers."""
    made = node.meta.get("val")
    results = made if isinstance(made, list | tuple) else [made]
    return any(isinstance(a, Complex) or _dtype(context, a) for a in (*_leaves(arguments), *results))


def _dtype(context: Context, x: Any) -> bool:
    return isinstance(x, context.torch.Tensor) and bool(x.dtype.is_complex)


def call(context: Context, node: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Lower one operator. SP1017: nobody knows it of complex numbers."""
    bound = bind(node.target, arguments, keywords)
    if not any(isinstance(a, str | Complex) for a in _leaves(bound)):
        with context.torch.no_grad():
            return node.target(*arguments, **keywords)
    context.node, name = node, packet(node.target)
    if name in COMPLEX:
        return COMPLEX[name](context, *bound)
    if name in PARTWISE:
        re, im = (_partwise(context, node.target, _of(context, bound, part)) for part in ("re", "im"))
        return [Complex(*pair) for pair in zip(re, im, strict=True)] if isinstance(re, list) else Complex(re, im)
    raise UserError("SP1017", f"node {node.name!r} ({name}) has complex numbers", FIX)


def _partwise(context: Context, target: Any, bound: list[Any]) -> Any:
    if any(isinstance(a, str) for a in _leaves(bound)):
        return HANDLERS[packet(target)](context, *bound)
    schema = target._schema.arguments
    named = {s.name: given for s, given in zip(schema, bound, strict=True) if s.kwarg_only}
    return target(*bound[: len(bound) - len(named)], **named)


def of_pairs(context: Context, pairs: str) -> Complex:
    """A value of pairs in its last dimension."""
    return Complex(*(context.select(pairs, context.rank(pairs) - 1, i) for i in (0, 1)))


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in _leaves(value)]
    return [values]


def _of(c: Context, argument: Any, part: str) -> Any:
    """An argument's real or imaginary parts; what is no tensor of numbers as it is."""
    if isinstance(argument, list | tuple):
        return [_of(c, a, part) for a in argument]
    whole = isinstance(argument, c.torch.Tensor) and not (argument.dtype.is_floating_point or argument.dtype.is_complex)
    if whole or not isinstance(argument, str | Complex | c.torch.Tensor):
        return argument
    z = parts(c, argument)
    return z.re if part == "re" else _filled(c, z)


def parts(c: Context, x: Any) -> Complex:
    if isinstance(x, Complex):
        return x
    if _dtype(c, x):
        return Complex(x.real.float().contiguous(), x.imag.float().contiguous())
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    return Complex(c.operand(x))


def _filled(c: Context, z: Complex) -> Any:
    return z.im if z.im is not None else c.torch.zeros(c.shape_of(z.re))


# -- arithmetic of parts, of which any may be a constant or missing --------------------------------------------
def _joined(c: Context, name: str, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return None if name == "mul" else b if a is None and name == "add" else _negative(c, b) if a is None else a
    if not isinstance(a, str) and not isinstance(b, str):
        return getattr(c.torch, name)(c.torch.as_tensor(a), c.torch.as_tensor(b))
    return HANDLERS[f"aten.{name}"](c, a, b)


def _negative(c: Context, a: Any) -> Any:
    return None if a is None else HANDLERS["aten.neg"](c, a) if isinstance(a, str) else -a


def _scaled(c: Context, z: Complex, factor: float) -> Complex:
    return z if factor == 1 else Complex(*(_joined(c, "mul", part, factor) for part in (z.re, z.im)))


@of_complex("add", "sub", "rsub")
def _add(c: Context, a: Any, b: Any, alpha: Any = 1) -> Complex:
    name = packet(c.node.target).removeprefix("aten.")
    one, other = (b, a) if name == "rsub" else (a, b)
    x, y = parts(c, one), _scaled(c, parts(c, other), alpha)
    join = "add" if name == "add" else "sub"
    return _whole(c, Complex(_joined(c, join, x.re, y.re), _joined(c, join, x.im, y.im)))


@of_complex("mul")
def _mul(c: Context, a: Any, b: Any) -> Complex:
    return _product(c, parts(c, a), parts(c, b))


def _product(c: Context, x: Complex, y: Complex) -> Complex:
    re = _joined(c, "sub", _joined(c, "mul", x.re, y.re), _joined(c, "mul", x.im, y.im))
    return _whole(c, Complex(re, _joined(c, "add", _joined(c, "mul", x.re, y.im), _joined(c, "mul", x.im, y.re))))


@of_complex("div")
def _div(c: Context, a: Any, b: Any) -> Complex:
    return _quotient(c, parts(c, a), parts(c, b))


def _quotient(c: Context, x: Complex, y: Complex) -> Complex:
    if y.im is None:
        found = (None if p is None else HANDLERS["aten.div"](c, p, y.re) for p in (x.re, x.im))
        return _whole(c, Complex(*found))
    over = _joined(c, "add", _joined(c, "mul", y.re, y.re), _joined(c, "mul", y.im, y.im))
    z = _product(c, x, Complex(y.re, _negative(c, y.im)))
    return Complex(*(HANDLERS["aten.div"](c, c.val(part), over) for part in (z.re, z.im)))


@of_complex("reciprocal")
def _reciprocal(c: Context, z: Any) -> Complex:
    return _quotient(c, Complex(1.0), parts(c, z))


@of_complex("mm", "bmm", "matmul")
def _matrix_product(c: Context, a: Any, b: Any) -> Complex:
    """(a + i b)(c + i d): rows (a, b) times columns (c, -b) and (d, a), in one product."""
    x, y = (_values(c, parts(c, v)) for v in (a, b))
    rows = c.concat([x.re, x.im], c.rank(x.re) - 1)
    inner = c.rank(y.re) - 2
    columns = [c.concat([y.re, c.op("neg", y.im)], inner), c.concat([y.im, y.re], inner)]
    return _halves(c, c.matmul(rows, c.concat(columns, inner + 1)))


def _whole(c: Context, z: Complex) -> Complex:
    return Complex(z.re, _filled(c, z))


def _values(c: Context, z: Complex) -> Complex:
    return Complex(c.val(z.re), c.val(_filled(c, z)))


def _halves(c: Context, joined: str) -> Complex:
    """Real parts first in the last dimension, then imaginary ones."""
    axis = c.rank(joined) - 1
    count = c.shape(joined)[axis] // 2
    return Complex(*c.split(joined, axis, (count, count)))


# -- between real and complex numbers --------------------------------------------------------------------------
@of_complex("complex")
def _complex(c: Context, re: Any, im: Any) -> Complex:
    return Complex(re, im)


@of_complex("view_as_complex")
def _view_as_complex(c: Context, pairs: str) -> Complex:
    return of_pairs(c, pairs)


@of_complex("view_as_real", "view_as_real_copy")
def _view_as_real(c: Context, z: Any) -> str:
    found = _values(c, parts(c, z))
    return c.stack([found.re, found.im], c.rank(found.re))


@of_complex("real")
def _real(c: Context, z: Any) -> Any:
    return parts(c, z).re


@of_complex("imag")
def _imag(c: Context, z: Any) -> Any:
    return _filled(c, parts(c, z))


@of_complex("_conj", "conj", "_conj_physical", "conj_physical", "resolve_conj", "resolve_neg")
def _conj(c: Context, z: Any) -> Complex:
    found = parts(c, z)
    return found if "resolve" in packet(c.node.target) else Complex(found.re, _negative(c, found.im))


@of_complex("abs")
def _abs(c: Context, z: Any) -> str:
    found = _values(c, parts(c, z))
    return c.root(c.op("add", c.op("square", found.re), c.op("square", found.im)))


@of_complex("angle")
def _angle(c: Context, z: Any) -> str:
    found = _values(c, parts(c, z))
    return str(HANDLERS["aten.atan2"](c, found.im, found.re))


@of_complex("polar")
def _polar(c: Context, size: Any, angle: Any) -> Complex:
    return _turned(c, size, c.val(angle))


def _turned(c: Context, size: Any, angle: str) -> Complex:
    return Complex(*(_joined(c, "mul", size, HANDLERS[f"aten.{name}"](c, angle)) for name in ("cos", "sin")))


@of_complex("exp")
def _exp(c: Context, z: Any) -> Complex:
    found = _values(c, parts(c, z))
    return _turned(c, c.op("exp", found.re), found.im)


@of_complex("_to_copy", "to")
def _to(c: Context, x: Any, *rest: Any) -> Any:
    """Of complex numbers that become real the imaginary parts are dropped."""
    wanted = c.node.meta["val"].dtype
    return _whole(c, parts(c, x)) if wanted.is_complex else parts(c, x).re


@of_complex("zeros_like", "new_zeros", "empty_like", "new_empty")
def _zeros(c: Context, *_: Any) -> Any:
    return c.torch.zeros(tuple(c.node.meta["val"].shape), dtype=c.torch.complex64)


@of_complex("ones_like", "new_ones")
def _ones(c: Context, *_: Any) -> Any:
    return c.torch.ones(tuple(c.node.meta["val"].shape), dtype=c.torch.complex64)


@of_complex("fill", "full_like")
def _full(c: Context, x: Any, value: Any, *_: Any) -> Any:
    if isinstance(value, str | Complex):
        z = _values(c, parts(c, value))
        return Complex(*(c.expand(part, tuple(c.node.meta["val"].shape)) for part in (z.re, z.im)))
    return _ones(c) * value


# -- Fourier transforms ----------------------------------------------------------------------------------------
@of_complex("_fft_r2c")
def _r2c(c: Context, x: Any, axes: list[int], norm: int, onesided: bool) -> Complex:
    z, shape = Complex(c.val(x)), c.shape_of(x)
    scales = _scales([shape[a] for a in axes], norm)
    for number, axis in enumerate(reversed(axes)):
        extent = shape[axis]
        kept = extent // 2 + 1 if onesided and number == 0 else extent
        z = _transformed(c, z, axis, _turns(extent, kept, -1) * scales[axes.index(axis)])
    return z


@of_complex("_fft_c2c")
def _c2c(c: Context, z: Any, axes: list[int], norm: int, forward: bool) -> Complex:
    found = _values(c, parts(c, z))
    extents = [c.shape(found.re)[a] for a in axes]
    for axis, extent, scale in zip(axes, extents, _scales(extents, norm), strict=True):
        found = _transformed(c, found, axis, _turns(extent, extent, -1 if forward else 1) * scale)
    return found


@of_complex("_fft_c2r")
def _c2r(c: Context, z: Any, axes: list[int], norm: int, extent: int) -> str:
    """All but the last axis first; along that half of the frequencies are given, which count twice unless they are
    their own opposites."""
    found = _values(c, parts(c, z))
    *others, last = axes
    extents = [*(c.shape(found.re)[a] for a in others), extent]
    *scales, scale = _scales(extents, norm)
    for axis, own, factor in zip(others, extents, scales, strict=False):
        found = _transformed(c, found, axis, _turns(own, own, 1) * factor)
    given = c.shape(found.re)[last]
    twice = np.array([1.0 if k == 0 or 2 * k == extent else 2.0 for k in range(given)])
    turns = _turns(extent, given, 1).T * twice[:, None] * scale
    joined = c.concat([_last(c, part, last) for part in (found.re, found.im)], c.rank(found.re) - 1)
    return _back(c, _by_matrix(c, joined, np.concatenate([turns.real, -turns.imag])), last)


def _scales(extents: Sequence[int], norm: int) -> list[float]:
    """Of every axis, from ATen's numbers of norms: none, by the root of the elements, by the elements."""
    return [{0: 1.0, 1: extent**-0.5, 2: 1 / extent}[norm] for extent in extents]


def _turns(extent: int, frequencies: int, sign: int) -> Any:
    """exp(sign 2 pi i j k / extent) for elements j and frequencies k; quarters of a turn are exact."""
    steps = np.outer(np.arange(extent), np.arange(frequencies)) % extent
    angles = 2 * np.pi * steps / extent
    found = np.cos(angles) + 1j * sign * np.sin(angles)
    return np.where(np.abs(found.real) < 1e-12, 0, found.real) + 1j * np.where(
        np.abs(found.imag) < 1e-12, 0, found.imag
    )


def _transformed(c: Context, z: Complex, axis: int, turns: Any) -> Complex:
    """Along an axis times a matrix [elements, frequencies]."""
    if z.im is None:
        joined = _by_matrix(c, _last(c, z.re, axis), np.concatenate([turns.real, turns.imag], 1))
    else:
        rows = c.concat([_last(c, part, axis) for part in (z.re, z.im)], c.rank(z.re) - 1)
        matrix = np.concatenate(
            [np.concatenate([turns.real, turns.imag], 1), np.concatenate([-turns.imag, turns.real], 1)]
        )
        joined = _by_matrix(c, rows, matrix)
    found = _halves(c, joined)
    return Complex(*(_back(c, part, axis) for part in (found.re, found.im)))


def _by_matrix(c: Context, x: str, matrix: Array) -> str:
    shape = c.shape(x)
    rows = c.reshape(x, (prod(shape[:-1]), shape[-1]))
    return c.reshape(c.matmul(rows, c.constant(np.asarray(matrix, np.float32))), (*shape[:-1], matrix.shape[1]))


def _last(c: Context, x: str, axis: int) -> str:
    axes = [a for a in range(c.rank(x)) if a != axis % c.rank(x)]
    return c.permute(x, [*axes, axis % c.rank(x)])


def _back(c: Context, x: str, axis: int) -> str:
    axes = list(range(c.rank(x) - 1))
    axes.insert(axis % c.rank(x), c.rank(x) - 1)
    return c.permute(x, axes)
