"""The target: what a plan may assume about the hardware, as frozen models. Written as NAME.toml (target/text.py).

Sizes are bytes, bandwidths bytes per second (a copy counts what it reads plus what it writes, except on a link,
which counts what crosses it), speeds float32 operations per second. Peaks feed lower bounds, so where a figure is
uncertain it is chosen high: a bound computed from it stays a bound.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, LiteralString, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from planner.errors import InternalError, UserError
from planner.graph.model import Frozen
from planner.target.topology import Affinity, Core, lane_order
from planner.units import Bytes, format_bytes

SCHEMA: Final = 1

NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
MARCH = re.compile(r"(?=.{2,40}\Z)[a-z][a-z0-9]*(?:[-.+_][a-z0-9]+)*")
# Texts end up in comments of emitted code: no quotes, backslashes, line ends, nor anything that closes a comment.
TEXT = re.compile(r"[A-Za-z0-9 ()@.,:;+_/%=-]{0,600}")

Level = Literal["l1d", "l2", "l3"]
Source = Literal["measured", "estimated", "published"]

BFLOAT16_ISA = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets with products of bfloat16 numbers, as /proc/cpuinfo spells them."""

MOST_STREAMS = 128
"""Kernels that a GPU runs at the same time, at most, as CUDA's tables of compute capabilities say."""

_LARGEST = 2**63 - 1  # what a TOML integer holds
_Size = Annotated[Bytes, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[int, Field(ge=1, le=_LARGEST)]


def _wrong(code: str, problem: LiteralString, fix: str, **context: str) -> PydanticCustomError:
    """A validation error that keeps stepplan's code and fix; target/text.py turns it into a `UserError`."""
    return PydanticCustomError(code, problem, {**context, "fix": fix})


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise _wrong(
            "SP1105",
            "name {name} is not an identifier",
            "use lower-case letters, digits and '_', starting with a letter, at most 60",
            name=repr(text),
        )
    return text


def _text(text: str) -> str:
    if not TEXT.fullmatch(text):
        raise _wrong(
            "SP1105",
            "text {text} has characters that comments of generated code can't hold",
            "use letters, digits, spaces and ()@.,:;+_/%=- only, at most 600",
            text=repr(text[:60]),
        )
    return text


class Caches(Frozen):
    """Bytes of one instance of each data cache; 0 where there is none.

    A core has an L1d of its own, a tile shares an L2, an L3 group shares an L3. Where cores differ (hybrid
    processors) the smallest counts, so that what is planned to fit does fit.
    """

    l1d: _Size = Bytes(0)
    l2: _Size = Bytes(0)
    l3: _Size = Bytes(0)


class Cpu(Frozen):
    """The processor that runs the CPU lanes, or the host of a GPU."""

    model: str
    march: str
    """g++ -march. Never "native": a plan must not depend on the machine that builds it."""
    isa: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")], ...] = ()
    """Instruction sets that every core has, sorted, as /proc/cpuinfo spells them."""
    memory: str
    """The pool in which the processor works."""
    flops_per_core: _Positive
    """Peak float32 operations per second; an FMA counts two."""
    flops_source: Source = "published"
    memory_bandwidth: _Positive
    """Bytes per second that all cores together read plus write."""
    thread_bandwidth: _Positive
    """Bytes per second that one core alone reads plus writes."""
    bandwidth_source: Source = "published"
    caches: Caches = Caches()
    cores: tuple[Core, ...]

    _check_model = field_validator("model")(_text)

    @field_validator("march")
    @classmethod
    def _check_march(cls, text: str) -> str:
        if text == "native":
            raise _wrong(
                "SP1109",
                "march 'native' would make plans depend on the building machine",
                "name what the processor is, like x86-64-v4 or znver4; stepplan detect finds it",
            )
        if not MARCH.fullmatch(text):
            raise _wrong(
                "SP1109",
                "march {march} is not an architecture name",
                "use one that g++ -march accepts, like x86-64-v3, x86-64-v4 or znver4",
                march=repr(text),
            )
        return text

    @model_validator(mode="after")
    def _check_bandwidths(self) -> Self:
        if self.thread_bandwidth > self.memory_bandwidth:
            raise _wrong(
                "SP1106",
                "one thread has more bandwidth than all together",
                "raise memory_bandwidth or lower thread_bandwidth",
            )
        return self

    @field_validator("isa")
    @classmethod
    def _sort_isa(cls, isa: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(isa)))

    @field_validator("cores")
    @classmethod
    def _check_cores(cls, cores: tuple[Core, ...]) -> tuple[Core, ...]:
        if not cores:
            raise _wrong("SP1106", "there is no core", "list at least one core in cpu.cores")
        seen: dict[int, int] = {}
        for core in cores:
            for cpu in core.cpus:
                if cpu in seen:
                    raise _wrong(
                        "SP1106",
                        "logical processor {cpu} is listed twice, in cores {first} and {second}",
                        "every logical processor belongs to one core",
                        cpu=str(cpu),
                        first=str(seen[cpu]),
                        second=str(core.id),
                    )
                seen[cpu] = core.id
        if len({c.id for c in cores}) < len(cores):
            raise _wrong("SP1106", "two cores have the same id", "number the cores 0, 1, 2, ...")
        l3_of: dict[int, int] = {}
        for core in cores:
            if l3_of.setdefault(core.tile, core.l3) != core.l3:
                raise _wrong(
                    "SP1106",
                    "tile {tile} lies in two L3 groups",
                    "give tiles of different L3 groups different numbers",
                    tile=str(core.tile),
                )
        return tuple(sorted(cores, key=lambda c: c.id))


class Pool(Frozen):
    """A memory space that the planner may place values in."""

    name: str
    kind: Literal["dram", "hbm", "device", "disk", "pinned"]
    """A pinned pool is the part of the host's memory that GPUs copy from and to asynchronously."""
    capacity: _Positive
    """Bytes that exist; a memory budget may allow a plan fewer."""
    bandwidth: _Positive
    link_in: _Positive | None = None
    """Bytes per second of copies into the pool, where that is a link of its own (a disk's writes)."""
    link_out: _Positive | None = None
    nodes: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(min_length=1)] | None = None
    """The NUMA nodes whose memory it is: an executor takes its pages from them in turn. None: from wherever the system
    takes them, as on machines with one node."""

    _check_name = field_validator("name")(_name)

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        if self.nodes and self.kind not in ("dram", "hbm"):
            raise _wrong("SP1106", "a pool of kind {kind} has no NUMA nodes", "remove its nodes", kind=self.kind)
        if self.nodes and sorted(set(self.nodes)) != list(self.nodes):
            raise _wrong("SP1106", "a pool's NUMA nodes are not in order", "list each node once, the lowest first")
        return self


class Gpu(Frozen):
    name: str
    model: str
    arch: Annotated[str, Field(pattern=r"^sm_[1-9][0-9]{1,2}[a-z]?$")]
    sms: Annotated[int, Field(ge=1, le=4096)]
    flops: _Positive
    """Peak float32 operations per second without tensor cores; an FMA counts two."""
    memory: str
    """Its pool."""
    copy_in: _Positive
    """Bytes per second of asynchronous copies from pinned host memory."""
    copy_out: _Positive
    """Bytes per second of asynchronous copies to pinned host memory."""

    _check_name = field_validator("name")(_name)
    _check_model = field_validator("model")(_text)


class Target(Frozen):
    """A machine, or the part of one, that a plan is made for."""

    schema_version: Literal[1] = SCHEMA
    name: str
    """Becomes part of generated folder names."""
    kind: Literal["cpu", "cuda"]
    source: str = ""
    """Where the figures come from, for people."""
    cpu: Cpu
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    gpus: tuple[Gpu, ...] = ()

    _check_name = field_validator("name")(_name)
    _check_source = field_validator("source")(_text)

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        for what, names in (("pools", [p.name for p in self.pools]), ("GPUs", [g.name for g in self.gpus])):
            if len(set(names)) < len(names):
                raise _wrong("SP1106", "two {what} have the same name", "give each its own name", what=what)
        if (self.kind == "cuda") != bool(self.gpus):
            raise _wrong("SP1106", "kind and gpus disagree", "a cuda target lists its gpus, a cpu target none")
        for user, pool in [("cpu", self.cpu.memory), *((g.name, g.memory) for g in self.gpus)]:
            if pool not in self.pool:
                raise _wrong(
                    "SP1106",
                    "{user} works in pool {pool}, which is not listed",
                    "add it to pools, or name one of the listed ones",
                    user=user,
                    pool=repr(pool),
                )
        memories = [g.memory for g in self.gpus]
        if len(set(memories)) < len(memories) or any(self.pool[m].kind != "device" for m in memories):
            raise _wrong(
                "SP1106",
                "a GPU's memory is not a device pool of its own",
                "list one pool of kind device per GPU",
            )
        if any(self.pool[m].link_in or self.pool[m].link_out for m in memories):
            raise _wrong("SP1106", "a GPU's pool has link speeds", "give copy_in and copy_out of the GPU instead")
        return self

    @cached_property
    def pool(self) -> Mapping[str, Pool]:
        return {p.name: p for p in self.pools}

    @property
    def memory(self) -> Pool:
        """The pool in which nodes run: the first GPU's, or the processor's where there is no GPU."""
        return self.pool[self.gpus[0].memory if self.gpus else self.cpu.memory]

    @property
    def slower_pool(self) -> str:
        """The pool that values move to where `memory` is short; empty: there is none. A GPU copies beside its kernels
        from and to pinned memory only."""
        others = [p for p in self.pools if p.name != self.memory.name]
        return next((p.name for p in others if p.kind == "pinned" or not self.gpus), "")

    @property
    def physical_cores(self) -> int:
        return len(self.cpu.cores)

    @property
    def logical_cpus(self) -> int:
        """Cores and their SMT siblings."""
        return sum(len(c.cpus) for c in self.cpu.cores)

    @property
    def memory_bandwidth(self) -> int:
        """Bytes per second that everything that runs nodes reads plus writes in `memory`."""
        return self.memory.bandwidth if self.gpus else self.cpu.memory_bandwidth

    @property
    def bfloat16(self) -> bool:
        """Whether it computes in bfloat16: GPUs do, and processors with instructions for it."""
        return bool(self.gpus) or not BFLOAT16_ISA.isdisjoint(self.cpu.isa)

    @property
    def last_level_cache(self) -> int:
        """Bytes of the outermost cache."""
        caches = self.cpu.caches
        return caches.l3 or caches.l2 or caches.l1d

    @property
    def cache_bytes(self) -> int:
        """Bytes of all data caches together: what need not come from memory again within a step."""
        caches = self.cpu.caches
        shared = caches.l3 * len(self.sharing("l3")) + caches.l2 * len(self.sharing("l2"))
        return shared + caches.l1d * self.physical_cores

    @cached_property
    def core_of(self) -> Mapping[int, Core]:
        """Logical processor -> its core."""
        return {cpu: core for core in self.cpu.cores for cpu in core.cpus}

    def link_bandwidth(self, source: str, destination: str) -> int:
        """Bytes per second that cross when a transfer copies from one pool to another; InternalError if unknown."""
        if source not in self.pool or destination not in self.pool:
            raise InternalError(f"target {self.name} has no pools {source!r} and {destination!r}")
        if source == destination:
            return self.pool[source].bandwidth // 2
        from_, to = self.pool[source], self.pool[destination]
        limits = [from_.link_out or from_.bandwidth, to.link_in or to.bandwidth]
        limits += [g.copy_out for g in self.gpus if g.memory == source]
        limits += [g.copy_in for g in self.gpus if g.memory == destination]
        return min(limits)

    def sharing(self, level: Level) -> tuple[tuple[int, ...], ...]:
        """The ids of the cores behind each instance of a cache: `((0, 1), (2, 3))` where pairs share it."""
        groups: dict[int, list[int]] = {}
        for core in self.cpu.cores:
            groups.setdefault({"l1d": core.id, "l2": core.tile, "l3": core.l3}[level], []).append(core.id)
        return tuple(sorted(tuple(g) for g in groups.values()))

    def lanes(self, count: int | None = None, smt: bool = False, affinity: Affinity = "compact") -> tuple[int, ...]:
        """The logical processors to pin `count` lanes to, in lane order (Liu et al., section III-A).

        Compact: neighbours share a cache (both cores of a tile, then the next tile of the same L3 group and NUMA
        node). Spread: neighbours don't; a second core of a tile comes only after the first of every tile. Fewer
        lanes are a prefix of more. With `smt` the siblings follow after all the cores' primaries, in the same core
        order. Without a count: all of them. SP1108 when there are fewer than `count`.
        """
        cpus = lane_order(self.cpu.cores, smt, affinity)
        if count is None:
            return cpus
        if not 1 <= count <= len(cpus):
            kind = "hardware threads" if smt else "cores"
            raise UserError(
                "SP1108",
                f"{count} lanes were asked of target {self.name}, which has {len(cpus)} {kind}",
                f"ask for 1 to {len(cpus)}, or choose a larger target",
            )
        return cpus[:count]

    def streams(self, count: int | None = None) -> tuple[int, ...]:
        """The numbers of a GPU's streams, one unless more are asked for. SP1108 when they are more than can run."""
        if count is not None and not 1 <= count <= MOST_STREAMS:
            raise UserError(
                "SP1108",
                f"{count} lanes were asked of target {self.name}, whose GPU runs {MOST_STREAMS} kernels at a time",
                f"ask for 1 to {MOST_STREAMS}",
            )
        return tuple(range(count or 1))

    def restrict(self, cores: int, affinity: Affinity = "compact") -> "Target":
        """The target with its first `cores` cores in the order of `lanes`, called NAME_coresN. SP1108 as `lanes`.

        Pools stay as they are: fewer cores have the same memory. All cores: the target itself.
        """
        kept = {self.core_of[cpu].id for cpu in self.lanes(cores, affinity=affinity)}
        if len(kept) == self.physical_cores:
            return self
        cpu = self.cpu.model_copy(
            update={
                "cores": tuple(c for c in self.cpu.cores if c.id in kept),
                "memory_bandwidth": min(self.cpu.memory_bandwidth, cores * self.cpu.thread_bandwidth),
            }
        )
        stem = re.sub(r"_cores\d+$", "", self.name)[:48]
        document = self.model_dump() | {"name": f"{stem}_cores{cores}", "cpu": cpu.model_dump()}
        return Target.model_validate(document)

    def fingerprint(self) -> str:
        """Tells machines apart whose measured times differ: model, -march, cores and threads, caches, GPUs.

        Not the name, and nothing that varies between two boots of the same machine (memory left, bandwidth).
        """
        caches = self.cpu.caches
        levels: tuple[tuple[Level, Bytes], ...] = (("l1d", caches.l1d), ("l2", caches.l2), ("l3", caches.l3))
        sizes = " ".join(f"{n} {format_bytes(b)}/{len(self.sharing(n)[0])}" for n, b in levels if b)
        parts = [
            self.cpu.model,
            self.cpu.march,
            f"{self.physical_cores} cores {self.logical_cpus} threads",
            sizes,
        ]
        parts += [f"{g.model} {g.arch} {g.sms} SMs" for g in self.gpus]
        return ", ".join(p for p in parts if p)
