"""What a frontend appends, and how it is shaped: nodes, views, copies and padding. Views of images, transposed values
and padding are remembered, so that what undoes them, or has them anyway, adds no node."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf, isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.frontends.naming import identifier
from planner.frontends.values import Values
from planner.graph.builder import GraphBuilder
from planner.graph.model import Attrs, DType, Layout
from planner.ops.base import op_named
from planner.ops.broadcast import Broadcast
from planner.ops.concat import ConcatAttrs
from planner.ops.copy import ExpandAttrs, PermuteAttrs, SliceAttrs
from planner.ops.pad import PadAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.split import MOST_PARTS, SplitAttrs
from planner.ops.strides import MAX_RANK

_SURROUNDED = {"conv2d": 0.0, "max_pool2d": -inf}
"""Ops that see images as if these numbers were around them."""
ELEMENTWISE = ("binary", "dropout", "elementwise")
"""Families of ops whose results are of their operands' elements at the same place."""
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64)


class _Padded(NamedTuple):
    """What a padded value is without its padding; (before, after) for every dimension; what is there."""

    x: str
    pads: tuple[tuple[int, int], ...]
    value: float


class Shaping(Values):
    """Appends nodes named `name`."""

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder)
        self._turned: dict[str, str] = {}
        """A value whose last two dimensions are those of another one, swapped -> that one."""
        self._moved: dict[str, tuple[str, tuple[int, ...]]] = {}
        """A permuted value, dimensions of 1 aside -> what was permuted, and its axes in the new order."""
        self._padded: dict[str, _Padded] = {}
        self._images: dict[str, str] = {}
        """A view (N, C, ...) of channels-last images -> these."""
        self._parts: dict[tuple[str, int], dict[tuple[int, ...], tuple[str, ...]]] = {}
        """A value, an axis -> the parts of it that there are already, by their sizes; what was stacked lacks it."""

    # -- nodes -------------------------------------------------------------------------------------------------
    def op(self, op: str, *inputs: str, attrs: Attrs | None = None, updates: Sequence[str] = ()) -> str:
        """Append a node and return its first output."""
        return self.outputs(op, *inputs, attrs=attrs, updates=updates)[0]

    def outputs(
        self, op: str, *inputs: str, attrs: Attrs | None = None, updates: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Append a node and return all of its outputs."""
        if inputs and inputs[0] in self._padded and op in _SURROUNDED:
            inputs, attrs = self._unpadded(op, inputs, attrs)
        known = op_named(op)
        floats = [v for position, v in enumerate(inputs) if position not in known.integers]
        if not known.any_dtype and any(self.b.type(v).dtype not in _FLOATS for v in floats):
            raise UserError(
                "SP1017",
                f"layer {self.name!r} computes ({op}) with integers",
                "convert them before they enter the model",
            )
        lifted = self._on_images(op, inputs, attrs) or self._on_joined(op, inputs, attrs)
        return lifted or self.b.op(op, inputs, attrs, name=identifier(self.name) or op, updates=updates)

    def _on_images(self, op: str, inputs: Sequence[str], attrs: Attrs | None) -> tuple[str, ...]:
        """What an element-wise op makes of views of images, computed on the images, so that sequences and volumes stay
        channels-last between their layers. Empty: it is none, or an operand fits no image."""
        views = [v for v in inputs if v in self._images]
        if not views or op_named(op).family not in ELEMENTWISE:
            return ()
        widest = max(views, key=lambda v: prod(self.shape(v)))
        full, view = self.shape(self._images[widest]), self.shape(widest)
        operands = [self._beside_images(v, full, view) for v in inputs]
        if not all(operands):
            return ()
        y, *more = self.b.op(op, [v for v in operands if v], attrs, name=identifier(self.name) or op)
        return (self.reshape(y, view), *more)

    def _on_joined(self, op: str, inputs: Sequence[str], attrs: Attrs | None) -> tuple[str, ...]:
        """What an op makes of operands that are broadcast to more dimensions than kernels walk, neighbours that each
        operand has, or repeats, being one. Empty: they are not so many."""
        shapes = [self.shape(v) for v in inputs]
        rank = max(map(len, shapes), default=0)
        if rank <= MAX_RANK or not isinstance(op_named(op), Broadcast):
            return ()
        aligned = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
        full = tuple(map(max, zip(*aligned, strict=True)))
        if any(own not in (1, extent) for shape in aligned for own, extent in zip(shape, full, strict=True)):
            return ()
        runs = self._runs(full, list(zip(*([d > 1 for d in shape] for shape in aligned), strict=True)))
        if len(runs) == rank:
            return ()
        joined = [self.reshape(v, (prod(shape[run]) for run in runs)) for v, shape in zip(inputs, aligned, strict=True)]
        y, *more = self.b.op(op, joined, attrs, name=identifier(self.name) or op)
        return (self.reshape(y, full), *more)

    def _runs(self, shape: Sequence[int], kinds: Sequence[Any]) -> list[slice]:
        """Where dimensions are more than kernels walk, neighbours of one kind are one run, and those of 1 are of any
        kind; else every dimension is a run."""
        if sum(d > 1 for d in shape) <= MAX_RANK:
            return [slice(axis, axis + 1) for axis in range(len(shape))]
        wide = [axis for axis, extent in enumerate(shape) if extent > 1]
        starts = [after for before, after in pairwise(wide) if kinds[before] != kinds[after]]
        return [slice(start, stop) for start, stop in pairwise((0, *starts, len(shape)))]

    def _beside_images(self, x: str, full: Sequence[int], view: Sequence[int]) -> str | None:
        """An operand of such views, as one of images of the shape `full`; None: it is no number per image and channel,
        and no view of such images, nor of ones with a single channel."""
        if (image := self._images.get(x)) is not None:
            given = (self.shape(image), self.shape(x))
            single = tuple((shape[0], 1, *shape[2:]) for shape in (full, view))
            return image if given in ((full, view), single) else None
        if self.shape(x) == view and (pixels := self._pixels_before(x)):
            return self.permute(self.reshape(pixels, (full[0], *full[2:], full[1])), (0, 3, 1, 2))
        if self.rank(x) > len(view):
            return None
        shape = (*(1,) * (len(view) - self.rank(x)), *self.shape(x))
        if prod(shape) == 1:
            return x
        if prod(shape[2:]) > 1 or shape[0] not in (1, full[0]) or shape[1] not in (1, full[1]):
            return None
        return self.reshape(x, (*(shape[:2] if shape[0] > 1 else shape[1:2]), 1, 1))

    def _seen_as(self, view: str, images: str) -> str:
        """Images with other channels, in the view's form."""
        return self.reshape(images, (*self.shape(images)[:2], *self.shape(view)[2:]))

    def _pixels(self, view: str) -> str:
        """A view (N, C, ...) of images with its channels behind all else, as they lie."""
        n, channels, *extents = self.shape(view)
        return self.reshape(self.permute(self._images[view], (0, 2, 3, 1)), (n, *extents, channels))

    def _pixels_before(self, x: str) -> str | None:
        """Of (N, C, ...) that was made so from (N, ..., C): that."""
        whole, order = self._moved.get(x, (x, ()))
        n, channels, *extents = self.shape(x)
        last = len(extents) + 1
        return whole if order == (0, last, *range(1, last)) and self.shape(whole) == (n, *extents, channels) else None

    def _of_pixels(self, pixels: str) -> str:
        """(N, ..., C) -> (N, C, ...), a view of images: of one row, or of depths by pixels."""
        n, *extents, channels = self.shape(pixels)
        rows = extents[0] if len(extents) > 1 else 1
        images = self.permute(self.reshape(pixels, (n, rows, prod(extents) // rows, channels)), (0, 3, 1, 2))
        return self.reshape(images, (n, channels, *extents))

    def where(self, mask: str, a: str, b: str) -> str:
        return self.op("where", mask, a, b)

    # -- shapes ------------------------------------------------------------------------------------------------
    def reshape(self, x: str, shape: Iterable[int]) -> str:
        shape = tuple(shape)
        if -1 in shape:
            known = prod(d for d in shape if d != -1)
            shape = tuple(prod(self.shape(x)) // known if d == -1 else d for d in shape)
        own, lies = self.shape(x), self.b.type(x).layout is Layout.CHANNELS_LAST
        image = x if lies else self._images.get(x)
        if shape == own:
            return x
        if image is not None and shape == self.shape(image):
            return image
        if len(shape) == 4 and shape[:2] == own[:2]:  # other images of the same pixels, or of a sequence's (N, L, C)
            before = self._turned.get(x) if len(own) == 3 else None
            pixels = self.permute(image, (0, 2, 3, 1)) if image is not None else before
            if pixels is not None:
                return self.permute(self.reshape(pixels, (shape[0], *shape[2:], shape[1])), (0, 3, 1, 2))
        y = self.op("reshape", x, attrs=ReshapeAttrs(shape=shape))
        if lies and shape[:2] == own[:2]:
            self._images[y] = x
        if x in self._moved and [d for d in shape if d > 1] == [d for d in own if d > 1]:
            self._moved[y] = self._moved[x]
        return y

    def permute(self, x: str, axes: Iterable[int]) -> str:
        rank = self.rank(x)
        order = tuple(a % rank for a in axes)
        if order == tuple(range(rank)):
            return x
        turning = order == (*range(rank - 2), rank - 1, rank - 2)
        if turning and x in self._turned:
            return self._turned[x]
        if order == (0, *range(2, rank), 1) and x in self._images:
            return self._pixels(x)
        if sum(d > 1 for d in self.shape(x)) > MAX_RANK:
            return self._permute_joined(x, order)
        y = self.op("permute", x, attrs=PermuteAttrs(axes=order))
        if turning:
            self._turned[y] = x
        if self.b.type(x).layout is Layout.ROW_MAJOR:
            self._moved[y] = x, order
        return y

    def _permute_joined(self, x: str, order: Sequence[int]) -> str:
        """Neighbours that stay neighbours are one dimension, dimensions of 1 none. Where these are still too many, the
        last two of the result come to the end first, and are one then."""
        shape = self.shape(x)
        wide = [axis for axis, extent in enumerate(shape) if extent > 1]
        runs: list[list[int]] = []
        for axis in (wide.index(a) for a in order if a in wide):
            if runs and axis == runs[-1][-1] + 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        joined = sorted(runs)
        y = self.reshape(x, (prod(shape[wide[a]] for a in run) for run in joined))
        axes = [joined.index(run) for run in runs]
        if len(axes) > MAX_RANK:
            first = [*(a for a in range(len(axes)) if a not in axes[-2:]), *axes[-2:]]
            y = self.permute(self.permute(y, first), [first.index(a) for a in axes])
        else:
            y = self.op("permute", y, attrs=PermuteAttrs(axes=tuple(axes)))
        return self.reshape(y, (shape[a] for a in order))

    def turned(self, x: str) -> tuple[str, bool]:
        """The value whose last two dimensions were swapped to make this one, and that they were; else the value."""
        return (self._turned[x], True) if x in self._turned else (x, False)

    def transpose(self, x: str, first: int, second: int) -> str:
        axes = list(range(self.rank(x)))
        if axes:
            axes[first], axes[second] = axes[second], axes[first]
        return self.permute(x, axes)

    def expand(self, x: str, shape: Iterable[int]) -> str:
        """-1 keeps a dimension, as in PyTorch."""
        wanted, own = tuple(shape), self.shape(x)
        lead = len(wanted) - len(own)
        full = tuple(own[i - lead] if d == -1 else d for i, d in enumerate(wanted))
        if full == own:
            return x
        aligned = (*(1,) * lead, *own)
        runs = self._runs(full, [d > 1 for d in aligned])
        if len(runs) < len(full):
            x = self.reshape(x, (prod(aligned[run]) for run in runs))
        y = self.op("expand", x, attrs=ExpandAttrs(shape=tuple(prod(full[run]) for run in runs)))
        return self.reshape(y, full)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        shape = self.shape(x)
        axis %= len(shape)
        if (start, stop, step) == (0, shape[axis], 1):
            return x
        if (part := self._part(x, axis, start, stop, step)) is not None:
            return part
        whole, across = self.before_moving(x, axis)
        if stop - start == 1 and whole != x:
            return self.reshape(self.slice(whole, across, start, stop), (*shape[:axis], 1, *shape[axis + 1 :]))
        if x in self._images and axis > 1:
            return self._of_pixels(self.slice(self._pixels(x), axis - 1, start, stop, step))
        if x in self._images:
            return self._seen_as(x, self.slice(self._images[x], axis, start, stop, step))
        if sum(d > 1 for d in shape) > MAX_RANK:
            before, extent, behind = shape[:axis], shape[axis], shape[axis + 1 :]
            y = self.slice(self.reshape(x, (prod(before), extent, prod(behind))), 1, start, stop, step)
            return self.reshape(y, (*before, self.shape(y)[1], *behind))
        return self.op("slice", x, attrs=SliceAttrs(axis=axis, start=start, stop=stop, step=step))

    def _part(self, x: str, axis: int, start: int, stop: int, step: int) -> str | None:
        """A slice of one of the values that x was joined of, or that it was split into. Whoever reads the last output
        of a recurrent layer alone leaves no gradient for all others."""
        for sizes, parts in self._parts.get((x, axis), {}).items():
            for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
                first = end - size
                if first <= start and stop <= end:
                    return self.slice(self._with_axis(part, x, axis), axis, start - first, stop - first, step)
        if stop - start == 1:  # of both directions
            for along in range(self.rank(x)):
                for parts in self._parts.get((x, along), {}).values():
                    found = [self._part(self._with_axis(p, x, along), axis, start, stop, step) for p in parts]
                    if None not in found:
                        return self.concat([p for p in found if p], along)
        return None

    def _with_axis(self, part: str, x: str, axis: int) -> str:
        """A known part of x with all of x's axes."""
        return part if self.rank(part) == self.rank(x) else self.unsqueeze(part, axis)

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """The parts of an axis, which they fill: one pass over x, and one over the gradient. Whoever asks for them
        again gets the same ones: torch.export splits anew for every part that it hands on where something is written
        in place."""
        axis %= self.rank(x)
        if len(sizes) == 1:
            return [x]
        if x in self._images and axis > 1:
            return [self._of_pixels(part) for part in self.split(self._pixels(x), axis - 1, sizes)]
        if x in self._images:
            return [self._seen_as(x, part) for part in self.split(self._images[x], axis, sizes)]
        if min(sizes) < 1 or len(sizes) > MOST_PARTS:
            ends = list(accumulate(sizes))
            return [self.slice(x, axis, end - size, end) for end, size in zip(ends, sizes, strict=True)]
        known, wanted = self._parts.setdefault((x, axis), {}), tuple(sizes)
        if wanted not in known:
            known[wanted] = self.outputs("split", x, attrs=SplitAttrs(axis=axis, sizes=wanted))
        return [self._with_axis(part, x, axis) for part in known[wanted]]

    def select(self, x: str, axis: int, index: int) -> str:
        shape = self.shape(x)
        axis, index = axis % len(shape), index % shape[axis]
        whole, across = self.before_moving(x, axis)
        return self.reshape(self.slice(whole, across, index, index + 1), shape[:axis] + shape[axis + 1 :])

    def before_moving(self, x: str, axis: int) -> tuple[str, int]:
        """Where no other axis was moved to make x, what it was made of, and the axis there: single elements of it, such
        as the queries of a projection, are read where they lie."""
        if x not in self._moved or self.shape(x)[axis] == 1:
            return x, axis
        whole, order = self._moved[x]
        wide = [a for a in order if self.shape(whole)[a] > 1]
        across = wide.pop(sum(extent > 1 for extent in self.shape(x)[:axis]))
        return (whole, across) if wide == sorted(wide) else (x, axis)

    def unsqueeze(self, x: str, axis: int) -> str:
        shape = self.shape(x)
        axis %= len(shape) + 1
        y = self.reshape(x, (*shape[:axis], 1, *shape[axis:]))
        if x in self._padded:
            inner, pads, value = self._padded[x]
            self._padded[y] = _Padded(self.unsqueeze(inner, axis), (*pads[:axis], (0, 0), *pads[axis:]), value)
        return y

    def squeeze(self, x: str, axes: Iterable[int]) -> str:
        shape = self.shape(x)
        dropped = {a % len(shape) for a in axes} if shape else set()
        return self.reshape(x, (d for i, d in enumerate(shape) if i not in dropped or d != 1))

    def concat(self, values: Sequence[str], axis: int) -> str:
        if len(values) == 1:
            return values[0]
        axis %= self.rank(values[0])
        y = self._concat(values, axis)
        self._parts[y, axis] = {tuple(self.shape(v)[axis] for v in values): tuple(values)}
        return y

    def _concat(self, values: Sequence[str], axis: int) -> str:
        images = [self._images[v] for v in values if v in self._images]
        if axis > 1 and 2 * sum(prod(self.shape(i)) for i in images) > sum(prod(self.shape(v)) for v in values):
            behind = (0, *range(2, self.rank(values[0])), 1)  # less is turned than if the images were
            return self._of_pixels(self.concat([self.permute(v, behind) for v in values], axis - 1))
        if len(images) == len(values) and len({self.shape(i)[2:] for i in images}) == 1:
            return self._seen_as(values[0], self.op("concat", *images, attrs=ConcatAttrs(axis=axis)))
        return self.op("concat", *values, attrs=ConcatAttrs(axis=axis))

    def stack(self, values: Sequence[str], axis: int) -> str:
        if axis % (self.rank(values[0]) + 1) or not self.rank(values[0]):
            return self.concat([self.unsqueeze(v, axis) for v in values], axis)
        y = self.reshape(self.concat(values, 0), (len(values), *self.shape(values[0])))
        self._parts[y, 0] = {(1,) * len(values): tuple(values)}
        return y

    def pad(self, x: str, pads: Sequence[tuple[int, int]], value: float = 0.0) -> str:
        """(before, after) for every dimension; negative pads cut. What goes through windows pads by itself."""
        grown = tuple((max(0, before), max(0, after)) for before, after in pads)
        cut = [(max(0, -before), max(0, -after)) for before, after in pads]
        if any(first + last >= extent for (first, last), extent in zip(cut, self.shape(x), strict=True)):
            x = self.pad(x, grown, value)  # nothing would be left to surround
            grown = ((0, 0),) * len(pads)
        for axis, (first, last) in enumerate(cut):
            x = self.slice(x, axis, first, self.shape(x)[axis] - last)
        if not any(map(any, grown)):
            return x
        if isfinite(value) and x in self._images:
            y = self._of_pixels(self.pad(self._pixels(x), [grown[0], *grown[2:], grown[1]], value))
        elif isfinite(value):
            y = self.op("pad", x, attrs=PadAttrs(pads=grown, value=value))
        else:
            padded = [extent if any(p) else 1 for extent, p in zip(self.shape(x), grown, strict=True)]
            inside = np.pad(np.ones(padded, np.float32), grown)
            zeros = self.op("pad", x, attrs=PadAttrs(pads=grown))
            y = self.where(self.constant(inside), zeros, self.constant(np.asarray(value, np.float32)))
        self._padded[y] = _Padded(x, grown, value)
        return y

    def _unpadded(self, op: str, inputs: tuple[str, ...], attrs: Any) -> tuple[tuple[str, ...], Any]:
        """Operands and attributes of an op that surrounds images by itself, where these are images with just that
        around them."""
        x, pads, value = self._padded[inputs[0]]
        kernel = self.shape(inputs[1])[2:] if op == "conv2d" else attrs.kernel
        most = [d * (k - 1) if op == "conv2d" else k // 2 for d, k in zip(attrs.dilation, kernel, strict=True)]
        sides = [own + more for own, more in zip(attrs.padding, (*pads[2], *pads[3]), strict=True)]
        rounded_up = op == "max_pool2d" and attrs.ceil_mode  # where windows may begin depends on whose the padding is
        beyond = any(side > most[i // 2] for i, side in enumerate(sides))
        if value != _SURROUNDED[op] or any(map(any, pads[:2])) or beyond or rounded_up:
            return inputs, attrs
        return (x, *inputs[1:]), attrs.model_copy(update={"padding": tuple(sides)})
