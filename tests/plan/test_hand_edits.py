"""What a reviewer's edits of plan.json lead to: precise findings, or a plan that is accepted and emitted.

Each edit is made in the text's document, as by hand, in copies of the committed example plans.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner.plan.findings import FIXES
from planner.plan.text import read_plan
from tests.cli import fails, run, succeeds

GENERATED = Path(__file__).resolve().parents[2] / "generated"
Document = dict[str, Any]


def place(d: Document, value: str) -> Any:
    return next(p for p in d["placements"] if p["value"] == value)


def move(d: Document, onto: str, *values: str) -> None:
    for value in values:
        place(d, value)["offset"] = place(d, onto)["offset"]


def node(d: Document, name: str) -> Any:
    return next(n for n in d["programs"][0]["nodes"] if n["node"] == name)


def entry(d: Document, run: str) -> Any:
    return next(e for lane in d["programs"][0]["lanes"] for e in lane if e["run"] == run)


def swap(d: Document, lane: int, first: int, second: int) -> None:
    entries = d["programs"][0]["lanes"][lane]
    entries[first], entries[second] = entries[second], entries[first]


def arena(d: Document, more: int) -> int:
    """Grow it; returns where it ended."""
    before = d["pools"][0]["arena"]
    d["pools"][0]["arena"] = before + more
    return int(before)


class Unsafe(NamedTuple):
    model: str
    edit: Callable[[Document], object]
    code: str
    words: tuple[str, ...]
    """Of one finding's message."""


MLP, CNN = "mlp_b64_cpu2", "digits_cnn_b64_cpu2"
UNSAFE: dict[str, Unsafe] = {
    "a value onto its reader's result": Unsafe(
        MLP,
        lambda d: move(d, "fc2.y", "fc1.y", "fc1.relu.y"),
        "SP1423",
        ("fc2/0#0 uses value fc1.relu.y and value fc2.y on the same bytes 2409024 to 2474048 of pool dram",),
    ),
    "half of an in-place pair": Unsafe(
        MLP,
        lambda d: move(d, "fc2.y", "fc1.y"),
        "SP1421",
        ("value fc1.relu.y shares fc1.y", "lies on bytes 2343488 to 2409024", "fc1.y on bytes 2409024 to 2474560"),
    ),
    "onto a parameter": Unsafe(
        MLP,
        lambda d: move(d, "fc3.weight", "fc3.y"),
        "SP1422",
        ("value fc3.y lies over value fc3.weight, which keeps its bytes", "bytes 1067072 to 1069632 of pool dram"),
    ),
    "scratch onto a parameter": Unsafe(
        MLP,
        lambda d: node(d, "fc3").update(scratch_offset=place(d, "fc3.weight")["offset"]),
        "SP1422",
        ("the scratch of node fc3 lies over value fc3.weight", "of pool dram"),
    ),
    "a convolution's result onto another's": Unsafe(
        CNN,
        lambda d: move(d, "conv1.y", "conv2.y"),
        "SP1423",
        ("value conv2.y", "value conv1.y", "of pool dram"),
    ),
    "a wait dropped": Unsafe(
        MLP,
        lambda d: entry(d, "fc2/0#1").pop("wait"),
        "SP1414",
        ("fc2/0#1 reads value fc1.relu.y without waiting for fc1.relu/0#0, which writes it",),
    ),
    "a stage's wait dropped": Unsafe(
        CNN,
        lambda d: entry(d, "conv2/1#0").pop("wait"),
        "SP1416",
        ("conv2/1#0 touches", "without waiting for conv2/0#1, an earlier stage"),
    ),
    "slices swapped on a lane": Unsafe(
        MLP,
        lambda d: swap(d, 0, 0, 1),
        "SP1414",
        ("fc1.relu/0#0 reads value fc1.y although lane 0 runs it before fc1/0#0, which writes it",),
    ),
    "slices swapped into a deadlock": Unsafe(
        MLP,
        lambda d: swap(d, 1, 0, 2),
        "SP1413",
        ("fc1/0#1 comes in lane 1 after", "fc2/0#1 waits for fc1.relu/0#0 waits for fc1/0#1"),
    ),
    "waiting for itself": Unsafe(
        MLP,
        lambda d: entry(d, "fc3/0#1").update(wait=["fc3/0#1"]),
        "SP1413",
        ("fc3/0#1 waits for fc3/0#1",),
    ),
    "fewer slices, lanes as before": Unsafe(
        MLP,
        lambda d: node(d, "fc1").update(slices=1),
        "SP1412",
        ("lane 1 runs fc1/0#1, but the only slice of node fc1 is fc1/0#0",),
    ),
    "more slices, lanes as before": Unsafe(
        MLP,
        lambda d: node(d, "fc1").update(slices=3),
        "SP1410",
        ("fc1/0#2 runs in no lane, but node fc1 has fc1/0#0 to fc1/0#2",),
    ),
    "an entry of a view": Unsafe(
        MLP,
        lambda d: d["programs"][0]["lanes"][0].insert(0, {"run": "flatten/0#0"}),
        "SP1412",
        ("lane 0 runs flatten/0#0, but node flatten is only a view: nothing runs",),
    ),
    "a slice without its stage": Unsafe(
        MLP,
        lambda d: entry(d, "fc2/0#1").update(wait=["fc1.relu"]),
        "SP1412",
        ("fc2/0#1 waits for fc1.relu, but a slice is named node/stage#index",),
    ),
    "a smaller arena": Unsafe(
        MLP,
        lambda d: arena(d, -64),
        "SP1419",
        ("value loss.loss ends at byte 2544708, behind its arena of 2544704 bytes in pool dram",),
    ),
    "a node renamed": Unsafe(
        MLP, lambda d: node(d, "fc1").update(node="fcone"), "SP1406", ("the graph's program has no node fcone",)
    ),
    "a slice renamed": Unsafe(
        MLP,
        lambda d: entry(d, "fc1/0#0").update(run="fcone/0#0"),
        "SP1412",
        ("lane 0 runs fcone/0#0, but the program has no node fcone",),
    ),
    "a kernel that the op does not have": Unsafe(
        MLP,
        lambda d: node(d, "fc1").update(kernel="loops"),
        "SP1407",
        ("node fc1 (linear) runs as loops/columns in 2 slices; it offers onednn/columns in up to 16, onednn/rows",),
    ),
    "another kernel of a convolution, its stages as before": Unsafe(
        CNN, lambda d: node(d, "conv2").update(dim="channels"), "SP14", ("node conv2 (conv2d)",)
    ),
    "two lanes on one processor": Unsafe(
        MLP, lambda d: d["lanes"][1].update(cpu=0), "SP1427", ("lanes 0, 1 are all pinned to processor 0",)
    ),
    "a processor that is not there": Unsafe(
        MLP,
        lambda d: d["lanes"][1].update(cpu=9),
        "SP1427",
        ("lane 1 is pinned to processor 9, which target cpu2 does not have",),
    ),
    "a peak that is too low": Unsafe(
        MLP, lambda d: d["programs"][0].update(peak_bytes=1), "SP1429", ("the stated peak of 1 bytes is too low",)
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, Callable[[Document], object]], Path]:
    def edited(model: str, edit: Callable[[Document], object]) -> Path:
        for name in ("plan.json", "graph.json", "target.toml"):
            shutil.copy(GENERATED / model / name, tmp_path)
        document = json.loads((tmp_path / "plan.json").read_text())
        edit(document)
        (tmp_path / "plan.json").write_text(json.dumps(document, indent=1))
        return tmp_path

    return edited


Folder = Callable[[str, Callable[[Document], object]], Path]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe(name: str, folder: Folder) -> None:
    model, edit, code, words = UNSAFE[name]
    plan = folder(model, edit)
    before = (plan / "plan.json").read_bytes()
    assert "--accept-edits" in fails("SP1402", "check", plan)
    result = run("check", "--accept-edits", plan)
    assert result.exit_code == 1, result.output
    findings = json.loads(run("check", "--accept-edits", plan, "--json").stdout)["findings"]
    fitting = [f for f in findings if f["code"].startswith(code) and all(w in f["message"] for w in words)]
    assert fitting, result.stdout
    assert fitting[0]["fix"] == FIXES[fitting[0]["code"]] and f"  fix: {fitting[0]['fix']}\n" in result.stdout
    assert "correct it and run this again" in result.stdout
    assert (plan / "plan.json").read_bytes() == before
    fails("SP1402", "emit", plan, "-o", plan / "out")


def to_free_bytes(d: Document) -> None:
    end = arena(d, 65536)
    for value in ("fc1.y", "fc1.relu.y"):
        place(d, value)["offset"] = end


def one_slice(d: Document) -> None:
    """fc1 on lane 0 alone, done properly: its slices, its entries and its waits."""
    node(d, "fc1").update(slices=1)
    lanes = d["programs"][0]["lanes"]
    lanes[1].remove({"run": "fc1/0#1"})
    entry(d, "fc1.relu/0#0").pop("wait")


SAFE: dict[str, tuple[str, Callable[[Document], object]]] = {
    "a larger arena": (MLP, lambda d: arena(d, 4096)),
    "a value on free bytes": (MLP, to_free_bytes),
    "another wait": (MLP, lambda d: entry(d, "fc3/0#1")["wait"].append("fc1/0#0")),
    "one slice, with its lanes": (MLP, one_slice),
    "lanes on each other's processors": (
        CNN,
        lambda d: d.update(lanes=[{"id": lane["id"], "cpu": 1 - lane["cpu"]} for lane in d["lanes"]]),
    ),
    "a slice's time": (CNN, lambda d: node(d, "conv1").update(stage_ns=[1, 1])),
}


@pytest.mark.parametrize("name", SAFE)
def test_safe(name: str, folder: Folder) -> None:
    plan = folder(*SAFE[name])
    fails("SP1402", "emit", plan, "-o", plan / "out")
    text = succeeds("check", "--accept-edits", plan)
    assert "the plan is safe; its digest is renewed" in text and "stepplan emit" in text
    assert "the plan is safe\n" in succeeds("check", plan)
    succeeds("emit", plan, "-o", plan / "out")
    assert read_plan(plan / "out" / "plan.json") == read_plan(plan / "plan.json")


def test_predicted_times_alone(folder: Folder) -> None:
    """Nothing becomes unsafe, but the statement is not passed on in silence."""
    plan = folder(MLP, lambda d: d["programs"][0].update(predicted_ns=1000))
    text = succeeds("check", "--accept-edits", plan)
    assert "train_step states 1.00 us, its slices' times give 255.85 us" in text and "predict states" not in text
    assert "only stated" not in succeeds("check", "--accept-edits", folder(MLP, lambda d: arena(d, 64)))


def test_the_order_of_keys_is_no_edit(folder: Folder) -> None:
    def backwards(d: Document) -> None:
        for key in sorted(d, reverse=True):
            d[key] = d.pop(key)

    assert "the plan is safe" in succeeds("check", folder(MLP, backwards))


def test_entries_in_another_order_are_one(folder: Folder) -> None:
    fails("SP1402", "check", folder(MLP, lambda d: d["placements"].reverse()))


MALFORMED: dict[str, tuple[Callable[[Document], object], tuple[str, ...]]] = {
    "a key misspelt": (
        lambda d: node(d, "fc1").update(slcies=node(d, "fc1").pop("slices")),
        ("programs[train_step].nodes[fc1].slices: Field required", "programs[train_step].nodes[fc1].slcies"),
    ),
    "a wait that is no list": (
        lambda d: entry(d, "fc3/0#1").update(wait="fc2.relu/0#0"),
        ("programs[train_step].lanes[1][fc3/0#1].wait",),
    ),
    "a word for a number": (lambda d: place(d, "fc1.y").update(bytes="two"), ("placements[fc1.y].bytes", "integer")),
    "a number in quotes": (lambda d: place(d, "fc1.y").update(offset="64"), ("placements[fc1.y].offset", "integer")),
    "a negative offset": (lambda d: place(d, "fc1.y").update(offset=-64), ("placements[fc1.y].offset",)),
    "another name's control characters": (
        lambda d: place(d, "fc1.y").update(value="\x1b[2J", offset=-64),
        (r"placements['\x1b[2J'].offset",),
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str, folder: Folder) -> None:
    edit, words = MALFORMED[name]
    text = fails("SP1401", "check", "--accept-edits", folder(MLP, edit))
    assert all(w in text for w in (*words, "correct what is named")), text


def test_cut(folder: Folder) -> None:
    plan = folder(MLP, lambda d: None)
    data = (plan / "plan.json").read_text()
    (plan / "plan.json").write_text(data[: len(data) // 2])
    assert "is not valid JSON" in fails("SP1701", "check", "--accept-edits", plan)
