"""A module whose forward and backward passes are planned, inside PyTorch's autograd."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from codegen.autograd import Planned
from codegen.cuda.turns import turn
from codegen.steps import paired
from gpu_parts.study import Study
from planner.capturing import capture

STEPS = 3
"""With new inputs each, and an update between them."""


class Block(nn.Module):
    """Two convolutions beside which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        norms = [nn.BatchNorm2d(channels) for _ in range(2)]
        self.body = nn.Sequential(convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def network(channels: int, blocks: int) -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, channels, 7, stride=2, padding=3), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100)]
    return nn.Sequential(*first, *(Block(channels) for _ in range(blocks)), *last)


def autograd(study: Study) -> None:
    """Gradients against PyTorch's in float64, beside its own float32's; then steps with PyTorch's loss and optimizer,
    planned beside eager."""
    for key in study.open(["residual network"]):
        try:
            study.keep(key, _measured(study))
        except Exception as error:
            study.failed(key, error)


def _measured(study: Study) -> dict[str, Any]:
    device = torch.device("cpu" if study.null else f"cuda:{study.device}")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    module, shape = (network(4, 1), (2, 3, 16, 16)) if study.null else (network(128, 8), (64, 3, 128, 128))
    captured = capture(module, torch.randn(shape), loss="caller")
    _, made = study.make(captured.graph)
    captured.write_weights(made._folder / "weights.npz")
    module, plain, exact = (copy.deepcopy(module).to(device) for _ in range(3))
    exact.double()
    with study.executor(made) as executor:
        planned, ratios = Planned(module, executor), []
        for _ in range(STEPS):
            x = torch.randn(shape, device=device)
            ours, theirs, true = (_gradients(call, x) for call in (planned, plain, exact))
            ratios.append(_error(ours, true) / max(_error(theirs, true), 1e-7))
            with torch.no_grad():
                for parameters in zip(*(m.parameters() for m in (module, plain, exact)), strict=True):
                    for parameter in parameters:
                        parameter -= 1e-3 * parameters[2].grad.to(parameter.dtype)
        steps = (partial(_step, call, torch.optim.RMSprop(call.parameters(), lr=1e-5), x) for call in (planned, plain))
        with turn(study.device, study.null):
            found = paired(*steps, repetitions=2 if study.null else 30)
    return {"ratios_of_gradients_errors": ratios, **found}


def _gradients(call: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    call.zero_grad()
    x = x.to(next(call.parameters()).dtype)
    call(x).square().mean().backward()
    return [p.grad for p in call.parameters()]


def _error(found: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest relative one of all parameters' gradients."""
    return max(float((f.double() - t).norm() / t.norm()) for f, t in zip(found, true, strict=True))


def _step(call: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = call(x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
