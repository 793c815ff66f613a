"""Arenas lie on the NUMA nodes of their pools. Most machines of tests have one node, where the policy can be read all
the same."""

from pathlib import Path

import pytest

from planner.errors import UserError
from planner.target.numa import may_choose, memory_of_nodes
from planner.target.system import Files
from tests.codegen.test_rewrites import assert_same, made, run
from tests.graphs import small_net
from tests.rewrites import Rewriter


def policies() -> dict[int, str]:
    """Start of a mapping -> its policy. Neighbours that are alike are one mapping."""
    lines = (line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines())
    return {int(line[0], 16): line[1] for line in lines}


def policy_at(address: int) -> str:
    found = policies()
    return found[max(start for start in found if start <= address)]


@pytest.fixture
def here() -> tuple[int, ...]:
    found = tuple(memory_of_nodes(Files(Path("/proc"), Path("/sys"))))
    if not found or not may_choose(found):
        pytest.skip("this process may not choose among NUMA nodes")
    return found


def test_pools_lie_on_their_nodes(tmp_path: Path, here: tuple[int, ...]) -> None:
    """Two pools, as of a processor with memory of two kinds; the bits are those of pools that lie anywhere."""
    graph = small_net()
    anywhere = Rewriter(graph, 2)
    expected = run(made(anywhere.plan(anywhere.everything("move")), graph, anywhere, tmp_path / "anywhere"), graph)
    wanted = f"interleave:{here[-1]}"
    for first, second in ((here[-1:], None), (None, here[-1:])):
        rewriter = Rewriter(graph, 2, nodes=(first, second))
        folder = tmp_path / ("first" if first else "second")
        executor = made(rewriter.plan(rewriter.everything("move")), graph, rewriter, folder)
        before = list(policies().values()).count(wanted)
        with executor(seed=0, pin=False) as placed:
            assert (policy_at(placed._arena.ctypes.data) == wanted) == bool(first)
            assert list(policies().values()).count(wanted) == before + 1
        assert_same(run(executor, graph), expected)


def test_a_node_that_there_is_not(tmp_path: Path) -> None:
    rewriter = Rewriter(small_net(), 1, nodes=((1023,), None))
    executor = made(rewriter.plan({}), small_net(), rewriter, tmp_path)
    with pytest.raises(UserError, match="SP1604: NUMA node 1023 has 0 bytes left"):
        executor(pin=False)
