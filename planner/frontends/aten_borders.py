"""Padding with what is at the border: ATen's reflection_pad1d to 3d and replication_pad1d to 3d; and with what is at
the opposite one, circular padding (torch_stand_ins.py).

Pixels are rows of a table, and every result names the one that it is: one pass, and nothing is turned.
"""

from typing import Any

from planner.frontends.aten import Context, Unsupported, lowers
from planner.frontends.volumes import pixels_of, volume_of
from planner.ops.embedding import EmbeddingAttrs


@lowers("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflected(c: Context, x: str, pads: list[int]) -> str:
    def inside(place: Any, last: int, cut: tuple[int, int]) -> Any:
        return last - (last - place.abs()).abs()

    return _padded(c, x, pads, inside)


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _repeated(c: Context, x: str, pads: list[int]) -> str:
    return _padded(c, x, pads, lambda place, last, cut: place.clamp(0, last))


@lowers("stepplan.circular_pad")
def _around(c: Context, x: Any, pads: list[int]) -> str:
    """What negative padding cuts off is gone before anything goes around, unlike behind the other borders. Where less
    is left than goes around, PyTorch's own result is undefined."""

    def inside(place: Any, last: int, cut: tuple[int, int]) -> Any:
        left = last + 1 - sum(cut)
        if cut[0] - int(place[0]) > left or int(place[-1]) - (last - cut[1]) > left:
            raise Unsupported("negative padding that leaves less than what goes around")
        return cut[0] + (place - cut[0]) % left

    return _padded(c, c.val(x), pads, inside)


def _padded(c: Context, x: str, pads: list[int], inside: Any) -> str:
    """`inside(places, last, cut)`: the places from 0 to `last` along an axis whose elements are at these places; `cut`:
    how many at either end negative padding cuts off. PyTorch lists pads from the last dimension on; the batch may be
    missing."""
    axes = len(pads) // 2
    lead, extents = c.shape(x)[: c.rank(x) - axes], c.shape(x)[c.rank(x) - axes :]
    n, channels = (1, *lead)[-2:]
    x = c.reshape(x, (n, channels, *(1,) * (3 - axes), *extents))
    places = c.torch.arange(n)
    for extent, before, after in zip(extents, pads[-2::-2], pads[::-2], strict=True):
        along = inside(c.torch.arange(-before, extent + after), extent - 1, (max(-before, 0), max(-after, 0)))
        places = places[..., None] * extent + along
    rows = c.op("embedding", c.reshape(pixels_of(c, x), (-1, channels)), c.val(places), attrs=EmbeddingAttrs())
    sizes = c.shape_of(places)[1:]
    depth, height, width = [1] * (3 - axes) + list(sizes)
    images = c.permute(c.reshape(rows, (n * depth, height, width, channels)), (0, 3, 1, 2))
    return c.reshape(volume_of(c, images, n) if axes == 3 else images, (*lead, *sizes))
