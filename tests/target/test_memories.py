"""The memory pools of machines with several NUMA nodes: nodes as fake trees show them, bandwidths as given."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from planner.target import memories as module
from planner.target.memories import Memory, memories
from planner.target.model import Pool
from planner.target.numa import buffer, may_choose, memory_of_nodes
from planner.target.system import Files
from planner.target.topology import Core
from planner.units import Bytes

GIB = 1 << 30
CORES = tuple(Core(id=i, cpus=(i,), tile=i, l3=0, numa=i // 2) for i in range(4))
"""Two of node 0, two of node 1."""
ESTIMATE = (10, 30)
OWN_RATE = 100


def tree(root: Path, nodes: dict[int, tuple[str, int]], allowed: str = "0-9") -> Files:
    """`nodes`: number -> (processors, GiB)."""
    for number, (cpus, size) in nodes.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal: {size << 20} kB\nNode {number} MemFree: 1 kB\n")
    status = root / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"Name:\tpython\nMems_allowed_list:\t{allowed}\n")
    return Files(root / "proc", root / "sys")


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may choose among all nodes."""
    monkeypatch.setattr(module, "may_choose", lambda nodes: True)


def measured(monkeypatch: pytest.MonkeyPatch, far_rate: int) -> None:
    """Nodes 0 and 1 have a bandwidth of 100, the others `far_rate`."""

    def measure(cpus: Sequence[int], l3: int, size: int, nodes: Sequence[int]) -> tuple[int, int]:
        return (7, far_rate if set(nodes) - {0, 1} else OWN_RATE)

    monkeypatch.setattr(module, "measure_bandwidth", measure)


def pool(name: str, kind: str, size: int, rate: int, nodes: tuple[int, ...] | None) -> Pool:
    fields = {"name": name, "kind": kind, "capacity": size * GIB, "bandwidth": rate, "nodes": nodes}
    return Pool.model_validate(fields)


def test_two_sockets_are_one_pool(tmp_path: Path) -> None:
    files = tree(tmp_path, {0: ("0-1", 16), 1: ("2-3", 16)})
    assert memory_of_nodes(files) == {0: 16 * GIB, 1: 16 * GIB}
    assert memories(files, CORES, Bytes(32 * GIB), ESTIMATE, None) == [Memory(pool("dram", "dram", 32, 30, (0, 1)), 10)]


def test_a_limit_of_the_process_holds(tmp_path: Path) -> None:
    files = tree(tmp_path, {0: ("0-1", 16), 1: ("2-3", 16)})
    assert memories(files, CORES, Bytes(20 * GIB), ESTIMATE, None)[0].pool.capacity == 20 * GIB


def test_only_the_nodes_of_the_processors(tmp_path: Path) -> None:
    files = tree(tmp_path, {0: ("0-1", 16), 1: ("2-3", 16)})
    [found] = memories(files, CORES[:2], Bytes(32 * GIB), ESTIMATE, None)
    assert found.pool == pool("dram", "dram", 16, 30, (0,))


@pytest.mark.parametrize(
    ("nodes", "allowed"),
    [
        ({0: ("0-3", 16)}, "0"),
        ({0: ("0-1", 16), 1: ("2-3", 16)}, "1"),  # the other one is not this process's
        ({0: ("0-1", 16), 1: ("2-3", 0)}, "0-1"),  # a node of processors alone
        ({}, "0"),
    ],
)
def test_one_node_is_not_named(tmp_path: Path, nodes: dict[int, tuple[str, int]], allowed: str) -> None:
    [found] = memories(tree(tmp_path, nodes, allowed), CORES, Bytes(16 * GIB), ESTIMATE, None)
    assert found == Memory(pool("dram", "dram", 16, 30, None), 10)


def test_a_process_that_may_not_choose_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "may_choose", lambda nodes: False)
    files = tree(tmp_path, {0: ("0-1", 16), 1: ("2-3", 16)})
    assert memories(files, CORES, Bytes(32 * GIB), ESTIMATE, None)[0].pool.nodes is None


def test_memory_on_the_package_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, far_rate=400)
    files = tree(tmp_path, {0: ("0-1", 64), 1: ("2-3", 64), 2: ("", 8), 3: ("", 8)})
    assert memories(files, CORES, Bytes(144 * GIB), ESTIMATE, Bytes(1)) == [
        Memory(pool("hbm", "hbm", 16, 400, (2, 3)), 7),
        Memory(pool("dram", "dram", 128, OWN_RATE, (0, 1)), 7),
    ]


def test_memory_that_is_no_faster_comes_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, far_rate=30)
    files = tree(tmp_path, {0: ("0-3", 64), 2: ("", 256)})
    found = memories(files, (CORES[0],), Bytes(320 * GIB), ESTIMATE, Bytes(1))
    assert [m.pool for m in found] == [pool("dram", "dram", 64, OWN_RATE, (0,)), pool("far", "dram", 256, 30, (2,))]


def test_memory_of_unknown_speed_is_left_out(tmp_path: Path) -> None:
    files = tree(tmp_path, {0: ("0-3", 64), 2: ("", 256)})
    assert [m.pool.name for m in memories(files, (CORES[0],), Bytes(320 * GIB), ESTIMATE, None)] == ["dram"]


def test_buffers_lie_where_they_should() -> None:
    here = list(memory_of_nodes(Files(Path("/proc"), Path("/sys"))))
    if not here or not may_choose(here):
        pytest.skip("this process may not choose among NUMA nodes")
    memory = buffer(1 << 20, here[:1])
    memory[:] = 1
    maps = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    place = max(int(start, 16) for start, *_ in maps if int(start, 16) <= memory.ctypes.data)
    [[_, policy, *_]] = [line for line in maps if int(line[0], 16) == place]
    assert policy == f"interleave:{here[0]}"


def test_a_node_that_there_is_not() -> None:
    with pytest.raises(OSError, match=r"\w"):
        buffer(1 << 20, (1023,))
    assert not may_choose((1023,))
