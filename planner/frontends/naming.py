"""Framework names as names and ids of a graph."""

import re
from typing import Any


def safe_name(name: str) -> str:
    """A framework's name as a value's name: what cannot be printed, such as a line's end, becomes `_`."""
    return "".join(c if c.isprintable() else "_" for c in name) or "unnamed"


def loss_prefix(module: Any) -> str:
    """What begins the names of a loss's parameters and buffers, and none of the module's own."""
    prefix, own = "loss", [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    while any(name.startswith(f"{prefix}.") for name in own):
        prefix += "_"
    return f"{prefix}."


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
