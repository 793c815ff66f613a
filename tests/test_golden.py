"""generated/ holds exactly what the planner and the templates make today."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from planner.bundle import read_bundle
from planner.costs.table import read_costs
from planner.plan.check import check

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "regenerate_golden.py"
FIX = "; where the change is meant: python examples/regenerate_golden.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate_golden", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(script: ModuleType) -> Mapping[Path, str]:
    found: Mapping[Path, str] = script.golden_files(read_costs(script.COSTS))
    return found


def test_every_file_is_as_generated(files: Mapping[Path, str], script: ModuleType) -> None:
    different = [str(p) for p, text in files.items() if (script.GENERATED / p).read_text() != text]
    assert different == [], f"{different} differ{FIX}"


def test_no_file_is_left_over(files: Mapping[Path, str], script: ModuleType) -> None:
    folders = {p.parts[0] for p in files}
    there = {p.relative_to(script.GENERATED) for f in folders for p in (script.GENERATED / f).iterdir() if p.is_file()}
    stale = sorted(str(p) for p in there - set(files) if p.suffix != ".so")
    assert stale == [], f"nothing makes {stale}"


def test_costs_are_modelled_for_the_same_modes(script: ModuleType) -> None:
    """Sizes that oneDNN asks for depend on the processor; modes and times do not."""
    kept = read_costs(script.COSTS)
    assert {e.source for e in kept.entries} == {"modelled"}

    def essence(table: object) -> list[tuple[object, ...]]:
        return [(e.signature, e.mode, len(e.warm_ns)) for e in table.entries]  # type: ignore[attr-defined]

    assert essence(kept) == essence(script.golden_costs())


@pytest.mark.parametrize("name", ["digits_cnn_b64_cpu2", "mlp_b64_cpu2"])
def test_committed_plans_are_safe(name: str) -> None:
    bundle = read_bundle(ROOT / "generated" / name)
    assert check(bundle.graph, bundle.plan, bundle.target) == []


DUMP = """
import hashlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("g", sys.argv[1])
g = importlib.util.module_from_spec(spec); spec.loader.exec_module(g)
from planner.costs.table import read_costs, costs_text
from planner.costs.model import modelled_costs
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from planner.zoo import build
from planner.graph.text import graph_text
from planner.plan.text import plan_text
files = dict(g.golden_files(read_costs(g.COSTS)))
graph, target = build("resnet18", 2, image_size=64), load_target("cpu16")
files["graph"] = graph_text(graph)
costs = modelled_costs(graph, target)
files["costs"] = costs_text(costs)
files["plan"] = plan_text(make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=(1, 2))))
for name in sorted(files, key=str):
    print(name, hashlib.sha256(files[name].encode()).hexdigest())
"""


def test_the_same_bytes_under_every_hash_seed() -> None:
    """Graph, cost table, plan and sources, in fresh processes with different orders of sets."""
    answers = set()
    for seed in ("0", "1", "20177"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", DUMP, str(SCRIPT)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT.parent, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1
    assert answers.pop().count("\n") > 30
