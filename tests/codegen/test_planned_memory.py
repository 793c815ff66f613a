"""Whose memory a planned module's parameters and statistics lie in, and what is told where they do not."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from codegen.autograd import Planned
from codegen.executor import Executor
from planner.capturing import capture
from planner.errors import UserError
from tests.codegen.planned import network
from tests.codegen.plans import make


@pytest.fixture
def executor(network_class: type[Executor]) -> Iterator[Executor]:
    with network_class(pin=False) as made:
        yield made


def test_memory_is_shared(executor: Executor) -> None:
    module = network()
    planned = Planned(module, executor)
    with torch.no_grad():
        planned.module[4].bias.fill_(3.0)  # type: ignore[index]
    assert (executor.state_dict()["4.bias"] == 3).all()


def test_copies_have_memory_of_their_own(executor: Executor) -> None:
    planned, x = Planned(network(), executor), torch.randn(2, 3, 6, 6)
    average = copy.deepcopy(planned)
    with torch.no_grad():
        average.module[4].bias.fill_(3.0)  # type: ignore[index, operator]
    planned(x).sum().backward()
    assert not (executor.state_dict()["4.bias"] == 3).any()
    assert not torch.equal(average.state_dict()["1.running_mean"], planned.state_dict()["1.running_mean"])
    planned.load_state_dict(average.state_dict())
    assert (executor.state_dict()["4.bias"] == 3).all()
    torch.testing.assert_close(planned.eval()(x), average.module.eval()(x), rtol=1e-4, atol=1e-5)


def test_parameters_that_were_moved_away_are_noticed(executor: Executor) -> None:
    """What the optimizer changes from then on would not be what the executor reads."""
    planned, x = Planned(network(), executor), torch.randn(2, 3, 6, 6)
    planned.module.load_state_dict(network().state_dict())
    planned(x).sum().backward()
    planned.module.load_state_dict(network().state_dict(), assign=True)
    for training in (True, False):
        planned.module.train(training)
        with pytest.raises(UserError, match=r"SP1617.*0.weight lies no longer"):
            planned(x)


def test_statistics_that_were_moved_away_are_noticed(executor: Executor) -> None:
    """What is reset by assignment would not be what the executor goes on from."""
    module, x = network(), torch.randn(2, 3, 6, 6)
    planned, norm = Planned(module, executor), module[1]  # type: ignore[index]
    norm.reset_running_stats()
    planned(x)
    kept, norm.running_mean = norm.running_mean, torch.zeros(4)
    with pytest.raises(UserError, match=r"SP1617: 1\.running_mean lies no longer in the executor's memory"):
        planned(x)
    norm.running_mean = None
    with pytest.raises(UserError, match=r"SP1617: 1\.running_mean is no buffer of the module any more"):
        planned.eval()(x)
    norm.running_mean = kept
    planned(x)


class Scaled(nn.Module):
    """A buffer that a plan reads, of which a checkpoint may have another."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), scale))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) * self.scale * self.mask


def test_buffers_that_are_not_those_of_the_capture(tmp_path: Path) -> None:
    """A module with others would be computed with what the plan has."""
    captured = capture(Scaled(), torch.randn(2, 4), loss="caller")
    made = make(captured.graph, tmp_path / "scaled")
    captured.write_weights(tmp_path / "scaled" / "weights.npz")
    for module, told in ((Scaled(), []), (Scaled(3.0), ["scale"])):
        with made(pin=False) as executor, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Planned(module, executor)
        assert [str(w.message).split()[1] for w in found if "SP1014" in str(w.message)] == told
        assert all(w.filename == __file__ for w in found)


class Spread(Scaled):
    """Along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([[0, 2.0], [1, 0]]).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.edges @ super().forward(x)


def test_sparse_buffers_are_in_the_plan_alone(tmp_path: Path) -> None:
    module, x = Spread(), torch.randn(2, 4)
    captured = capture(module, x, loss="caller")
    made = make(captured.graph, tmp_path / "spread")
    captured.write_weights(tmp_path / "spread" / "weights.npz")
    with made(pin=False) as executor:
        planned = Planned(copy.deepcopy(module), executor)
        torch.testing.assert_close(planned(x), module(x))
        assert planned.state_dict().keys() == module.state_dict().keys()
        assert executor.torch_state_dict().keys() == module.state_dict().keys() - {"edges"}
        assert executor.load_state_dict(module.state_dict(), strict=False).unexpected_keys == ["edges"]
        with pytest.raises(UserError, match=r"SP1611.*1 unknown \(edges\)"):
            executor.load_state_dict(module.state_dict())


def test_parameters_that_are_gone_or_new(executor: Executor) -> None:
    module, x = network(), torch.randn(2, 3, 6, 6)
    planned, last = Planned(module, executor), module[4]  # type: ignore[index]
    bias, last.bias = last.bias, None
    with pytest.raises(UserError, match=r"SP1617: 4.bias is no parameter of the module any more"):
        planned(x)
    last.bias, last.scale = bias, nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match=r"SP1617: 4.scale is no parameter of the module's plan"):
        planned(x)
    del last.scale
    planned(x)


def test_other_plans_and_modules_are_refused(executor: Executor) -> None:
    other = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False))
    with pytest.raises(UserError, match=r"SP1617.*parameter 1.weight is none of the module's"):
        Planned(other, executor)
    other = network()
    other[0] = nn.Conv2d(3, 4, 1, bias=False)  # type: ignore[operator]
    with pytest.raises(UserError, match=r"SP1617.*0.weight has the shape \(4, 3, 1, 1\)"):
        Planned(other, executor)
    with pytest.raises(UserError, match=r"SP1617.*float64"):
        Planned(network().double(), executor)


def test_an_executor_has_one_module(executor: Executor) -> None:
    """A refused module has changed nothing; one that is gone may have left its state."""
    module, small = network(), network()
    kept, small[4] = Planned(module, executor).module.state_dict(), nn.Linear(143, 5)  # type: ignore[operator]
    before = kept["0.weight"].clone()
    for other in (small, network()):
        torch.nn.init.ones_(other[0].weight)  # type: ignore[index, arg-type]
        with pytest.raises(UserError, match="SP1617"):
            Planned(other, executor)
    assert torch.equal(kept["0.weight"], before)
    assert Planned(module, executor).module is module
    del module
    with pytest.raises(UserError, match=r"SP1617: another module's"):
        Planned(network(), executor)
