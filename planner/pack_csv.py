"""`stepplan pack`: offsets for a table of blocks (CSV in, the same CSV with an `offset` column out).

    id,lower,upper,size            id,lower,upper,size,offset
    b1,0,3,4                  ->   b1,0,3,4,8
    b2,3,9,4                       b2,3,9,4,8

Lifetimes are half-open: b1 is alive at 0, 1, 2. Other columns are kept as they are; an `offset` column is replaced.
Offsets are multiples of one byte. `alignment`, `gaps` and `hint` columns, which some tools write, would change the
problem and are refused. The format is that of google/minimalloc.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.artefact import write_text
from planner.errors import UserError
from planner.solve.liveness import Block
from planner.solve.offsets import THOROUGH, Effort, Packing
from planner.solve.offsets import pack as pack_blocks
from planner.units import Bytes, format_bytes

COLUMNS = ("id", "lower", "upper", "size")
REFUSED = ("alignment", "gaps", "hint")
LARGEST = 2**60
"""Times and sizes, and the sum of all sizes, stay below: every sum fits in 64 bits."""


@dataclass(frozen=True)
class Table:
    """The rows of a file as they were, and what they mean."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    blocks: tuple[Block, ...]

    def with_offsets(self, packing: Packing) -> str:
        """The same rows as CSV, with the offsets in the last column."""
        kept = [i for i, name in enumerate(self.header) if name != "offset"]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*(self.header[i] for i in kept), "offset"])
        for row, block in zip(self.rows, self.blocks, strict=True):
            writer.writerow([*(row[i] for i in kept), packing.offsets[block.id]])
        return out.getvalue()


def pack(
    file: Path | str, out: Path | str | None = None, *, capacity: int | None = None, effort: Effort = THOROUGH
) -> Packing:
    """Pack the blocks of a CSV file; writes `out` if given.

    With `capacity` (bytes), any packing that fits will do; SP1361: none exists, SP1362: none was found.
    SP1751, SP1752, SP1753: the file is malformed, contradicts itself, or names a block twice.
    """
    table = read_blocks(file)
    packing = pack_blocks(table.blocks, 1, capacity=capacity, effort=effort)
    if capacity is not None and packing.height > capacity:
        raise _does_not_fit(packing, capacity)
    if out is not None:
        write_text(out, table.with_offsets(packing))
    return packing


def document(packing: Packing) -> dict[str, Any]:
    """For --json."""
    return {
        "blocks": len(packing.offsets),
        "height": packing.height,
        "lower_bound": packing.lower_bound,
        "proven": packing.proven,
        "optimal": packing.optimal,
    }


def text(packing: Packing) -> str:
    over = 100 * (packing.height / packing.lower_bound - 1) if packing.lower_bound else 0.0
    verdict = "optimal" if packing.optimal else f"at most {packing.height - packing.proven} bytes above the optimum"
    return (
        f"{len(packing.offsets)} blocks\n"
        f"height       {packing.height} ({format_bytes(packing.height)}), {verdict}\n"
        f"lower bound  {packing.lower_bound} ({format_bytes(packing.lower_bound)}), most bytes alive at once; "
        f"the height is {over:.2f} % above"
    )


def _does_not_fit(packing: Packing, capacity: int) -> UserError:
    smallest = f"the smallest height found is {packing.height} bytes"
    if packing.proven > capacity:
        why = "most bytes alive at once" if packing.proven == packing.lower_bound else "exhaustive search"
        return UserError(
            "SP1361",
            f"no packing fits into {capacity} bytes: {packing.proven} are needed ({why})",
            f"give at least {packing.proven} bytes; {smallest}",
        )
    return UserError(
        "SP1362",
        f"no packing that fits into {capacity} bytes was found, and none of less than {packing.proven} exists",
        f"give more; {smallest}",
    )


def read_blocks(file: Path | str) -> Table:
    """Read and check a table of blocks."""
    path = Path(file)
    try:
        content = path.read_bytes().decode("utf-8-sig")
        lines = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError("SP1751", f"cannot read {path}: {reason}", "name a CSV file with a header line") from error
    header = tuple(name.strip() for name in lines[0]) if lines else ()
    _require_columns(path, header)
    rows, blocks, seen = [], [], dict[str, int]()
    for number, line in enumerate(lines[1:], 2):
        if line:
            block = _block(f"{path}, row {number}", header, line)
            if block.id in seen:
                raise UserError(
                    "SP1753",
                    f"{path}, row {number}, column id: {block.id[:80]!r} is row {seen[block.id]}'s id already",
                    "give every block an id of its own",
                )
            seen[block.id] = number
            rows.append(tuple(line))
            blocks.append(block)
    if sum(b.size for b in blocks) >= LARGEST:
        raise UserError("SP1752", f"{path}: all sizes together reach 2^60 bytes", "correct the sizes")
    return Table(header, tuple(rows), tuple(blocks))


def _require_columns(path: Path, header: Sequence[str]) -> None:
    fix = f"begin the file with the line {','.join(COLUMNS)}"
    missing = [name for name in COLUMNS if name not in header]
    twice = sorted({name for name in header if header.count(name) > 1})
    refused = [name for name in REFUSED if name in header]
    for problem, names in (
        ("lacks", missing),
        ("has twice", twice),
        ("has, which stepplan does not support,", refused),
    ):
        if names:
            raise UserError("SP1751", f"{path}, row 1 {problem} the column {names[0][:80]!r}", fix)


def _block(where: str, header: Sequence[str], line: Sequence[str]) -> Block:
    if len(line) != len(header):
        what = f"there are {len(line)} columns instead of {len(header)}"
        raise UserError("SP1751", f"{where}: {what}", "write as many values as the header has names")
    fields = dict(zip(header, line, strict=True))
    lower, upper, size = (_whole(where, name, fields[name]) for name in COLUMNS[1:])
    if size < 0:
        raise UserError("SP1752", f"{where}, column size: {size} is negative", "give a size of at least 0")
    if lower >= upper:
        raise UserError(
            "SP1752",
            f"{where}, column upper: the block ends at {upper}, not after its beginning at {lower}",
            "write lifetimes half-open: a block of one step has upper = lower + 1",
        )
    return Block(fields["id"], lower, upper, Bytes(size))


def _whole(where: str, column: str, value: str) -> int:
    try:
        number = int(value) if len(value) < 40 and value.isascii() and "_" not in value else LARGEST
    except ValueError:
        number = LARGEST
    if abs(number) >= LARGEST:
        raise UserError(
            "SP1751", f"{where}, column {column}: {value[:40]!r} is no whole number below 2^60", "write digits only"
        )
    return number
