"""ATen's interpolation: upsample_*, of images, of sequences, which are images of one row, and of volumes, dimension by
dimension. With antialiasing it is a product with a matrix per dimension."""

from typing import Any

from planner.frontends.aten import Context, lowers
from planner.frontends.aten_layers import transpose_images
from planner.frontends.volumes import images_of, pixels_of, volume_of
from planner.ops.interpolate import InterpolateAttrs


def _resized(
    c: Context, x: str, size: Any, factors: Any, method: str, corners: bool, whole: tuple[int, ...] = ()
) -> str:
    """size: the result's, or None where the factors say it. factors: PyTorch's scale factors, where given; None in
    their place: what the sizes say, as it is where the result has one of `whole` times the extent."""
    extents = c.shape(x)[2:]
    if len(extents) == 3:
        return _volume(c, x, size, factors, method, corners, whole)
    factors = list(factors) if factors is not None else [None] * len(extents)
    out = [int(s) for s in size] if size else [int(e * f) for e, f in zip(extents, factors, strict=True)]
    scales = []
    for extent, length, factor in zip(extents, out, factors, strict=True):
        if corners:
            scales.append((extent - 1) / (length - 1) if length > 1 else 0.0)
        elif not factor or any(length == times * extent for times in whole):
            scales.append(extent / length)
        else:
            scales.append(1 / float(factor))
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


def _volume(c: Context, x: str, size: Any, factors: Any, method: str, corners: bool, whole: tuple[int, ...]) -> str:
    """The images of all depths, then depths against pixels."""
    n, channels, *extents = c.shape(x)
    factors = list(factors) if factors is not None else [None] * 3
    size = size or [int(e * f) for e, f in zip(extents, factors, strict=True)]
    y = _resized(c, images_of(c, pixels_of(c, x)), size[1:], factors[1:], method, corners, whole)
    y = volume_of(c, y, n)
    pixels = size[1] * size[2]
    y = c.reshape(y, (n, channels, extents[0], pixels))
    y = _resized(c, y, [size[0], pixels], [factors[0], None], method, corners, whole)
    return c.reshape(y, (n, channels, *size))


def _antialiased(method: str) -> Any:
    def handler(c: Context, x: str, size: Any, corners: bool, *factors: Any) -> str:
        """The matrices are PyTorch's results for rows of ones and zeros."""
        height, width = c.shape(x)[2:]
        given = _factors(c, x, factors) or [None, None]
        size = size or [int(e * f) for e, f in zip((height, width), given, strict=True)]
        operator = getattr(c.torch.ops.aten, f"_upsample_{method}2d_aa").default
        rows = operator(c.torch.eye(height)[None, None], [size[0], height], corners, given[0], None)[0, 0]
        columns = operator(c.torch.eye(width)[None, None], [width, size[1]], corners, None, given[1])[0, 0]
        return c.matmul(c.matmul(c.val(rows.contiguous()), x), c.val(columns.contiguous()))

    return handler


lowers("_upsample_bilinear2d_aa")(_antialiased("bilinear"))
lowers("_upsample_bicubic2d_aa")(_antialiased("bicubic"))


@lowers("col2im")
def _fold(c: Context, x: str, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> str:
    """A transposed convolution that lays every window's elements where they belong."""
    single = c.rank(x) == 2
    x = c.unsqueeze(x, 0) if single else x
    count = kernel[0] * kernel[1]
    n, width, _ = c.shape(x)
    free = [s + 2 * p - d * (k - 1) - 1 for s, p, d, k in zip(size, padding, dilation, kernel, strict=True)]
    across = [f // s + 1 for f, s in zip(free, stride, strict=True)]
    windows = c.reshape(x, (n, width, *across))
    places = c.torch.eye(count).reshape(count, 1, *kernel).repeat(width // count, 1, 1, 1)
    rest = [f % s for f, s in zip(free, stride, strict=True)]
    y = transpose_images(c, windows, c.val(places), None, stride, padding, rest, width // count, dilation)
    return c.select(y, 0, 0) if single else y


def _plain(method: str, whole: tuple[int, ...] = ()) -> Any:
    def handler(c: Context, x: str, size: Any, *factors: Any) -> str:
        """Overloads: (size, scales_h, scales_w) and vec's (size, scale_factors)."""
        return _resized(c, x, size, _factors(c, x, factors), method, False, whole)

    return handler


def _smooth(method: str, whole: tuple[int, ...] = ()) -> Any:
    def handler(c: Context, x: str, size: Any, corners: bool, *factors: Any) -> str:
        return _resized(c, x, size, _factors(c, x, factors), method, bool(corners), whole)

    return handler


def _factors(c: Context, x: str, given: tuple[Any, ...]) -> Any:
    if len(given) == 1 and (given[0] is None or isinstance(given[0], list | tuple)):
        return given[0]
    return list(given)


# PyTorch passes over some factors: those that leave an axis its extent or double it, though not by all methods.
lowers("upsample_nearest2d")(_plain("nearest", (1, 2)))
lowers("upsample_nearest1d", "upsample_nearest3d")(_plain("nearest"))
lowers("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")(_plain("nearest_exact"))
lowers("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")(_smooth("linear", (1,)))
lowers("upsample_bicubic2d")(_smooth("cubic"))
