"""A user's own module in a file of the current folder, through the command line: captured, profiled, planned, built,
trained, and compared with PyTorch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from codegen.bench import bench
from codegen.branches import decisive_values
from codegen.contender import WAYS
from codegen.load import executor_class
from codegen.steps import random_inputs
from codegen.torch_steps import prepare
from codegen.truth import truth
from planner.bundle import read_bundle
from planner.graph.text import read_graph
from planner.target.text import write_target
from tests.cli import fails, succeeds, this_machine, working_in

ROOT = Path(__file__).resolve().parent.parent

MODULE = '''
import torch
from torch import nn


def make(batch=8):
    """A bare Sequential: its parameters are called 0.weight, 1.running_mean, ..."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    return net, (torch.zeros(batch, 1, 4, 4),)
'''

TRAIN = """
import sys
import numpy as np
import torch
from own_net import make
from generated.{package} import Executor

module = make()[0]
rng = np.random.default_rng(0)
labels = rng.integers(0, 3, 8)
images = (rng.standard_normal((8, 1, 4, 4)) + labels[:, None, None, None]).astype(np.float32)
with Executor(pin=False) as executor:
    same = all(torch.equal(a, module.state_dict()[n]) for n, a in executor.torch_state_dict().items())
    losses = [executor.step(images, labels) for _ in range(40)]
    module.load_state_dict(executor.torch_state_dict())
    got = executor.predict(images)
with torch.no_grad():
    want = module.eval()(torch.from_numpy(images)).numpy()
print(same, losses[0], losses[-1], float(np.abs(got - want).max()))
"""


class Own(NamedTuple):
    folder: Path
    target: Path
    package: str


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """Every step as a command of its own, in the user's folder."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_net.py").write_text(MODULE)
    write_target(this_machine(), folder / "here.toml")
    with working_in(folder):
        text = succeeds("capture", "own_net:make", "--batch", 8, "-o", "graph.json")
        assert "wrote graph.json: sequential_b8" in text
        assert (folder / "graph.weights.npz").is_file()
        graph = read_graph("graph.json")
        assert {v.name for v in graph.values} >= {"0.weight", "1.weight", "1.running_mean", "4.bias"}
        document = json.loads(
            succeeds("profile", "graph.json", "--target", "here.toml", "-o", "costs.json", "--budget", 0.1, "--json")
        )
        assert document["entries"] > 5
        keep = [x for value in decisive_values(graph) for x in ("--keep", value)]
        succeeds("plan", "graph.json", "--costs", "costs.json", "--target", "here.toml", "-o", "plan", *keep)
        assert "the plan is safe" in succeeds("check", "plan")
        succeeds("emit", "plan", "-o", "generated/own")
        assert "from generated.own import Executor" in succeeds("build", "generated/own")
    return Own(folder, folder / "here.toml", "own")


def test_planning_anew_in_a_plans_folder_keeps_its_weights(own: Own, tmp_path: Path) -> None:
    """Whether the new plan takes the old one's place or goes elsewhere."""
    before = (own.folder / "plan" / "weights.npz").read_bytes()
    place = shutil.copytree(own.folder / "plan", tmp_path / "plan")
    command = ("plan", place / "graph.json", "--costs", own.folder / "costs.json", "--target", own.target, "-o")
    for out in (tmp_path / "other", place):
        succeeds(*command, out)
        assert (out / "weights.npz").read_bytes() == before


def require_trains(folder: Path, package: str) -> None:
    """The user's own loop: starts from the module's weights, learns, and gives them back."""
    (folder / "train.py").write_text(TRAIN.format(package=package))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env={"PYTHONPATH": str(ROOT)}, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    same, first, last, apart = done.stdout.split()
    assert same == "True"
    assert float(last) < 0.5 * float(first)
    assert float(apart) < 1e-4


def test_trains(own: Own) -> None:
    require_trains(own.folder, own.package)


def test_is_as_near_to_the_truth_as_pytorch(own: Own) -> None:
    """Parameters whose names begin with a digit have other ids than names."""
    folder = own.folder / "generated" / own.package
    graph = read_bundle(folder).graph
    assert any(v.name and v.name != v.id for v in graph.values)
    with executor_class(folder)(pin=False, poison=True) as executor:
        verdict = truth(graph, executor, seed=5)["executor"]
    assert {row.kind for row in verdict.rows} >= {"loss", "gradient", "parameter", "statistic"}
    assert any(row.name == "0.weight" for row in verdict.rows)
    assert not verdict.wrong, verdict.wrong[:3]


def test_takes_the_steps_of_pytorchs_contenders(own: Own) -> None:
    """What `bench --against torch` times computes the executor's loss."""
    folder = own.folder / "generated" / own.package
    graph = read_bundle(folder).graph
    inputs = random_inputs(graph, 1)
    with executor_class(folder)(pin=False) as executor:
        state = executor.state_dict()
        losses = [executor.step(*inputs) for _ in range(4)]
        for way in WAYS[:2]:  # eager; the compiled ones take a minute
            step = prepare(graph, inputs, state, torch.get_num_threads(), way)
            theirs = [step() for _ in range(4)]
            np.testing.assert_allclose(theirs, losses, rtol=1e-3, err_msg=way)


def test_what_pytorch_cannot_compile_is_told(own: Own, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("codegen.bench.WAYS", WAYS[::2])
    folder = own.folder / "generated" / own.package
    result = bench(folder, against="torch", repetitions=1)
    assert set(result["against"]) == {"eager NCHW"}
    assert set(result["failed"]) == {"compile NCHW"}
    assert all("no-compiler" in reason for reason in result["failed"].values())


def test_make(own: Own) -> None:
    """All of it in one command, with the costs that are known."""
    (own.folder / "generated" / "costs").mkdir(parents=True, exist_ok=True)
    (own.folder / "generated" / "costs" / "here.json").write_bytes((own.folder / "costs.json").read_bytes())
    with working_in(own.folder):
        text = succeeds("make", "own_net:make", "--batch", 8, "--target", "here.toml", "--budget", 0.1)
    assert "from generated.sequential_b8_here import Executor" in text
    require_trains(own.folder, "sequential_b8_here")


def test_make_says_what_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models of one class and batch, and the second once more."""
    monkeypatch.setattr("codegen.make.build", lambda folder, progress: None)
    (tmp_path / "two_nets.py").write_text(
        "import torch\n"
        "def small(batch=2): return torch.nn.Linear(3, 2), (torch.zeros(batch, 3),)\n"
        "def large(batch=2): return torch.nn.Linear(9, 2), (torch.zeros(batch, 9),)\n"
    )
    with working_in(tmp_path):
        made = [
            json.loads(succeeds("make", f"two_nets:{name}", "--batch", 2, "--target", "cpu2", "--modelled", "--json"))
            for name in ("small", "large", "large")
        ]
    assert [m["replaced"] for m in made] == [False, True, False]
    assert {m["folder"] for m in made} == {"generated/linear_b2_cpu2"}


@pytest.mark.parametrize(("model", "words"), [("own_net:mke", "mke"), ("own_nat:make", "own_nat")])
def test_a_misspelt_model(own: Own, model: str, words: str) -> None:
    with working_in(own.folder):
        assert words in fails("SP1018", "capture", model, "-o", "other.json")
        assert words in fails("SP1018", "make", model, "--target", "here.toml")
    assert not (own.folder / "other.json").exists()
