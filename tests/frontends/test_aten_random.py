"""PyTorch's random numbers: what they are captured as, and that it is distributed as PyTorch's are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Graph, Layout
from planner.ops.random import DrawAttrs
from tests.frontends.torch_agreement import STEP, graph_values
from tests.interpreter import run_program

ROWS, COLUMNS = 40, 250


class Drawing(nn.Module):
    """(loss, numbers, ...)."""

    def __init__(self, draw: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.draw = nn.Linear(COLUMNS, 2), draw

    def forward(self, x: Tensor) -> Any:
        drawn = self.draw(x)
        return self.fc(x).sum(), *(drawn if isinstance(drawn, tuple) else (drawn,))


def captured(draw: Callable[[Tensor], Any], x: Tensor) -> tuple[Graph, dict[str, Any]]:
    graph, weights = capture_module(Drawing(draw), x, CaptureOptions(loss=None, name="net"))
    return graph, {**graph_values(graph, weights), "x": x.numpy()}


def in_place(method: str, *arguments: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(torch.empty_like(x), method)(*arguments)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(ROWS, COLUMNS),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape),
    "randn_like": lambda x: 3 * torch.randn_like(x) - 1,
    "new_empty": lambda x: x.new_empty(ROWS, COLUMNS).normal_(),
    "normal_": in_place("normal_", 2.0, 0.5),
    "normal of numbers": lambda x: torch.normal(-1.0, 3.0, (ROWS, COLUMNS)),
    "normal of means": lambda x: torch.normal(x, 0.5),
    "normal of deviations": lambda x: torch.normal(1.0, x.abs()),
    "normal of both": lambda x: torch.normal(x, x.abs()),
    "normal of constants": lambda x: torch.normal(torch.zeros(ROWS, COLUMNS), torch.full((ROWS, COLUMNS), 2.0)),
    "normal of rows": lambda x: torch.normal(torch.arange(COLUMNS).float(), 2.0).expand(ROWS, COLUMNS) * 1,
    "log_normal_": in_place("log_normal_", 0.5, 0.4),
    "distribution": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
    "uniform_": in_place("uniform_", -2.0, 3.0),
    "exponential_": in_place("exponential_", 2.0),
    "laplace": lambda x: torch.distributions.Laplace(0.0, 1.0).rsample((ROWS, COLUMNS)),
    "randint": lambda x: torch.randint(7, (ROWS, COLUMNS)),
    "randint from": lambda x: torch.randint(-3, 12, (ROWS, COLUMNS)),
    "randint as floats": lambda x: torch.randint(0, 5, (ROWS, COLUMNS), dtype=torch.float32),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "random_": in_place("random_", 10),
    "mask": lambda x: (torch.rand(ROWS, COLUMNS) < 0.3).float(),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "bernoulli of constants": lambda x: torch.bernoulli(torch.linspace(0, 1, COLUMNS).expand(ROWS, COLUMNS)),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(torch.sigmoid(x)),
    "gumbel": lambda x: F.gumbel_softmax(x.reshape(-1, 5), tau=0.7),
    "gumbel, hard": lambda x: F.gumbel_softmax(x.reshape(-1, 5), hard=True),
    "multinomial": lambda x: torch.multinomial(torch.linspace(0, 1, 8).expand(10000, 8), 1),
    "multinomial of one row": lambda x: torch.multinomial(torch.arange(1.0, 6.0), 10000, replacement=True),
    "multinomial of rows": lambda x: torch.multinomial(1 + x[:, :5].square(), COLUMNS, replacement=True),
    "multinomial, each once": lambda x: torch.multinomial(torch.arange(1.0, 8.0).expand(4000, 7), 3),
    "categories": lambda x: torch.distributions.Categorical(logits=x[:, :6]).sample((COLUMNS,)),
    "images": lambda x: torch.randn(ROWS, 5, 5, 10) + x.reshape(ROWS, 5, 5, 10),
}


@pytest.fixture(scope="module")
def found() -> dict[str, np.ndarray]:
    """What `predict` draws, all in one module."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS)
    graph, values = captured(lambda x: tuple(draw(x) for draw in DRAWS.values()), x)
    program = graph.program["predict"]
    assert sum(n.op.startswith("random") for n in program.nodes) == len(DRAWS) == len(program.outputs)
    held = run_program(graph, "predict", values)
    return {name: held[value] for name, value in zip(DRAWS, program.outputs, strict=True)}


@pytest.mark.parametrize("name", DRAWS)
def test_distributed_as_in_pytorch(name: str, found: dict[str, np.ndarray]) -> None:
    """Mean, deviation and quantiles of about ten thousand numbers."""
    torch.manual_seed(0)
    got, wanted = found[name], DRAWS[name](torch.randn(ROWS, COLUMNS)).numpy()
    assert got.shape == wanted.shape
    assert np.issubdtype(got.dtype, np.integer) == np.issubdtype(wanted.dtype, np.integer)
    whole = len(np.unique(wanted)) < 20
    if whole:
        assert set(np.unique(got)) == set(np.unique(wanted))
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    assert abs(got.mean() - wanted.mean()) < 6 * wanted.std() / wanted.size**0.5
    assert got.std() == pytest.approx(wanted.std(), rel=0.1)
    if not whole:
        shares = (0.05, 0.25, 0.5, 0.75, 0.95)
        spread = np.quantile(wanted, 0.99) - np.quantile(wanted, 0.01)
        np.testing.assert_allclose(np.quantile(got, shares), np.quantile(wanted, shares), atol=0.04 * spread)


def test_permutations() -> None:
    graph, values = captured(lambda x: (torch.randperm(50), torch.randperm(50)), torch.randn(3, COLUMNS))
    program = graph.program["predict"]
    held = run_program(graph, "predict", values)
    first, second = (held[v] for v in program.outputs)
    assert first.dtype == np.int64 and sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second) and not np.array_equal(first, range(50))


class Shared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_every_call_draws_numbers_of_its_own() -> None:
    """Also in a module that is called twice, and in a loop."""
    shared = Shared()

    def draw(x: Tensor) -> Tensor:
        found = [torch.randn_like(x), torch.randn_like(x), shared(0 * x), shared(0 * x)]
        found += [torch.randn_like(x) for _ in range(2)]
        return torch.stack(found)

    graph, values = captured(draw, torch.randn(ROWS, COLUMNS))
    streams = [n.attrs.stream for n in graph.program["predict"].nodes if isinstance(n.attrs, DrawAttrs)]
    assert len(streams) == len(set(streams)) == 6
    found = run_program(graph, "predict", values)[graph.program["predict"].outputs[0]].reshape(6, -1)
    assert np.abs(np.corrcoef(found) - np.eye(6)).max() < 0.06


def test_no_gradient_reaches_the_parameters_of_a_distribution() -> None:
    """As in PyTorch: rsample is written with randn."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.mean = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return (self.fc(x) * torch.normal(self.mean(x), self.mean(x).abs())).sum()

    graph, _ = capture_module(Net(), torch.randn(4, 5), CaptureOptions(loss=None, optimizer=STEP))
    assert {v.gradient_of for v in graph.values if v.gradient_of} >= {"fc.weight", "fc.bias"}
    assert not {v.gradient_of for v in graph.values} & {"mean.weight", "mean.bias"}


def test_numbers_lie_as_what_they_are_added_to() -> None:
    def draw(x: Tensor) -> Tensor:
        return x + torch.randn_like(x) + torch.rand(x.shape)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(draw(x)).sum()

    graph, _ = capture_module(Images(), torch.randn(2, 3, 8, 8), CaptureOptions(loss=None, optimizer=STEP))
    nodes = graph.program["train_step"].nodes
    assert {n.attrs.layout for n in nodes if isinstance(n.attrs, DrawAttrs)} == {Layout.CHANNELS_LAST}
    assert not [n for n in nodes if n.op == "convert_layout"]


def test_slopes_that_are_drawn_are_their_mean_in_evaluation() -> None:
    x = torch.linspace(-2, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    graph, values = captured(nn.RReLU(0.1, 0.5), x)
    (predict, drawn) = (graph.program[p].nodes for p in ("predict", "train_step"))
    np.testing.assert_allclose(
        run_program(graph, "predict", values)[graph.program["predict"].outputs[0]],
        F.rrelu(x, 0.1, 0.5).numpy(),
        rtol=1e-5,
    )
    assert not [n for n in predict if n.op == "random"] and not [n for n in drawn if n.op == "random"]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(COLUMNS, COLUMNS)

        def forward(self, x: Tensor) -> Tensor:
            y = F.rrelu(self.fc(x), 0.1, 0.5, training=True)
            return y.sum(), y

    graph, weights = capture_module(Net(), x, CaptureOptions(loss=None, optimizer=STEP))
    held = run_program(graph, "train_step", {**graph_values(graph, weights), "x": x.numpy()})
    (slope,) = [held[n.outputs[0]] for n in graph.program["train_step"].nodes if n.op == "random"]
    assert abs(slope.mean() - 0.5) < 0.01


class Layer(nn.Module):
    """In training mode alone it does something to its input, as a user writes it."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = self.draw(x)
        return x


TRAINING_ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x + 0.1 * torch.randn_like(x),
    "factor": lambda x: x * (1 + 0.1 * torch.randn(x.shape)),
    "no_grad": lambda x: x + no_gradient(x),
    "dropout": lambda x: F.dropout(x, 0.3),
    "mask": lambda x: x * torch.empty(len(x), 1).bernoulli_(0.7) / 0.7,
}


def no_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.randn_like(x)


def test_layers_of_noise_do_nothing_in_evaluation_mode() -> None:
    """Though something beside them draws in both modes."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(COLUMNS, 2)
            self.layers = nn.ModuleList(map(Layer, TRAINING_ALONE.values()))

        def forward(self, x: Tensor) -> Any:
            return self.fc(x).sum(), torch.rand(3), *(layer(x) for layer in self.layers)

    x, net = torch.randn(ROWS, COLUMNS), Net().eval()
    graph, weights = capture_module(net, x, CaptureOptions(loss=None))
    assert not any(m.training for m in net.modules())
    program = graph.program["predict"]
    held = run_program(graph, "predict", {**graph_values(graph, weights), "x": x.numpy()})
    assert [n.op for n in program.nodes if n.op.startswith("random")] == ["random"]
    for value in program.outputs[1:]:
        np.testing.assert_allclose(held[value], x.numpy(), rtol=1e-5, atol=1e-6)


REFUSED: dict[str, tuple[str, Callable[[Tensor], Any], str]] = {
    "poisson": ("SP1001", lambda x: torch.poisson(x.abs()), "draws random numbers (aten.poisson)"),
    "cauchy": ("SP1001", lambda x: torch.empty_like(x).cauchy_(), "draws random numbers (aten.cauchy)"),
    "many whole numbers": ("SP1002", lambda x: torch.randint(0, 2**40, (3,)), "cannot draw from 0 up to 1099511627776"),
    "double": ("SP1017", lambda x: torch.randn(3, dtype=torch.float64).float(), "torch.float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    code, draw, text = REFUSED[name]
    with pytest.raises(UserError, match=code) as caught:
        captured(draw, torch.randn(3, COLUMNS))
    assert text in str(caught.value) and caught.value.fix
    if "draws" in text:
        assert "as an input" in caught.value.fix
