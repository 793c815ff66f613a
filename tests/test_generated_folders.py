"""Building and loading on the wrong machine, and generated folders that were tampered with."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import codegen.load
from codegen.contender import Work
from codegen.cpu.view import Addresses
from codegen.initial import read_weights
from codegen.load import executor_class
from planner.bundle import read_bundle
from planner.errors import UserError
from planner.graph.model import Role
from planner.plan.text import plan_hash, read_plan
from tests.cli import Files, everything_below, fails, run, succeeds

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built_once(made_workspace: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny"
    succeeds("emit", made_workspace.plan, "-o", folder)
    succeeds("build", folder)
    return folder


@pytest.fixture
def built(built_once: Path, tmp_path: Path) -> Path:
    """A built executor of the test's own."""
    return Path(shutil.copytree(built_once, tmp_path / "tiny"))


@pytest.fixture
def emitted(files: Files) -> Path:
    succeeds("emit", files.plan, "-o", files.folder / "emitted")
    return files.folder / "emitted"


def compiler(folder: Path, script: str) -> str:
    """A PATH with only this g++."""
    folder.mkdir()
    (folder / "g++").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "g++").chmod(0o755)
    return str(folder)


def test_no_compiler(emitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything_below(emitted)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert "install g++" in fails("SP1506", "build", emitted)
    monkeypatch.setenv("PATH", compiler(tmp_path / "broken", "exit 1"))
    fails("SP1506", "build", emitted)
    monkeypatch.setenv("PATH", compiler(tmp_path / "old", "echo 9.4.0"))
    assert "9.4.0" in fails("SP1507", "build", emitted)
    monkeypatch.setenv("PATH", compiler(tmp_path / "odd", "echo what"))
    fails("SP1507", "build", emitted)
    assert everything_below(emitted) == before


def test_no_cache_folder(emitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPPLAN_CACHE", str(tmp_path / "file"))
    fails("SP1509", "build", emitted)


def test_folders_that_are_not_built(emitted: Path, tmp_path: Path, files: Files) -> None:
    fails("SP1512", "bench", emitted)
    fails("SP1510", "build", files.plan)
    fails("SP1510", "build", tmp_path / "nowhere")
    fails("SP1701", "bench", tmp_path / "nowhere")


def test_two_builds_at_once(built_once: Path, files: Files) -> None:
    """Both succeed and leave one module that loads."""
    succeeds("emit", files.plan, "-o", files.folder / "twice")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from codegen.cli import main; main()", "build", str(files.folder / "twice")]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [(process.communicate()[1], process.returncode) for process in both]
    assert [code for _, code in answers] == [0, 0], answers
    assert len(list((files.folder / "twice").glob("_executor.*"))) == 1
    executor_class(files.folder / "twice")


def test_sources_of_another_plan(built: Path, files: Files) -> None:
    succeeds(
        "plan", files.graph, "--costs", files.costs, "--target", files.target, "--lanes", 1, "-o", files.folder / "p"
    )
    shutil.copy(files.folder / "p" / "plan.json", built / "plan.json")
    fails("SP1511", "bench", built)


def test_sources_changed_since_the_build(built: Path) -> None:
    with open(built / "forward.cpp", "a") as source:
        source.write("// edited\n")
    assert "changed since" in fails("SP1512", "bench", built)


def test_an_edited_plan_in_a_built_folder(built: Path) -> None:
    document = json.loads((built / "plan.json").read_text())
    document["programs"][0]["nodes"][0]["stage_ns"][0] += 1
    (built / "plan.json").write_text(json.dumps(document))
    fails("SP1402", "bench", built)
    succeeds("check", "--accept-edits", built)
    assert "another plan" in fails("SP1511", "bench", built)


@pytest.mark.parametrize("damage", [b"", b"\x7fELF garbage", None])
def test_a_damaged_module(damage: bytes | None, built: Path) -> None:
    module = next(built.glob("_executor.*.so"))
    module.write_bytes(damage if damage is not None else module.read_bytes()[:5000])
    fails("SP1512", "bench", built)
    succeeds("build", built)
    executor_class(built)


def test_the_module_of_another_plan(built: Path) -> None:
    """Under the name that this plan's has. Its plan is told by the hash that it was compiled with."""
    module = next(built.glob("_executor.*.so"))
    stated = plan_hash(read_plan(built / "plan.json")).encode()
    code = module.read_bytes()
    assert stated in code
    module.write_bytes(code.replace(stated, stated[::-1]))
    assert "another plan's" in fails("SP1512", "bench", built)
    module.unlink()
    module.mkdir()
    fails("SP1512", "bench", built)


def test_a_processor_that_lacks_the_instructions(built: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    if not codegen.load.processor_flags():
        pytest.skip("this machine's instruction sets cannot be told")
    monkeypatch.setattr(codegen.load, "processor_flags", lambda: frozenset({"sse4_2"}))
    with pytest.raises(UserError, match="SP1609"):
        executor_class(built)
    fails("SP1609", "bench", built)
    fails("SP1609", "profile", files.graph, "--target", files.target, "-o", files.folder / "new.json")
    assert not (files.folder / "new.json").exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"PK\3\4broken", b"\x93NUMPY"])
def test_damaged_weights(content: bytes, built: Path) -> None:
    (built / "weights.npz").write_bytes(content)
    fails("SP1613", "bench", built)


def test_damaged_weights_are_never_to_be_unpickled(built: Path) -> None:
    """As NumPy advises whoever gives it another file."""
    (built / "weights.npz").write_text("#include <cmath>")
    assert "weights.npz cannot be read: it is no .npz archive\n" in fails("SP1613", "bench", built)


def test_edited_sources_are_told_of(built: Path) -> None:
    lanes = built / "lanes.cpp"
    lanes.write_text(lanes.read_text() + "// another line\n")
    told = "what it computes is not what `check` verified: not what stepplan emits for plan.json: lanes.cpp"
    assert told in succeeds("build", built)


def test_weights_that_do_not_fit(built: Path, tmp_path: Path) -> None:
    np.savez(built / "weights.npz", **{"fc1.weight": np.zeros((2, 2), np.float32)})
    fails("SP1613", "bench", built)
    np.savez(tmp_path / "text.npz", **{"fc1.weight": np.array(["a"])})
    with pytest.raises(UserError, match="SP1613"):
        read_weights(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", **{"fc1.weight": np.array([print], dtype=object)})
    with pytest.raises(UserError, match="SP1613"):
        read_weights(tmp_path / "objects.npz")


def test_a_damaged_header_of_weights(tmp_path: Path) -> None:
    """NumPy looks at it with Python's tokenizer, which has an error of its own."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,"
    with zipfile.ZipFile(tmp_path / "cut.npz", "w") as archive:
        archive.writestr("fc1.weight.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UserError, match="SP1613"):
        read_weights(tmp_path / "cut.npz")


def test_writing_over_an_input_is_refused(files: Files) -> None:
    """`check` finds such plans first; the emitter does not rely on it."""
    bundle = read_bundle(files.plan)
    value = next(v.id for v in bundle.graph.values if v.role is Role.INPUT)
    addresses = Addresses(bundle.graph, bundle.plan, {v: v for v in bundle.plan.placement}, {value: value})
    assert addresses.operand(value)
    with pytest.raises(UserError, match="SP1505"):
        addresses.operand(value, written=True)


def test_models_without_a_twin(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other process raises (tests/codegen/test_contender.py) ends the command."""
    pytest.importorskip("torch")

    def refuse(way: str, work: Work) -> None:
        raise UserError("SP1513", "no PyTorch twin for op 'linear'", "compare without --against torch")

    monkeypatch.setattr("codegen.bench.Contender", refuse)
    result = run("bench", built, "--repetitions", 1, "--against", "torch")
    assert result.exit_code == 2 and "SP1513" in result.stderr, result.output
