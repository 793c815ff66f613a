"""Plain text and Markdown tables: what `diff`, `explain` and the reports print with.

Names come from files of strangers, so everything that is not printable ASCII is escaped before it reaches a terminal
or a page. Columns are cut in the middle where a line would grow beyond the width, so output is the same everywhere.
"""

import math
import textwrap
from collections.abc import Sequence

WIDTH = 120


def printable(text: str) -> str:
    """Control characters, line ends and everything beyond ASCII as backslash escapes."""
    escaped = (c if " " <= c <= "~" else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)


def shorten(text: str, width: int, begin: float = 0.5) -> str:
    """Cut in the middle: both ends of a layer's name say most. `layer1.0.conv1.backward` -> `layer1.0..backward`
    `begin`: the share of what is left that stands in front of the cut."""
    if len(text) <= width:
        return text
    head = math.ceil((width - 2) * begin)
    return text[:head] + ".." + text[len(text) - (width - 2 - head) :]


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Cut all at the same place: the one that leaves the most of them apart, of equals the middle. Names of layers
    often differ in a digit."""
    ways = [[shorten(name, width, begin) for name in names] for begin in (0.5, 0.25, 0.75, 0.0)]
    return max(ways, key=lambda way: len(set(way)))


def text_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), width: int = WIDTH, indent: int = 0
) -> list[str]:
    """Aligned lines, two blanks between columns; the columns in `left` are flush left, and the widest of those is
    cut where lines would be longer than `width`. The first column has what the rows are told apart by."""
    cells = [[printable(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    excess = indent + sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        widest = max(left, key=lambda i: widths[i])
        cut = min(excess, max(0, widths[widest] - 12))
        if not cut:
            break
        # Take no more than brings the widest column down to the next one, so that two long columns share the cut.
        others = max((widths[i] for i in left if i != widest), default=0)
        cut = min(cut, max(1, widths[widest] - others))
        widths[widest] -= cut
        excess -= cut
    firsts = shorten_all([row[0] for row in cells], widths[0])
    lines = []
    for first, row in zip(firsts, cells, strict=True):
        parts = [
            shorten(c, w).ljust(w) if i in left else c.rjust(w)
            for i, (c, w) in enumerate(zip((first, *row[1:]), widths, strict=True))
        ]
        lines.append((" " * indent + "  ".join(parts)).rstrip())
    lines.insert(1, " " * indent + "  ".join("-" * w for w in widths))
    return lines


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """A GitHub table; cells cannot break out of it."""
    rule = ["---" if i in left else "---:" for i in range(len(head))]
    return ["| " + " | ".join(row) + " |" for row in (list(head), rule, *([cell(c) for c in row] for row in rows))]


def cell(text: str) -> str:
    """Text that Markdown shows as it is: everything that could start markup is escaped."""
    return "".join("\\" + c if c in "\\`*_{}[]<>()#|!~" else c for c in printable(text))


def field(name: str, text: str, width: int = WIDTH) -> list[str]:
    """`  name        text`, wrapped below its own start."""
    lead = f"  {name:<11} "
    return textwrap.wrap(
        printable(text), width, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
    ) or [lead.rstrip()]


def percent(before: float, after: float) -> str:
    """`-6.5 %`; empty when nothing changed or there is nothing to compare with."""
    return f"{100 * (after / before - 1):+.1f} %" if before and before != after else ""


def counted(count: int, noun: str) -> str:
    """`1 slice`, `2 slices`"""
    return f"{count} {noun}{'s' * (count != 1)}"


def signed(text: str, value: float) -> str:
    """A sign in front of what `text` says of the absolute value."""
    return ("+" if value > 0 else "-" if value < 0 else "") + text
