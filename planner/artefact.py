"""How every artefact is written and read: canonical text, hashed, atomic.

Canonical means: sorted keys, one entry (node, value, slice) per line, no dates, no paths, no host names, so that
the same inputs give the same bytes everywhere and a git diff shows what changed (DESIGN section 3).
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from planner.errors import UserError


def canonical_json(document: dict[str, Any]) -> str:
    """Render a JSON object: lists of objects (and of lists) one entry per line, everything else compact."""
    return _render(document, 0) + "\n"


def _render(node: Any, depth: int) -> str:
    if isinstance(node, dict) and depth < 6 and any(_is_long(v) for v in node.values()):
        pad = " " * (depth + 1)
        lines = [f"{pad}{json.dumps(k)}: {_render(node[k], depth + 1)}" for k in sorted(node)]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
    if isinstance(node, list) and _is_long(node):
        pad = " " * (depth + 1)
        return "[\n" + ",\n".join(pad + _render(v, depth + 1) for v in node) + "\n" + " " * depth + "]"
    return json.dumps(node, sort_keys=True, separators=(", ", ": "), allow_nan=False)


def _is_long(node: Any) -> bool:
    """Whether a value deserves lines of its own: a list of entries, or an object that holds one."""
    if isinstance(node, list):
        return any(isinstance(v, dict | list) for v in node) and bool(node)
    if isinstance(node, dict):
        return any(_is_long(v) for v in node.values()) or len(node) > 12
    return False


def sha256(text: str) -> str:
    """First 16 hex digits: enough to tell artefacts apart, short enough to read."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path | str, text: str) -> None:
    """Write atomically: a temporary file beside the target, flushed to disk, then renamed over it."""
    write_bytes(path, text.encode())


def write_bytes(path: Path | str, data: bytes) -> None:
    """As `write_text`; on any failure the old file is untouched and nothing half-written is left (SP1702)."""
    target = Path(path)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise UserError(
            "SP1702",
            f"cannot write {target.name}: {error.strerror}",
            "free space or choose a writable folder",
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def read_json(path: Path | str, what: str) -> dict[str, Any]:
    """Read an artefact's JSON object; a missing, truncated or malformed file is SP1701."""
    file = Path(path)
    fix = f"name an existing {what} file, or make it again with stepplan"
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise UserError("SP1701", f"cannot read {what} {file}: {error.strerror}", fix) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("SP1701", f"{what} {file} is not complete JSON: {error}", fix) from error
    if not isinstance(document, dict):
        raise UserError("SP1701", f"{what} {file} is not a JSON object", fix)
    return document
