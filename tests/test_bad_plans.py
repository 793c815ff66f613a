"""Plans that were truncated or edited by hand: one clear error, unless they are still safe."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.artefact import canonical_json, sha256
from planner.bundle import read_bundle
from planner.plan.text import read_plan
from planner.target.text import load_target, write_target
from tests.cli import Files, everything_below, fails, run, succeeds


def plan_document(files: Files) -> dict[str, Any]:
    document = json.loads((files.plan / "plan.json").read_text())
    assert isinstance(document, dict)
    return document


def write_edit(files: Files, document: dict[str, Any], sign: bool = False) -> None:
    """With `sign`, the digest is right again, as a forger would have it."""
    if sign:
        document.pop("digest")
        document["digest"] = sha256(canonical_json(document))
    (files.plan / "plan.json").write_text(canonical_json(document))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_truncated_plans(keep: float, files: Files) -> None:
    data = (files.plan / "plan.json").read_bytes()
    (files.plan / "plan.json").write_bytes(data[: int(len(data) * keep)])
    fails("SP1701", "check", files.plan)


def drop_waits(document: dict[str, Any]) -> None:
    for program in document["programs"]:
        for lane in program["lanes"]:
            for entry in lane:
                entry.pop("wait", None)


def overlap(document: dict[str, Any]) -> None:
    for placement in document["placements"]:
        placement["offset"] = 0


def swap(document: dict[str, Any]) -> None:
    lane = document["programs"][0]["lanes"][0]
    lane[0], lane[-1] = lane[-1], lane[0]


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "waits removed": ("SP14", drop_waits),
    "values over each other": ("SP14", overlap),
    "slices reordered": ("SP14", swap),
    "a slice lost": ("SP1410", lambda d: d["programs"][0]["lanes"][0].pop()),
    "a node lost": ("SP1406", lambda d: d["programs"][0]["nodes"].pop()),
    "a program lost": ("SP1405", lambda d: d["programs"].pop()),
    "another processor": ("SP1427", lambda d: d["lanes"][0].update(cpu=2**40)),
    "another kernel": ("SP1407", lambda d: d["programs"][0]["nodes"][0].update(kernel='"; system("true"); //')),
    "beyond the arena": ("SP1419", lambda d: d["placements"][0].update(offset=2**62)),
    "a number beyond 64 bits": ("SP1431", lambda d: d["pools"][0].update(arena=10**30)),
    "a hostile node": ("SP1406", lambda d: d["programs"][0]["nodes"][0].update(node="\x1b[2J\n*/ x")),
    "a hostile slice": ("SP1412", lambda d: d["programs"][0]["lanes"][0][0].update(run="\x1b]0;x\x07/0#0")),
}


@pytest.mark.parametrize("name", EDITS)
def test_unsafe_edits(name: str, files: Files) -> None:
    code, edit = EDITS[name]
    document = plan_document(files)
    edit(document)
    write_edit(files, document)
    before = everything_below(files.folder)
    fails("SP1402", "check", files.plan)
    fails("SP1402", "emit", files.plan, "-o", files.folder / "out")
    result = run("check", "--accept-edits", files.plan)
    assert result.exit_code == 1 and code in result.stdout, result.output
    assert "\x1b" not in result.stdout and "\x07" not in result.stdout
    found = json.loads(run("check", "--accept-edits", files.plan, "--json").stdout)
    assert found["safe"] is False and found["findings"]
    assert everything_below(files.folder) == before, "an unsafe plan gets no new digest"
    write_edit(files, document, sign=True)
    refused = run("emit", files.plan, "-o", files.folder / "out")
    assert refused.exit_code == 2 and refused.stderr.startswith("SP14"), refused.output
    assert not (files.folder / "out").exists()


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("SP1405", lambda d: d["programs"][0].update(name="trains_step")),
        ("SP1406", lambda d: d["programs"][0]["nodes"][0].update(node="nobody")),
        ("SP1412", lambda d: d["programs"][0]["lanes"][0][0].update(run="fc1/0#0x")),
        ("SP1417", lambda d: d["placements"].pop()),
    ],
)
def test_plans_that_are_not_whole_are_not_told(
    code: str, edit: Callable[[dict[str, Any]], object], files: Files
) -> None:
    document = plan_document(files)
    edit(document)
    write_edit(files, document, sign=True)
    page = files.folder / "page.html"
    for command in (("show", files.plan, "--html", page), ("explain", files.plan, "fc2"), ("simulate", files.plan)):
        assert "is not whole" in fails(code, *command)
    assert not page.exists()


def test_safe_edits(files: Files) -> None:
    document = plan_document(files)
    document["programs"][0]["nodes"][0]["stage_ns"][0] += 1000
    write_edit(files, document)
    fails("SP1402", "show", files.plan)
    assert "safe" in succeeds("check", "--accept-edits", files.plan)
    assert "safe" in succeeds("check", files.plan)
    assert read_plan(files.plan / "plan.json").programs[0].nodes[0].stage_ns[0] > 1000
    succeeds("emit", files.plan, "-o", files.folder / "out")


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(invented=1),
        lambda d: d["placements"][0].update(invented=1),
        lambda d: d.pop("pools"),
        lambda d: d["lanes"][0].update(cpu="zero"),
        lambda d: d["placements"][0].update(offset=-64),
        lambda d: d["programs"][0]["nodes"][0].update(implementation="a\nb"),
        lambda d: d.update(schema=2),
        lambda d: d.update(programs={"train_step": []}),
        # No float holds these: what people see of a plan is computed in floats.
        lambda d: d["programs"][0]["nodes"][0]["stage_ns"].__setitem__(0, 10**400),
        lambda d: d["programs"][0].update(predicted_ns=10**400),
        lambda d: d["programs"][0]["nodes"][0].update(traffic=10**400),
        lambda d: d["sharing"].update(bandwidth=10**400),
        lambda d: d["pools"][0].update(capacity=10**400),
    ],
)
def test_malformed_plans(edit: Callable[[dict[str, Any]], object], files: Files) -> None:
    document = plan_document(files)
    edit(document)
    write_edit(files, document, sign=True)
    fails("SP1401", "check", files.plan)
    fails("SP1401", "check", "--accept-edits", files.plan)
    fails("SP1401", "show", files.plan)


def test_a_plan_beside_another_graph_or_target(files: Files) -> None:
    for name, code in (("graph.json", "SP1403"), ("target.toml", "SP1404")):
        place = files.plan / name
        original = place.read_text()
        if name == "graph.json":
            place.write_text(original.replace("tiny_b8", "tiny_b9"))
        else:
            write_target(load_target("knl7250"), place)
        for command in ("check", "show", "simulate"):
            fails(code, command, files.plan)
        place.write_text(original)
    assert read_bundle(files.plan).graph.name == "tiny_b8"
    fails("SP1401", "show", files.graph)
