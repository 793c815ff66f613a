"""`predict` computes what a module computes in evaluation mode, whatever that has to do with its training mode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codegen.autograd import Planned
from codegen.torch_twin import Twin
from planner.capturing import capture
from planner.errors import UserError
from planner.frontends.torch_export import capture_module, explain_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.frontends.torch_modes import draws, reads_of_mode
from planner.frontends.torch_program import export
from planner.graph.model import Graph
from tests.codegen.plans import make
from tests.frontends.test_aten_random import graph_values
from tests.interpreter import run_program

ROWS, COLUMNS = 6, 8


class Net(nn.Module):
    """Batch norm before, and a layer behind, what the two modes do differently."""

    def __init__(self, between: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(COLUMNS, COLUMNS), nn.BatchNorm1d(COLUMNS), nn.Linear(COLUMNS, 3)
        self.evaluated = nn.Linear(COLUMNS, COLUMNS)
        self.register_buffer("places", torch.tensor([3.0, 1.0] * (COLUMNS // 2)))
        self.between = between
        with torch.no_grad():
            for statistic in (self.norm.running_mean, self.norm.running_var):
                statistic += torch.rand(COLUMNS)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self, torch.relu(self.norm(self.first(x)))))


DIFFERENT: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "noise that is added": lambda net, y: y + torch.randn_like(y) if net.training else y,
    "noise that is a factor": lambda net, y: y * torch.randn_like(y) if net.training else y,
    "a uniform mask": lambda net, y: y * (torch.rand_like(y) > 0.3) if net.training else y,
    "a mask divided by its mean": lambda net, y: y * torch.empty(ROWS, 1).bernoulli_(0.7) / 0.7 if net.training else y,
    "a permutation": lambda net, y: y[torch.randperm(ROWS)] if net.training else y,
    "drawn slopes": lambda net, y: F.rrelu(y - 1, 0.1, 0.5, net.training),
    "dropout": lambda net, y: F.dropout(y, 0.3, net.training),
    "dropped features": lambda net, y: F.dropout1d(y[None], 0.3, net.training)[0],
    "alpha dropout": lambda net, y: F.alpha_dropout(y, 0.3, net.training),
    "arithmetic": lambda net, y: 3 * y if net.training else y - net.places,
    "a layer of evaluation alone": lambda net, y: y if net.training else net.evaluated(y),
    "constants of its own": lambda net, y: y + torch.arange(COLUMNS) * (0.5 if net.training else torch.tensor(0.25)),
    "no gradient": lambda net, y: _without_gradient(y) if net.training else y,
}


def _without_gradient(y: Tensor) -> Tensor:
    with torch.no_grad():
        noise = torch.randn_like(y)
    return y + noise


def predicted(graph: Graph, weights: dict[str, Any], x: Tensor) -> list[np.ndarray]:
    program = graph.program["predict"]
    held = run_program(graph, "predict", {**graph_values(graph, weights), **{i: x.numpy() for i in program.inputs}})
    return [held[v] for v in program.outputs]


@pytest.mark.parametrize("name", DIFFERENT)
def test_evaluation_mode(name: str) -> None:
    torch.manual_seed(0)
    net, x = Net(DIFFERENT[name]), torch.randn(ROWS, COLUMNS)
    graph, weights = capture_module(net, x)
    assert net.training and not hasattr(nn.Module, "training")
    (found,) = predicted(graph, weights, x)
    np.testing.assert_allclose(found, net.eval()(x).detach(), rtol=1e-5, atol=1e-6)
    ops = [n.op for n in graph.program["predict"].nodes]
    assert "batch_norm_inference" in ops and not {"random", "dropout"} & set(ops)
    trained = {v.name for v in graph.values if v.gradient_of == v.name} | {
        n.updates[0] for n in graph.program["train_step"].nodes if n.op == "sgd_update"
    }
    assert "first.weight" in trained and "evaluated.weight" not in trained


def test_executors_predict_so(tmp_path: Path) -> None:
    """Planned and built, in PyTorch's own training loop and beside it."""
    torch.manual_seed(0)
    net, x = Distilled(), torch.randn(ROWS, COLUMNS)
    captured = capture(net, x, loss="caller")
    made = make(captured.graph, tmp_path / "net")
    captured.write_weights(tmp_path / "net" / "weights.npz")
    with made(pin=False) as executor:
        planned = Planned(net, executor)
        a, b = planned(x)
        torch.testing.assert_close(planned.eval()(x), ((a + b) / 2).detach(), rtol=1e-5, atol=1e-6)


def test_the_twin_trains_where_predict_is_something_else() -> None:
    x, labels = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, 3)
    options = CaptureOptions(loss=lambda found, labels: F.mse_loss(found[0] + found[1], labels), labels=labels)
    graph, weights = capture_module(Distilled(), x, options)
    module = Distilled()
    module.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
    loss, _ = Twin(graph).load(weights)(x, labels)
    torch.testing.assert_close(loss, F.mse_loss(sum(module(x)), labels), rtol=1e-5, atol=1e-6)


def test_training_is_not_changed_by_it() -> None:
    """The same module that only trains its own way has the same step."""
    torch.manual_seed(0)
    noisy, x = Net(DIFFERENT["arithmetic"]), torch.randn(ROWS, COLUMNS)
    plain = Net(lambda net, y: 3 * y)
    steps = [capture_module(net, x)[0].program["train_step"] for net in (noisy, plain)]
    assert steps[0] == steps[1]


def test_dropout_of_both_modes_is_drawn_in_both() -> None:
    """F.dropout without a mode drops in evaluation mode, too."""
    net, x = Net(lambda net, y: F.dropout(torch.ones(200, COLUMNS), 0.25) + 0 * y.sum()), torch.randn(ROWS, COLUMNS)
    net.last = nn.Identity()
    graph, weights = capture_module(net.train(False), x, CaptureOptions(labels=None, loss="mse"))
    (found,) = predicted(graph, weights, x)
    assert np.unique(found.round(5)).tolist() == [0.0, 1.33333]
    assert abs((found == 0).mean() - 0.25) < 0.05


class Distilled(nn.Module):
    """Two results in training mode, their mean in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(COLUMNS, 3), nn.Linear(COLUMNS, 3)

    def forward(self, x: Tensor) -> Any:
        return (self.a(x), self.b(x)) if self.training else (self.a(x) + self.b(x)) / 2


@pytest.mark.parametrize("loss", ["caller", lambda found, labels: F.mse_loss(found[0] + found[1], labels)])
def test_other_results_in_evaluation_mode(loss: Any) -> None:
    """The loss takes what the module returns in training mode."""
    net, x = Distilled(), torch.randn(ROWS, COLUMNS)
    labels = None if loss == "caller" else torch.randn(ROWS, 3)
    graph, weights = capture_module(net, x, CaptureOptions(loss=loss, labels=labels))
    (found,) = predicted(graph, weights, x)
    np.testing.assert_allclose(found, net.eval()(x).detach(), rtol=1e-5, atol=1e-6)


class OwnLoss(nn.Module):
    """A loss where it is given labels, as transformers' models compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(COLUMNS, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None, scale: float = 1.0) -> Any:
        y = self.out(x) * scale
        return y if labels is None else (F.cross_entropy(y, labels), y)


@pytest.mark.parametrize("loss", ["caller", None])
def test_other_arguments_in_evaluation_mode(loss: Any) -> None:
    net, x = OwnLoss(), torch.randn(ROWS, COLUMNS)
    examples = {"x": x, "labels": torch.zeros(ROWS, dtype=torch.int64)}
    graph, weights = capture_module(net, examples, CaptureOptions(loss=loss, evaluation={"x": x, "scale": 2.0}))
    (found,) = predicted(graph, weights, x)
    np.testing.assert_allclose(found, 2 * net.out(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "told"), [({"x": torch.zeros(1, COLUMNS)}, "'x'"), ({"scale": torch.ones(1)}, "'scale'")]
)
def test_evaluation_mode_has_no_more_than_training(more: dict[str, Tensor], told: str) -> None:
    x = torch.randn(ROWS, COLUMNS)
    examples = {"x": x, "labels": torch.zeros(ROWS, dtype=torch.int64)}
    with pytest.raises(UserError, match=f"SP1018: in evaluation mode, .*training has no input {told} of the shape"):
        capture_module(OwnLoss(), examples, CaptureOptions(loss="caller", evaluation={"x": x, **more}))


def test_modules_of_pytorchs_layers_are_exported_once() -> None:
    plain = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.3))
    attention = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)
    for layer in (plain, attention, nn.LSTM(6, 5, 2, dropout=0.1)):
        x = torch.randn(4, 8 if isinstance(layer, nn.Sequential) else 6)[None]
        with reads_of_mode(torch) as reads:
            program = export(torch, layer, layer, (x,), {}).program
        assert not reads and not draws(torch, program)


def test_what_evaluation_mode_cannot_is_told() -> None:
    def between(net: Net, y: Tensor) -> Tensor:
        return y if net.training else y[y.sum(1) > 0]

    def exotic(net: Net, y: Tensor) -> Tensor:
        return y if net.training else torch.poisson(y)

    for forward, code in ((between, "SP1014"), (exotic, "SP1001")):
        net = Net(forward)
        if code == "SP1001":
            uses = explain_module(net, torch.randn(ROWS, COLUMNS))
            assert [u.operator for u in uses if u.kind == "unsupported"] == ["aten.poisson"]
        with pytest.raises(UserError, match=f"{code}: in evaluation mode, which predict computes: ") as raised:
            capture_module(net, torch.randn(ROWS, COLUMNS))
        assert "leave what evaluation mode alone does" in raised.value.fix
        assert net.training and not hasattr(nn.Module, "training")
