"""Where forward passes are cut."""

from planner.solve.memory.segments import Segments

BLOCKS = {f"v{i}": 10 for i in range(12)}


def test_segments_of_equal_bytes() -> None:
    """Before v4 lie 40 of 120 bytes, before v8 80. What is no cut takes bytes, too."""
    kept = list(Segments(BLOCKS, BLOCKS).equal())
    assert kept[:2] == [{"v6"}, {"v4", "v8"}]
    assert kept[-1] == BLOCKS.keys() - {"v0"}
    assert next(Segments(BLOCKS | {"v0": 130}, BLOCKS).equal()) == {"v1"}
    assert list(Segments(BLOCKS, {"v2", "v7"}).equal()) == [{"v7"}]


def test_segments_that_get_shorter() -> None:
    """3 : 2 : 1 of 120 bytes end at 60 and 100; 4 : 3 : 2 : 1 at 48, 84 and 108."""
    first, second, *_ = Segments(BLOCKS, BLOCKS).shortening()
    assert first == {"v6", "v10"}
    assert second == {"v5", "v8", "v11"}


def test_without_cuts_all_is_one_segment() -> None:
    assert not list(Segments(BLOCKS, {"v3", "v6"}).shortening())
    assert list(Segments(BLOCKS, ()).equal()) == [frozenset()]
