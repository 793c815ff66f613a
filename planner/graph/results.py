"""What a captured module returns, where that is neither one tensor of floats nor a tuple of several: its structure, in
JSON, which `codegen.autograd.Planned` makes again.

A structure is a tensor, of which its element type is told ("float32", "bool"), a number that a tensor holds
({"number": "int64"}), a constant ({"constant": 3}), or what
`torch.utils._pytree` takes apart: {"kind": "dict", "context": ["a", "b"], "parts": [...]}. A kind is a builtin, or a
class as `module:qualified.name`; its context is what PyTorch needs besides the parts, and left out where it is null.
"""

from collections.abc import Iterator
from typing import Any

Structure = Any
"""A JSON value, as described above."""

PLAIN = "float32"
ELEMENTS = frozenset(
    {
        PLAIN,
        "float64",
        "float16",
        "bfloat16",
        "complex64",
        "complex128",
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
    }
)


def is_plain(structure: Structure) -> bool:
    """One tensor of floats or a tuple of several: what is returned where nothing is said."""
    if not isinstance(structure, dict) or structure.get("kind") != "tuple":
        return bool(structure == PLAIN)
    return len(structure["parts"]) > 1 and all(part == PLAIN for part in structure["parts"])


def tensors(structure: Structure) -> Iterator[str]:
    """The element types of the tensors, in order. ValueError: it is no structure."""
    if isinstance(structure, str):
        if structure not in ELEMENTS:
            raise ValueError(f"no element type: {structure[:80]}")
        yield structure
        return
    fields = set(structure) if isinstance(structure, dict) else None
    if fields == {"number"}:
        yield from tensors(str(structure["number"]))
        return
    if fields == {"constant"} and not isinstance(structure["constant"], dict | list):
        return
    if fields is None or not {"kind", "parts"} <= fields <= {"kind", "parts", "context"}:
        raise ValueError(f"no tensor, number, constant or {{kind, parts}}: {str(structure)[:80]}")
    if not isinstance(structure["kind"], str) or not isinstance(structure["parts"], list):
        raise ValueError(f"kind is a text and parts are a list: {str(structure)[:80]}")
    for part in structure["parts"]:
        yield from tensors(part)
