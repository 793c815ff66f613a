"""Tiles of products: grids that cover every result once and are as square as the operands allow."""

import pytest

from planner.graph.model import Attrs, TensorType
from planner.ops.base import Mode, Signature, op_named
from planner.ops.matmul import LinearGradAttrs
from planner.ops.tiles import TileGrid, most_tiles, tile_grid


@pytest.mark.parametrize("m,n", [(1, 1), (7, 33), (10, 2048), (64, 64), (96, 16), (5, 1000)])
def test_every_count_has_a_grid_that_covers_all_results_once(m: int, n: int) -> None:
    for slices in (*range(1, min(40, most_tiles(m, n)) + 1), most_tiles(m, n)):
        grid = tile_grid(m, n, slices)
        assert grid.down * grid.across == slices
        covered = [
            (r, c)
            for tile in range(slices)
            for r in range(*grid.rows(m, tile))
            for c in range(grid.columns(n, tile)[0], grid.columns(n, tile)[1])
        ]
        assert len(covered) == len(set(covered)) == m * n


@pytest.mark.parametrize("m,n", [(1, 32), (3, 31), (2, 33), (1, 272), (4, 64), (30, 48), (24, 24)])
def test_no_grid_reads_less(m: int, n: int) -> None:
    """Of those whose tiles have a row and sixteen columns, where there are as many, at least."""
    counts = {down * across for down in range(1, m + 1) for across in range(1, max(1, n // 16) + 1)}
    assert most_tiles(m, n) == max(m, n // 16)
    for slices in counts & set(range(1, most_tiles(m, n) + 1)):
        downs = [d for d in range(1, m + 1) if slices % d == 0 and slices // d <= max(1, n // 16)]
        grid = tile_grid(m, n, slices)
        assert grid.down in downs and grid.across == slices // grid.down
        assert grid.down * n + grid.across * m == min(d * n + slices // d * m for d in downs)


def test_tiles_are_as_square_as_sixteen_columns_allow() -> None:
    """768 x 3072 on 64 lanes: down n + across m is least with tiles of 192 x 192; 64 x 64 has four columns of 16."""
    assert tile_grid(768, 3072, 64) == TileGrid(4, 16)
    assert tile_grid(64, 64, 64) == TileGrid(16, 4)
    assert tile_grid(10, 2048, 64) == TileGrid(1, 64)


def few_rows() -> Signature:
    """A classifier's gradient, whose slices were ten rows of dw."""
    x, dy, w = TensorType(shape=(32, 2048)), TensorType(shape=(32, 10)), TensorType(shape=(10, 2048))
    return Signature("linear_backward_weights", LinearGradAttrs(), (x, dy), (w,))


def test_tiles_that_are_rows_or_columns_need_not_be_timed() -> None:
    x, w, dy = TensorType(shape=(512, 256)), TensorType(shape=(256, 256)), TensorType(shape=(512, 256))
    linear = Signature("linear", Attrs(), (x, w), (dy,))
    weights = Signature("linear_backward_weights", LinearGradAttrs(), (x, dy), (w,))
    assert not op_named("linear_backward_weights").redundant(few_rows(), Mode("onednn", "tiles", 64))
    for signature in (linear, weights):
        needless = [k for k in range(1, 9) if op_named(signature.op).redundant(signature, Mode("onednn", "tiles", k))]
        assert needless == [1, 2, 3, 5, 7], signature.op


def test_few_features_of_many_rows_are_summed_by_depth() -> None:
    """64 x 64 weights of 32768 rows: with 64 slices, each would read all of x for one row of dw."""
    x, w = TensorType(shape=(32768, 64)), TensorType(shape=(64, 64))
    op, weights = (
        op_named("linear_backward_weights"),
        Signature("linear_backward_weights", LinearGradAttrs(), (x, x), (w,)),
    )
    assert op.dims(weights)["onednn", "depth"] == 512
    assert [k for k in (2, 4, 5, 64) if op.redundant(weights, Mode("onednn", "depth", k))] == [2, 4]
    assert ("onednn", "depth") not in op.dims(few_rows())
