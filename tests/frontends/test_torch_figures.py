"""Python's numbers of data: PyTorch's losses and gradients, whatever the numbers are."""

import math
import operator
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
from tests.frontends import checked
from tests.frontends.torch_agreement import agree

Body = Callable[["Net", Tensor, Tensor], Any]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(5, 6), body
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, kinds: Tensor) -> Any:
        return self.body(self, self.first(x), kinds)


def per_match(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    matches = (kinds > 1).sum().item()
    return F.cross_entropy(y, kinds, reduction="sum") / max(1, matches)


def quantised(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    scale = max(y.abs().max().item(), 1e-8) / 7
    return (y / scale + (y.sum() * 0.1).item()).tanh().mean() * scale


def filled(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    a, n = y.detach().mean().item(), kinds.sum().item()
    z = y * torch.full((6,), a) + torch.full_like(y, n) * y.new_full((1, 6), a)
    w = torch.tensor([a, 2.0, n]).sum() + y.new_tensor([[n, 1]]).sum() * torch.tensor(n, dtype=torch.float32)
    z = torch.add(z, y, alpha=a).masked_fill(y > 0.5, a)
    z[:, 0] = n
    return (z * w).clamp(max=n).mean() + torch.where(y > a, a, y).sum()


def made(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    """Tensors of their own: written to, and differentiated by."""
    n, a = kinds.sum().item(), y.detach().mean().item()
    more, twice = torch.tensor(n), torch.as_tensor(n)
    more += 5
    twice.mul_(2)
    by = torch.tensor([a, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad((y[0, :2] * by.sin()).sum(), by, create_graph=True)
    return y.sum() * n + more * twice + slope.sum() * a


def counted(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    n = (kinds > 0).sum().item()
    parts = [n // 2, n % 3, n / 4, 7 % (n + 1), 2**n, n**2, (n + 1) ** -1, -n, abs(-n), +n, 3 - n, 5 // (n + 1)]
    return (y * (sum(parts) + round(n / 3, 1) + round(n) + round(n / 3))).sum()


def compared(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    low, high = y.amin().item(), y.amax().item()
    chosen = min(low, -0.5, high) * (low < high) + (kinds == 2).any().item() * 2.0
    return (y * chosen).sum() + max(kinds.sum(), 3) * y.mean() + min([y.mean(), y[0, 0]]) * (low == high)


def listed(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    rows = y.detach().tolist()
    return (y * sum(rows[0])).sum() * rows[1][2] + y[0, 0] * kinds.tolist()[0]


def kept(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    """In a buffer, and beside what is not of data."""
    if net.training:
        net.seen = 0.9 * net.seen + 0.1 * y.detach().abs().mean().item()
    return (y * net.seen).sum() * y.shape[0]


def told(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    print(f"{y.mean().item():.3f}", f"{y.mean():.3f}", str(kinds[0].item()), y.sum().item())
    return y.square().mean()


def converted(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    """By float() and int(), which stay Python's for all else."""
    n, share = int((kinds > 0).sum()), float((y > 0).float().mean())
    assert isinstance(2.0, float) and not isinstance(y, int) and float("0.5") == 0.5 and int.from_bytes(b"a", "big")
    kind = type(0.5 * len(y))
    assert issubclass(bool, int) and {float: 1}[kind]
    low, high = int(y.sum().item() * 3), float(kinds.sum().item())
    return (y * share).sum() / max(n, 1) + (y * (low + high / 3) * int(2.5)).mean()


def by_math(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    total = y.square().sum().item()
    if not math.isfinite(total) or math.isnan(y.sum()):
        raise ValueError("not finite")
    return y.sum() / math.sqrt(total) + (y * math.log(kinds.sum() + 1) * math.exp(-total)).sum() * math.sqrt(2.0)


def by_numpy(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
    total, count = y.square().sum().item(), kinds.sum().item()
    scale = np.maximum(0.5, np.sqrt(total)) + np.minimum(count, 3) * np.float64(0.5) - np.float64(2.0) ** count
    return (y * np.log(total + np.float32(1.0)) + y.sin() * scale + y.cos() * np.floor(np.negative(total))).sum()


BODIES: list[Body] = [
    converted,
    by_math,
    by_numpy,
    per_match,
    quantised,
    filled,
    made,
    counted,
    compared,
    listed,
    kept,
    told,
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_numbers_of_data_compute_as_pythons(body: Body, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = {"x": torch.randn(4, 5), "kinds": torch.randint(0, 3, (4,))}
    agree(Net(body), inputs, loss=None)


@pytest.mark.parametrize("kinds", [[0, 0, 0, 0], [2, 0, 2, 2]])
def test_a_captured_program_follows_the_numbers(kinds: list[int]) -> None:
    """max(1, n) is no constant: the program is captured with other numbers than it runs with."""
    from planner.graph.text import validate
    from tests.frontends.torch_agreement import STEP, graph_values
    from tests.interpreter import run_program

    module, x = Net(per_match), torch.randn(4, 5)
    graph, weights = capture_module(
        module, (x, torch.tensor([2, 2, 1, 1])), CaptureOptions(loss=None, name="net", optimizer=STEP)
    )
    validate(graph)
    given = torch.tensor(kinds)
    feed = {"x": x.double().numpy(), "kinds": given.numpy()}
    results = run_program(graph, "train_step", {**graph_values(graph, weights), **feed})
    expected = module.double()(x.double(), given).item()
    assert any(value.size == 1 and abs(float(value.reshape(())) - expected) < 1e-6 for value in results.values())


def test_checks_are_left_out_and_told() -> None:
    with pytest.warns(RuntimeWarning) as warned:
        agree(
            Net(lambda net, y, kinds: checked.checked(y, kinds)),
            (torch.randn(4, 5), torch.randint(0, 3, (4,))),
            loss=None,
        )
    lines = {str(w.message).split("(")[1].split(")")[0] for w in warned}
    first = checked.checked.__code__.co_firstlineno
    assert {int(line.rpartition(":")[2]) - first for line in lines} == {2, 3, 5, 6}
    assert all("SP1014: the module's forward checks numbers of data" in str(w.message) for w in warned)


REFUSED: dict[str, Body] = {
    r"a branch depends on numbers of data \(.*test_torch_figures.py:\d+\)": lambda net, y, kinds: (
        y.sum() if y.sum() > 0 else y.mean()
    ),
    r"float\(\) is made of numbers of data": lambda net, y, kinds: y * np.float32(y.mean().item()),
    r"int\(\) is made of numbers of data": lambda net, y, kinds: y * operator.methodcaller("__int__")(y.mean().item()),
    r"a size, an index or a range is made": lambda net, y, kinds: sum(y[i] for i in range(kinds[0].item())),
    r"a size, an index or a range is made of": lambda net, y, kinds: y.sum() + torch.zeros(int(kinds[0]) + 1, 3).sum(),
    r"NumPy's multiply is called with a number of data \(.*test_torch_figures.py:\d+\)": lambda net, y, kinds: (
        y * (np.ones(3) * y.mean().item())[0]
    ),
    r"NumPy's hypot is called with a number of data": lambda net, y, kinds: y * np.hypot(y.mean().item(), 1.0),
    r"numpy\(\) is made of numbers of data": lambda net, y, kinds: y * y.detach().numpy().max(),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_a_plan_cannot_follow_is_refused(problem: str) -> None:
    with pytest.raises(UserError, match=f"SP1014: {problem}"):
        capture_module(Net(REFUSED[problem]), (torch.randn(4, 5), torch.randint(0, 3, (4,))))


def test_nothing_stays_exchanged() -> None:
    before = max, min, math.sqrt
    capture_module(Net(converted), (torch.randn(4, 5), torch.randint(0, 3, (4,))), CaptureOptions(loss=None))
    assert (max, min, math.sqrt) == before and not {"float", "int"} & globals().keys()


def test_a_number_of_data_in_an_attribute_is_told() -> None:
    """Forward would read the one of the step before."""

    def moving(net: Net, y: Tensor, kinds: Tensor) -> Tensor:
        average = net.average
        net.average = 0.9 * average + 0.1 * y.mean().item()
        return (y - average).square().mean()

    module = Net(moving)
    module.average = 0.5  # type: ignore[assignment]
    with pytest.warns(
        RuntimeWarning, match="SP1014: the module's forward changes the number in its attribute 'average'"
    ):
        capture_module(module, (torch.randn(4, 5), torch.randint(0, 3, (4,))), CaptureOptions(loss=None))
    assert module.average == 0.5
