"""ATen's complex numbers, as two values, of real and of imaginary parts.

What moves elements is done to both parts. A complex parameter is a value of pairs, as torch.view_as_real has it.
Fourier transforms are in aten_spectra.py, layers and further functions in aten_complex_functions.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import HANDLERS, Context, bind, packet

FIX = "write it with real and imaginary parts: torch.view_as_real"


@dataclass(frozen=True)
class Complex:
    """Each part a value or a constant; no imaginary part: a real number among complex ones. Parts may be smaller than
    the whole, whose shape is what both are broadcast to: `x + 1j` has one imaginary part for all of x. Arithmetic of
    elements leaves them so; whatever asks for shapes makes them equal first (`level`)."""

    re: Any
    im: Any = None


@dataclass(frozen=True)
class Sparse:
    """A spectrum of which some frequencies are there, per axis those that `kept` lists in their order; elsewhere it is
    zero, or nobody asks. `shape`: of all of it."""

    z: Complex
    kept: Mapping[int, tuple[int, ...]]
    shape: tuple[int, ...]


Handler = Callable[..., Any]
SPARSE: dict[str, Handler] = {}
"""Operators that know sparse spectra (aten_spectra.py); they return None where they do not."""
COMPLEX: dict[str, Handler] = {}
"""Operators whose parts depend on each other."""
_MOVES = [
    "view", "reshape", "_unsafe_view", "view_copy", "flatten", "unflatten", "permute", "permute_copy", "transpose",
    "t", "unsqueeze", "squeeze", "expand", "repeat", "cat", "stack", "split", "split_with_sizes", "chunk", "unbind",
    "select", "slice", "slice_scatter", "select_scatter", "index", "index_select", "index_put", "roll", "flip",
    "constant_pad_nd", "copy", "clone", "contiguous", "alias", "lift_fresh_copy", "diagonal", "neg", "sum", "mean",
    "gather", "scatter", "scatter_add", "index_add", "where", "masked_fill", "cumsum", "repeat_interleave",
]  # fmt: skip
PARTWISE = frozenset({"stepplan.detach", *(f"aten.{name}" for name in _MOVES)})
"""Operators that do the same to both parts; what is real among their operands has no imaginary part."""
_PLACES = frozenset({"index", "indices", "mask", "condition", "repeats"})
"""Arguments of those that say where and are no numbers themselves."""


def of_complex(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        COMPLEX.update({f"aten.{name}": handler for name in names})
        return handler

    return add


def is_complex(context: Context, node: Any, arguments: Sequence[Any]) -> bool:
    """Whether the operator takes or makes complex numbers."""
    made = node.meta.get("val")
    results = made if isinstance(made, list | tuple) else [made]
    return any(
        isinstance(a, Complex | Sparse) or is_complex_tensor(context, a) for a in (*_leaves(arguments), *results)
    )


def is_complex_tensor(context: Context, x: Any) -> bool:
    return isinstance(x, context.torch.Tensor) and bool(x.dtype.is_complex)


def call(context: Context, node: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Lower one operator. SP1017: nobody knows it of complex numbers."""
    bound = bind(node.target, arguments, keywords)
    if not any(isinstance(a, str | Complex | Sparse) for a in _leaves(bound)):
        with context.torch.no_grad():
            return node.target(*arguments, **keywords)
    context.node, name = node, packet(node.target)
    found = SPARSE[name](context, *bound) if name in SPARSE else None
    if found is not None:
        return found
    bound = dense(context, bound)
    if name in COMPLEX:
        return COMPLEX[name](context, *bound)
    if name in PARTWISE:
        bound = _levelled(context, bound)
        re, im = (_partwise(context, node.target, _all_of(context, bound, part)) for part in ("re", "im"))
        return [Complex(*pair) for pair in zip(re, im, strict=True)] if isinstance(re, list) else Complex(re, im)
    raise UserError("SP1017", f"node {node.name!r} ({name}) has complex numbers", FIX)


def dense(c: Context, argument: Any) -> Any:
    """With zeros where a sparse spectrum has nothing."""
    if isinstance(argument, list | tuple):
        return [dense(c, a) for a in argument]
    if not isinstance(argument, Sparse):
        return argument
    z = argument.z
    for axis, kept in argument.kept.items():
        z = Complex(*(spread(c, c.val(part), axis, kept, argument.shape[axis]) for part in (z.re, z.im)))
    return z


def spread(c: Context, x: str, axis: int, places: Sequence[int], extent: int) -> str:
    """The elements at their places along an axis, in runs of neighbours, and zeros between."""
    runs, at = list[str](), 0
    for first, last in neighbours(places):
        runs += [_zeros_between(c, x, axis, first - at)] if first > at else []
        begin = places.index(first)
        runs.append(c.slice(x, axis, begin, begin + last - first))
        at = last
    runs += [_zeros_between(c, x, axis, extent - at)] if extent > at else []
    return c.concat(runs, axis)


def _zeros_between(c: Context, x: str, axis: int, count: int) -> str:
    shape = list(c.shape(x))
    shape[axis] = count
    return c.fill(tuple(shape), 0.0)


def neighbours(places: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of whole numbers one behind the other, in order: (first, behind the last)."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


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


def _levelled(c: Context, argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_levelled(c, a) for a in argument]
    return level(c, argument) if isinstance(argument, Complex) else argument


def _all_of(c: Context, bound: list[Any], part: str) -> list[Any]:
    """The operator's arguments for one part."""
    found = []
    for schema, argument in zip(c.node.target._schema.arguments, bound, strict=True):
        if isinstance(argument, int | float | complex) and str(schema.type) in ("number", "Optional[number]"):
            found.append(complex(argument).real if part == "re" else complex(argument).imag)
        else:
            found.append(argument if schema.name in _PLACES else _of(c, argument, part))
    return found


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
    if is_complex_tensor(c, x):
        return Complex(x.real.float().contiguous(), x.imag.float().contiguous())
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    return Complex(c.operand(x))


def _filled(c: Context, z: Complex) -> Any:
    return z.im if z.im is not None else c.torch.zeros(c.shape_of(z.re))


def level(c: Context, z: Complex) -> Complex:
    """Both parts in the shape of the whole."""
    shape = tuple(c.torch.broadcast_shapes(c.shape_of(z.re), () if z.im is None else c.shape_of(z.im)))
    return Complex(*(_expanded(c, part, shape) for part in (z.re, _filled(c, z))))


def _expanded(c: Context, part: Any, shape: tuple[int, ...]) -> Any:
    return c.expand(part, shape) if isinstance(part, str) else c.torch.as_tensor(part).expand(shape).contiguous()


# -- arithmetic of parts, of which any may be a constant or missing --------------------------------------------
def _joined(c: Context, name: str, a: Any, b: Any) -> Any:
    if name == "mul" and (a is None or b is None):
        return None
    if b is None:
        return a
    if a is None:
        return b if name == "add" else _negative(c, b)
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
    if name == "add":
        return total(c, x, y)
    return _whole(c, Complex(_joined(c, "sub", x.re, y.re), _joined(c, "sub", x.im, y.im)))


def total(c: Context, x: Complex, y: Complex) -> Complex:
    return _whole(c, Complex(_joined(c, "add", x.re, y.re), _joined(c, "add", x.im, y.im)))


@of_complex("mul")
def _mul(c: Context, a: Any, b: Any) -> Complex:
    return product(c, parts(c, a), parts(c, b))


def product(c: Context, x: Complex, y: Complex) -> Complex:
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
    z = product(c, x, Complex(y.re, _negative(c, y.im)))
    return Complex(*(HANDLERS["aten.div"](c, c.val(part), over) for part in (z.re, z.im)))


@of_complex("addcmul", "addcdiv")
def _add_product(c: Context, x: Any, a: Any, b: Any, value: Any = 1) -> Complex:
    join = product if packet(c.node.target) == "aten.addcmul" else _quotient
    return total(c, parts(c, x), _scaled(c, join(c, parts(c, a), parts(c, b)), value))


@of_complex("reciprocal")
def _reciprocal(c: Context, z: Any) -> Complex:
    return _quotient(c, Complex(1.0), parts(c, z))


@of_complex("mm", "bmm", "matmul")
def _matrix_product(c: Context, a: Any, b: Any) -> Complex:
    """(a + i b)(c + i d): rows (a, b) times columns (c, -d) and (d, c), in one product."""
    x, y = (values(c, parts(c, v)) for v in (a, b))
    if c.rank(x.re) == 1 or c.rank(y.re) == 1:
        return _with_vector(c, x, y)
    rows = c.concat([x.re, x.im], c.rank(x.re) - 1)
    inner = c.rank(y.re) - 2
    columns = [c.concat([y.re, c.op("neg", y.im)], inner), c.concat([y.im, y.re], inner)]
    return halves(c, c.matmul(rows, c.concat(columns, inner + 1), exact=True))


def _with_vector(c: Context, x: Complex, y: Complex) -> Complex:
    """As matmul has it: a row in front of a matrix, a column behind one."""
    row, column = c.rank(x.re) == 1, c.rank(y.re) == 1
    x = Complex(*(c.unsqueeze(part, 0) for part in (x.re, x.im))) if row else x
    y = Complex(*(c.unsqueeze(part, 1) for part in (y.re, y.im))) if column else y
    gone = [-2] * row + [-1] * column
    found = _matrix_product(c, x, y)
    return Complex(*(c.squeeze(part, gone) for part in (found.re, found.im)))


def _whole(c: Context, z: Complex) -> Complex:
    return Complex(z.re, _filled(c, z))


def values(c: Context, z: Complex) -> Complex:
    """Both parts as values, in the shape of the whole."""
    found = level(c, z)
    return Complex(c.val(found.re), c.val(found.im))


def operands(c: Context, z: Any) -> Complex:
    """Both parts as values that element-wise functions broadcast."""
    found = parts(c, z)
    return Complex(c.val(found.re), c.val(_filled(c, found)))


def halves(c: Context, joined: str) -> Complex:
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
    found = values(c, parts(c, z))
    return c.stack([found.re, found.im], c.rank(found.re))


@of_complex("real")
def _real(c: Context, z: Any) -> Any:
    return level(c, parts(c, z)).re


@of_complex("imag")
def _imag(c: Context, z: Any) -> Any:
    return level(c, parts(c, z)).im


@of_complex("_conj", "conj", "_conj_physical", "conj_physical", "resolve_conj", "resolve_neg")
def _conj(c: Context, z: Any) -> Complex:
    found = parts(c, z)
    return found if "resolve" in packet(c.node.target) else Complex(found.re, _negative(c, found.im))


@of_complex("abs")
def _abs(c: Context, z: Any) -> str:
    found = operands(c, z)
    return c.root(c.op("add", c.op("square", found.re), c.op("square", found.im)))


@of_complex("linalg_vector_norm")
def _vector_norm(c: Context, z: Any, *rest: Any) -> str:
    return str(HANDLERS["aten.linalg_vector_norm"](c, _abs(c, z), *rest))


@of_complex("angle")
def _angle(c: Context, z: Any) -> str:
    found = operands(c, z)
    return str(HANDLERS["aten.atan2"](c, found.im, found.re))


@of_complex("polar")
def _polar(c: Context, size: Any, angle: Any) -> Complex:
    return turned(c, size, c.val(angle))


def turned(c: Context, size: Any, angle: str) -> Complex:
    return Complex(*(_joined(c, "mul", size, HANDLERS[f"aten.{name}"](c, angle)) for name in ("cos", "sin")))


@of_complex("_to_copy", "to")
def _to(c: Context, x: Any, *rest: Any) -> Any:
    """Of complex numbers that become real the imaginary parts are dropped."""
    wanted = c.node.meta["val"].dtype
    return _whole(c, parts(c, x)) if wanted.is_complex else level(c, parts(c, x)).re


@of_complex("zeros_like", "new_zeros", "empty_like", "new_empty")
def _zeros(c: Context, *_: Any) -> Any:
    return c.torch.zeros(tuple(c.node.meta["val"].shape), dtype=c.torch.complex64)


@of_complex("ones_like", "new_ones")
def _ones(c: Context, *_: Any) -> Any:
    return c.torch.ones(tuple(c.node.meta["val"].shape), dtype=c.torch.complex64)


@of_complex("fill", "full_like")
def _full(c: Context, x: Any, value: Any, *_: Any) -> Any:
    if isinstance(value, str | Complex):
        z = values(c, parts(c, value))
        return Complex(*(c.expand(part, tuple(c.node.meta["val"].shape)) for part in (z.re, z.im)))
    return _ones(c) * value
