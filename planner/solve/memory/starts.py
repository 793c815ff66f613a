"""Decisions that a search starts from: corners of the space, and segments between kept values."""

from collections.abc import Mapping

from planner.solve.memory.segments import Segments
from planner.solve.memory.steps import Decision, Material

CORNERS = ("share", "own", "fresh", "move", "mixed")


class Starts:
    """Of one program's values."""

    def __init__(self, made: Material, sizes: Mapping[str, int], slower: bool) -> None:
        """`sizes`: bytes of the values. `slower`: whether there is a pool to move values to."""
        self._made, self._sizes, self._slower = made, sizes, slower

    def corner(self, way: str) -> dict[str, Decision]:
        """One decision about every value for which there is it. mixed: whatever can be moved is, the rest is made again
        for every reader."""
        found: dict[str, Decision] = {}
        for value in self._made.values:
            ways = self._made.ways(value, self._slower)
            wanted = ("move", "fresh") if way == "mixed" else (way,)
            taken: Decision | None = next((w for name in wanted for w in ways if w == name), None)
            if taken is not None:
                found[value] = taken
        return found

    def corners(self) -> list[dict[str, Decision]]:
        return [self.corner(way) for way in CORNERS]

    def segmented(self) -> list[dict[str, Decision]]:
        """All but what lies between segments of about equal bytes is made again, a segment at a time."""
        share, own = self.corner("share"), self.corner("own")
        kept = self._segments(share).equal()
        return [{v: d for v, d in way.items() if v not in cuts} for cuts in kept for way in (share, own)]

    def shortening(self) -> list[dict[str, Decision]]:
        """The same between segments that get shorter."""
        share = self.corner("share")
        return [{v: d for v, d in share.items() if v not in cuts} for cuts in self._segments(share).shortening()]

    def _segments(self, again: Mapping[str, Decision]) -> Segments:
        return Segments({v: self._sizes[v] for v in self._made.values if v in again}, self._made.cuts)
