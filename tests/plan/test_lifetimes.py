"""Blocks of the arena, read from a plan."""

from planner.plan.lifetimes import Block, blocks, owner, owners, peak_place
from planner.plan.schema import Placement
from tests.plan.example import small_plan


def block(name: str, offset: int, size: int, first: int, last: int) -> Block:
    return Block(name, "dram", offset, size, first, last, False, (name,))


def test_blocks_that_live_together_share_no_bytes() -> None:
    for policy in ("liu", "sequential"):
        graph, plan, _ = small_plan(policy)
        for program in plan.program:
            found = blocks(graph, plan, program)
            for i, a in enumerate(found):
                for b in found[:i]:
                    assert not (a.meets(b) and a.first <= b.last and b.first <= a.last), (a, b)
            place, most = peak_place(found)
            assert most == max(
                sum(b.bytes for b in found if b.first <= at <= b.last) for at in range(len(plan.program[program].nodes))
            )
            # The plan's figure counts every block in whole cache lines.
            assert most <= plan.program[program].peak_bytes
            assert sum(b.bytes for b in found if b.first <= place <= b.last) == most


def test_values_in_place_are_one_block() -> None:
    graph, plan, _ = small_plan()
    found = {b.id: b for b in blocks(graph, plan, "train_step")}
    root = owner(plan, "loss.backward.dx")
    assert root != "loss.backward.dx"
    assert "loss.backward.dx" in found[root].members
    assert "loss.backward.dx" not in found


def test_a_circle_of_shares_ends() -> None:
    _, plan, _ = small_plan()
    circle = tuple(Placement(value=a, pool="dram", offset=0, bytes=1, shares=b) for a, b in (("a", "b"), ("b", "a")))
    broken = plan.model_copy(update={"placements": circle})
    assert owner(broken, "a") in ("a", "b") and set(owners(broken).values()) < {"a", "b"}


def test_many_values_in_place_of_each_other() -> None:
    """Following each one's shares to their end would take a minute."""
    _, plan, _ = small_plan()
    row = tuple(
        Placement(value=f"v{i}", pool="dram", offset=0, bytes=1, shares=f"v{i - 1}" if i else "") for i in range(40_000)
    )
    assert set(owners(plan.model_copy(update={"placements": row[::-1]})).values()) == {"v0"}


def test_peak_place() -> None:
    # 10 at 0..1, 20 at 1..3, 5 at 3: 10, 30, 20, 25.
    assert peak_place((block("a", 0, 10, 0, 1), block("b", 10, 20, 1, 3), block("c", 0, 5, 3, 3))) == (1, 30)
    assert peak_place(()) == (0, 0)
