"""Files of /proc and /sys below roots that tests replace, and the formats found in them. Nothing here raises."""

import re
from dataclasses import dataclass
from pathlib import Path

# What cgroup v1 writes for "no limit" (the largest page multiple), and anything that can only mean the same.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Files:
    proc_root: Path
    sys_root: Path

    def proc(self, name: str) -> str:
        return _read(self.proc_root / name)

    def cpu(self, name: str) -> str:
        return _read(self.sys_root / "devices/system/cpu" / name)

    def node(self, name: str) -> str:
        return _read(self.sys_root / "devices/system/node" / name)

    def nodes(self) -> list[int]:
        """The NUMA nodes' numbers, sorted."""
        folder = self.sys_root / "devices/system/node"
        names = (p.name for p in folder.glob("node*"))
        return sorted(int(n[4:]) for n in names if n[4:].isdigit())

    def cpus_of_node(self, node: int) -> list[int]:
        return cpu_list(self.node(f"node{node}/cpulist"))

    def cgroup(self, controller: str, name: str) -> list[str]:
        """A limit file's text in the process's group and in each of its ancestors, where there is one.

        `controller` is "" for version 2. A container may see its own group as the root of the mount while
        /proc/self/cgroup names the path outside, so the root is always looked at.
        """
        groups = []
        for line in self.proc("self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(","):
                groups.append((controllers, path))
        texts = []
        mount = self.sys_root / "fs/cgroup"
        for controllers, path in groups or [(controller, "/")]:
            bases = {mount / controllers, mount / controller} if controller else {mount, mount / "unified"}
            parts = [p for p in path.split("/") if p not in ("", ".", "..")]
            for base in sorted(bases):
                folders = (base.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))
                texts += [text for folder in folders if (text := _read(folder / name))]
        return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def cpu_list(text: str) -> list[int]:
    """`0-3,8` -> [0, 1, 2, 3, 8]; what can't be read is left out."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(c for c in found if c <= 65535)


def parse_size(text: str) -> int:
    """`48K`, `32M` -> bytes; 0 when it can't be read."""
    match = re.fullmatch(r"(\d{1,9})([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def cpu_quota(files: Files) -> float | None:
    """Processors' worth of time per period that the cgroups allow; None without a limit."""
    found = []
    for text in files.cgroup("", "cpu.max"):
        match = re.match(r"(\d+) (\d+)", text)
        if match and int(match[2]):
            found.append(int(match[1]) / int(match[2]))
    quotas, periods = files.cgroup("cpu", "cpu.cfs_quota_us"), files.cgroup("cpu", "cpu.cfs_period_us")
    for quota, period in zip(quotas, periods, strict=False):
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_limit(files: Files) -> int | None:
    """Bytes that the cgroups allow; None without a limit."""
    texts = files.cgroup("", "memory.max") + files.cgroup("memory", "memory.limit_in_bytes")
    limits = [int(t) for t in texts if t.isdigit() and 0 < int(t) < _UNLIMITED]
    return min(limits, default=None)
