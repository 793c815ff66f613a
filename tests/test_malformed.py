"""What is said of files that somebody edited or merged."""

from pathlib import Path

import pytest

from planner.artefact import read_json
from planner.errors import UserError
from planner.malformed import place, shown, unmerged
from planner.target.text import parse_target, target_text
from tests.codegen.plans import target_of

DOCUMENT = {"nodes": [{"id": 3, "name": "fc1", "slices": [1, 2]}, {"slices": 1}]}

CONFLICT = """{
 "placements": [
<<<<<<< HEAD
  {"offset": 64, "value": "fc1.y"},
=======
  {"offset": 128, "value": "fc1.y"},
>>>>>>> smaller
 ]
}
"""


def test_entries_are_known_by_their_names() -> None:
    names = ("id", "name")
    assert place(DOCUMENT, ("nodes", 0, "slices", 1), names) == "nodes[fc1].slices[1]"
    assert place(DOCUMENT, ("nodes", 1, "slices"), names) == "nodes[1].slices"
    assert place(DOCUMENT, ("nodes", 7, "nothing", 2), names) == "nodes[7].nothing[2]"
    assert place([1], ("x", 0), names) == "x[0]" and place({}, (), names) == ""
    assert place({"nodes": [{"name": "\x1b[2J"}]}, ("nodes", 0), names) == r"nodes['\x1b[2J']"


def test_strings_of_strangers() -> None:
    assert shown("fc1.y") == "fc1.y" and shown("") == "''" and shown("a\nb") == r"'a\nb'"
    assert len(shown("a" * 5000)) < 120


def test_unfinished_merges(tmp_path: Path) -> None:
    assert unmerged(CONFLICT) == "a merge left conflicts in it: line 3 is git's mark"
    assert unmerged(CONFLICT.replace("<<<<<<< HEAD\n", "")) == "a merge left conflicts in it: line 6 is git's mark"
    assert not unmerged('{"name": "<<<<<<< HEAD"}\n=======\n')
    file = tmp_path / "plan.json"
    file.write_text(CONFLICT)
    with pytest.raises(UserError, match=r"SP1701: .*line 3 is git's mark\n  fix: keep one side"):
        read_json(file, "plan")
    with pytest.raises(UserError, match=r"SP1102: .*line 2 is git's mark\n  fix: keep one side"):
        parse_target("a = 1\n<<<<<<< HEAD\n" + target_text(target_of(2)))


def test_a_key_twice_is_told_with_its_entry(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"nodes": [{"node": "fc1", "slices": 2, "slices": 1}]}')
    with pytest.raises(UserError, match=r"the key 'slices' is there twice in one object \(node fc1\)"):
        read_json(file, "plan")
    file.write_text('{"schema": 1, "schema": 1}')
    with pytest.raises(UserError, match="the key 'schema' is there twice in one object\n"):
        read_json(file, "plan")
