"""Everything that `capture` accepts, and what it says about everything else."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from planner.capturing import Captured, capture
from planner.errors import UserError
from planner.graph.optimizer import Optimizer
from planner.graph.text import graph_text


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def example(batch: int = 4) -> tuple[nn.Module, torch.Tensor]:
    return net(), torch.randn(batch, 5)


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("some_models")
    monkeypatch.setitem(sys.modules, "some_models", module)
    return module


def test_zoo_names() -> None:
    captured = capture("digits_cnn", batch=3)
    assert captured.graph.name == "digits_cnn_b3" and captured.weights == {}
    assert capture("digits_cnn").graph.name == "digits_cnn_b64"
    assert capture(captured) is captured and capture(captured.graph).graph is captured.graph
    with pytest.raises(UserError, match="SP1018: too late for a captured graph: batch, clip_norm"):
        capture(captured, batch=4, clip_norm=1.0)


@pytest.mark.parametrize("given", [{"inputs": torch.ones(2, 3)}, {"loss": "mse"}, {"labels": torch.ones(2)}])
def test_zoo_networks_have_inputs_and_losses(given: Any) -> None:
    with pytest.raises(UserError, match=r"SP1018: 'mlp' names a zoo network"):
        capture("mlp", **given)


def test_modules() -> None:
    module = net()
    captured = capture(module, torch.randn(4, 5), optimizer=Optimizer(kind="adam", lr=1e-3), name="small")
    assert captured.graph.name == "small"
    assert {n.op for n in captured.graph.program["train_step"].nodes if n.phase == "update"} == {"adam_update"}
    assert all(np.array_equal(captured.weights[k], v.detach().numpy()) for k, v in module.named_parameters())


def test_weights_are_copies() -> None:
    module = net()
    captured = capture(module, torch.randn(4, 5))
    before = captured.weights["0.weight"].copy()
    nn.init.zeros_(module[0].weight)
    assert np.array_equal(captured.weights["0.weight"], before)


def test_factories(factories: Any) -> None:
    factories.example = example
    factories.finished = net()
    factories.plain = net
    factories.full = lambda: (net(), (torch.randn(2, 5),), {"loss": "mse", "optimizer": Optimizer(lr=0.5)})
    factories.Net = type("Net", (), {"make": staticmethod(example)})
    assert capture("some_models:example", batch=7).graph.value["input"].type.shape == (7, 5)
    assert capture("some_models:example").graph.value["input"].type.shape == (4, 5)
    assert capture("some_models:Net.make").graph.name == "sequential_b4"
    assert capture("some_models:finished", torch.randn(3, 5)).graph.name == "sequential_b3"
    assert capture("some_models:plain", torch.randn(3, 5)).graph.name == "sequential_b3"
    full = capture("some_models:full").graph
    assert full.value["labels"].type.shape == (2, 3)
    assert next(n for n in full.program["train_step"].nodes if n.op == "sgd_update").attrs.lr == 0.5
    override = capture("some_models:full", optimizer=Optimizer(lr=0.25), name="other").graph
    assert override.name == "other" and "lr=0.25" in graph_text(override).replace('"lr": 0.25', "lr=0.25")


def test_factories_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_local_net.py").write_text(
        "import torch\ndef make(batch=2):\n    return torch.nn.Linear(5, 3), torch.zeros(batch, 5)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert capture("my_local_net:make", batch=6).graph.name == "linear_b6"
    assert sys.path == before
    sys.modules.pop("my_local_net")


def test_factories_that_import_when_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_layers.py").write_text("import torch\nlayer = torch.nn.Linear(5, 3)\n")
    (tmp_path / "my_lazy_net.py").write_text(
        "import torch\ndef make():\n    from my_layers import layer\n    return layer, torch.zeros(2, 5)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert capture("my_lazy_net:make").graph.name == "linear_b2"
    for name in ("my_lazy_net", "my_layers"):
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("my_broken_net:make", "ValueError at my_broken_net.py:2 when my_broken_net:make was called: odd width"),
        ("my_broken_net:lacking", "ModuleNotFoundError at my_broken_net.py:4 when my_broken_net:lacking was called"),
        ("my_unread_net:make", "ZeroDivisionError at my_unread_net.py:1 when my_unread_net was imported"),
        ("my_unparsed_net:make", "SyntaxError when my_unparsed_net was imported"),
    ],
)
def test_what_a_models_own_code_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    """It is no defect of stepplan's."""
    (tmp_path / "my_broken_net.py").write_text(
        "def make():\n    raise ValueError('odd width')\ndef lacking():\n    import no_such_package\n"
    )
    (tmp_path / "my_unread_net.py").write_text("1 / 0\n")
    (tmp_path / "my_unparsed_net.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"SP1018: {told}"):
        capture(text)
    sys.modules.pop("my_broken_net", None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("resnet51", "SP1010"),
        ("no_such_package:make", "SP1018"),
        ("some_models:missing", "SP1018"),
        ("some_models:number", "SP1018"),
        ("some_models:nothing", "SP1018"),
        ("some_models:bare", "SP1018"),
        ("some_models:odd", "SP1018"),
        ("some_models:many", "SP1018"),
        (":", "SP1018"),
        ("missing.onnx", "SP1019"),
    ],
)
def test_other_strings(factories: Any, text: str, code: str) -> None:
    factories.number = 3
    factories.nothing = lambda: None
    factories.bare = net
    factories.odd = lambda: (net(), torch.randn(2, 5), {"speed": 3})
    factories.many = lambda: (net(), torch.randn(2, 5), {}, 4)
    with pytest.raises(UserError, match=code):
        capture(text)


def test_batches(factories: Any) -> None:
    factories.fixed = lambda: (net(), torch.randn(2, 5))
    assert capture("some_models:fixed", batch=2).graph.name == "sequential_b2"
    with pytest.raises(UserError, match=r"SP1011.*3.*2"):
        capture("some_models:fixed", batch=3)
    with pytest.raises(UserError, match="SP1011"):
        capture("mlp", batch=0)
    with pytest.raises(UserError, match="SP1018: an object of type int is no model"):
        capture(42)


def test_what_notebooks_print_is_short() -> None:
    captured = capture("mlp", batch=2)
    assert re.fullmatch(r"<Captured mlp_b2: \d+ nodes in train_step, \d+ nodes in predict>", repr(captured))


def test_precisions() -> None:
    captured = capture("mlp", batch=2)
    assert captured.in_precision("float32") is captured
    assert captured.in_precision("bf16").graph.name == "mlp_b2_bf16"
    with pytest.raises(UserError, match="SP1033: there is no precision 'fp16'"):
        captured.in_precision("fp16")


def test_a_factory_may_change_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "my_moving_net.py").write_text(
        "import os\nfrom tests.test_capture import example\n"
        "def make():\n    os.chdir('elsewhere')\n    return example()\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert capture("my_moving_net:make").graph.name == "sequential_b4"
    assert sys.path == before
    sys.modules.pop("my_moving_net")


def test_weights_file(tmp_path: Path) -> None:
    captured = capture(net(), torch.randn(4, 5))
    path = tmp_path / "weights.npz"
    captured.write_weights(path)
    loaded = np.load(path)
    assert set(loaded.files) == set(captured.weights)
    assert all(np.array_equal(loaded[k], w) for k, w in captured.weights.items())
    first = path.read_bytes()
    captured.write_weights(path)
    assert path.read_bytes() == first
    Captured(captured.graph, {}).write_weights(path)
    assert list(tmp_path.iterdir()) == []


def test_without_torch(monkeypatch: pytest.MonkeyPatch, factories: Any) -> None:
    factories.thing = lambda: object()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert capture("mlp").graph.name == "mlp_b64"
    with pytest.raises(UserError, match="SP1012"):
        capture("some_models:thing")


def test_capture_is_a_function_of_the_package() -> None:
    import planner

    assert planner.capture is capture
