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


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, weight: (x + 1).add_(2),
        lambda x, weight: nn.functional.batch_norm(x, weight[:, 0].detach(), weight[:, 1].detach(), training=True),
        lambda x, weight: torch.einsum("ij,jk->ik", x, weight.detach()).add_(1),
    ],
)
def test_what_writes_is_left_to_pytorch(forward: Callable[[Tensor, Tensor], Any]) -> None:
    program = decomposed(torch, torch.export.export(Forward(forward), (torch.randn(4, 6),)), {})
    called = [n.target for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert called
    assert not any(target._schema.is_mutable for target in called)
