"""Text tables: aligned, cut to the width, and safe for terminals and Markdown."""

import re

from hypothesis import given
from hypothesis import strategies as st

from planner.plan.render import (
    cell,
    field,
    markdown_table,
    percent,
    printable,
    shorten,
    shorten_all,
    signed,
    text_table,
)


def test_a_table() -> None:
    assert text_table(("name", "n"), [("a", "10"), ("long", "5")], indent=1) == [
        " name   n",
        " ----  --",
        " a     10",
        " long   5",
    ]
    assert markdown_table(("name", "n"), [("a|b", "1")]) == ["| name | n |", "| --- | ---: |", "| a\\|b | 1 |"]


def test_long_columns_share_the_cut() -> None:
    # 60 + 2 + 50 + 2 + 3 = 117 columns, 37 too many: the first loses 10 to match the second, then both lose.
    lines = text_table(("a", "b", "c"), [("x" * 60, "y" * 50, "123")], left=(0, 1), width=80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].endswith("123")
    assert abs(lines[2].count("x") - lines[2].count("y")) <= 4


@given(st.lists(st.tuples(st.text(max_size=90), st.text(max_size=90), st.integers(0, 10**9).map(str)), max_size=5))
def test_never_wider_than_asked(rows: list[tuple[str, str, str]]) -> None:
    for line in text_table(("a", "b", "c"), rows, left=(0, 1), width=60):
        assert len(line) <= 60
        assert re.fullmatch(r"[ -~]*", line)


@given(st.text(), st.integers(4, 30))
def test_shorten(text: str, width: int) -> None:
    found = shorten(text, width)
    assert len(found) <= width
    assert found == text or (found[: (width - 1) // 2] == text[: (width - 1) // 2] and ".." in found)


def test_names_stay_apart() -> None:
    updates = [f"layer4.{n}.conv{k}.weight.update" for n in (0, 1) for k in (1, 2)]
    assert shorten_all(updates, 27)[0] == "layer4.0.conv1.weig..update"
    assert len(set(shorten_all(updates, 27))) == 4
    ends = [f"encoder.layers.attention.projection.{n}" for n in range(12)]
    assert len(set(shorten_all(ends, 14))) == 12
    assert shorten_all(["a" * 9 + "b", "c"], 6) == [shorten("a" * 9 + "b", 6), "c"], "of equals the middle"
    lines = text_table(("node", "n"), [(name, "1") for name in updates], width=30)
    assert len(set(lines[2:])) == 4


def test_words() -> None:
    assert printable("a\tb\x1bé\u202e") == "a\\tb\\x1b\\xe9\\u202e"
    assert cell("a|b`*_") == "a\\|b\\`\\*\\_"
    assert (percent(200, 187), percent(0, 5)) == ("-6.5 %", "")
    assert (signed("5", 1), signed("5", -1), signed("0", 0)) == ("+5", "-5", "0")
    assert field("name", "") == ["  name"]
    assert field("name", "one two", width=18) == ["  name        one", "              two"]
