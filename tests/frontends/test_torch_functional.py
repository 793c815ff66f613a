"""Programs that write to nothing are made functional as PyTorch's run_decompositions makes them, without it."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from planner.frontends.aten import packet
from planner.frontends.torch_functional import PLAIN, decomposed


class Forward(nn.Module):
    def __init__(self, forward: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.body = nn.Parameter(torch.randn(6, 4)), forward

    def forward(self, x: Tensor) -> Any:
        return self.body(x, self.weight)


PURE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "nothing": lambda x, weight: torch.tanh(x @ weight),
    "views": lambda x, weight: (x.mT.reshape(-1, 4) * x.new_ones(4)).flatten().unflatten(0, (3, 8)),
    "parts": lambda x, weight: [part.ravel() for part in x.chunk(3, 1)],
    "copies": lambda x, weight: x.transpose(0, 1).contiguous().to(torch.int64).expand_as(x.mT),
    "no_copies": lambda x, weight: (x.flatten(1) + 1).to(torch.float32).reshape(4, 6).sum(),
    "beside": lambda x, weight: (weight.flatten(), [x.sin().sum(), x.cos().reshape(2, 12)][1]),
    "dropout": lambda x, weight: nn.functional.dropout(x @ weight) + nn.functional.dropout(x @ weight, training=False),
    "borders": lambda x, weight: nn.functional.pad(nn.functional.pad(x, (1, 0)), (1, 2), mode="reflect"),
    "einsum": lambda x, weight: torch.einsum("ij,jk,lk->il", x, weight, weight).sum_to_size(1, 6),
    "broadcast": lambda x, weight: torch.broadcast_tensors(x, weight[:, 0])[1],
    "spectra": lambda x, weight: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.ifft(torch.fft.fft(weight, 6, 0)).sum()),
    "norms": lambda x, weight: nn.functional.layer_norm(x, (6,)).reshape_as(weight),
}


@pytest.mark.parametrize("name", PURE)
def test_as_pytorch_does(name: str) -> None:
    module, x = Forward(PURE[name]), torch.randn(4, 6)
    program, known = torch.export.export(module, (x,)), torch.export.default_decompositions()
    called = {n.target for n in program.graph.nodes if packet(n.target) in PLAIN}
    table = {target: known[target] for target in called if target in known}
    wanted = told(program.run_decompositions(table))
    with patch.object(torch.export.ExportedProgram, "run_decompositions", None):
        assert told(decomposed(torch, torch.export.export(module, (x,)), table)) == wanted


def told(program: Any) -> Any:
    """Nodes by number: operators, operands, shapes, strides and types; and the results. Without assertions."""
    nodes = [n for n in program.graph.nodes if n.op != "call_function" or n.users]
    number = {node: i for i, node in enumerate(nodes)}
    by_name = {node.name: i for node, i in number.items()}
    found = [
        (
            n.op == "call_function" and n.target,
            torch.fx.node.map_arg((n.args, n.kwargs), number.__getitem__),
            laid_out(n.meta.get("val")),
        )
        for n in nodes
    ]
    return found, [by_name[spec.arg.name] for spec in program.graph_signature.output_specs]


def laid_out(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [laid_out(part) for part in value]
    return value if value is None else (value.shape, value.stride(), value.dtype)


WRITING: dict[str, Callable[..., Any]] = {
    "norms": lambda x, conv, norm, frozen: frozen(norm(conv(x))).relu_(),
    "chains": lambda x, conv, norm, frozen: nn.functional.hardswish(norm(x).mul_(2).sub_(x, alpha=3), inplace=True),
    "residual": lambda x, conv, norm, frozen: conv(y := conv(x).relu_()).add_(y).clamp_(0, 6).flatten(1),
    "old_and_new": lambda x, conv, norm, frozen: (y := x.sin(), y.cos(), y.exp_(), y * 2)[1:],
    "of_itself": lambda x, conv, norm, frozen: (y := conv(x)).mul_(y),
    "powers": lambda x, conv, norm, frozen: conv(x).pow_(2).pow_(x),
    "of_parts": lambda x, conv, norm, frozen: norm(conv(x)).max(1)[0].tanh_(),
}


class Layers(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.frozen = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3).eval()
        self.body = forward

    def forward(self, x: Tensor) -> Any:
        return self.body(x, self.conv, self.norm, self.frozen)


@pytest.mark.parametrize("name", WRITING)
def test_what_layers_write_is_known(name: str) -> None:
    module, x = Layers(WRITING[name]), torch.randn(4, 3, 5, 5)
    wanted = torch.export.export(module, (x,)).run_decompositions({})
    with patch.object(torch.export.ExportedProgram, "run_decompositions", None):
        found = decomposed(torch, torch.export.export(module, (x,)), {})
    assert told(found) == told(wanted)
    changed = [list(p.graph_signature.buffers_to_mutate.values()) for p in (found, wanted)]
    assert changed[0] == changed[1]


def _view_before(x: Tensor, weight: Tensor) -> Tensor:
    y = x + 1
    view = y[0]
    y.add_(2)
    return view


@pytest.mark.parametrize(
    "forward",
    [
        _view_before,
        lambda x, weight: (y := x + 1)[0].add_(2).sum() + y,
        lambda x, weight: nn.functional.dropout(y := x + 1, training=False).mul_(3) + y,
        lambda x, weight: (x + 1).lt_(2),
        lambda x, weight: (x + 1).bernoulli_(0.5),
        lambda x, weight: nn.functional.batch_norm(x, weight[:, 0].detach(), weight[:, 1].detach(), training=True),
        lambda x, weight: torch.einsum("ij,jk->ik", x, weight.detach()).add_(1),
    ],
)
def test_what_writes_otherwise_is_left_to_pytorch(forward: Callable[[Tensor, Tensor], Any]) -> None:
    module, x = Forward(forward), torch.randn(4, 6)
    wanted = told(torch.export.export(module, (x,)).run_decompositions({}))
    program = decomposed(torch, torch.export.export(module, (x,)), {})
    called = [n.target for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert called
    assert not any(target._schema.is_mutable for target in called)
    assert told(program) == wanted


def test_a_norm_that_runs_twice_is_left_to_pytorch() -> None:
    module, x = Layers(lambda x, conv, norm, frozen: norm(norm(x))), torch.randn(4, 3, 5, 5)
    wanted = told(torch.export.export(module, (x,)).run_decompositions({}))
    assert told(decomposed(torch, torch.export.export(module, (x,)), {})) == wanted
