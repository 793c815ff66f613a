"""A planned module inside autograd: the user's own loss and optimizer, against the module in PyTorch."""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from codegen.autograd import Planned
from codegen.executor import Executor
from planner.capturing import capture
from planner.errors import UserError
from planner.solve.options import PlanOptions
from tests.codegen.planned import network
from tests.codegen.plans import make, plan_for
from tests.torch_draws import Replayed
from tests.torch_modules import spectral


@pytest.fixture
def executor(network_class: type[Executor]) -> Iterator[Executor]:
    with network_class(pin=False) as made:
        yield made


def test_trains_with_any_loss_and_optimizer(executor: Executor) -> None:
    """The loss joins the outputs of two forward passes, so that both wait for their backward passes; inputs have
    gradients; parameters and running statistics are the module's own."""
    module, plain = network(), network()
    planned = Planned(module, executor)
    optimizers = [torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in (module, plain)]
    for seed in range(3):
        torch.manual_seed(seed)
        first, second = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6)
        losses, gradients = [], []
        for call, optimizer in zip((planned, plain), optimizers, strict=True):
            x = first.clone().requires_grad_()
            loss = (call(x) - call(second)).square().mean() + 0.1 * call(x).abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            gradients.append(x.grad)
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert executor.steps_done == 9
    torch.testing.assert_close(planned.eval()(first), copy.deepcopy(plain).eval()(first), rtol=1e-3, atol=1e-3)


class Sums(nn.Module):
    """The gradient of a sum is that of its operands: of two inputs, and of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bias, self.out = nn.Parameter(torch.randn(4, 6, 6)), nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor, z: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.bias + z)


def test_every_input_has_its_own_gradient(tmp_path: Path) -> None:
    shapes = [(1, 4, 6, 6)] * 3
    captured = capture(Sums(), tuple(map(torch.randn, shapes)), loss="caller")
    made = make(captured.graph, tmp_path / "sums")
    captured.write_weights(tmp_path / "sums" / "weights.npz")
    with made(pin=False) as executor:
        planned, plain = Planned(Sums(), executor), Sums()
        inputs = [torch.randn(s) for s in shapes]
        found = []
        for call in (planned, plain):
            own = [x.clone().requires_grad_() for x in inputs]
            call(*own).exp().sum().backward()
            found.append([x.grad for x in own])
        assert found[0][2] is None and found[1][2] is None
        for mine, other in zip(found[0][:2], found[1][:2], strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(planned.module.bias.grad, plain.bias.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(planned.eval()(*inputs), plain(*inputs), rtol=1e-4, atol=1e-5)


WORD = torch.tensor([3, 1, 2])


class Passed(nn.Module):
    """Inputs that it hands on, turned and as they are, one of which it does not compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, word: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = self.out(x)
        return z, x, y, y.t(), word, z.detach()


def test_results_that_are_inputs_or_have_no_gradient(tmp_path: Path) -> None:
    captured = capture(Passed(), (torch.randn(3, 4), torch.randn(3, 4), WORD), loss="caller")
    made = make(captured.graph, tmp_path / "passed")
    captured.write_weights(tmp_path / "passed" / "weights.npz")
    with made(pin=False) as executor:
        planned = Planned(Passed(), executor)
        for trained in (True, False):
            x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=trained)
            found, expected = (call(x, y, WORD) for call in (planned, planned.module))
            for mine, other in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, other)
                assert mine.requires_grad == other.requires_grad
            of = [x, y] if trained else [x]
            torch.testing.assert_close(
                *(torch.autograd.grad(sum(o.sin().sum() for o in results[:4]), of) for results in (found, expected))
            )
        planned.eval()  # where two of the results are one value
        torch.testing.assert_close(planned(x, y, WORD), tuple(r.detach() for r in planned.module(x, y, WORD)))


class Codes(nn.Module):
    """Whole numbers among the results; inputs in a list and by name, one of them never given; parameters that only one
    of the results depends on, and one that is frozen; a batch norm that the module has under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 2)
        self.norm = self.same = nn.BatchNorm1d(5)
        self.b.bias.requires_grad_(False)

    def forward(self, parts: list[torch.Tensor], *, scale: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        h = self.norm(torch.tanh(self.first(torch.cat(parts, 1)))) * scale
        assert mask is None
        return {"a": self.a(h), "codes": h.argmax(1), "b": self.b(h)}


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    inputs = {"parts": [torch.randn(4, 2), torch.randn(4, 4)], "scale": torch.randn(4, 1), "mask": None}
    captured = capture(Codes(), inputs, loss="caller")
    folder = tmp_path_factory.mktemp("codes") / "net"
    made = make(captured.graph, folder)
    captured.write_weights(folder / "weights.npz")
    return made


def test_is_called_like_the_module(codes: type[Executor]) -> None:
    module, plain = Codes(), Codes()
    with codes(pin=False) as executor:
        planned = Planned(module, executor)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in (module, plain)]
        for step in range(3):
            parts, scale = [torch.randn(4, 2), torch.randn(4, 4)], torch.rand(4, 1) + 0.5
            x = parts[0].requires_grad_()
            found = []
            for call, optimizer in zip((planned, plain), optimizers, strict=True):
                optimizer.zero_grad()
                x.grad = None
                results = call(parts, scale=scale, mask=None)
                assert list(results) == ["a", "codes", "b"]
                a, picked, b = results.values()
                (a.square().sum() if step < 2 else b.exp().sum()).backward()  # the other head has no gradient
                optimizer.step()
                found.append((picked, x.grad, call))
            assert torch.equal(found[0][0], found[1][0]) and found[0][0].dtype is torch.int64
            torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
            unmoved = {n for n, p in plain.named_parameters() if p.grad is None}
            assert unmoved == {n for n, p in module.named_parameters() if p.grad is None} and len(unmoved) >= 2
        for name, tensor in plain.state_dict().items():
            for state in (module.state_dict(), executor.torch_state_dict()):
                torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
        evaluated = planned.eval()(parts, scale=scale)
        torch.testing.assert_close(evaluated, plain.eval()(parts, scale=scale), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda planned, x, y, s: planned([x, y]), "takes the inputs .*, and was given 2 in order"),
        (
            lambda planned, x, y, s: planned([x, y], scale=s, mask=s),
            "argument mask is a tensor, in the plan it is None",
        ),
        (
            lambda planned, x, y, s: planned([x, y], scale=2.0),
            "input scale is of type float, in the plan it is a tensor",
        ),
        (
            lambda planned, x, y, s: planned([x, y], scale=s, verbose=True),
            "argument verbose is True, the module was captured without it",
        ),
        (lambda planned, x, y, s: planned([x, y[:3]], scale=s), r"float32 of shape \(3, 4\)"),
    ],
)
def test_other_arguments_change_nothing(codes: type[Executor], call: Any, told: str) -> None:
    with codes(pin=False) as executor:
        planned = Planned(Codes(), executor)
        with pytest.raises(UserError, match=f"SP1601.*{told}"):
            call(planned, torch.randn(4, 2), torch.randn(4, 4), torch.randn(4, 1))
        assert int(planned.module.norm.num_batches_tracked) == executor.steps_done == 0


def test_a_parameter_that_is_no_longer_frozen(codes: type[Executor]) -> None:
    """It would have no gradient, as if it still were."""
    parts, scale = [torch.randn(4, 2), torch.randn(4, 4)], torch.randn(4, 1)
    with codes(pin=False) as executor:
        planned = Planned(Codes(), executor)
        planned.module.a.weight.requires_grad_(False)
        planned(parts, scale=scale)["a"].sum().backward()
        assert planned.module.a.weight.grad is None
        planned.module.b.bias.requires_grad_(True)
        with pytest.raises(UserError, match=r"SP1617: b\.bias was frozen"):
            planned(parts, scale=scale)


class Heads(nn.Module):
    """Two results, dropout, and tensors that a budget makes again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh())]
        self.body, self.a, self.b = nn.Sequential(*blocks, nn.Dropout(0.5)), nn.Linear(64, 3), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        return self.a(y), self.b(y)


def test_goes_on_where_the_forward_pass_ended(tmp_path: Path) -> None:
    """With activations made again under a budget, under random delays: the bits of a backward pass that computes them
    all again."""
    captured = capture(Heads(), torch.randn(256, 64), loss="caller")
    whole, _ = plan_for(captured.graph)
    peak = whole.program["train_step"].peak_bytes
    options = PlanOptions(policy="sequential", memory_budget=int(0.8 * peak))
    made = make(captured.graph, tmp_path / "heads", options=options)
    captured.write_weights(tmp_path / "heads" / "weights.npz")
    assert made.plan.program["train_step"].rewrite.recomputes
    with made(pin=False) as executor:
        planned = Planned(Heads(), executor)
        runs: list[int] = []
        native_run = executor._native.run
        executor._native = SimpleNamespace(
            **{n: getattr(executor._native, n) for n in ("close", "delays")},
            run=lambda handle, number, *rest: (runs.append(number), native_run(handle, number, *rest)),
        )
        for seed in range(3):
            executor.delays(seed + 1)
            x = torch.randn(256, 64, requires_grad=True)
            first, second = planned(x), planned(x.detach())
            state = {n: a.copy() for n, a in executor.state_dict().items()}
            gradients = [torch.randn_like(y) for y in first]
            with torch.no_grad():
                given = [x.numpy(), *(g.numpy() for g in gradients)]
            again, of_x = executor.backward(executor.steps_done, *given)
            once_more, of_x_once_more = executor.backward(executor.steps_done, *given)
            assert runs == [0, 0, 1, 0, 1]
            for name, array in again.items():
                np.testing.assert_array_equal(array, once_more[name], err_msg=name)
            np.testing.assert_array_equal(of_x["x"], of_x_once_more["x"])
            torch.autograd.backward(first, gradients)
            assert not torch.equal(first[0], second[0]), "dropout draws anew"
            for name, array in executor.state_dict().items():
                np.testing.assert_array_equal(array, state[name], err_msg=name)
            runs.clear()
        evaluated = planned.eval()(x.detach())
        assert [tuple(y.shape) for y in evaluated] == [(256, 3), (256, 2)]


class Noisy(nn.Module):
    """Numbers that a budget draws again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.last = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = torch.tanh(part(x)) * torch.randn_like(x)
        return self.last(x) + torch.rand(256, 1)


def test_both_passes_draw_the_same_numbers(tmp_path: Path) -> None:
    """Under a budget, where the backward pass draws some of them again; against PyTorch with the same ones."""
    captured = capture(Noisy(), torch.randn(256, 64), loss="caller")
    whole, _ = plan_for(captured.graph)
    budget = int(0.7 * whole.program["train_step"].peak_bytes)
    made = make(captured.graph, tmp_path / "noisy", options=PlanOptions(policy="sequential", memory_budget=budget))
    captured.write_weights(tmp_path / "noisy" / "weights.npz")
    program = captured.graph.program["train_step"]
    rewrite = made.plan.program["train_step"].rewrite
    assert "random" in {program.node[r.of].op for r in rewrite.recomputes}
    with made(seed=7, pin=False) as executor:
        module, plain = Noisy(), Noisy()
        planned = Planned(module, executor)
        for step in (1, 2):
            x = torch.randn(256, 64)
            y = planned(x)
            with Replayed(captured.graph, 7, step):
                expected = plain(x)
            torch.testing.assert_close(y, expected)
            for loss, net in ((y.exp().mean(), module), (expected.exp().mean(), plain)):
                net.zero_grad()
                loss.backward()
            for (name, ours), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_a_step_of_its_own_needs_the_gradients(executor: Executor) -> None:
    with pytest.raises(UserError, match="SP1601") as raised:
        executor.step(torch.randn(2, 3, 6, 6))
    assert "call forward, then backward" in raised.value.problem + raised.value.fix
    with pytest.raises(UserError, match=r"SP1612: .* has the caller's loss"):
        executor.losses()


def test_parts_in_another_mode_than_planned(tmp_path: Path) -> None:
    """What is frozen by its mode trained on silently, what was captured frozen stayed so."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Dropout(0.0))
    module[1].eval()
    captured, x = capture(module, torch.randn(6, 3), loss="caller"), torch.randn(6, 3)
    made = make(captured.graph, tmp_path / "net")
    captured.write_weights(tmp_path / "net" / "weights.npz")

    def refuses(told: str) -> None:
        with pytest.raises(UserError, match=f"SP1617: {told}"):
            planned(x)

    with made(pin=False) as executor:
        planned = Planned(module, executor)
        planned(x)
        planned.train()
        refuses("1 is in training mode, in the plan in evaluation mode")
        planned.eval()
        planned(x)
        module[2].train()
        refuses("2 is in training mode, in the plan in evaluation mode")
        planned.train()
        module[1].eval()
        module[3].eval()
        refuses("3 is in evaluation mode, in the plan in training mode")
        module[3].train()
        module[2].eval()
        refuses("2 is in evaluation mode, in the plan in training mode")
        module[2].train()
        module[0].eval()
        module[4].eval()  # nothing depends on these
        before = module[1].running_mean.clone(), module[3].running_mean.clone()
        planned(x)
        assert torch.equal(module[1].running_mean, before[0]) and not torch.equal(module[3].running_mean, before[1])


def test_parameters_that_changed_since_the_forward_pass(executor: Executor) -> None:
    """PyTorch tells, too; statistics may move, and a pass behind the change is right again."""
    module = network()
    planned, optimizer = Planned(module, executor), torch.optim.SGD(module.parameters(), lr=0.1)
    first, second = (planned(torch.randn(2, 3, 6, 6)).sum() for _ in range(2))
    second.backward()
    optimizer.step()
    with pytest.raises(UserError, match=r"SP1620: parameter 0\.weight was changed"):
        first.backward()
    planned(torch.randn(2, 3, 6, 6)).sum().backward()


def test_gradients_have_no_gradients(executor: Executor) -> None:
    planned, x = Planned(network(), executor), torch.randn(2, 3, 6, 6, requires_grad=True)
    (of_x,) = torch.autograd.grad(planned(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        of_x.square().sum().backward(retain_graph=True)
    for asked in (x, next(planned.parameters())):  # not zero beside what else depends on them
        with pytest.raises(RuntimeError, match="once_differentiable"):
            torch.autograd.grad(of_x.square().sum() + asked.sum(), asked, retain_graph=True)


def test_complex_parameters(tmp_path: Path) -> None:
    """They are the module's own, complex, in the executor's memory, and so are their gradients."""
    torch.manual_seed(2)
    module, inputs, _ = spectral()
    plain = copy.deepcopy(module)
    captured = capture(module, inputs, loss="caller")
    made = make(captured.graph, tmp_path / "spectral")
    captured.write_weights(tmp_path / "spectral" / "weights.npz")
    with made(pin=False, poison=True) as executor:
        calls = (Planned(module, executor), plain)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (module, plain)]
        for _ in range(3):
            x = torch.randn_like(inputs[0])
            losses = []
            for call, optimizer in zip(calls, optimizers, strict=True):
                optimizer.zero_grad()
                losses.append((call(x) * x).square().mean())
                losses[-1].backward()
                optimizer.step()
            torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)
        low, wanted = (m.get_parameter("layers.1.low") for m in (module, plain))
        assert low.grad is not None and low.grad.is_complex()
        torch.testing.assert_close(low.grad, wanted.grad, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)
