"""Packing the core first: valid, the same every time, and lower where few blocks make up most bytes and time."""

from examples.pack_study import random_blocks
from planner.solve.liveness import Block
from planner.solve.packing.chains import TASTES, fill_chains
from planner.solve.packing.core_first import core_first
from planner.solve.packing.sections import height, instance
from planner.units import Bytes
from tests.solve.packings import validate


def test_packings_are_valid_and_the_same_every_time() -> None:
    problem = instance(random_blocks(2000, "mixed", "logarithmic", 1), 1)
    found = list(core_first(problem))
    assert found and found == list(core_first(problem))
    units = [
        Block(i, a, b, Bytes(s))
        for i, a, b, s in zip(problem.ids, problem.lower, problem.upper, problem.size, strict=True)
    ]
    for offsets, work in found:
        validate(units, dict(zip(problem.ids, offsets, strict=True)), height(problem, offsets))
        assert work > 0


def test_it_packs_lower_than_all_blocks_at_once() -> None:
    problem = instance(random_blocks(6000, "mixed", "logarithmic", 1), 1)
    chains = min(height(problem, fill_chains(problem, taste)[0]) for taste in TASTES)
    assert min(height(problem, offsets) for offsets, _ in core_first(problem)) < chains


def test_blocks_that_are_all_alike_have_no_core() -> None:
    blocks = [Block(f"b{i}", i, i + 3, Bytes(5)) for i in range(50)]
    assert list(core_first(instance(blocks, 1))) == []
