"""ATen's interpolation: upsample_*, of images and of sequences, which are images of one row."""

from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.ops.interpolate import InterpolateAttrs


def _resized(c: Context, x: str, size: Any, factors: Any, method: str, corners: bool) -> str:
    """size: the result's, or None where the factors say it. factors: PyTorch's scale factors, where given; None in
    their place: what the sizes say."""
    shape = c.shape(x)
    extents = shape[2:]
    factors = list(factors) if factors is not None else [None] * len(extents)
    out = [int(s) for s in size] if size else [int(e * f) for e, f in zip(extents, factors, strict=True)]
    scales = []
    for extent, length, factor in zip(extents, out, factors, strict=True):
        if corners:
            scales.append((extent - 1) / (length - 1) if length > 1 else 0.0)
        else:
            scales.append(1 / float(factor) if factor else extent / length)
    whole = [length // extent for extent, length in zip(extents, out, strict=True)]
    exact = all(s == 1 / f for s, f in zip(scales, whole, strict=True) if f) and all(whole)
    if method == "nearest" and exact and all(e * f == o for e, f, o in zip(extents, whole, out, strict=True)):
        return _repeated(c, x, whole)
    flat = len(extents) == 1
    image = c.unsqueeze(x, 2) if flat else x
    attrs = InterpolateAttrs.model_validate(
        {
            "size": (1, *out) if flat else tuple(out),
            "method": method,
            "scales": (1.0, *scales) if flat else tuple(scales),
            "corners": corners,
        }
    )
    y = c.op("interpolate", image, attrs=attrs)
    return c.squeeze(y, [2]) if flat else y


def _repeated(c: Context, x: str, factors: list[int]) -> str:
    """Nearest neighbours by whole factors: a copy that repeats rows and columns."""
    lead, extents = c.shape(x)[:2], c.shape(x)[2:]
    apart = c.reshape(x, (*lead, *(d for e in extents for d in (e, 1))))
    spread = c.expand(apart, (*lead, *(d for e, f in zip(extents, factors, strict=True) for d in (e, f))))
    return c.reshape(spread, (*lead, *(e * f for e, f in zip(extents, factors, strict=True))))


def _plain(method: str) -> Any:
    def handler(c: Context, x: str, size: Any, *factors: Any) -> str:
        """Overloads: (size, scales_h, scales_w) and vec's (size, scale_factors)."""
        return _resized(c, x, size, _factors(c, x, factors), method, False)

    return handler


def _smooth(method: str) -> Any:
    def handler(c: Context, x: str, size: Any, corners: bool, *factors: Any) -> str:
        return _resized(c, x, size, _factors(c, x, factors), method, bool(corners))

    return handler


def _factors(c: Context, x: str, given: tuple[Any, ...]) -> Any:
    require(c.rank(x) in (3, 4), "three dimensions")
    if len(given) == 1 and (given[0] is None or isinstance(given[0], list | tuple)):
        return given[0]
    return list(given)


lowers("upsample_nearest1d", "upsample_nearest2d")(_plain("nearest"))
lowers("_upsample_nearest_exact1d", "_upsample_nearest_exact2d")(_plain("nearest_exact"))
lowers("upsample_linear1d", "upsample_bilinear2d")(_smooth("linear"))
lowers("upsample_bicubic2d")(_smooth("cubic"))
