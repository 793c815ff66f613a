"""ONNX models the whole way: a file, captured by the command line, built, and trained as PyTorch trains the module."""

import numpy as np
import pytest
import torch
from torch import nn

from codegen.executor import Executor
from codegen.load import executor_class
from planner.capturing import capture
from planner.graph.optimizer import Optimizer
from tests.codegen.plans import make
from tests.frontends.test_onnx_relax import CNN, CNN_WEIGHTS, save

BATCH, STEPS = 4, 3


class Net(nn.Module):
    """The network of `CNN`, without the softmax at its end, which the loss contains."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(4, eps=1e-3)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.pool(torch.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    folder = tmp_path_factory.mktemp("onnx")
    file = save(folder / "net.onnx", CNN[:-1], [BATCH, 3, 9, 9], CNN_WEIGHTS, output="o")
    captured = capture(file, optimizer=Optimizer(lr=0.05, momentum=0.9))
    assert captured.graph.name == "net_b4"
    make(captured.graph, folder / "built")
    captured.write_weights(folder / "built" / "weights.npz")
    return executor_class(folder / "built")


def in_torch(batches: list[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> tuple[list[float], nn.Module]:
    module = Net()
    module.load_state_dict({k: torch.tensor(v) for k, v in CNN_WEIGHTS.items()}, strict=False)
    module.to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x.to(dtype)), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, module


def test_trains_as_pytorch_does(executors: type[Executor]) -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(BATCH, 3, 9, 9), torch.randint(0, 5, (BATCH,))) for _ in range(STEPS)]
    exact, truth = in_torch(batches, torch.float64)
    plain, beside = in_torch(batches, torch.float32)
    with executors(pin=False, poison=True) as executor:
        losses = [executor.step(*batch) for batch in batches]
        state = executor.state_dict()
        prediction = executor.predict(batches[0][0])
    assert np.allclose(losses, exact, rtol=0, atol=max(1e-5, 2 * max(abs(np.subtract(plain, exact)))))
    near = dict(beside.state_dict())
    for name, true in truth.state_dict().items():
        got, wanted = state[name].astype(np.float64), true.double().numpy()
        error, theirs = (float(np.linalg.norm(a - wanted)) for a in (got, near[name].double().numpy()))
        # A bias in front of a batch norm has no gradient; what remains is rounding of its start.
        assert error <= max(2 * theirs, 1e-5 * float(np.linalg.norm(wanted))), name
    expected = truth.eval()(batches[0][0].double()).detach().numpy()
    np.testing.assert_allclose(prediction, expected, rtol=1e-4, atol=1e-4)


def test_the_module_takes_the_weights(executors: type[Executor]) -> None:
    """An exported module's parameters keep their names, so its weights come back under them, strictly."""
    with executors(pin=False) as executor:
        executor.step(torch.randn(BATCH, 3, 9, 9), torch.randint(0, 5, (BATCH,)))
        module = Net()
        module.load_state_dict(executor.torch_state_dict(), strict=True)
        assert int(module.bn1.num_batches_tracked) == 1  # type: ignore[arg-type]
        x = torch.randn(BATCH, 3, 9, 9)
        expected = module.eval()(x).detach().numpy()
        np.testing.assert_allclose(executor.predict(x), expected, rtol=1e-4, atol=1e-5)
