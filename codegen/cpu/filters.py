"""How values reach emitted text: numbers as literals, foreign text as comments. Nothing else may pass."""

import math
import re
import textwrap

import numpy as np

from planner.errors import UserError


def comment(text: object) -> str:
    """Foreign text for the inside of a `//` comment: one line, printable ASCII, no backslash (which would continue
    the comment on the next line), nothing that ends or begins a block comment."""
    plain = re.sub(r"[^\x20-\x7e]|\\", " ", str(text))
    plain = plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /")
    return re.sub(r" +", " ", plain).strip()[:1000]


def comment_block(text: object) -> str:
    """A `//` comment of as many lines as the text needs."""
    lines = textwrap.wrap(comment(text), 114, break_on_hyphens=False) or [""]
    return "\n".join(f"// {line}".rstrip() for line in lines)


def f32(value: float) -> str:
    """A float literal that reads back as the same float32."""
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise UserError("SP1504", f"{value!r} does not fit into a float32", "correct the attribute in the graph")
    return f"{np.float32(value)!s}f"


def f64(value: float) -> str:
    """A double literal that reads back as the same double."""
    if not math.isfinite(value):
        raise UserError("SP1504", f"{value!r} is not a finite number", "correct the attribute in the graph")
    return repr(float(value))


def i64(value: int) -> str:
    """An integer literal of 64 bits at most."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) < value < 2**63:
        raise UserError("SP1504", f"{value!r} is not a 64-bit integer", "correct the attribute in the graph")
    return str(value)


def truth(value: bool) -> str:
    return "true" if value else "false"


def numbers(values: tuple[int, ...] | list[int]) -> str:
    """`2, 3, 5`: what stands between braces."""
    return ", ".join(i64(v) for v in values)


FILTERS = {
    "comment": comment,
    "comment_block": comment_block,
    "f32": f32,
    "f64": f64,
    "i64": i64,
    "truth": truth,
    "numbers": numbers,
}
