"""Every error code that the sources raise has a section in docs/errors.md and a test, and no section is left over."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from planner.errors import UserError

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"SP\d{4}")

UNTESTED: dict[str, str] = {}
"""code -> why no test can provoke it."""


def raised() -> dict[str, list[str]]:
    """code -> the files that raise it: string literals in Python that are nothing but a code, and C++ ones."""
    found: dict[str, list[str]] = {}
    for folder in ("planner", "codegen"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                    found.setdefault(node.value, []).append(file.name)
    for file in sorted((ROOT / "templates").rglob("*.*")):
        for code in re.findall(r'"(SP\d{4})"', file.read_text()):
            found.setdefault(code, []).append(file.name)
    return found


def sections() -> dict[str, str]:
    text = (ROOT / "docs" / "errors.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles == sorted(titles), "sections are in order"
    assert not [t for t, n in Counter(titles).items() if n > 1 or not CODE.fullmatch(t)]
    return dict(re.findall(r"^## (SP\d{4})\n(.*?)(?=^# |^## |\Z)", text, re.MULTILINE | re.DOTALL))


def test_every_code_has_a_section_with_a_fix() -> None:
    found = sections()
    assert sorted(set(raised()) - set(found)) == []
    assert [code for code, text in found.items() if "Fix: " not in text] == []


def test_no_section_is_left_over() -> None:
    assert sorted(set(sections()) - set(raised())) == []


def test_every_code_is_tested() -> None:
    tests = "".join(f.read_text() for f in sorted((ROOT / "tests").rglob("*.py")) if f != Path(__file__))
    mentioned = set(CODE.findall(tests))
    assert sorted(set(raised()) - mentioned - set(UNTESTED)) == []
    assert sorted(set(UNTESTED) & mentioned) == [], "these have a test by now"


@pytest.mark.parametrize("fragment", sorted((ROOT / "docs").glob("errors-*.md")))
def test_there_is_one_page(fragment: Path) -> None:
    pytest.fail(f"merge {fragment.name} into errors.md")


def test_an_error_names_its_section() -> None:
    assert "docs/errors.md#sp1402" in str(UserError("SP1402", "a", "b"))
