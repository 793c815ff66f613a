"""The examples run, at small size."""

import argparse
import json
import subprocess
import sys
import tarfile
import time
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from planner import zoo
from planner.costs.table import CostTable, read_costs
from planner.graph.model import Graph
from planner.ops.signature import signatures_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = str(ROOT / "examples")


def said(name: str, *options: str) -> str:
    """What the example prints, which ends well; in this process, which has the libraries already."""
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as printed:
        patched.syspath_prepend(EXAMPLES)
        patched.setattr("sys.argv", [name, *options])
        assert import_module(name).main() == 0, printed.getvalue()
    return printed.getvalue()


def test_torch_module(tmp_path: Path) -> None:
    """A PyTorch user's way: it learns, and the weights work in PyTorch."""
    text = said("torch_module", "--epochs", "3", "--width", "8", "--budget", "2", "--out", str(tmp_path))
    assert float(text.split("held-out accuracy")[1].split("%")[0]) > 90
    assert float(text.split("same within")[1]) < 1e-3


def test_own_loop(tmp_path: Path) -> None:
    """It learns with a loss of its own, and the module has the weights."""
    text = said("own_loop", "--epochs", "4", "--width", "32", "--budget", "2", "--out", str(tmp_path))
    assert float(text.split("same within")[1]) < 1e-5


def test_gpu_study_without_a_gpu(tmp_path: Path) -> None:
    """A dry run: the script holds together, whatever its times mean. A second call measures nothing again, and a part
    that finds no GPU says so and leaves the others alone."""
    out = tmp_path / "results.json"
    script = [sys.executable, str(ROOT / "examples" / "gpu_study.py"), "--out", str(out), "--folder", str(tmp_path)]

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run([*script, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=1200)
        assert out.exists(), done.stdout + done.stderr
        return done.returncode, json.loads(out.read_text())

    status, found = run("machine", "convolutions", "--null")
    assert status == 0 and found["machine"]["status"] == found["convolutions"]["status"] == "done"
    assert found["convolutions"]["rows"] and found["machine"]["rows"]["copies"]
    assert run("machine", "--null")[1] == found
    carried = tmp_path / "state.tgz"  # to a machine that knows nothing
    assert run("machine", "--null", "--state", str(carried))[1] == found
    for file in tmp_path.glob("*.json"):
        file.unlink()
    assert run("machine", "--null", "--state", str(carried))[1] == found
    status, found = run("speed", "machine", "--device", "99")  # it has minutes, also where nvcc must run first
    assert status == 1 and found["speed"]["rows"]["error"]["error"].startswith("SP1") and found["machine"]["turns"] == 1


def test_gpu_rows_without_a_gpu(tmp_path: Path) -> None:
    """Prepared side by side, or one after the other, timed in turn; what time was too short for is told."""
    script = [sys.executable, str(ROOT / "examples" / "gpu_rows.py"), "--folder", str(tmp_path)]
    state, rows = tmp_path / "state.tgz", ["cap_resnet101", "eager_32_float32"]
    script += ["--state", str(state), "--null"]
    done = subprocess.run([*script, "--minutes", "3", "--at-once", "1", *rows], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("not measured: nothing\n"), done.stdout + done.stderr
    for row in rows:
        assert json.loads((tmp_path / f"{row}.json").read_text())[row]["step_ms"] > 0
    with tarfile.open(state) as kept:
        assert {"costs_float32.json", *(f"{row}.json" for row in rows)} <= set(kept.getnames())
    early = subprocess.run([*script, "--minutes", "0.08", "cap_resnet101"], capture_output=True, text=True)
    assert early.returncode == 1 and early.stdout.endswith("not measured: cap_resnet101\n"), early.stdout + early.stderr
    unknown = subprocess.run([*script, "cap_none"], capture_output=True, text=True)
    assert unknown.returncode == 2 and "there is no row cap_none" in unknown.stderr


def test_state_keeps_what_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was compiled, which is larger; and nothing of an archive lands outside of the folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from gpu_study import COMPILED, pack, unpack

    here, there, archive = tmp_path / "here", tmp_path / "there" / "folder", tmp_path / "state.tgz"
    kept = ["costs.json", f"{COMPILED}/row/cache/0f3a", f"{COMPILED}/row/ab/cd.best_config"]
    for name in (*kept, f"{COMPILED}/row/triton/0/kernel.cubin", "log"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    pack(here, archive)
    there.mkdir(parents=True)
    unpack(archive, there)
    assert sorted(str(f.relative_to(there)) for f in there.rglob("*") if f.is_file()) == sorted(kept)
    assert all((there / name).read_text() == name for name in kept)
    with tarfile.open(archive, "w:gz") as made:
        made.add(here / "costs.json", "../outside.json")
    unpack(archive, there)
    assert not (there.parent / "outside.json").exists()


def test_gpu_study_goes_on_behind_rows_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never tried comes first; what fails, or ends its process, is tried once more."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from gpu_parts.study import Study

    def study() -> Study:
        return Study(0, True, tmp_path, tmp_path / "part.json", time.monotonic() + 60)

    now = study()
    rows = now.open(["hangs", "fails", "works"])
    assert next(rows) == "hangs"  # and its process is ended
    now = study()
    order = []
    for key in now.open(["hangs", "fails", "works"]):
        order.append(key)
        if key != "works":
            now.failed(key, ValueError("no"))
        else:
            now.keep(key, 1)
    assert order == ["fails", "works", "hangs"]
    assert [study().may_try(k) for k in ("hangs", "fails", "works")] == [False, True, False]
    assert list(study().open(["hangs", "fails", "works"])) == ["fails"]


def test_gpu_study_leaves_a_process_that_lost_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one row's kernel ended the context, no other row is tried in its process; another one goes on."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import gpu_study
    from gpu_parts import study as shared

    broken = []

    class Probe:
        def describe(self, device: int) -> dict[str, Any]:
            if broken:
                raise RuntimeError("an illegal memory access was encountered")
            return {}

    monkeypatch.setattr(shared, "probe", lambda arch, null: Probe())

    def measure(study: shared.Study) -> None:
        for key in study.open(["breaks", "works", "works too"]):
            if key == "breaks":
                broken.append(key)
                study.failed(key, RuntimeError("no"))
            else:
                study.keep(key, 1)

    def in_process(name: str, options: argparse.Namespace, seconds: float) -> str:
        broken.clear()  # a new process has a new context
        status = gpu_study.run_part(argparse.Namespace(**vars(options), within=seconds))
        return {0: "done", 1: "failed", gpu_study.MORE: "more to do", gpu_study.LOST: "lost the GPU"}[status]

    monkeypatch.setattr(gpu_study, "PARTS", {"host": (measure, 4.0)})
    monkeypatch.setattr(gpu_study, "in_process", in_process)
    options = argparse.Namespace(folder=tmp_path, device=0, null=True, parts=["host"])
    assert in_process("host", options, 60.0) == "lost the GPU"
    assert list(json.loads((tmp_path / "host.json").read_text())) == ["breaks"]
    (tmp_path / "host.json").unlink()
    assert gpu_study.turn("host", options, 60.0) == "failed"
    rows = json.loads((tmp_path / "host.json").read_text())
    assert rows["works"] == rows["works too"] == 1 and rows["breaks"]["tries"] == 2


def test_every_part_of_the_gpu_study_tells_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on: a GPU that has never been met fails at anything."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import gpu_study
    from gpu_parts import memory, sanitize, speed
    from gpu_parts.study import Study, brief

    def fails(*arguments: object, **options: object) -> None:
        raise ValueError("not that")

    for method in ("make", "costs", "describe"):
        monkeypatch.setattr(Study, method, fails)
    for name in ("algorithms", "copy_bandwidths"):
        monkeypatch.setattr(speed, name, fails)
    monkeypatch.setattr(memory, "torch_under", fails)
    monkeypatch.setattr(sanitize, "make_plan", fails)
    found: dict[str, Any] = {}
    for name, (measure, _) in gpu_study.PARTS.items():
        study = Study(0, True, tmp_path, tmp_path / f"{name}.json", time.monotonic() + 60)
        measure(study)
        assert study.found, name
        assert {k for k in study.found if not study.is_failed(k)} == ({"tools"} if name == "machine" else set())
        found[name] = {"rows": study.found}
    assert brief({"worst": {"error": 1.23456e-7, "of": list(range(20))}}) == "worst (error 1.235e-07, of 20 entries)"
    text = gpu_study.report(found)
    assert all(name in text for name in gpu_study.PARTS) and "gpu: ValueError: not that" in text


def test_parts_of_the_gpu_study_that_time_nothing_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, into one table that has what both measured."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import gpu_study
    from gpu_parts import study as shared

    order = ["machine", "sanitize", "speed", "correct", "bfloat16", "host"]
    together = ["sanitize", "correct", "bfloat16"]
    assert gpu_study.side_by_side(order) == [["machine"], together, ["speed"], ["host"]]
    assert gpu_study.side_by_side(["speed", "correct"]) == [["speed"], ["correct"]]
    whole = {s.text for s in signatures_of([zoo.build("mlp", 2), zoo.build("mlp", 3)])}
    assert len(whole) > len({s.text for s in signatures_of([zoo.build("mlp", 3)])})
    original = shared.profile

    def beside(graphs: list[Graph], *arguments: Any, **options: Any) -> CostTable:
        """Another part measures something else, from the table that both found."""
        found: CostTable = original(graphs, *arguments, **options)
        monkeypatch.setattr(shared, "profile", original)
        Study(0, True, tmp_path, tmp_path / "other.json", 0.0).costs([zoo.build("mlp", 3)], "float32")
        return found

    Study = shared.Study
    monkeypatch.setattr(shared, "profile", beside)
    Study(0, True, tmp_path, tmp_path / "one.json", 0.0).costs([zoo.build("mlp", 2)], "float32")
    table = read_costs(tmp_path / "costs_float32.json")
    assert {e.signature for e in table.entries} == whole and table.bandwidth


def test_turns_of_the_gpu_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that a call's end cuts short goes on first; then come those that had none."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import gpu_study

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, had = Clock(), []

    def turn(name: str, options: argparse.Namespace, seconds: float) -> str:
        had.append((name, round(seconds)))
        clock.now += seconds
        return "more to do"

    monkeypatch.setattr(gpu_study, "time", clock)
    monkeypatch.setattr(gpu_study, "turn", turn)
    monkeypatch.setattr(gpu_study, "PARTS", {name: (None, 4.0) for name in ("host", "cap", "memory")})
    options = argparse.Namespace(
        folder=tmp_path, out=tmp_path / "out.json", state=tmp_path / "state.tgz", parts=[], no_ahead=True
    )
    for _ in range(3):
        gpu_study.run_all(options, clock.now + 363)
    assert had == [("host", 240), ("cap", 120), ("cap", 120), ("memory", 240), ("host", 240), ("cap", 120)]
