"""What a kernel library wants beside a node's operands: weights in its own layout, which a first stage packs, and
scratch for each slice. The library itself says how much (`Facts`)."""

from planner.ops.base import Access, Facts, Mode, ScratchPart, writes
from planner.units import Bytes, align


def packs(facts: Facts) -> bool:
    """Whether a stage that packs comes first."""
    return bool(facts.get("packed_bytes"))


def packed_part(facts: Facts) -> tuple[ScratchPart, ...]:
    return (ScratchPart("packed", Bytes(facts["packed_bytes"])),) if packs(facts) else ()


def library_part(mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
    size = facts.get("scratch_bytes")
    return (ScratchPart("library", Bytes(align(size) * mode.slices)),) if size else ()


def library_access(index: int, facts: Facts) -> tuple[Access, ...]:
    """A slice's own share of that part."""
    return (writes("library", index, index + 1),) if facts.get("scratch_bytes") else ()
