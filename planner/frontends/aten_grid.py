"""ATen's sampling of images and volumes at places that are computed: grid_sample.

Along every axis a place has some taps, elements with a weight each. A result is the sum over all their combinations,
each of which is a row of channels, read where it lies.
"""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any, NamedTuple

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_elementwise import floor
from planner.frontends.aten_picks import read

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_CURVE = -0.75
"""The cubic's parameter, PyTorch's."""


class _Tap(NamedTuple):
    at: str
    """A whole number in float32, perhaps outside."""
    weight: str


@lowers("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid_sampler(c: Context, x: Any, grid: Any, mode: int, padding: int, aligned: bool) -> str:
    """x: (N, C, H, W) or (N, C, D, H, W); grid: (N, ..., axes), from -1 to 1, the last axis first."""
    x, grid = c.val(x), c.val(grid)
    batch, channels, *extents = c.shape(x)
    axes = len(extents)
    require(mode in (_BILINEAR, _NEAREST) or axes == 2, "a cubic of volumes")
    taps = []
    for axis, extent in enumerate(extents):
        place = _unscaled(c, c.select(grid, -1, axes - 1 - axis), extent, aligned)

        def bounded(p: str, extent: int = extent) -> str:
            return _bounded(c, p, extent, padding, aligned)

        taps.append(_cubic_taps(c, place, bounded) if mode == _BICUBIC else _taps(c, bounded(place), mode))
    table = c.reshape(c.permute(x, (0, *range(2, axes + 2), 1)), (batch * prod(extents), channels))
    first = c.torch.arange(batch).reshape(-1, *([1] * axes))
    parts = []
    for corner in product(*taps):
        flat: Any = first
        weight = None
        for tap, extent in zip(corner, extents, strict=True):
            flat = c.whole_of("add", c.whole_of("mul", flat, c.torch.tensor(extent)), _inside(c, tap.at, extent))
            own = c.op("mul", tap.weight, _exists(c, tap.at, extent))
            weight = own if weight is None else c.op("mul", weight, own)
        assert weight is not None
        parts.append(c.op("mul", read(c, table, flat, (channels,)), c.unsqueeze(weight, axes + 1)))
    y = parts[0]
    for part in parts[1:]:
        y = c.op("add", y, part)
    return c.permute(y, (0, axes + 1, *range(1, axes + 1)))


def _unscaled(c: Context, place: str, extent: int, aligned: bool) -> str:
    """From -1 to 1 to elements: `aligned`: those are the centres of the outer elements, else their outer edges."""
    if aligned:
        return c.scale(c.shift(place, 1), (extent - 1) / 2)
    return c.shift(c.scale(c.shift(place, 1), extent / 2), -0.5)


def _bounded(c: Context, place: str, extent: int, padding: int, aligned: bool) -> str:
    """Into the image, from its border or mirrored there; with zeros outside as it is."""
    if padding == _REFLECTION:
        low, span = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
        if span == 0:
            return c.scale(place, 0)
        away = c.scale(c.op("abs", c.shift(place, -low)), 1 / span)
        turns = floor(c, away)
        odd = c.op("sub", turns, c.scale(floor(c, c.scale(turns, 0.5)), 2))
        rest = c.op("sub", away, turns)
        back = c.where(odd, c.shift(c.op("neg", rest), 1), rest)
        place = c.shift(c.scale(back, span), low)
    return place if padding == _ZEROS else c.clamp(place, 0, extent - 1)


def _taps(c: Context, place: str, mode: int) -> list[_Tap]:
    if mode == _NEAREST:
        return [_Tap(c.op("round", place), c.fill((), 1.0))]
    low = floor(c, place)
    rest = c.op("sub", place, low)
    return [_Tap(low, c.shift(c.op("neg", rest), 1)), _Tap(c.shift(low, 1), rest)]


def _cubic_taps(c: Context, place: str, bounded: Callable[[str], str]) -> list[_Tap]:
    """Four neighbours, each of which is brought into the image by itself."""
    low = floor(c, place)
    rest = c.op("sub", place, low)
    far = c.shift(c.op("neg", rest), 1)
    weights = (_outer(c, c.shift(rest, 1)), _inner(c, rest), _inner(c, far), _outer(c, c.shift(far, 1)))
    return [_Tap(c.op("round", bounded(c.shift(low, i - 1))), w) for i, w in enumerate(weights)]


def _inner(c: Context, t: str) -> str:
    """The cubic within 1 of its centre: (a + 2) t^3 - (a + 3) t^2 + 1."""
    square = c.op("square", t)
    return c.shift(c.op("mul", c.shift(c.scale(t, _CURVE + 2), -(_CURVE + 3)), square), 1)


def _outer(c: Context, t: str) -> str:
    """From 1 to 2: a t^3 - 5 a t^2 + 8 a t - 4 a."""
    y = c.shift(c.scale(t, _CURVE), -5 * _CURVE)
    y = c.shift(c.op("mul", y, t), 8 * _CURVE)
    return c.shift(c.op("mul", y, t), -4 * _CURVE)


def _inside(c: Context, index: str, extent: int) -> str:
    return c.to_whole(c.clamp(c.op("detach", index), 0, extent - 1) if extent > 1 else c.scale(index, 0))


def _exists(c: Context, index: str, extent: int) -> str:
    return c.op("mul", c.compare("ge", index, 0), c.compare("le", index, extent - 1))
