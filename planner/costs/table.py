"""The cost table: measured times per (signature, mode), as reviewable text.

Keyed by signature, not by model: profiling a second model reuses what the first measured. A time has two ends:
`warm_ns` with the operands in the caches that the slices' cores reach, `cold_ns` with the operands out of them; a
node inside a step lies between (costs/residency.py).
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from planner.artefact import canonical_json, read_json, sha256, strictly, write_text
from planner.errors import UserError
from planner.graph.model import Frozen
from planner.malformed import place
from planner.ops.base import Mode
from planner.ops.streaming import block_of
from planner.target.model import Target

SCHEMA = 1

LONGEST_NS = 1e15
"""No kernel takes eleven days; larger numbers are mistakes."""

MOST_PER_SECOND = 1e18
"""Bytes or operations, likewise."""


class CostEntry(Frozen):
    """One measured (signature, mode, affinity). Times are medians over repetitions, ns per stage, of the quicker one of
    two visits (codegen/profile.py)."""

    signature: str
    kernel: str
    dim: str
    slices: Annotated[int, Field(ge=1, le=2**20)]
    implementation: Annotated[str, Field(pattern=r"^[A-Za-z0-9_:/.+\-]{0,80}$")] = ""
    """The library's name of the implementation; see ops.base.Mode."""
    affinity: str = "compact"
    warm_ns: tuple[float, ...]
    cold_ns: tuple[float, ...]
    spread: float = 0.0
    """Interquartile range / median of the cold visit that was kept: by how much repetitions within a fraction of a
    second differ. It says nothing of disturbances that last longer."""
    facts: dict[str, Annotated[int, Field(ge=0, lt=2**60)]] = Field(default_factory=dict)
    """Sizes that the kernel library asks for; see ops.base.Facts."""
    source: Literal["measured", "interpolated", "modelled"] = "measured"
    provisional: bool = False
    """The profile was interrupted before it timed this again. The next one does, and keeps the quicker time."""

    @field_validator("warm_ns", "cold_ns")
    @classmethod
    def _positive(cls, times: tuple[float, ...]) -> tuple[float, ...]:
        if not times or any(not 0 <= t < LONGEST_NS for t in times):  # NaN is not, either
            raise ValueError(f"times must be finite, not negative and below {LONGEST_NS:.0e} ns, not {times}")
        return times

    @model_validator(mode="after")
    def _same_stages(self) -> Self:
        if len(self.warm_ns) != len(self.cold_ns):
            raise ValueError("warm_ns and cold_ns must have one time per stage")
        return self

    @property
    def mode(self) -> Mode:
        return Mode(self.kernel, self.dim, self.slices, self.implementation)


class Beside(Frozen):
    """One of two nodes that were timed side by side."""

    signature: str
    kernel: str
    dim: str
    slices: Annotated[int, Field(ge=1, le=2**20)]
    implementation: Annotated[str, Field(pattern=r"^[A-Za-z0-9_:/.+\-]{0,80}$")] = ""
    factor: Annotated[float, Field(gt=0, le=1e6)]
    """Its time beside the other / its time alone."""

    @property
    def key(self) -> tuple[str, Mode]:
        return (self.signature, Mode(self.kernel, self.dim, self.slices, self.implementation))


class CoRun(Frozen):
    """A measured pair, the smaller key first: how much two nodes slow each other down on lanes of their own."""

    first: Beside
    second: Beside


class CostTable(Frozen):
    target: str
    fingerprint: str
    """The machine it was measured on (Target.fingerprint())."""
    entries: tuple[CostEntry, ...] = ()
    sync_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 200.0
    """Latency of one lane seeing another lane's signal, measured."""
    launch_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 0.0
    """What a step takes besides its slices: waking the lanes, and the caller when they are done, measured."""
    handoff_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 0.0
    """A signal from lane 0 to lane 1 in a tight loop, measured; 0 when not measured. Where processors are virtual it
    tells whether they still share a cache, which moves whole steps by a quarter."""
    fetch_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 0.0
    """What a KiB costs more to read or write that another lane wrote last, measured (plan/crossing.py); 0, as in
    tables without it: nothing is charged."""
    reclaim_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 0.0
    """What a KiB costs more to write that another lane read since it was written, likewise."""
    stream_ns: Annotated[float, Field(ge=0, lt=LONGEST_NS)] = 0.0
    """What a KiB costs more to write that no cache holds, likewise: the measure for kernels that are slower on such
    bytes."""
    bandwidth: Annotated[float, Field(ge=0, lt=MOST_PER_SECOND)] = 0.0
    """Bytes per second that all lanes together read and write in a copy, measured; 0 when not measured."""
    thread_bandwidth: Annotated[float, Field(ge=0, lt=MOST_PER_SECOND)] = 0.0
    """The same for one lane alone."""
    smt_gain: Annotated[float, Field(ge=1, le=16)] = 1.03
    """Work per time of two compute-bound slices on the two threads of a core, against one alone; the default is
    Liu et al.'s table III."""
    coruns: tuple[CoRun, ...] = ()
    flops: Annotated[float, Field(ge=0, lt=MOST_PER_SECOND)] = 0.0
    """Float32 operations per second of one core in the matrix kernels, measured; 0 when not measured."""

    @cached_property
    def by_signature(self) -> Mapping[str, tuple[CostEntry, ...]]:
        found: dict[str, list[CostEntry]] = {}
        for entry in self.entries:
            found.setdefault(entry.signature, []).append(entry)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def pairs(self) -> Mapping[tuple[tuple[str, Mode], tuple[str, Mode]], float]:
        """(node, beside), each (signature, mode) -> how much longer the first takes."""
        found = {}
        for pair in self.coruns:
            found[pair.first.key, pair.second.key] = pair.first.factor
            found[pair.second.key, pair.first.key] = pair.second.factor
        return found

    @cached_property
    def streams(self) -> bool:
        """Whether any kernel was timed with results that bypass the caches."""
        return any(block_of(e.implementation) for e in self.entries)

    @cached_property
    def measured(self) -> bool:
        """Whether any of it is."""
        return any(e.source == "measured" for e in self.entries)

    def with_coruns(self, coruns: Iterable[CoRun]) -> "CostTable":
        """A table that also holds these pairs; one measured before is replaced."""
        merged = {(p.first.key, p.second.key): p for p in (*self.coruns, *coruns)}
        return self.model_copy(update={"coruns": tuple(merged[k] for k in sorted(merged))})

    def modes(self, signature: str) -> tuple[CostEntry, ...]:
        """All measured modes of a signature; empty when it was never measured."""
        return self.by_signature.get(signature, ())

    def with_entries(self, entries: Iterable[CostEntry]) -> "CostTable":
        """A table that also holds `entries`; one of the same (signature, mode, affinity) is replaced."""
        merged = {(e.signature, e.mode, e.affinity): e for e in self.entries}
        merged.update({(e.signature, e.mode, e.affinity): e for e in entries})
        return self.model_copy(update={"entries": tuple(merged[k] for k in sorted(merged))})


def started(table: CostTable | None, target: Target) -> CostTable:
    """The table that measuring goes on with, or an empty one. SP1204: it was measured on another machine."""
    table = table or CostTable(target=target.name, fingerprint=target.fingerprint())
    if table.fingerprint != target.fingerprint():
        raise UserError(
            "SP1204",
            f"the cost table was measured on {table.fingerprint!r}, this is {target.fingerprint()!r}",
            "profile into a new file",
        )
    return table


def costs_text(table: CostTable) -> str:
    entries = [e.model_dump(mode="json", exclude_defaults=True) for e in table.entries]
    for entry in entries:
        for key in ("warm_ns", "cold_ns"):
            entry[key] = [round(t, 1) for t in entry[key]]
    head = table.model_dump(mode="json", exclude={"entries"})
    for optional in ("coruns", "fetch_ns", "reclaim_ns", "stream_ns"):
        if not head[optional]:
            del head[optional]
    return canonical_json({"schema": SCHEMA, **head, "entries": entries})


def costs_hash(table: CostTable) -> str:
    return sha256(costs_text(table))


def write_costs(table: CostTable, path: Path | str) -> None:
    write_text(path, costs_text(table))


def read_costs(path: Path | str) -> CostTable:
    """Read costs.json; NaN, negative times, unknown fields and two times of one mode are SP1201."""
    document: dict[str, Any] = read_json(path, "cost table")
    fix = "correct the entry or profile again"
    schema = document.pop("schema", None)
    if schema != SCHEMA or "fingerprint" not in document:
        what = f"has schema {schema!r}" if schema != SCHEMA else "names no machine"
        raise UserError("SP1201", f"{Path(path).name} is no cost table of schema {SCHEMA}: it {what}", fix)
    try:
        table = strictly(CostTable, document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        # A signature has many entries, so the number stays.
        if (named := place(document, first["loc"][:2], ("signature",))).startswith("entries["):
            where += f" ({named[len('entries[') : -1]})"
        raise UserError("SP1201", f"{Path(path).name} is malformed at {where}: {first['msg']}", fix) from error
    seen: dict[tuple[str, Mode, str], int] = {}
    for number, entry in enumerate(table.entries):
        earlier = seen.setdefault((entry.signature, entry.mode, entry.affinity), number)
        if earlier != number:
            problem = f"{Path(path).name}: entries.{earlier} and entries.{number} are the same mode of one signature"
            raise UserError("SP1201", problem, "keep one of the two, or profile again")
    return table
