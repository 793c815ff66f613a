"""Time against memory: rows, table and picture."""

import random
import struct
import zlib
from dataclasses import replace

import numpy as np

from planner.plan.check import check
from planner.report.pareto import pareto_picture, pareto_rows, pareto_table
from planner.report.raster import BLACK, Raster, curve
from planner.solve.budget import pareto
from tests.graphs import random_net
from tests.rewrites import Rewriter


def pixels(png: bytes) -> np.ndarray:
    """Decode what the writer makes: one IDAT chunk, no filter."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        (crc,) = struct.unpack_from(">I", png, at + 8 + size)
        assert crc == zlib.crc32(name + data)
        chunks[name], at = data, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_what_is_drawn_is_in_the_file() -> None:
    picture = Raster(20, 10)
    picture.box(-3, 2, 6, 2, BLACK)
    picture.text(10, 1, "I", scale=1)
    found = pixels(picture.png())
    assert np.array_equal(found, picture.pixels)
    assert not found[2:4, :3].any() and found[2:4, 3:9].all()
    assert [int((found[1 + row, 10:13] == 0).all(1).sum()) for row in range(5)] == [3, 1, 1, 1, 3]


def test_curves_without_extent_are_drawn_too() -> None:
    assert pixels(curve("one", "x", "y", [(5.0, 0.0)])).shape == (560, 900, 3)


def test_plans_from_all_memory_to_the_least() -> None:
    rewriter = Rewriter(random_net(random.Random(6), 24))
    plans = pareto(rewriter.setting, rewriter.schedules, points=6)
    rows = pareto_rows(plans)
    assert len(rows) > 2 and rows[0]["overhead"] == 0 and rows[0]["recomputed"] == 0
    assert [r["bytes"] for r in rows] == sorted((r["bytes"] for r in rows), reverse=True)
    assert [r["predicted_ns"] for r in rows] == sorted(r["predicted_ns"] for r in rows)
    assert len(pareto_table(plans).splitlines()) == len(rows) + 2
    assert (pixels(pareto_picture(plans)) != 255).any()
    assert all(check(rewriter.graph, plan, rewriter.target) == [] for plan in plans)
    # What the target's memory does not hold is no plan for it.
    pool = rewriter.target.memory.model_copy(update={"capacity": rows[1]["bytes"]})
    small = rewriter.target.model_copy(update={"pools": (pool, *rewriter.target.pools[1:])})
    fitting = pareto(replace(rewriter.setting, target=small), rewriter.schedules, points=6)
    assert [p.pools[0].arena for p in fitting] == [r["bytes"] for r in rows[1:]]
    assert all(check(rewriter.graph, plan, small) == [] for plan in fitting)
