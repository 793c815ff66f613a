"""Tiles of a matrix: how a product is cut where one range of rows, or of columns, per slice would read too much."""

from typing import NamedTuple

from planner.ops.base import split, split_channels

Span = tuple[int, int]


class TileGrid(NamedTuple):
    """`down` x `across` tiles, numbered row by row."""

    down: int
    across: int

    def rows(self, m: int, tile: int) -> Span:
        return split(m, self.down, tile // self.across)

    def columns(self, n: int, tile: int) -> Span:
        return split_channels(n, self.across, tile % self.across)


def tile_grid(m: int, n: int, slices: int) -> TileGrid:
    """As many tiles of c (m x n) as there are slices (at most `most_tiles`), of which each reads as little of a and b
    as may be: down n + across m is least. Columns go in sixteens, at least. The same rule as in runtime/matmul.hpp."""
    widest = n // 16 if n >= 32 else 1
    grids = (TileGrid(down, slices // down) for down in range(1, min(slices, m) + 1) if slices % down == 0)
    return min((g for g in grids if g.across <= widest), key=lambda g: g.down * n + g.across * m)


def most_tiles(m: int, n: int) -> int:
    """Every count up to this one has a grid, if need be of rows or of columns alone."""
    return max(m, n // 16)
