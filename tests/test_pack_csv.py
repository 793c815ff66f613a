"""`stepplan pack`: the same rows come out with offsets; every mistake in the file names its row and column."""

import csv
import json
from pathlib import Path

import pytest

from examples.pack_study import cut_rectangle
from planner.api import pack
from planner.errors import UserError
from planner.pack_csv import read_blocks
from planner.solve.offsets import Effort
from tests.cli import fails, succeeds
from tests.solve.packings import validate

EXAMPLE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "in.csv").write_text(EXAMPLE)
    return tmp_path / "in.csv"


def test_the_same_rows_with_an_offset(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    printed = succeeds("pack", table, "-o", out)
    assert "height       12 (12 B), optimal" in printed and "lower bound  12" in printed and f"wrote {out}" in printed
    lines = out.read_text().splitlines()
    assert lines[0] == "id,lower,upper,size,offset"
    assert [line.rsplit(",", 1)[0] for line in lines] == EXAMPLE.splitlines()
    with out.open() as file:
        offsets = {row["id"]: int(row["offset"]) for row in csv.DictReader(file)}
    validate(read_blocks(table).blocks, offsets, 12)


def test_json_and_python_agree(table: Path) -> None:
    document = json.loads(succeeds("pack", table, "--json"))
    assert document == {"blocks": 5, "height": 12, "lower_bound": 12, "proven": 12, "optimal": True}
    assert pack(table).height == 12


def test_other_columns_stay_and_an_old_offset_goes(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('size,offset,id,note,upper,lower\n4,99,a,"x, ""y""",3,0\n\n4,99,b,,3,1\n')
    pack(tmp_path / "in.csv", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == ["size,id,note,upper,lower,offset", '4,a,"x, ""y""",3,0,' + lines[1][-1], lines[2]]
    assert {lines[1][-1], lines[2][-1]} == {"0", "4"}


def test_capacity(table: Path, tmp_path: Path) -> None:
    assert "12" in succeeds("pack", table, "--capacity", 12)
    assert "optimal" in succeeds("pack", table, "--capacity", "1MiB")
    text = fails("SP1361", "pack", table, "--capacity", 11, "-o", tmp_path / "out.csv")
    assert "12 are needed (most bytes alive at once)" in text and "the smallest height found is 12 bytes" in text
    assert not (tmp_path / "out.csv").exists()


def test_a_capacity_that_is_not_met_in_time(tmp_path: Path) -> None:
    blocks = cut_rectangle(120, 30, 60, 1)
    rows = "".join(f"{b.id},{b.lower},{b.upper},{b.size}\n" for b in blocks)
    (tmp_path / "in.csv").write_text("id,lower,upper,size\n" + rows)
    with pytest.raises(UserError, match=r"SP1362: no packing that fits into 60 bytes was found") as error:
        pack(tmp_path / "in.csv", capacity=60, effort=Effort(search=1000))
    assert "the smallest height found is" in error.value.fix


def test_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,lower,upper,size\n")
    assert "0 blocks" in succeeds("pack", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "id,lower,upper,size,offset\n"


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("", "SP1751", "row 1 lacks the column 'id'"),
        ("id,lower,upper\na,0,1\n", "SP1751", "row 1 lacks the column 'size'"),
        ("id,lower,upper,size,size\na,0,1,1,1\n", "SP1751", "row 1 has twice the column 'size'"),
        ("id,lower,upper,size,alignment\na,0,1,1,8\n", "SP1751", "the column 'alignment'"),
        ("id,lower,upper,size,gaps\na,0,1,1,\n", "SP1751", "the column 'gaps'"),
        ("id,lower,upper,size\na,0,1\n", "SP1751", "row 2: there are 3 columns instead of 4"),
        ("id,lower,upper,size\na,0,1,1\nb,0,x,1\n", "SP1751", "row 3, column upper: 'x' is no whole number"),
        ("id,lower,upper,size\na,0,1,1.5\n", "SP1751", "row 2, column size"),
        ("id,lower,upper,size\na,0,1," + "9" * 5000 + "\n", "SP1751", "row 2, column size"),
        ('id,lower,upper,size\n"a,0,1,1\n', "SP1751", "cannot read"),
        ("id,lower,upper,size\na,0,1,\0\n", "SP1751", "column size"),
        ("id,lower,upper,size\na,0,1,-1\n", "SP1752", "row 2, column size: -1 is negative"),
        ("id,lower,upper,size\na,3,3,1\n", "SP1752", "row 2, column upper: the block ends at 3"),
        (f"id,lower,upper,size\na,0,1,{2**59}\nb,0,1,{2**59}\n", "SP1752", "2^60"),
        ("id,lower,upper,size\na,0,1,1\nb,0,1,1\na,1,2,1\n", "SP1753", "row 4, column id: 'a' is row 2's id already"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, content: str, code: str, says: str) -> None:
    (tmp_path / "in.csv").write_text(content)
    assert says in fails(code, "pack", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    assert "No such file" in fails("SP1751", "pack", tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    fails("SP1751", "pack", tmp_path / "binary.csv")
