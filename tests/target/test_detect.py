"""Detection on fake /proc and /sys trees; one test looks at the real machine and checks what must always hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.system import Files, cpu_list, parse_size
from planner.target.text import parse_target, target_text

V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
GIB = 1 << 30


class Machine:
    """Writes a fake /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.proc.mkdir()
        self.sys.mkdir()

    def file(self, path: str, text: object) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpu(self, path: str, text: object) -> None:
        self.file(f"sys/devices/system/cpu/{path}", text)

    def cpuinfo(self, cpus: int, flags: str = V3, extra: str = "model name\t: Test CPU @ 2.50GHz\n") -> None:
        blocks = (f"processor\t: {i}\n{extra}flags\t\t: fpu {flags}\n" for i in range(cpus))
        self.file("proc/cpuinfo", "\n".join(blocks))

    def memory(self, size: int) -> None:
        self.file("proc/meminfo", f"MemTotal:       {size // 1024} kB\nMemFree: 1 kB")

    def topology(self, cpu: int, siblings: str, socket: int = 0) -> None:
        self.cpu(f"cpu{cpu}/topology/thread_siblings_list", siblings)
        self.cpu(f"cpu{cpu}/topology/physical_package_id", socket)

    def cache(self, cpu: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
        for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared), ("type", kind)):
            self.cpu(f"cpu{cpu}/cache/index{index}/{name}", value)

    def affinity(self, cpus: str) -> None:
        self.file("proc/self/status", f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}")

    def detect(self, name: str | None = None) -> Target:
        target = detect(name, self.proc, self.sys)
        assert parse_target(target_text(target)) == target
        return target


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def smt_machine(machine: Machine) -> None:
    """Four cores with two threads each (i and i+4), an L2 per core, one L3, 16 GiB."""
    machine.cpuinfo(8, V4)
    machine.memory(16 * GIB)
    machine.cpu("online", "0-7")
    for i in range(8):
        own = f"{i % 4},{i % 4 + 4}"
        machine.topology(i, own)
        machine.cache(i, 0, 1, "48K", own, "Data")
        machine.cache(i, 1, 1, "32K", own, "Instruction")
        machine.cache(i, 2, 2, "2048K", own)
        machine.cache(i, 3, 3, "32M", "0-7")


def cpus_of(target: Target) -> list[tuple[int, ...]]:
    return [c.cpus for c in target.cpu.cores]


def test_smt(machine: Machine) -> None:
    smt_machine(machine)
    target = machine.detect()
    assert target.name == "cpu4_x86_64_v4"
    assert cpus_of(target) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [c.tile for c in target.cpu.cores] == [0, 1, 2, 3]
    assert {c.l3 for c in target.cpu.cores} == {0}
    assert (target.cpu.caches.l1d, target.cpu.caches.l2, target.cpu.caches.l3) == (48 << 10, 2 << 20, 32 << 20)
    assert target.memory.capacity == 16 * GIB
    assert target.cpu.model == "Test CPU @ 2.50GHz"
    assert "avx512_vnni" in target.cpu.isa
    assert "fpu" not in target.cpu.isa
    assert target.cpu.flops_per_core == 2_500_000_000 * 64  # 16 lanes x 2 units x 2 (FMA)
    assert (target.cpu.flops_source, target.cpu.bandwidth_source) == ("estimated", "estimated")


def test_the_same_machine_gives_the_same_bytes(machine: Machine) -> None:
    smt_machine(machine)
    assert target_text(machine.detect()) == target_text(machine.detect())
    assert str(machine.proc.parent) not in target_text(machine.detect())


def test_two_sockets_with_shared_l2(machine: Machine) -> None:
    machine.cpuinfo(8)
    machine.cpu("online", "0-7")
    for i in range(8):
        socket = i // 4
        machine.topology(i, str(i), socket)
        machine.cache(i, 0, 1, "32K", str(i), "Data")
        machine.cache(i, 1, 2, "1M", f"{i // 2 * 2}-{i // 2 * 2 + 1}")
        machine.cache(i, 2, 3, "16M", f"{socket * 4}-{socket * 4 + 3}")
    machine.file("sys/devices/system/node/node0/cpulist", "0-3")
    machine.file("sys/devices/system/node/node1/cpulist", "4-7")
    target = machine.detect()
    assert [c.tile for c in target.cpu.cores] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [c.l3 for c in target.cpu.cores] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [c.numa for c in target.cpu.cores] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert target.lanes(4, affinity="spread") == (0, 4, 2, 6)


def test_no_cache_information(machine: Machine) -> None:
    machine.cpuinfo(4)
    machine.cpu("online", "0-3")
    for i in range(4):
        machine.topology(i, str(i), i // 2)
    target = machine.detect()
    assert [c.tile for c in target.cpu.cores] == [0, 1, 2, 3]
    assert [c.l3 for c in target.cpu.cores] == [0, 0, 1, 1]  # an L3 per socket
    assert (target.cpu.caches.l1d, target.cpu.caches.l3) == (0, 0)


def test_no_sys_at_all_takes_the_topology_of_cpuinfo(machine: Machine) -> None:
    blocks = (f"processor : {i}\nphysical id : {i // 4}\ncore id : {i % 4 // 2}\nflags : {V3}\n" for i in range(8))
    machine.file("proc/cpuinfo", "\n".join(blocks))
    target = machine.detect()
    assert cpus_of(target) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [c.l3 for c in target.cpu.cores] == [0, 0, 1, 1]


def test_an_empty_tree_gives_the_documented_defaults(machine: Machine) -> None:
    target = machine.detect()
    assert target.physical_cores == (os.cpu_count() or 1)
    assert (target.cpu.march, target.cpu.isa, target.cpu.model) == ("x86-64", (), "unknown processor")
    assert target.memory.capacity == 4 * GIB
    assert target.cpu.flops_per_core == 3_000_000_000 * 4 * 2  # 4 lanes, an add and a multiply


def test_hybrid_cores(machine: Machine) -> None:
    # Two big cores with two threads, four small ones that share an L2; only the big ones have AVX-512.
    blocks = (f"processor : {i}\nmodel name : Hybrid\nflags : {V4 if i < 4 else V3}\n" for i in range(8))
    machine.file("proc/cpuinfo", "\n".join(blocks))
    machine.cpu("online", "0-7")
    for i in range(8):
        own = f"{i // 2 * 2}-{i // 2 * 2 + 1}" if i < 4 else str(i)
        machine.topology(i, own)
        machine.cache(i, 0, 1, "48K" if i < 4 else "32K", own, "Data")
        machine.cache(i, 1, 2, "1280K" if i < 4 else "2048K", own if i < 4 else "4-7")
        machine.cache(i, 2, 3, "24M", "0-7")
        machine.cpu(f"cpu{i}/cpufreq/cpuinfo_max_freq", 5_000_000 if i < 4 else 3_800_000)
    target = machine.detect()
    assert cpus_of(target) == [(0, 1), (2, 3), (4,), (5,), (6,), (7,)]
    assert [c.tile for c in target.cpu.cores] == [0, 1, 2, 2, 2, 2]
    assert target.cpu.march == "x86-64-v3"  # what all have
    assert (target.cpu.caches.l1d, target.cpu.caches.l2) == (32 << 10, 1280 << 10)  # the smaller of the two kinds
    assert target.cpu.flops_per_core == 5_000_000_000 * 32  # the faster kind: bounds stay bounds


def test_affinity_mask(machine: Machine) -> None:
    smt_machine(machine)
    machine.affinity("1,4-5")
    # Core 0 is allowed through its sibling only, which becomes the primary.
    assert cpus_of(machine.detect()) == [(1, 5), (4,)]


def test_an_affinity_mask_without_online_processors_is_ignored(machine: Machine) -> None:
    smt_machine(machine)
    machine.affinity("100")
    assert machine.detect().logical_cpus == 8


def test_offline_processors(machine: Machine) -> None:
    smt_machine(machine)
    machine.cpu("online", "0-1,3-5,7")
    assert cpus_of(machine.detect()) == [(0, 4), (1, 5), (3, 7)]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("800000 100000", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("550000 100000", [(0, 4), (1,), (2,), (3,)]),  # 5 whole processors: 4 primaries and one sibling
        ("250000 100000", [(0,), (1,)]),
        ("50000 100000", [(0,)]),
        ("broken", [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ],
)
def test_cgroup_v2_quota(machine: Machine, quota: str, expected: list[tuple[int, ...]]) -> None:
    smt_machine(machine)
    machine.file("proc/self/cgroup", "0::/")
    machine.file("sys/fs/cgroup/cpu.max", quota)
    assert cpus_of(machine.detect()) == expected


def test_cgroup_v2_takes_the_tightest_ancestor(machine: Machine) -> None:
    smt_machine(machine)
    machine.file("proc/self/cgroup", "0::/a.slice/b.scope")
    machine.file("sys/fs/cgroup/a.slice/cpu.max", "200000 100000")
    machine.file("sys/fs/cgroup/a.slice/b.scope/cpu.max", "300000 100000")
    machine.file("sys/fs/cgroup/a.slice/memory.max", 3 * GIB)
    machine.file("sys/fs/cgroup/a.slice/b.scope/memory.max", "max")
    target = machine.detect()
    assert cpus_of(target) == [(0,), (1,)]
    assert target.memory.capacity == 3 * GIB


def test_cgroup_v1(machine: Machine) -> None:
    smt_machine(machine)
    machine.file("proc/self/cgroup", "3:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/")
    machine.file("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", 300000)
    machine.file("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", 100000)
    machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)  # no limit
    machine.file("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", 2 * GIB)
    target = machine.detect()
    assert cpus_of(target) == [(0,), (1,), (2,)]
    assert target.memory.capacity == 2 * GIB


def test_cgroup_v1_seen_from_inside_the_container(machine: Machine) -> None:
    # /proc/self/cgroup names the path outside, which the container's mount does not have.
    smt_machine(machine)
    machine.file("proc/self/cgroup", "2:cpu:/docker/x")
    machine.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
    machine.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
    assert machine.detect().physical_cores == 4
    machine.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", 100000)
    assert cpus_of(machine.detect()) == [(0,)]


def test_cgroup_paths_stay_below_the_mount(machine: Machine) -> None:
    machine.file("proc/self/cgroup", "0::/../../../outside")
    machine.file("outside/memory.max", 1 << 20)
    assert Files(machine.proc, machine.sys).cgroup("", "memory.max") == []


@pytest.mark.parametrize(
    ("flags", "march"),
    [
        ("sse2", "x86-64"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V4.replace(" bmi2", ""), "x86-64-v2"),
        (f"{V3} avx512f avx512cd avx512er avx512pf", "knl"),
    ],
)
def test_march(machine: Machine, flags: str, march: str) -> None:
    machine.cpuinfo(1, flags)
    assert machine.detect().cpu.march == march


def test_arm(machine: Machine) -> None:
    machine.file("proc/cpuinfo", "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\n")
    target = machine.detect()
    assert (target.name, target.cpu.march, target.cpu.isa) == ("cpu1_armv8_a", "armv8-a", ("asimd",))
    assert target.cpu.flops_per_core == 3_000_000_000 * 16


def test_a_hostile_model_name_is_cleaned(machine: Machine) -> None:
    machine.cpuinfo(1, extra='model name : Evil*/ "CPU"\\ {{x}}\n')
    assert machine.detect().cpu.model == "Evil / CPU x"


def test_a_drifting_clock_does_not_change_the_target(machine: Machine) -> None:
    speeds = set()
    for mhz in ("2596.120", "2603.9"):
        machine.cpuinfo(2, extra=f"model name : X\ncpu MHz : {mhz}\n")
        speeds.add(machine.detect().cpu.flops_per_core)
    assert speeds == {2_600_000_000 * 32}


def test_an_l2_that_spans_two_l3_groups_is_split(machine: Machine) -> None:
    machine.cpuinfo(2)
    for i in range(2):
        machine.cache(i, 0, 2, "1M", "0-1")
        machine.cache(i, 1, 3, "8M", str(i))
    assert [c.tile for c in machine.detect().cpu.cores] == [0, 1]


def test_garbage_everywhere(machine: Machine) -> None:
    machine.cpuinfo(2)
    machine.memory(0)
    machine.cpu("online", "zzz")
    machine.topology(0, "0-,x", -1)
    machine.cache(0, 0, 2, "huge", "?")
    machine.cpu("cpu0/cpufreq/cpuinfo_max_freq", "fast")
    machine.file("proc/self/cgroup", "::\n\n7")
    machine.file("proc/self/status", "Cpus_allowed_list:")
    target = machine.detect()
    assert cpus_of(target) == [(0,), (1,)]
    assert target.memory.capacity == 4 * GIB


def test_the_name(machine: Machine) -> None:
    assert machine.detect("my_box").name == "my_box"
    with pytest.raises(UserError, match="SP1105"):
        machine.detect("My Box")


def test_formats() -> None:
    assert cpu_list("0-2,7\n") == [0, 1, 2, 7]
    assert cpu_list("") == cpu_list("a-b") == cpu_list("5-3") == cpu_list("-1") == []
    assert [parse_size(t) for t in ("48K", "32M", "1G", "64", "", "K", "1T")] == [49152, 32 << 20, GIB, 64, 0, 0, 0]


def test_this_machine() -> None:
    target = detect(measure=True)
    assert parse_target(target_text(target)) == target
    assert detect().fingerprint() == target.fingerprint()
    assert 1 <= target.physical_cores <= target.logical_cpus
    if hasattr(os, "sched_getaffinity"):
        assert set(target.lanes(smt=True)) <= os.sched_getaffinity(0)
    assert target.memory.capacity >= 256 << 20
    assert target.cpu.bandwidth_source == "measured"
    assert 100_000_000 <= target.cpu.thread_bandwidth <= target.cpu.memory_bandwidth < 10**14
    assert os.uname().nodename not in target_text(target) or len(os.uname().nodename) < 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
def test_this_machine_under_a_mask() -> None:
    one = max(os.sched_getaffinity(0))
    script = (
        "import os\nfrom planner.target.detect import detect\n"
        f"os.sched_setaffinity(0, {{{one}}})\nprint(detect().lanes(smt=True))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"({one},)"
