"""How every artefact is written and read: canonical text, hashed, atomic.

Canonical means: sorted keys, one entry (node, value, slice) per line, no dates, no paths, no host names, so that
the same inputs give the same bytes everywhere and a git diff shows what changed (DESIGN section 3).
"""

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from planner.errors import UserError
from planner.malformed import SETTLE, shown, unmerged

Model = TypeVar("Model", bound=BaseModel)

DEEPEST = 40
"""Levels of nesting in an artefact; ours have fewer than ten."""


class Line(str):
    """What is rendered already, canonically: for lists of hundreds of thousands, and for fields of one line."""

    __slots__ = ()


_compact = json.JSONEncoder(sort_keys=True, separators=(", ", ": "), allow_nan=False).encode


def one_line(node: Any) -> Line:
    return Line(_compact(node))


def canonical_json(document: dict[str, Any]) -> str:
    """Render a JSON object: lists of objects (and of lists) one entry per line, everything else compact."""
    return _render(document, 0) + "\n"


def digested_json(document: dict[str, Any]) -> str:
    """As `canonical_json`, with one more field, `digest`: the hash of the canonical text without it."""
    if not _is_long(document):
        return canonical_json({**document, "digest": sha256(canonical_json(document))})
    fields = {key: _render(value, 1) for key, value in document.items()}
    digest = sha256(_lines(fields, 0) + "\n")
    return _lines({**fields, "digest": _compact(digest)}, 0) + "\n"


def _render(node: Any, depth: int) -> str:
    if isinstance(node, Line):
        return node
    if isinstance(node, dict) and depth < 6 and any(_is_long(v) or isinstance(v, Line) for v in node.values()):
        return _lines({k: _render(v, depth + 1) for k, v in node.items()}, depth)
    if isinstance(node, list) and _is_long(node):
        pad = " " * (depth + 1)
        return "[\n" + ",\n".join(pad + _render(v, depth + 1) for v in node) + "\n" + " " * depth + "]"
    return _compact(node)


def _lines(fields: Mapping[str, str], depth: int) -> str:
    """An object whose values are rendered already, a field per line."""
    pad = " " * (depth + 1)
    return "{\n" + ",\n".join(f"{pad}{_compact(k)}: {fields[k]}" for k in sorted(fields)) + "\n" + " " * depth + "}"


def _is_long(node: Any) -> bool:
    """Whether a value deserves lines of its own: a list of entries, or an object that holds one."""
    if isinstance(node, list):
        return any(isinstance(v, dict | list | Line) for v in node)
    if isinstance(node, dict):
        return any(_is_long(v) or isinstance(v, Line) for v in node.values()) or len(node) > 12
    return False


def sha256(text: str) -> str:
    """First 16 hex digits: enough to tell artefacts apart, short enough to read."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path | str, text: str) -> None:
    """Write atomically: a temporary file beside the target, flushed to disk, then renamed over it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path | str, data: bytes) -> None:
    """As `write_text`; on any failure the old file is untouched and nothing half-written is left (SP1702). What is no
    file, such as /dev/stdout, stays what it is and is written to; a link stays a link. Who may read it
    is as before, and of a new file as the user's umask says."""
    if not Path(path).name:  # the working folder, or the root
        raise UserError("SP1702", f"cannot write {str(path)!r}: it is a folder", "name a file")
    if _is_stream(path):
        _write_to_stream(path, data)
        return
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    # Named before it exists, so that an interruption at any point finds what to remove.
    temporary: Path | None = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    assert temporary is not None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as stream:
            if target.exists():
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _cannot_write(target, error) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _is_stream(path: Path | str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # the file is yet to be made, or the path is not usable
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _write_to_stream(path: Path | str, data: bytes) -> None:
    try:
        with open(path, "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise _cannot_write(Path(path), error) from error


def _cannot_write(file: Path, error: Exception) -> UserError:
    problem = f"cannot write {file.name}: {_reason(error)}"
    return UserError("SP1702", problem, "free space or choose a writable folder")


def read_json(path: Path | str, what: str) -> dict[str, Any]:
    """Read an artefact's JSON object; a missing, truncated or malformed file is SP1701."""
    return _read(Path(path), what)[1]


def read_digested(path: Path | str, what: str) -> tuple[dict[str, Any], bool]:
    """As `read_json`, without the digest, and whether it is the content's."""
    text, document = _read(Path(path), what)
    digest = document.pop("digest", None)
    # As it was written it need not be rendered again, which takes longer than to read it.
    as_written = text.replace(f'\n "digest": {_compact(digest)},\n', "\n", 1)
    return document, digest == sha256(as_written) or digest == sha256(canonical_json(document))


def strictly(kind: type[Model], document: Any) -> Model:
    """The model that a JSON value is, or pydantic's ValidationError: "64" for 64 is a mistake. Through JSON, because
    strict validation of Python objects would refuse lists for tuples."""
    return kind.model_validate_json(json.dumps(document, default=str), strict=True)


def _read(file: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Its text, and the object that it is."""
    fix = f"name an existing {what} file, or make it again with stepplan"
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError("SP1701", f"cannot read {what} {file}: {_reason(error)}", fix) from error
    if not data.strip():
        raise UserError("SP1701", f"{what} {file} is empty", fix)
    try:
        text = data.decode()
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_different_keys)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, numbers of thousands of digits
        if problem := unmerged(data.decode(errors="replace")):
            raise UserError("SP1701", f"{what} {file} is not valid JSON: {problem}", SETTLE) from error
        corrected = f"correct what is named, or make the {what} again with stepplan"
        raise UserError("SP1701", f"{what} {file} is not valid JSON: {error}", corrected) from error
    if not isinstance(document, dict):
        raise UserError("SP1701", f"{what} {file} is not a JSON object", fix)
    _require_shallow(document, f"{what} {file}", fix)
    return text, document


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


_KNOWN_BY = ("id", "name", "node", "run", "signature", "value")


def _different_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A key written twice would let a reader see one value and stepplan use another."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        known = next((f" ({k} {shown(v)})" for k, v in pairs if k in _KNOWN_BY and isinstance(v, str)), "")
        raise ValueError(f"the key {twice[:80]!r} is there twice in one object{known}")
    return found


def _require_shallow(document: dict[str, Any], where: str, fix: str) -> None:
    """Nesting is bounded, so that nothing that walks a document can run out of stack."""
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise UserError("SP1701", f"{where} is nested more than {DEEPEST} levels deep", fix)
