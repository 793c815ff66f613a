"""Framework names as names and ids of a graph."""

import re
from typing import Any


def safe_name(name: str) -> str:
    """A framework's name as a value's name: what cannot be printed, such as a line's end, becomes `_`."""
    return "".join(c if c.isprintable() else "_" for c in name) or "unnamed"


def identifier(name: str) -> str:
    """A framework's name as a node id: only letters, digits, '.' and '_', not starting with a digit or '.'."""
    clean = re.sub(r"[^A-Za-z0-9_.]", "_", name)[:150]
    return clean if not clean or re.match(r"[A-Za-z_]", clean) else f"_{clean}"


def fresh_id(name: str, taken: Any) -> str:
    """`identifier(name)`, with a number behind it where it is taken."""
    base = identifier(name) or "value"
    candidate, count = base, 0
    while candidate in taken:
        count += 1
        candidate = f"{base}_{count}"
    return candidate
