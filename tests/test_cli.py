"""Every command on a small model, with its JSON, its exit code and its help."""

import json
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

import codegen.api
import planner.api
from planner import __version__
from planner.bundle import read_bundle
from planner.console import one_of, positive, progress, script
from planner.costs.table import read_costs, write_costs
from planner.errors import UserError
from planner.graph.text import read_graph
from planner.plan.check import check
from planner.target.text import read_target
from tests.cli import Files, fails, run, succeeds, working_in

ROOT = Path(__file__).parent.parent
COMMANDS = [name for name in planner.api.__all__ + codegen.api.__all__ if name != "PlanOptions"]


def as_json(*arguments: object) -> Any:
    document = json.loads(succeeds(*arguments, "--json"))
    assert isinstance(document, dict)
    return document


def test_version() -> None:
    assert succeeds("--version").strip() == f"stepplan {__version__}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_json_a_function_and_documentation(command: str) -> None:
    text = re.sub(r"\s+", " ", succeeds(command, "--help"))
    assert "--json" in text and "Usage:" in text
    functions = {**vars(planner.api), **vars(codegen.api)}
    assert callable(functions[command])
    assert f"stepplan {command} " in (ROOT / "docs" / "cli.md").read_text()


def test_help_is_a_list_of_the_commands() -> None:
    result = run("--help")
    assert len(COMMANDS) == 14 and all(command in result.output for command in COMMANDS)
    assert run("frobnicate").exit_code == 2
    assert run("plan").exit_code == 2


def test_detect(tmp_path: Path) -> None:
    target = tmp_path / "t.toml"
    assert f"wrote {target}" in succeeds("detect", "--name", "mine", "-o", target)
    assert read_target(target).name == "mine"


def test_capture_and_plan(tmp_path: Path, files: Files) -> None:
    graph = tmp_path / "captured.json"
    document = as_json("capture", "mlp", "--batch", 4, "-o", graph)
    assert document["graph"] == "mlp_b4" and document["nodes"]["predict"] > 3
    assert "mlp_b4" in succeeds("capture", "mlp", "--batch", 4, "-o", graph)
    arguments = ("plan", files.graph, "--costs", files.costs, "--target", files.target, "-o", tmp_path / "p")
    summary = as_json(*arguments)
    assert summary["programs"]["train_step"]["predicted_ns"] > 0
    assert "fc1" in succeeds(*arguments)
    for option in (("--policy", "sequential"), ("--policy", "liu", "--strategies", "1,2"), ("--memory-budget", "1GiB")):
        succeeds(*arguments, *option)
    succeeds(*arguments, "--policy", "liu", "--strategies", "3", "--uniform", "1")
    assert {n.slices for n in read_bundle(tmp_path / "p").plan.programs[0].nodes} == {1}
    assert "offsets" in run(*arguments, "-v").stderr
    assert len(as_json(*arguments, "--pareto")["pareto"]) >= 1
    assert "overhead" in succeeds(*arguments, "--pareto") and (tmp_path / "p" / "pareto.png").stat().st_size > 1000
    fails("SP1301", *arguments, "--memory-budget", "1KiB")
    bundle = read_bundle(tmp_path / "p")
    assert check(bundle.graph, bundle.plan, bundle.target) == []
    succeeds(*arguments, "--keep", "fc1.y", "--keep", "fc2.backward*")
    kept = read_bundle(tmp_path / "p").plan.keep
    assert "fc1.y" in kept and any(v.startswith("fc2.backward") for v in kept)
    fails("SP1304", *arguments, "--keep", "typo")
    succeeds(*arguments, "--policy", "liu", "--parallel-ops", "--parallel-threshold", "2", "--parallel-op", "softmax")
    fails("SP1003", *arguments, "--parallel-op", "sofmax")


def test_image_size(tmp_path: Path) -> None:
    document = as_json("capture", "digits_cnn", "--image-size", 16, "--batch", 2, "-o", tmp_path / "g.json")
    assert document["graph"] == "digits_cnn_b2_16px"


def test_clip_norm(tmp_path: Path) -> None:
    succeeds("capture", "mlp", "--clip-norm", "2.5", "-o", tmp_path / "graph.json")
    (clip,) = [n for n in read_graph(tmp_path / "graph.json").program["train_step"].nodes if n.op == "clip_factor"]
    assert clip.attrs.model_dump() == {"max_norm": 2.5}
    fails("SP1023", "capture", "mlp", "--clip-norm", "0", "-o", tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_check(files: Files) -> None:
    assert "safe" in succeeds("check", files.plan)
    assert as_json("check", files.plan / "plan.json") == {"safe": True, "findings": []}


def test_diff(files: Files) -> None:
    assert as_json("diff", files.plan, files.plan)["changed"] is False
    other = files.folder / "other"
    succeeds("plan", files.graph, "--costs", files.costs, "--target", files.target, "--lanes", 1, "-o", other)
    for form in ("text", "markdown", "json"):
        result = run("diff", files.plan, other / "plan.json", "--format", form)
        assert result.exit_code == 1 and "fc1" in result.stdout
    assert json.loads(run("diff", files.plan, other, "--json").stdout)["changed"] is True


def test_explain(files: Files) -> None:
    assert "fc1" in succeeds("explain", files.plan, "fc1", "--costs", files.costs)
    assert as_json("explain", files.plan, "fc1.weight")["values"]
    fails("SP1450", "explain", files.plan, "fc9")


def test_show(files: Files) -> None:
    html, trace = files.folder / "p.html", files.folder / "p.trace"
    assert f"wrote {html}" in succeeds("show", files.plan, "--html", html, "--trace", trace)
    assert "<html" in html.read_text() and json.loads(trace.read_text())
    assert as_json("show", files.plan)["name"] == "tiny_b8"
    events = files.folder / "events.csv"
    assert "planned: " in succeeds("show", files.plan, "--events", events) and events.read_text().startswith("of,event")
    pictures = files.folder / "pictures"
    assert f"wrote {pictures / 'arena_train_step.png'}" in succeeds("show", files.plan, "--memory", pictures)
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in pictures.iterdir())


def test_simulate(files: Files) -> None:
    calm = as_json("simulate", files.plan)["train_step"]
    assert abs(calm["total_ns"] - calm["predicted_ns"]) <= 1
    noisy = as_json("simulate", files.plan, "--noise", 0.5, "--seed", 3)["train_step"]
    assert noisy["total_ns"] != calm["total_ns"]
    assert "lanes busy" in succeeds("simulate", files.plan)


def test_emit_build_import_bench(files: Files) -> None:
    folder = files.folder / "generated" / "tiny"
    (files.plan / "weights.npz").write_bytes(b"travels along")
    assert "plan.json" in as_json("emit", files.plan, "-o", folder)["files"]
    assert (folder / "weights.npz").read_bytes() == b"travels along"
    (files.plan / "weights.npz").unlink()
    succeeds("emit", files.plan, "-o", folder)
    assert not (folder / "weights.npz").exists(), "another model's weights would be taken for this one's"
    with working_in(files.folder):
        assert "from generated.tiny import Executor" in succeeds("build", "generated/tiny")
    assert as_json("build", folder)["module"].startswith("_executor.")
    assert as_json("build", folder)["unverified"] == ""
    code = (
        "import numpy as np; from generated.tiny import Executor\n"
        "e = Executor(pin=False); print(e.step(np.ones((8, 12), np.float32), np.zeros(8, np.int64)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=files.folder, env={"PYTHONPATH": f"{ROOT}:{files.folder}"}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
    result = as_json("bench", folder, "--repetitions", 2, "--costs", files.costs)
    assert result["step_ms"] > 0 and result["name"] == "tiny_b8"
    assert "predicted" in succeeds("bench", folder, "--repetitions", 1)
    fails("SP1803", "bench", folder, "--against", "jax")


def test_profile_extends_a_table(files: Files) -> None:
    table = read_costs(files.costs)
    forgotten = next(e.signature for e in table.entries if e.signature.startswith("sgd_update"))
    kept = tuple(e for e in table.entries if e.signature != forgotten)
    write_costs(table.model_copy(update={"entries": kept}), files.costs)
    arguments = ("profile", files.graph, "--target", files.target, "-o", files.costs, "--budget", 0.5)
    assert as_json(*arguments)["new"] >= 1
    measured = read_costs(files.costs).modes(forgotten)
    assert measured and all(min(e.warm_ns) > 0 for e in measured)
    assert "0 of them new" in succeeds(*arguments)


def test_make(files: Files) -> None:
    """`captured.py:model` in the working folder, and a cost table that has it all."""
    (files.folder / "generated" / "costs").mkdir(parents=True)
    (files.folder / "generated" / "costs" / "here.json").write_bytes(files.costs.read_bytes())
    arguments = ("make", "mlp", "--batch", 2, "--target", files.target, "--policy", "sequential", "--budget", 1)
    arguments = (*arguments, "--keep", "fc1.y")
    with working_in(files.folder):
        text = succeeds(*arguments)
        assert "from generated.mlp_b2_here import Executor" in text
        assert "generated/mlp_b2_here" in text and "train_step" in text
        document = as_json(*arguments)
    assert document["folder"] == "generated/mlp_b2_here"
    assert read_bundle(files.folder / "generated" / "mlp_b2_here").plan.keep == ("fc1.y",)
    assert list((files.folder / "generated" / "mlp_b2_here").glob("_executor.*.so"))


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line now and then; none from what is over soon."""
    now = 0.0
    monkeypatch.setattr("planner.console.time.monotonic", lambda: now)
    with progress() as update:
        for done in range(60):
            now = float(done)
            update("timing conv2d", done, 60)
    assert capsys.readouterr().err == "timing conv2d: 20 of 60\ntiming conv2d: 40 of 60\n"


def test_examples_tell_mistakes_as_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    def mistaken() -> int:
        raise UserError("SP1010", "the zoo has no network 'nope'", "choose another")

    for main, code in ((mistaken, 2), (lambda: 3, 3), (lambda: None, None)):
        with pytest.raises(SystemExit) as ended:
            script(main)
        assert ended.value.code == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("SP1010: the zoo has no network 'nope'\n  fix: choose another\n")
    assert positive("3") == 3 and one_of(["a", "b"])("b") == "b"
    for read, text in ((positive, "0"), (one_of(["a", "b"]), "c")):
        with pytest.raises(ArgumentTypeError):
            read(text)
