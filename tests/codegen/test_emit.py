"""Emission: the same bytes every time, nothing foreign in the sources, nothing unsafe emitted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu import tables
from codegen.cpu.emit import emit, render
from codegen.cpu.filters import comment, comment_block, f32, i64
from codegen.cpu.names import identifiers, require_valid_id
from codegen.load import executor_class
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Role, TensorType
from planner.graph.text import graph_hash
from planner.ops.scalar import ScalarAttrs
from planner.plan.text import plan_text
from planner.solve.options import PlanOptions
from planner.target.text import load_target
from tests.codegen.plans import NO_BOUNDS, plan_for, target_of
from tests.codegen.quick import QUICK
from tests.graphs import small_net
from tests.plan.reference import make as made_by_reference

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
HOSTILE = 'x */ \\\n#include "/etc/passwd"\r\nint main() { system("id"); } ??/\n\u2028\x00 // /* "'


def chain(*names: str, origin: str = "") -> Graph:
    """x * 2 * 2 ... with nodes of these names."""
    b = GraphBuilder("chain")
    value = b.input("x", TensorType(shape=(8, 16)))
    for name in names:
        (value,) = b.op("scale", [value], ScalarAttrs(value=2.0), name=name, origin=origin)
    return b.finish_inference(value, fuse=False)


def test_golden_sources() -> None:
    """What a small plan's sources look like. After a deliberate change run with STEPPLAN_GOLDEN=1, read the diff."""
    graph = chain("layer1.double", "layer2.double", origin="model.py:12")
    plan, target = plan_for(graph, target=load_target("cpu16").restrict(2))
    files = render(plan, graph, target)
    for name in ("values.hpp", "nodes.hpp", "predict.cpp", "lanes.cpp", "executor.cpp", "__init__.py"):
        text = re.sub(r"\b[0-9a-f]{16}\b", "0123456789abcdef", files[name])
        golden = GOLDEN / f"{name}.txt"
        if os.environ.get("STEPPLAN_GOLDEN"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text)
        assert text == golden.read_text(), name


def test_same_bytes_under_every_hash_seed() -> None:
    code = (
        "import hashlib\n"
        "from tests.codegen.plans import plan_for\n"
        "from tests.graphs import small_net\n"
        "from codegen.cpu.emit import render\n"
        "plan, target = plan_for(small_net())\n"
        "files = render(plan, small_net(), target)\n"
        "print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())\n"
    )
    digests = set()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        digests.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(digests) == 1


def test_foreign_text_stays_in_comments() -> None:
    graph = chain("double", origin=HOSTILE)
    plan, target = plan_for(graph)
    files = render(plan, graph, target)
    plain = render(*(plan_for(chain("double", origin="o"))[0], chain("double", origin="o"), target))
    for name, text in files.items():
        if name.endswith((".json", ".toml")):
            continue
        assert text.isascii() and "\r" not in text and "\x00" not in text
        assert not any(line.endswith("\\") for line in text.splitlines())
        code = [line.split("//")[0] for line in text.splitlines()]
        other = [line.split("//")[0] for line in plain[name].splitlines()]
        hashes = r"[0-9a-f]{16}"
        assert [re.sub(hashes, "", c) for c in code if c] == [re.sub(hashes, "", c) for c in other if c], name
    assert "etc/passwd" in files["predict.cpp"]


def test_comments_and_literals() -> None:
    assert comment(HOSTILE).count("\n") == 0 and "*/" not in comment(HOSTILE) and "\\" not in comment(HOSTILE)
    assert all(line.startswith("//") for line in comment_block("word " * 100).splitlines())
    assert comment_block("") == "//"
    assert (f32(0.1), f32(1e-5), f32(3.0), f32(-1e20)) == ("0.1f", "1e-05f", "3.0f", "-1e+20f")
    assert all(np.float32(f32(float(v))[:-1]) == v for v in np.random.default_rng(0).standard_normal(100).astype("f4"))
    for bad in (float("inf"), float("nan"), 1e39):
        with pytest.raises(UserError, match="SP1504"):
            f32(bad)
    for bad_integer in (2**63, True, "1; system()"):
        with pytest.raises(UserError, match="SP1504"):
            i64(bad_integer)  # type: ignore[arg-type]


def test_identifiers_are_unique_and_harmless() -> None:
    ids = ["a.b", "a_b", "a__b", "double", "relu", "split", "EOF", "_x", "__attribute__", "errno", "a.b.2", "A1"]
    names = identifiers(ids, "node")
    assert len(set(names.values())) == len(ids)
    assert names["a.b"] == "a_b" and names["double"] == "double_node" and names["split"] == "split_node"
    assert not any("__" in n or n.startswith("_") for n in names.values())
    assert names["EOF"] == "EOF_node" and names["errno"] == "errno_node"
    assert identifiers(["split", "double"], "value", qualified=True) == {"split": "split", "double": "double_value"}
    for bad in ("a b", "a\n", "1a", "a;b", "a-b", "", 'a"', "a\\", "ä", "x" * 201):
        with pytest.raises(UserError, match="SP1503"):
            require_valid_id(bad)


def test_one_id_in_two_programs_is_two_names() -> None:
    twice = [("train_step", "fc"), ("train_step", "predict.fc"), ("predict", "fc")]
    assert tables.identifiers_of_pairs(twice) == ["fc", "predict_fc", "predict_predict_fc"]


def test_awkward_names_build_and_run(tmp_path: Path) -> None:
    names = ["double", "split", "map", "a.b", "a_b", "EOF", "errno", "std", "stepplan", "nodes", "run", "x", "Range"]
    graph = chain(*names)
    plan, target = plan_for(graph)
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=QUICK)
    data = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    with executor_class(tmp_path)(pin=False) as executor:
        assert np.array_equal(executor.predict(data), data * 2 ** len(names))


def test_plans_that_check_rejects_are_refused(tmp_path: Path) -> None:
    graph = chain("double", "again")
    plan, target = plan_for(graph)
    program = plan.programs[0]
    late = program.model_copy(update={"lanes": (program.lanes[0][:1], *program.lanes[1:])})
    with pytest.raises(UserError, match="SP14") as error:
        emit(plan.model_copy(update={"programs": (late,)}), graph, target, tmp_path / "out")
    assert "again" in error.value.problem and not (tmp_path / "out").exists()


def test_artefacts_that_do_not_belong_together(tmp_path: Path) -> None:
    graph = chain("double")
    plan, target = plan_for(graph)
    for other_graph, other_target in ((chain("other"), target), (graph, target_of(3))):
        with pytest.raises(UserError, match="SP1501"):
            emit(plan, other_graph, other_target, tmp_path)
    renamed = graph.model_copy(update={"programs": (graph.programs[0].model_copy(update={"name": "evil"}),)})
    evil = plan.model_copy(
        update={
            "programs": (plan.programs[0].model_copy(update={"name": "evil", "bounds": NO_BOUNDS}),),
            "graph_hash": graph_hash(renamed),
        }
    )
    with pytest.raises(UserError, match="SP1502"):
        emit(evil, renamed, target, tmp_path)
    assert not list(tmp_path.iterdir())


def test_writing_over_an_input_is_refused_even_unchecked() -> None:
    graph = chain("double")
    plan, _ = plan_for(graph)
    moved = tuple(p.model_copy(update={"shares": "x"}) if p.value != "x" else p for p in plan.placements)
    with pytest.raises(UserError, match="SP1505"):
        tables.build(plan.model_copy(update={"placements": moved}), graph, "")


def test_emitting_again_drops_what_the_plan_no_longer_has(tmp_path: Path) -> None:
    graph = chain("double")
    plan, target = plan_for(graph)
    (tmp_path / "update.cpp").write_text("int left_over;")
    (tmp_path / "notes.txt").write_text("mine")
    files = emit(plan, graph, target, tmp_path)
    assert {f.name for f in files} == {f.name for f in tmp_path.iterdir()} - {"notes.txt"}
    assert not (tmp_path / "update.cpp").exists() and (tmp_path / "notes.txt").read_text() == "mine"
    assert all(f.parent == tmp_path for f in files)


@pytest.mark.parametrize("accumulate", [False, True])
def test_every_trained_parameter_has_one_update_and_one_gradient(accumulate: bool) -> None:
    """With its rate in proportion to the executor's; sums of gradients hand these out in the updates' place."""
    graph = small_net(accumulate=accumulate)
    program = graph.program["train_step"]
    updates = [n for n in program.nodes if n.phase == "update" and graph.value[n.updates[0]].role is Role.PARAMETER]
    slow = updates[1].model_copy(update={"attrs": updates[1].attrs.model_copy(update={"lr": 0.025})})
    nodes = tuple(slow if n is updates[1] else n for n in program.nodes)
    edited = [p.model_copy(update={"nodes": nodes}) if p is program else p for p in graph.programs]
    graph = graph.model_copy(update={"programs": tuple(edited), "lr": 0.1})
    plan = made_by_reference(graph)
    model = tables.build(plan, graph, plan_text(plan))
    trained = [v.id for v in graph.values if any(n.updates[0] == v.id for n in updates)]
    assert [p for _, p in model.parameters] == trained and len(trained) == len(updates) > 5
    views = {v.node.id: v for v in model.views["train_step"]}
    assert [views[n.id].lr_factor for n in updates] == [0.25 if n is updates[1] else 1.0 for n in updates]
    assert all(v.lr_factor == 1.0 for v in model.all_views if v.node.phase != "update")
    sums = {n.updates[0]: n.id for n in program.nodes if n.op == "gradient_sum"}
    assert bool(sums) == accumulate
    kept = {views[sums.get(n.inputs[0], n.id)].parameter: n.updates[0] for n in updates}
    assert [kept[f"parameter::{name}"] for name, _ in model.parameters] == trained
    assert sum(bool(v.parameter) for v in model.all_views) == len(trained)


def test_lanes_run_and_wait_for_what_the_plan_says() -> None:
    """A gate stands for a stage: all its slices raise it, nobody else does, and so many it waits for."""
    graph = small_net()
    plan, _ = plan_for(graph, 4, PlanOptions(policy="liu", strategies=(1, 2)))
    model = tables.build(plan, graph, plan_text(plan))
    kinds = set()
    for run, program in zip(model.runs, plan.programs, strict=True):
        assert [[t.run for t in lane] for lane in run.lanes] == [[e.run for e in lane] for lane in program.lanes]
        tasks = {t.run: t for lane in run.lanes for t in lane}
        for entry in (e for lane in program.lanes for e in lane):
            assert tuple(w.run for w in tasks[entry.run].waits) == entry.wait
            for wait in tasks[entry.run].waits:
                kinds.add(wait.gate >= 0)
                if wait.gate < 0:
                    assert run.lanes[wait.lane][wait.position - 1].run == wait.run
                    continue
                stage = wait.run.removesuffix("*")
                raising = [t for t in tasks.values() if t.gate == wait.gate]
                assert {t.run for t in raising} == {name for name in tasks if name.startswith(stage)}
                assert {t.gate_slices for t in raising} == {len(raising)} == {wait.slices}
        assert {t.gate for t in tasks.values()} | {-1} == {-1, *range(run.gates)}
    assert kinds == {True, False}
