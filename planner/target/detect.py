"""Detection: what this machine, or the container on it, offers to the CPU lanes.

Reads /sys/devices/system/cpu and node, /proc/cpuinfo, meminfo, self/status and self/cgroup, and the cgroup files
below /sys/fs/cgroup. Virtual machines and containers often hide some of these, so each has a default:

    missing                             taken instead
    online processors                   the processors of /proc/cpuinfo, else as many as Python counts
    SMT siblings, core and socket ids   those of /proc/cpuinfo, else every processor is a core, all in one socket
    an L2 cache's sharing               no sharing
    an L3 cache's sharing               shared by the socket
    a cache's size                      0 (unknown)
    NUMA nodes                          one, and no pool names any
    frequency                           "cpu MHz" or the model name's "@ 2.10GHz", else 3 GHz
    memory                              4 GiB

Where there are several NUMA nodes with memory and this process may choose among them, the pool of the processors is
that of the nodes they belong to. Nodes without processors are a second pool, found only where bandwidths are measured,
as nothing else says whether it is the faster one (memory on the package) or the slower one (behind CXL). The faster one
comes first: plans compute in it. GPUs are not detected: add them by hand, or start from a checked-in target.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from planner.target.memories import memories
from planner.target.model import Caches, Cpu, Source, Target
from planner.target.system import Files, cpu_list, cpu_quota, memory_limit, parse_size
from planner.target.text import target_error
from planner.target.topology import Core, lane_order
from planner.units import Bytes

# What executors and kernel libraries choose by; other flags would only make targets differ without need.
_ISA = frozenset(
    {"asimd", "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512cd", "avx512dq"}
    | {"avx512vl", "avx512er", "avx512pf", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_int8"}
)
# The x86-64 psABI's levels: a -march that every g++ since 11 knows and that loses little against the exact name.
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_KNL = _V3 | {"avx512f", "avx512cd", "avx512er", "avx512pf"}

_DEFAULT_MEMORY = 4 << 30
_DEFAULT_HZ = 3_000_000_000
# Estimates lie high on purpose, since lower bounds are computed from them: one core's best case, and eight channels
# of DDR5-4800 per socket.
_THREAD_BANDWIDTH = 40_000_000_000
_SOCKET_BANDWIDTH = 300_000_000_000


@dataclass(frozen=True)
class _Place:
    """Where a logical processor sits; equal keys mean sharing."""

    siblings: tuple[int, ...]
    tile: tuple[int, ...]
    l3: tuple[int, ...]
    socket: int
    numa: int


def detect(
    name: str | None = None,
    proc: Path | str = "/proc",
    sys: Path | str = "/sys",
    measure: bool = False,
) -> Target:
    """The machine as a target: only processors in the affinity mask, as many as the cgroup's quota allows.

    `name` defaults to cores and -march, like `cpu2_x86_64_v4`. With `measure`, NumPy copies are timed for about a
    second; otherwise bandwidths are estimates (the target says which). Peak speed is an estimate: frequency x
    vector lanes x 2 (FMA) x 2 units. Missing files raise nothing; SP1105 for a bad `name`.
    """
    files = Files(Path(proc), Path(sys))
    info = _cpuinfo(files)
    cpus = _usable_cpus(files, info)
    cores = _cores(files, info, cpus)
    flags = _common_flags(info, [cpu for core in cores for cpu in core.cpus])
    march = _march(flags)
    sockets = len({_place(files, info, c.cpus[0]).socket for c in cores})
    caches = _caches(files, [c.cpus[0] for c in cores])
    estimate = (_THREAD_BANDWIDTH, min(len(cores) * _THREAD_BANDWIDTH, sockets * _SOCKET_BANDWIDTH))
    found = memories(files, cores, _memory(files), estimate, caches.l3 if measure else None)
    how: Source = "measured" if measure else "estimated"
    try:
        return Target(
            name=name or _default_name(len(cores), march),
            kind="cpu",
            source="stepplan detect",
            cpu=Cpu(
                model=_model_name(info),
                march=march,
                isa=tuple(sorted(flags & _ISA)),
                memory=found[0].pool.name,
                flops_per_core=_flops(flags, _frequency(files, info, cores)),
                flops_source="estimated",
                memory_bandwidth=found[0].pool.bandwidth,
                thread_bandwidth=found[0].thread_bandwidth,
                bandwidth_source=how,
                caches=caches,
                cores=cores,
            ),
            pools=tuple(m.pool for m in found),
        )
    except ValidationError as error:
        raise target_error("the detected target", error) from error


def _default_name(cores: int, march: str) -> str:
    return f"cpu{cores}_" + re.sub(r"[^a-z0-9]+", "_", march)


def _cpuinfo(files: Files) -> dict[int, dict[str, str]]:
    """processor -> its lines of /proc/cpuinfo."""
    found: dict[int, dict[str, str]] = {}
    for block in files.proc("cpuinfo").split("\n\n"):
        entry = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in block.splitlines())}
        if entry.get("processor", "").isdigit():
            found[int(entry["processor"])] = entry
    return found


def _usable_cpus(files: Files, info: Mapping[int, Mapping[str, str]]) -> tuple[int, ...]:
    """Online processors that this thread may run on; never none."""
    online = cpu_list(files.cpu("online")) or sorted(info) or list(range(os.cpu_count() or 1))
    # The kernel's view of sched_getaffinity(0); read as a file so that `proc` can be another tree.
    status = files.proc("thread-self/status") or files.proc("self/status")
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    allowed = set(cpu_list(match[1])) if match else set(online)
    return tuple(c for c in online if c in allowed) or tuple(online)


def _cores(files: Files, info: Mapping[int, Mapping[str, str]], cpus: Sequence[int]) -> tuple[Core, ...]:
    """Physical cores in the order of their primary processors, their tiles and L3 groups numbered from 0."""
    usable = set(cpus)
    places = {cpu: _place(files, info, cpu) for cpu in cpus}
    grouped: dict[int, list[int]] = {}
    taken: set[int] = set()
    for cpu in sorted(cpus):
        if cpu not in taken:
            members = [cpu, *(s for s in places[cpu].siblings if s in usable and s not in taken and s != cpu)]
            grouped[cpu] = members
            taken.update(members)
    tiles: dict[object, int] = {}
    groups: dict[object, int] = {}
    cores = []
    for number, (primary, members) in enumerate(grouped.items()):
        place = places[primary]
        l3 = (place.l3, place.socket)
        # The L3 group is part of the tile's key: a virtual machine may report an L2 that spans two L3 caches.
        tile = (place.tile or (primary,), l3)
        cores.append(
            Core(
                id=number,
                cpus=tuple(members),
                tile=tiles.setdefault(tile, len(tiles)),
                l3=groups.setdefault(l3, len(groups)),
                numa=place.numa,
            )
        )
    return _within_quota(tuple(cores), cpu_quota(files))


def _within_quota(cores: tuple[Core, ...], quota: float | None) -> tuple[Core, ...]:
    """The first whole processors of a CPU quota: primaries before siblings, neighbours first.

    More lanes than the quota pays for would be throttled together at the worst moment.
    """
    if quota is None or quota >= sum(len(c.cpus) for c in cores):
        return cores
    kept = set(lane_order(cores, smt=True)[: max(1, int(quota))])
    return tuple(
        c.model_copy(update={"cpus": tuple(cpu for cpu in c.cpus if cpu in kept)}) for c in cores if c.cpus[0] in kept
    )


def _place(files: Files, info: Mapping[int, Mapping[str, str]], cpu: int) -> _Place:
    entry = info.get(cpu, {})
    socket = _number(files.cpu(f"cpu{cpu}/topology/physical_package_id"), _number(entry.get("physical id"), 0))
    siblings = cpu_list(files.cpu(f"cpu{cpu}/topology/thread_siblings_list"))
    if not siblings and "core id" in entry:
        key = (entry.get("physical id"), entry["core id"])
        siblings = [c for c, e in sorted(info.items()) if (e.get("physical id"), e.get("core id")) == key]
    shared = {level: cpus for level, _, cpus in _cache_files(files, cpu)}
    return _Place(
        siblings=tuple(siblings),
        tile=tuple(shared.get(2, ())),
        l3=tuple(shared.get(3, ())),
        socket=max(socket, 0),
        numa=_numa(files, cpu),
    )


def _numa(files: Files, cpu: int) -> int:
    for node in files.nodes():
        if cpu in files.cpus_of_node(node):
            return node
    return 0


def _cache_files(files: Files, cpu: int) -> list[tuple[int, int, list[int]]]:
    """(level, bytes, processors that share it) of each data cache of a processor."""
    found = []
    for index in range(16):
        folder = f"cpu{cpu}/cache/index{index}"
        level = _number(files.cpu(f"{folder}/level"), 0)
        if not level:
            break
        if files.cpu(f"{folder}/type") != "Instruction":
            size = parse_size(files.cpu(f"{folder}/size"))
            found.append((level, size, cpu_list(files.cpu(f"{folder}/shared_cpu_list"))))
    return found


def _caches(files: Files, cpus: Sequence[int]) -> Caches:
    """The smallest instance of each level over the cores; cores that lack a level don't count."""
    sizes: dict[int, int] = {}
    for cpu in cpus:
        for level, size, _ in _cache_files(files, cpu):
            if size:
                sizes[level] = min(size, sizes.get(level, size))
    return Caches(l1d=Bytes(sizes.get(1, 0)), l2=Bytes(sizes.get(2, 0)), l3=Bytes(sizes.get(3, 0)))


def _memory(files: Files) -> Bytes:
    match = re.search(r"^MemTotal:\s*(\d+) kB", files.proc("meminfo"), re.MULTILINE)
    total = int(match[1]) * 1024 if match and int(match[1]) else _DEFAULT_MEMORY
    limit = memory_limit(files)
    return Bytes(total if limit is None else min(total, limit))


def _common_flags(info: Mapping[int, Mapping[str, str]], cpus: Sequence[int]) -> frozenset[str]:
    """What every core has: on a hybrid processor, a lane may land on either kind."""
    flags = [frozenset((info[c].get("flags") or info[c].get("Features", "")).split()) for c in cpus if c in info]
    return frozenset.intersection(*flags) if flags else frozenset()


def _march(flags: frozenset[str]) -> str:
    if flags >= _KNL:
        return "knl"
    if "asimd" in flags:
        return "armv8-a"
    for march, needed in (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2)):
        if flags >= needed:
            return march
    return "x86-64"


def _model_name(info: Mapping[int, Mapping[str, str]]) -> str:
    name = next((e["model name"] for e in info.values() if e.get("model name")), "unknown processor")
    return re.sub(r"\s+", " ", re.sub(r"[^A-Za-z0-9 ()@.,:;+_/%=-]", " ", name)).strip()[:120]


def _frequency(files: Files, info: Mapping[int, Mapping[str, str]], cores: Sequence[Core]) -> int:
    """Hz, rounded to 0.1 GHz so that a clock that drifts doesn't change the target; the fastest core counts."""
    cpus = [c.cpus[0] for c in cores]
    hertz = max(_number(files.cpu(f"cpu{c}/cpufreq/cpuinfo_max_freq"), 0) * 1000 for c in cpus)
    if not hertz:
        texts = [info.get(c, {}).get("cpu MHz", "") for c in cpus]
        hertz = max(int(float(t) * 1e6) if re.fullmatch(r"\d+(\.\d+)?", t) else 0 for t in texts)
    if not hertz and (match := re.search(r"@ (\d+(?:\.\d+)?)GHz", _model_name(info))):
        hertz = int(float(match[1]) * 1e9)
    return max(round((hertz or _DEFAULT_HZ) / 1e8), 1) * 100_000_000


def _flops(flags: frozenset[str], hertz: int) -> int:
    lanes = 16 if "avx512f" in flags else 8 if "avx" in flags else 4
    # Without FMA a core still multiplies and adds in the same cycle, on one unit each.
    per_lane = 4 if flags & {"fma", "asimd"} else 2
    return hertz * lanes * per_lane


def _number(text: str | None, default: int) -> int:
    return int(text) if text and re.fullmatch(r"-?\d{1,18}", text) else default
