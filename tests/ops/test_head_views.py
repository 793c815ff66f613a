"""Views of matrices of heads: which elements they show, and what a slice of them is said to touch."""

from math import prod

import numpy as np
import pytest

from planner.errors import UserError
from planner.graph.model import Layout, TensorType
from planner.ops.attention import AttentionForward
from planner.ops.attention_base import AttentionAttrs
from planner.ops.base import Access
from planner.ops.head_views import HeadView, fill, hull, rectangles, whole


def drawn(rng: np.random.Generator, parts: int) -> tuple[list[HeadView], TensorType]:
    """Views side by side that fill a tensor, whose dimensions are in a random order; the rows' before all that a row
    of several heads or parts consists of, as layers have them."""
    batch, heads, rows, width = (int(n) for n in rng.integers(1, 5, 4))
    extents = {"batch": batch, "head": heads, "row": rows, "part": parts}
    order = [str(name) for name in rng.permutation(list(extents))]
    steps, step = {}, width
    for name in order:
        steps[name] = step
        step *= extents[name]
    for name, extent in extents.items():
        if extent == 1 and rng.integers(2):
            steps[name] = 0
    lead = (batch,) if rng.integers(2) else (1, batch)
    one = HeadView((*lead, heads, rows, width), 0, steps["batch"], steps["head"], steps["row"])
    return [one._replace(first=i * steps["part"]) for i in range(parts)], TensorType(shape=(step,))


def elements(view: HeadView, type_: TensorType, heads: range, rows: range) -> set[int]:
    numbers = view.of(np.arange(type_.elements)).reshape(-1, *view.sizes[2:])
    return set(numbers[heads.start : heads.stop, rows.start : rows.stop].flatten().tolist())


def touched(access: Access) -> list[int]:
    return [line * access.width + c for line in range(*access.rows) for c in range(*access.cols)]


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_rectangles_are_exactly_what_is_written(seed: int, parts: int) -> None:
    rng = np.random.default_rng()
    views, type_ = drawn(rng, parts)
    assert fill(views, type_), (seed, views)
    batch, each, rows, _ = views[0].sizes
    heads = sorted(int(n) for n in rng.integers(0, batch * each + 1, 2))
    own = sorted(int(n) for n in rng.integers(0, rows + 1, 2))
    expected = set[int]().union(*(elements(v, type_, range(*heads), range(*own)) for v in views))
    shown = views[::-1] if seed % 2 else views
    found = [e for a in rectangles("out0", shown, (heads[0], heads[1]), (own[0], own[1])) for e in touched(a)]
    assert len(found) == len(set(found))
    assert set(found) == expected, (views, heads, own)
    lo, hi = hull(views, (heads[0], heads[1]), (own[0], own[1]))
    assert expected <= set(range(lo, hi))
    assert not expected or hi <= type_.elements


def test_hulls_of_whole_entries_are_these_entries() -> None:
    """[3 images, 5 rows, 2 heads, 4]: slices of images read their own."""
    view = HeadView((3, 2, 5, 4), 0, 40, 4, 8)
    assert [hull([view], (2 * i, 2 * i + 2), (0, 5)) for i in range(3)] == [(0, 40), (40, 80), (80, 120)]
    assert hull([view], (1, 2), (2, 4)) == (20, 32)


def test_lines_of_whole_rows_are_one_rectangle() -> None:
    """q, k and v of one projection, [3, 5, 3, 2, 4]: all of images 1 and 2."""
    views = [HeadView((3, 2, 5, 4), 8 * i, 120, 4, 24) for i in range(3)]
    assert list(rectangles("out0", views, (2, 6), (0, 5))) == [Access("out0", True, (5, 15), (0, 24), 24)]


def test_in_order() -> None:
    assert whole((3, 2, 5, 4)).in_order
    assert HeadView((3, 1, 5, 4), 0, 20, 7, 4).in_order, "one head: no step to the next"
    assert not HeadView((3, 2, 5, 4), 0, 40, 4, 8).in_order
    assert not HeadView((1, 1, 1, 4), 4, 4, 4, 4).in_order


PACKED = [HeadView((3, 2, 5, 4), 8 * i, 120, 4, 24) for i in range(3)]
ROWS = TensorType(shape=(3, 5, 24))


@pytest.mark.parametrize(
    ("views", "type_"),
    [
        (PACKED[:2], ROWS),
        ([*PACKED[:2], PACKED[1]], ROWS),
        ([PACKED[0], PACKED[1], PACKED[2]._replace(first=20)], ROWS),
        ([*PACKED[:2], PACKED[2]._replace(head=5)], ROWS),
        ([v._replace(row=0) for v in PACKED], ROWS),
        ([v._replace(row=-24) for v in PACKED], ROWS),
        (PACKED, TensorType(shape=(3, 5, 25))),
        (PACKED, TensorType(shape=(3, 5, 6, 4), layout=Layout.CHANNELS_LAST)),
        ([v._replace(shape=(3, 10, 4)) for v in PACKED], ROWS),
    ],
)
def test_what_does_not_fill_its_tensor_is_refused(views: list[HeadView], type_: TensorType) -> None:
    """Also of a graph that somebody has edited: nothing is read or written elsewhere."""
    assert not fill(views, type_)
    attrs = AttentionAttrs(scale=1.0, sources=(0, 0, 0), **dict(zip("qkv", (*views, views[0])[:3], strict=True)))
    with pytest.raises(UserError, match="SP1002"):
        AttentionForward().infer(attrs, [type_])


@pytest.mark.parametrize(
    "change",
    [
        {"sources": (0, 0, 2)},
        {"sources": (1, 1, 1)},
        {"sources": (0, 1, 2)},
        {"k": None},
        {"y": PACKED[1], "result": (3, 5, 8)},
        {"y": HeadView((3, 2, 5, 4), 0, 40, 4, 8), "result": (3, 5, 9)},
    ],
)
def test_attributes_that_do_not_fit_the_operands(change: dict[str, object]) -> None:
    attrs = AttentionAttrs(scale=1.0, sources=(0, 0, 0), **dict(zip("qkv", PACKED, strict=True)))
    y, *_ = AttentionForward().infer(attrs, [ROWS])
    assert y.shape == (3, 2, 5, 4)
    with pytest.raises(UserError, match="SP1002"):
        AttentionForward().infer(attrs.model_copy(update=change), [ROWS])


def test_every_element_of_a_view_once() -> None:
    view = HeadView((2, 3, 5, 4), 3, 100, 9, 31)
    x = np.arange(400)
    expected = [
        [[[3 + 100 * b + 9 * h + 31 * r + c for c in range(4)] for r in range(5)] for h in range(3)] for b in (0, 1)
    ]
    assert view.of(x).tolist() == expected
    assert prod(view.sizes) == 120
