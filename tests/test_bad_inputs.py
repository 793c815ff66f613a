"""Every kind of bad file and argument ends in one clear error with its code, and changes nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codegen.load import executor_class
from planner.errors import UserError
from planner.graph.text import read_graph
from tests.cli import Files, everything_below, fails, run, succeeds

ROOT = Path(__file__).parent.parent
DEEP = "[" * 100_000 + "]" * 100_000
NESTED = '{"a":' * 500 + "1" + "}" * 500
GARBAGE = {
    "empty": b"",
    "blank": b" \n",
    "binary": bytes(range(256)) * 20,
    "not UTF-8": b'{"schema": 1, "name": "\xff\xfe"}',
    "UTF-16": '{"schema": 1}'.encode("utf-16"),
    "a list": b"[1, 2]",
    "a word": b"null",
    "an empty object": b"{}",
    "deep lists": DEEP.encode(),
    "deep objects": NESTED.encode(),
    "a huge integer": b'{"schema": ' + b"9" * 6000 + b"}",
    "a huge float": b'{"schema": 1, "name": 1e999}',
    "not a number": b'{"schema": 1, "name": NaN}',
    "half": b'{"schema": 1, "name": "ti',
    "another schema": b'{"schema": 99, "schema_version": 99, "placements": []}',
    "a key twice": b'{"schema": 1, "schema": 2}',
    "escape codes": b'{"schema": "\\u001b[2J\\u0007"}',
}


def plan_arguments(files: Files, *more: object) -> tuple[object, ...]:
    out = files.folder / "out"
    return ("plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", out, *more)


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("which", ["graph", "costs", "target", "plan", "pins", "beside"])
def test_garbage_is_one_error(which: str, what: str, files: Files) -> None:
    place = {
        "plan": files.plan / "plan.json",
        "beside": files.plan / "graph.json",
        "pins": files.folder / "pins.toml",
    }.get(which) or getattr(files, which)
    place.write_bytes(GARBAGE[what])
    before = everything_below(files.folder)
    commands = {
        "plan": [("check", files.plan), ("check", "--accept-edits", files.plan), ("diff", files.plan, files.plan)],
        "pins": [plan_arguments(files, "--pins", place)],
        "beside": [("show", files.plan), ("emit", files.plan, "-o", files.folder / "out")],
        "costs": [plan_arguments(files), ("profile", files.graph, "--target", files.target, "-o", files.costs)],
    }.get(which, [plan_arguments(files), ("profile", files.graph, "--target", files.target)])
    if which == "pins" and what in ("empty", "blank"):
        return  # no pins
    for command in commands:
        result = run(*command)
        code = re.search(r"^(SP\d{4}): ", result.stderr)
        assert code, result.output
        fails(code[1], *command)
    expected = {"graph": "10", "costs": "12", "target": "11", "plan": "14", "pins": "13", "beside": "10"}[which]
    assert code[1].startswith(f"SP{expected}") or code[1] == "SP1701"
    assert everything_below(files.folder) == before


@pytest.mark.parametrize("path", ["no/such/file", "."])
def test_paths_that_are_no_files(path: str, files: Files) -> None:
    fails("SP1701", "plan", path, "--costs", files.costs, "--target", files.target, "-o", files.folder / "out")
    fails("SP1701", "show", path if path != "." else files.folder / "nothing")
    fails("SP1303", *plan_arguments(files, "--pins", path))


def test_a_circle_of_links(files: Files) -> None:
    loop = files.folder / "loop"
    loop.symlink_to("loop")
    fails("SP1510", "build", loop)
    with pytest.raises(UserError, match="SP1701"):
        executor_class(loop)
    files.graph.with_name(f"{files.graph.stem}.weights.npz").symlink_to(loop)
    succeeds(*plan_arguments(files))


@pytest.mark.parametrize("path", [".", "/", ""])
def test_folders_to_write_into(path: str, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.folder)
    assert "name a file" in fails("SP1702", "show", files.plan, "--html", path)
    fails("SP1702", "capture", "mlp", "--batch", 2, "-o", path)


# -- cost tables -------------------------------------------------------------------------------------------------


def edit_costs(files: Files, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(files.costs.read_text())
    edit(document)
    files.costs.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        {"cold_ns": [-1.0]},
        {"cold_ns": []},
        {"cold_ns": [1e300]},
        {"cold_ns": ["fast"]},
        {"slices": "1"},
        {"provisional": "yes"},
        {"cold_ns": [1.0] * 7},
        {"slices": 0},
        {"slices": 2**70},
        {"implementation": 'x"; system("true"); //\n'},
        {"facts": {"scratch_bytes": -1}},
        {"facts": {"scratch_bytes": 2**62}},
        {"invented": 1},
        {"source": "guessed"},
    ],
    ids=str,
)
def test_bad_cost_entries(change: dict[str, Any], files: Files) -> None:
    edit_costs(files, lambda d: d["entries"][0].update(change))
    assert "entries.0" in fails("SP1201", *plan_arguments(files))


@pytest.mark.parametrize("field", ["launch_ns", "handoff_ns", "bandwidth", "thread_bandwidth", "flops"])
@pytest.mark.parametrize("number", [-1.0, 1e308])
def test_absurd_measurements(field: str, number: float, files: Files) -> None:
    edit_costs(files, lambda d: d.update({field: number}))
    assert field in fails("SP1201", *plan_arguments(files))


def test_not_a_number_in_costs(files: Files) -> None:
    text = files.costs.read_text()
    files.costs.write_text(re.sub(r'"cold_ns": \[[\d.]+', '"cold_ns": [NaN', text, count=1))
    assert "NaN is not a number" in fails("SP1701", *plan_arguments(files))


def test_two_times_of_one_mode(files: Files) -> None:
    edit_costs(files, lambda d: d["entries"].append({**d["entries"][0], "cold_ns": [7.0], "warm_ns": [7.0]}))
    assert "entries.0 and entries." in fails("SP1201", *plan_arguments(files))


def test_missing_signatures(files: Files) -> None:
    edit_costs(files, lambda d: d.update(entries=[e for e in d["entries"] if "sgd" not in e["signature"]]))
    assert "sgd_update" in fails("SP1202", *plan_arguments(files))
    edit_costs(files, lambda d: d.update(entries=[]))
    fails("SP1202", *plan_arguments(files))


def test_entries_with_the_wrong_number_of_stages_are_not_used(files: Files) -> None:
    def stretch(document: dict[str, Any]) -> None:
        for entry in document["entries"]:
            entry.update(warm_ns=[1.0] * 9, cold_ns=[1.0] * 9)

    edit_costs(files, stretch)
    fails("SP1202", *plan_arguments(files))


def test_costs_of_another_machine(files: Files) -> None:
    edit_costs(files, lambda d: d.update(fingerprint="another \u001b[31mmachine"))
    result = run(*plan_arguments(files))
    assert result.exit_code == 0 and "warning SP1203" in result.stderr and "\x1b" not in result.stderr
    fails("SP1203", *plan_arguments(files, "--strict-costs"))
    fails("SP1204", "profile", files.graph, "--target", files.target, "-o", files.costs)


# -- options -----------------------------------------------------------------------------------------------------


def test_bad_options(files: Files) -> None:
    for size in ("2 elephants", "-1", "9" * 5000, "nan", "1e9"):
        fails("SP1801", *plan_arguments(files, f"--memory-budget={size}"))
    assert "smallest budget" in fails("SP1301", *plan_arguments(files, "--memory-budget", "0"))
    fails("SP1301", *plan_arguments(files, "--memory-budget", "1KiB"))
    for strategies in ("5", "one", "", "1;2"):
        fails("SP1802", *plan_arguments(files, "--policy", "liu", "--strategies", strategies))
    for decided in (("--strategies", "1,2"), ("--uniform", 2), ("--policy", "sequential", "--strategies", "3")):
        assert "--policy liu" in fails("SP1802", *plan_arguments(files, *decided))
    fails("SP1108", *plan_arguments(files, "--lanes", 4096))
    assert run(*plan_arguments(files, "--lanes", 0)).exit_code == 2
    assert run(*plan_arguments(files, "--policy", "magic")).exit_code == 2
    fails("SP1101", "plan", files.graph, "--costs", files.costs, "--target", "\0.toml")
    fails("SP1107", "plan", files.graph, "--costs", files.costs, "--target", "nosuch")
    fails("SP1105", "detect", "--name", "../../etc/passwd")
    pins = files.folder / "pins.toml"
    pins.write_text('[slices]\n"fc" = 1\n')
    assert "the nearest is" in fails("SP1302", *plan_arguments(files, "--pins", pins))
    pins.write_text('[slices]\n"fc1" = "1"\n')
    assert "slices.fc1" in fails("SP1303", *plan_arguments(files, "--pins", pins))
    pins.write_text('[slices]\n"fc1" = 999\n')
    fails("SP1302", *plan_arguments(files, "--pins", pins))
    pins.write_text(f'[slices]\n"{"fc1" * 2000}" = 1\n')
    fails("SP1302", *plan_arguments(files, "--pins", pins))
    pins.write_text('[threads]\n"fc1" = 1\n')
    told = fails("SP1303", *plan_arguments(files, "--pins", pins))
    assert "pins.toml: threads: Extra inputs are not permitted\n  fix:" in told
    assert "nowhere.toml: No such file" in fails("SP1303", *plan_arguments(files, "--pins", "nowhere.toml"))
    assert not (files.folder / "out").exists()


def test_models_that_cannot_be_captured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = ("-o", tmp_path / "g.json")
    assert "resnet18" in fails("SP1010", "capture", "resnet17", *out)
    fails("SP1001", "capture", "tests.cli_models:unsupported", *out)
    fails("SP1017", "capture", "tests.cli_models:complex_numbers", *out)
    fails("SP1014", "capture", "tests.cli_models:dynamic", *out)
    fails("SP1018", "capture", "tests.cli_models:nothing", *out)
    fails("SP1018", "capture", "no.such.module:factory", *out)
    fails("SP1019", "capture", tmp_path / "missing.onnx", *out)
    (tmp_path / "bad.onnx").write_bytes(GARBAGE["binary"])
    fails("SP1019", "capture", tmp_path / "bad.onnx", *out)
    fails("SP1011", "capture", "tests.cli_models:small", "--image-size", 8, *out)
    assert not (tmp_path / "g.json").exists()


def test_weights_travel_from_capture_to_the_generated_folder(tmp_path: Path, files: Files) -> None:
    pytest.importorskip("torch")
    graph = tmp_path / "own.json"
    succeeds("capture", "tests.cli_models:small", "--batch", 2, "-o", graph)
    weights = (tmp_path / "own.weights.npz").read_bytes()
    assert read_graph(graph).programs[0].inputs
    fails("SP1202", "plan", graph, "--costs", files.costs, "--target", files.target, "-o", tmp_path / "p")
    assert weights[:2] == b"PK"


# -- graphs and targets ------------------------------------------------------------------------------------------

HOSTILE = (
    'a"; system("true"); //',
    "a\nint main() {}",
    "../../escape",
    "a b",
    "",
    "\x1b[2J",
    "a" * 300,
    "д",
    "$(true)",
    'a"""\nimport os\n"""',
)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["graph", "value", "node", "program"])
def test_hostile_names_in_graphs(where: str, name: str, files: Files) -> None:
    document = json.loads(files.graph.read_text())
    if where == "graph":
        document["name"] = name
    elif where == "program":
        document["programs"][0]["name"] = name
    else:
        (document["values"] if where == "value" else document["programs"][0]["nodes"])[0]["id"] = name
    files.graph.write_text(json.dumps(document))
    fails("SP1008", *plan_arguments(files))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_plans(name: str, files: Files) -> None:
    plan = files.plan / "plan.json"
    document = json.loads(plan.read_text())
    document["name"] = name
    plan.write_text(json.dumps(document))
    fails("SP1401", "check", "--accept-edits", files.plan)


@pytest.mark.parametrize("name", [n for n in HOSTILE if n])
def test_hostile_names_of_parameters(name: str, files: Files) -> None:
    """A framework's may hold whatever can be printed: no generated source holds them."""
    document = json.loads(files.graph.read_text())
    next(v for v in document["values"] if v.get("name"))["name"] = name
    files.graph.write_text(json.dumps(document))
    if not name.isprintable():
        fails("SP1008", *plan_arguments(files))
        return
    succeeds(*plan_arguments(files))
    succeeds("emit", files.folder / "out", "-o", files.folder / "emitted")
    sources = [f for f in (files.folder / "emitted").iterdir() if f.suffix in (".cpp", ".hpp", ".py")]
    assert sources and not [f.name for f in sources if name in f.read_text()]


def named(document: dict[str, Any], name: str) -> Any:
    return next(v for v in document["values"] if v.get("name") == name)


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("SP1008", lambda d: d.update(invented=1)),
        ("SP1008", lambda d: d["programs"][0].update(invented=1)),
        ("SP1008", lambda d: d["values"][0].update(invented=1)),
        ("SP1008", lambda d: d["programs"][0]["nodes"][0].update(invented=1)),
        ("SP1008", lambda d: d["values"][0]["type"].update(shape=[0])),
        ("SP1008", lambda d: d["values"][0]["type"].update(shape=[1.5])),
        ("SP1008", lambda d: d["programs"][0].update(inputs=7)),
        ("SP1008", lambda d: d.update(programs="none")),
        ("SP1008", lambda d: d.update(values=None)),
        ("SP1003", lambda d: d["programs"][0]["nodes"][0].update(op="__import__")),
        ("SP1003", lambda d: d["programs"][0]["nodes"][0].update(op="relu" * 2000)),
        ("SP1009", lambda d: d["programs"][0]["nodes"].reverse()),
        ("SP1009", lambda d: d["programs"][0]["nodes"].pop(0)),
        ("SP1009", lambda d: d["values"].append(d["values"][0])),
        ("SP1009", lambda d: d["programs"].append(d["programs"][0])),
        ("SP1009", lambda d: d["programs"][0]["nodes"][0].update(phase="update")),
        ("SP1009", lambda d: d["programs"][0]["nodes"][-1].update(phase="backward")),
        ("SP1009", lambda d: named(d, "fc1.weight").update(role="activation")),
        ("SP1009", lambda d: named(d, "fc1.weight").pop("name")),
        ("SP1009", lambda d: named(d, "fc1.weight").update(name="fc2.weight")),
        ("SP1009", lambda d: named(d, "fc1.weight").update(aliases=["fc2.weight"])),
        ("SP1009", lambda d: d["programs"][0]["inputs"].append("fc1.weight")),
        ("SP1008", lambda d: named(d, "fc1.weight")["init"].update(kind="unifrom")),
        ("SP1007", lambda d: d.update(schema=0)),
    ],
)
def test_graphs_that_are_wrong(code: str, edit: Callable[[dict[str, Any]], object], files: Files) -> None:
    document = json.loads(files.graph.read_text())
    edit(document)
    files.graph.write_text(json.dumps(document))
    fails(code, *plan_arguments(files))


def test_huge_shapes_are_no_overflow(files: Files) -> None:
    text = files.graph.read_text().replace("[8, 12]", f"[{2**62}, 12]")
    files.graph.write_text(text)
    fails("SP1009", *plan_arguments(files))


@pytest.mark.parametrize(
    ("batch", "code"), [(10**20, "SP1009"), (2**62, "SP1009"), (10**14, "SP1206"), (10**9, "SP1301")]
)
@pytest.mark.parametrize("target", ["cpu2", "h200"])
def test_absurd_batches(target: str, batch: int, code: str, tmp_path: Path) -> None:
    graph, costs = tmp_path / "graph.json", tmp_path / "costs.json"
    succeeds("capture", "mlp", "--batch", batch, "-o", graph)
    profile = ("profile", graph, "--target", target, "--modelled", "-o", costs)
    if code != "SP1301":
        fails(code, *profile)
        return
    succeeds(*profile)
    fails(code, "plan", graph, "--costs", costs, "--target", target, "-o", tmp_path / "plan")


def test_comments_cannot_break_out(files: Files) -> None:
    document = json.loads(files.graph.read_text())
    for node in document["programs"][0]["nodes"]:
        node["origin"] = '*/\n#include "/etc/passwd"\n\\\n\u2028system(0); ??/\n'
    files.graph.write_text(json.dumps(document))
    succeeds(*plan_arguments(files))
    succeeds("emit", files.folder / "out", "-o", files.folder / "e")
    for source in (files.folder / "e").glob("*.?pp"):
        assert not re.search(r"^\s*(#include \"/etc|system)", source.read_text(), re.MULTILINE)
        assert source.read_text().isascii()
