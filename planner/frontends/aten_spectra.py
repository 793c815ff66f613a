"""ATen's Fourier transforms, as products with their matrices; of long axes as the two transforms of a fast one.

Only the frequencies are computed that anybody reads: what follows a transform is looked at up to where it is more than
slices and rolls. Back, only those are read that may differ from zero: of parts that were written into zeros, these
parts. Of the few frequencies that Fourier neural operators keep that is less work than a fast transform of all.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.frontends.aten import Context, bind, packet
from planner.frontends.aten_complex import (
    SPARSE,
    Complex,
    Handler,
    Sparse,
    dense,
    halves,
    is_complex_tensor,
    neighbours,
    of_complex,
    parts,
    product,
    spread,
    values,
)
from planner.frontends.torch_writes import reads_contents
from planner.ops.base import Array

SHORT = 256
"""Up to so many frequencies of every element, on the average, are one product."""
LARGEST = 2**24
"""Elements of a matrix, of each part."""
Kept = dict[int, tuple[int, ...]]
"""Axis -> frequencies, in order; axes of which all are there are left out."""


def of_sparse(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        SPARSE.update({f"aten.{name}": handler for name in names})
        return handler

    return add


# -- transforms --------------------------------------------------------------------------------------------------
@of_complex("_fft_r2c")
def _r2c(c: Context, x: Any, axes: list[int], norm: int, onesided: bool) -> Complex | Sparse:
    """The last axis first, of which half the frequencies are there."""
    shape = c.shape_of(x)
    axes = [a % len(shape) for a in axes]
    scales = dict(zip(axes, _scales([shape[a] for a in axes], norm), strict=True))
    full = tuple(c.node.meta["val"].shape)
    kept, z = _read(c.node, full, axes), Complex(c.val(x))
    for axis in reversed(axes):
        whole = range(shape[axis])
        z = _transformed(c, z, axis, _Turns(shape[axis], whole, kept.get(axis, range(full[axis])), -1, scales[axis]))
    return sparse(z, kept, full)


@of_complex("_fft_c2c")
@of_sparse("_fft_c2c")
def _c2c(c: Context, given: Any, axes: list[int], norm: int, forward: bool) -> Complex | Sparse:
    z, there, shape = _taken(c, given)
    axes = [a % len(shape) for a in axes]
    kept = _read(c.node, shape, axes)
    for axis, scale in zip(axes, _scales([shape[a] for a in axes], norm), strict=True):
        whole = range(shape[axis])
        turns = _Turns(len(whole), there.pop(axis, whole), kept.get(axis, whole), -1 if forward else 1, scale)
        z = _transformed(c, z, axis, turns)
    return sparse(z, {**there, **kept}, shape)


@of_complex("_fft_c2r")
@of_sparse("_fft_c2r")
def _c2r(c: Context, given: Any, axes: list[int], norm: int, extent: int) -> str:
    """All but the last axis first; along that half of the frequencies are given, which count twice unless they are
    their own opposites."""
    z, there, shape = _taken(c, given)
    *others, last = (a % len(shape) for a in axes)
    *scales, scale = _scales([*(shape[a] for a in others), extent], norm)
    for axis, factor in zip(others, scales, strict=True):
        whole = range(shape[axis])
        z = _transformed(c, z, axis, _Turns(len(whole), there.pop(axis, whole), whole, 1, factor))
    frequencies = there.pop(last, range(shape[last]))
    twice = np.array([1.0 if k == 0 or 2 * k == extent else 2.0 for k in frequencies])
    turns = _Turns(extent, frequencies, range(extent), 1, scale)
    if turns.is_short:
        matrix = turns.matrix * twice[:, None]
        joined = c.concat([_last(c, part, last) for part in (z.re, z.im)], c.rank(z.re) - 1)
        y = _back(c, _by_matrix(c, joined, np.concatenate([matrix.real, -matrix.imag])), last)
    else:
        weights = c.torch.tensor(twice, dtype=c.torch.float32).reshape(-1, *[1] * (len(shape) - 1 - last))
        weighted = Complex(*(c.op("mul", part, c.val(weights)) for part in (z.re, z.im)))
        y = _transformed(c, weighted, last, turns).re
    for axis, places in there.items():  # that are not transformed
        y = spread(c, y, axis, places, shape[axis])
    return y


def _taken(c: Context, given: Any) -> tuple[Complex, Kept, tuple[int, ...]]:
    """Both parts as values, the frequencies that are there, the shape of all."""
    if isinstance(given, Sparse):
        return values(c, given.z), dict(given.kept), given.shape
    z = values(c, parts(c, given))
    return z, {}, c.shape(z.re)


def _scales(extents: Sequence[int], norm: int) -> list[float]:
    """Of every axis, from ATen's numbers of norms: none, by the root of the elements, by the elements."""
    return [{0: 1.0, 1: extent**-0.5, 2: 1 / extent}[norm] for extent in extents]


class _Turns(NamedTuple):
    """exp(sign 2 pi i j k / extent), scaled, for some elements j and frequencies k."""

    extent: int
    elements: Sequence[int]
    frequencies: Sequence[int]
    sign: int
    scale: float = 1.0

    @property
    def matrix(self) -> Any:
        """[elements, frequencies]; quarters of a turn are exact."""
        steps = np.outer(np.array(self.elements), np.array(self.frequencies)) % self.extent
        angles = 2 * np.pi * steps / self.extent
        re, im = np.cos(angles), self.sign * np.sin(angles)
        return self.scale * (np.where(np.abs(re) < 1e-12, 0, re) + 1j * np.where(np.abs(im) < 1e-12, 0, im))

    @property
    def is_short(self) -> bool:
        """Whether one product does. SP1002: it would, of a matrix that is too large."""
        small = len(self.elements) * len(self.frequencies) <= SHORT * self.extent or _divisor(self.extent) == 1
        if small and len(self.elements) * len(self.frequencies) > LARGEST:
            what = f"a Fourier transform of {self.extent} elements, which is no product of smaller numbers"
            raise UserError("SP1002", what, "pad it to another length: torch.fft.rfft(x, n=...)")
        return small


def _divisor(extent: int) -> int:
    """The largest one up to its root."""
    return next(n for n in range(isqrt(extent), 0, -1) if extent % n == 0)


def _transformed(c: Context, z: Complex, axis: int, turns: _Turns) -> Complex:
    if not turns.is_short:
        return _in_two(c, z, axis, turns)
    matrix = turns.matrix
    re_im = np.concatenate([matrix.real, matrix.imag], 1)
    if z.im is None:
        joined = _by_matrix(c, _last(c, z.re, axis), re_im)
    else:
        rows = c.concat([_last(c, part, axis) for part in (z.re, z.im)], c.rank(z.re) - 1)
        joined = _by_matrix(c, rows, np.concatenate([re_im, np.concatenate([-matrix.imag, matrix.real], 1)]))
    found = halves(c, joined)
    return Complex(*(_back(c, part, axis) for part in (found.re, found.im)))


def _in_two(c: Context, z: Complex, axis: int, turns: _Turns) -> Complex:
    """Cooley and Tukey: of elements b j + l and frequencies k + a m transforms over j, turns by k l, then over l."""
    extent, sign, rank = turns.extent, turns.sign, c.rank(z.re)
    a = _divisor(extent)
    b = extent // a
    if len(turns.elements) < extent:
        z = _among(c, z, axis, tuple(turns.elements), tuple(range(extent)))

    def both(change: Callable[[str], str]) -> Complex:
        return Complex(change(z.re), None if z.im is None else change(z.im))

    z = both(lambda part: _last(c, part, axis))
    lead = c.shape(z.re)[:-1]
    z = both(lambda part: c.reshape(part, (*lead, a, b)))
    z = _transformed(c, z, rank - 1, _Turns(a, range(a), range(a), sign))
    between = _Turns(extent, range(a), range(b), sign, turns.scale).matrix
    z = product(c, z, Complex(*(c.torch.tensor(p, dtype=c.torch.float32) for p in (between.real, between.imag))))
    z = _transformed(c, z, rank, _Turns(b, range(b), range(b), sign))
    z = both(lambda part: _back(c, c.reshape(c.transpose(part, -1, -2), (*lead, extent)), axis))
    return _picked(c, z, axis, list(turns.frequencies))


def _by_matrix(c: Context, x: str, matrix: Array) -> str:
    shape = c.shape(x)
    rows = c.reshape(x, (prod(shape[:-1]), shape[-1]))
    y = c.matmul(rows, c.constant(np.asarray(matrix, np.float32)), exact=True)
    return c.reshape(y, (*shape[:-1], matrix.shape[1]))


def _last(c: Context, x: str, axis: int) -> str:
    return c.permute(x, [*(a for a in range(c.rank(x)) if a != axis), axis])


def _back(c: Context, x: str, axis: int) -> str:
    axes = list(range(c.rank(x) - 1))
    axes.insert(axis, c.rank(x) - 1)
    return c.permute(x, axes)


# -- what is read of a spectrum ------------------------------------------------------------------------------------
def _read(node: Any, shape: tuple[int, ...], axes: Sequence[int]) -> Kept:
    """Of each axis the frequencies that anybody reads of what the node makes, where these are not all."""
    wanted: dict[int, set[int]] = {axis: set() for axis in axes}

    def follow(made: Any, seen: dict[int, Any]) -> None:
        for user in made.users:
            name = packet(user.target)
            moved = name == "aten.slice" or (name == "aten.roll" and bind(user.target, user.args, user.kwargs)[2])
            if moved and user.all_input_nodes == [made]:
                follow(user, _seen(user, seen, len(shape)))
            elif reads_contents(user):
                for axis in axes:
                    wanted[axis].update(seen[axis].tolist())

    follow(node, {axis: np.arange(extent) for axis, extent in enumerate(shape)})
    return {axis: tuple(sorted(w)) for axis, w in wanted.items() if 0 < len(w) < shape[axis]}


def _seen(user: Any, seen: dict[int, Any], rank: int) -> dict[int, Any]:
    """Which elements lie where behind a slice or a roll."""
    if packet(user.target) == "aten.slice":
        _, axis, start, stop, step = bind(user.target, user.args, user.kwargs)
        return {**seen, axis % rank: seen[axis % rank][slice(start, stop, step)]}
    _, shifts, dims = bind(user.target, user.args, user.kwargs)
    found = dict(seen)
    for shift, axis in zip(shifts, dims, strict=True):
        found[axis % rank] = np.roll(found[axis % rank], shift)
    return found


# -- sparse spectra ------------------------------------------------------------------------------------------------
def sparse(z: Complex, kept: Mapping[int, tuple[int, ...]], shape: tuple[int, ...]) -> Complex | Sparse:
    found = {axis: places for axis, places in kept.items() if len(places) < shape[axis]}
    return Sparse(z, found, shape) if found else z


def _zero(c: Context, x: Any) -> bool:
    return is_complex_tensor(c, x) and not bool(x.any())


@of_sparse("slice")
def _slice(c: Context, x: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Any:
    if not isinstance(x, Sparse):
        return None
    axis %= len(x.shape)
    asked = range(x.shape[axis])[slice(start, stop, step)]
    shape = (*x.shape[:axis], len(asked), *x.shape[axis + 1 :])
    if axis not in x.kept:
        z = Complex(*(c.slice(part, axis, asked.start, asked.stop, asked.step) for part in (x.z.re, x.z.im)))
        return sparse(z, x.kept, shape)
    there = [i for i, place in enumerate(x.kept[axis]) if place in asked]
    if not there:
        return c.torch.zeros(shape, dtype=c.torch.complex64)
    places = tuple(asked.index(x.kept[axis][i]) for i in there)
    return sparse(_picked(c, x.z, axis, there), {**x.kept, axis: places}, shape)


@of_sparse("roll")
def _roll(c: Context, x: Any, shifts: list[int], axes: list[int]) -> Any:
    if not isinstance(x, Sparse) or not axes:
        return None
    z, kept = x.z, dict(x.kept)
    for shift, axis in zip(shifts, (a % len(x.shape) for a in axes), strict=True):
        extent = x.shape[axis]
        places = [(place + shift) % extent for place in kept.get(axis, range(extent))]
        order = sorted(range(len(places)), key=places.__getitem__)
        z = _picked(c, z, axis, order)
        kept[axis] = tuple(sorted(places))
    return sparse(z, kept, x.shape)


@of_sparse("copy")
def _copy(c: Context, x: Any, source: Any, *_: Any) -> Any:
    same = isinstance(source, Sparse) and tuple(c.node.meta["val"].shape) == source.shape
    return source if same else None


@of_sparse("slice_scatter")
def _slice_scatter(
    c: Context, x: Any, source: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Any:
    """Something in the place of zeros, or of some frequencies beside others."""
    shape = tuple(c.node.meta["val"].shape)
    axis %= len(shape)
    over = range(shape[axis])[slice(start, stop, step)]
    if over.step != 1 or not over or not (_zero(c, x) or isinstance(x, Sparse)) or _zero(c, source):
        return None
    z, there, _ = _taken(c, source)
    own = tuple(over[i] for i in there.pop(axis, range(len(over))))
    if not isinstance(x, Sparse):
        return sparse(z, {**there, axis: own}, shape)
    before, others = x.z, {a: places for a, places in x.kept.items() if a != axis}
    for a in {*others, *there}:
        ours, theirs = (k.get(a, tuple(range(shape[a]))) for k in (others, there))
        others[a] = tuple(sorted({*ours, *theirs}))
        before, z = _among(c, before, a, ours, others[a]), _among(c, z, a, theirs, others[a])
    places = x.kept.get(axis, tuple(range(shape[axis])))
    low, high = ([i for i, p in enumerate(places) if (p < over.start, p >= over.stop)[side]] for side in (0, 1))
    joined = [(_picked(c, before, axis, low), low), (z, own), (_picked(c, before, axis, high), high)]
    found = [part for part, there_are in joined if there_are]
    whole = Complex(c.concat([p.re for p in found], axis), c.concat([p.im for p in found], axis))
    return sparse(whole, {**others, axis: (*(places[i] for i in low), *own, *(places[i] for i in high))}, shape)


def _among(c: Context, z: Complex, axis: int, places: tuple[int, ...], more: tuple[int, ...]) -> Complex:
    """What lies at some places of an axis, at more of them, with zeros."""
    found: Complex = dense(c, sparse(z, {axis: tuple(more.index(p) for p in places)}, (0,) * axis + (len(more),)))
    return found


def _picked(c: Context, z: Complex, axis: int, places: Sequence[int]) -> Complex:
    """Elements of both parts along an axis, in runs of neighbours."""
    if not places:
        return z

    def of(x: str) -> str:
        return c.concat([c.slice(x, axis, first, last) for first, last in neighbours(places)], axis)

    return Complex(of(z.re), of(z.im))
