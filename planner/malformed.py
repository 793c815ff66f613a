"""What a message says of a file that somebody edited: which entry is wrong, by its name, in characters that are safe to
print."""

from collections.abc import Sequence
from typing import Any


def shown(text: str, limit: int = 120) -> str:
    """A string of the file as it may appear in a message: short, printable, on one line."""
    if len(text) > limit:
        text = text[: limit // 2] + "..." + text[-limit // 4 :]
    return text if text.isprintable() and text else ascii(text)


MERGE_MARKS = ("<<<<<<< ", "||||||| ", ">>>>>>> ")
"""How lines begin that git leaves around what two branches changed in different ways."""

SETTLE = "keep one side of every conflict and remove git's marks, or take the whole file of one side"


def unmerged(text: str) -> str:
    """What to say of a file in which a merge left conflicts; empty where there are none."""
    at = [number for number, line in enumerate(text.splitlines(), start=1) if line.startswith(MERGE_MARKS)]
    return f"a merge left conflicts in it: line {at[0]} is git's mark" if at else ""


def place(document: Any, path: Sequence[int | str], names: Sequence[str]) -> str:
    """Where in the document, with the entries of lists by their names: `programs[train_step].nodes[fc1].slices`.

    `names`: the fields that an entry is known by, the best first."""
    text = ""
    at: Any = document
    for key in path:
        if isinstance(key, str):
            text += f".{shown(key)}"
            at = at.get(key) if isinstance(at, dict) else None
        else:
            at = at[key] if isinstance(at, list | tuple) and key < len(at) else None
            known = [at[n] for n in names if isinstance(at.get(n), str)] if isinstance(at, dict) else []
            text += f"[{shown(known[0]) if known else key}]"
    return text.removeprefix(".")
