"""Captured modules compute what PyTorch computes, in float64: the loss, the prediction, every gradient, every running
statistic. Modules that cannot be captured say why."""

import copy
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.graph.model import Graph, Role
from planner.graph.optimizer import Optimizer
from planner.graph.text import graph_text, parse_graph, validate
from tests.interpreter import run_program

STEP = Optimizer(lr=1.0)
"""An update that moves a parameter by exactly its gradient."""


def graph_values(graph: Graph, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = (v for v in graph.values if v.name in weights)
    return {
        v.id: weights[v.name].astype(np.float64) if weights[v.name].dtype.kind == "f" else weights[v.name]
        for v in named
    }


def double(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.double() if data.is_floating_point() else data
    if isinstance(data, dict):
        return {k: double(v) for k, v in data.items()}
    return tuple(double(d) for d in data)


def agree(
    module: nn.Module,
    inputs: Any,
    loss: str | Callable[..., Tensor] | None = "cross_entropy",
    labels: Tensor | None = None,
    fuse: bool = True,
) -> Graph:
    """Capture, run the training step and `predict` with the ops' NumPy references, compare with the module."""
    graph, weights = capture_module(module, inputs, loss=loss, labels=labels, optimizer=STEP, name="net", fuse=fuse)
    validate(graph)
    assert all(w.dtype in (np.float32, np.int64) for w in weights.values())
    values = graph_values(graph, weights)
    reference = copy.deepcopy(module).double()
    if not module.training:
        reference.train()
    given = (inputs,) if isinstance(inputs, Tensor) else inputs
    arguments = double(given)
    names = [n for n in graph.program["train_step"].inputs if n != "labels"]
    leaves = list(arguments.values()) if isinstance(arguments, dict) else list(arguments)
    feed = {n: t.numpy() for n, t in zip(names, leaves, strict=True)}
    prediction = reference(**arguments) if isinstance(arguments, dict) else reference(*arguments)
    if "labels" in graph.program["train_step"].inputs:
        type_ = graph.value["labels"].type
        if labels is None:
            generator = torch.Generator().manual_seed(1)
            classes = prediction.shape[1] if prediction.dim() > 1 else prediction.shape[0]
            labels = (
                torch.randint(0, classes, type_.shape, generator=generator)
                if type_.dtype.value == "int64"
                else torch.randn(type_.shape, generator=generator)
            )
        labels = double(labels)
        assert labels is not None
        feed["labels"] = labels.numpy()
    compute = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}.get(loss, loss) if isinstance(loss, str) else loss
    compute = compute.double() if isinstance(compute, nn.Module) else compute
    expected = prediction if compute is None else compute(prediction, labels)
    expected.backward()
    results = run_program(graph, "train_step", {**values, **feed})
    np.testing.assert_allclose(results[graph.program["train_step"].outputs[0]].reshape(()), expected.item(), rtol=1e-6)
    by_name = {v.name: v.id for v in graph.values if v.name}
    parameters = dict(reference.named_parameters())
    assert {v.name for v in graph.values if v.role is Role.PARAMETER} >= set(parameters)
    for name, parameter in parameters.items():
        moved = values[by_name[name]] - results[by_name[name]]
        wanted = np.zeros(moved.shape) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(moved, wanted, rtol=1e-5, atol=1e-8, err_msg=name)
    for name, buffer in reference.named_buffers():
        if "running" in name:
            np.testing.assert_allclose(results[by_name[name]], buffer.numpy(), rtol=1e-6, atol=1e-9, err_msg=name)
    with torch.no_grad():
        evaluated = reference.eval()(**arguments) if isinstance(arguments, dict) else reference.eval()(*arguments)
    statistics = {i: results[i] for n, i in by_name.items() if "running" in n}
    predicted = run_program(graph, "predict", {**values, **statistics, **feed})[graph.program["predict"].outputs[0]]
    np.testing.assert_allclose(predicted, evaluated.numpy(), rtol=1e-5, atol=1e-7)
    return graph


class Function(nn.Module):
    """A parameter-free function between two linear layers, so that gradients pass through it."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 6, outputs: int = 6) -> None:
        super().__init__()
        self.before, self.function, self.after = nn.Linear(5, width), function, nn.Linear(outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu6": lambda x: F.relu6(3 * x),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "hardswish": lambda x: F.hardswish(4 * x),
    "hardsigmoid": lambda x: F.hardsigmoid(4 * x),
    "clamp": lambda x: x.clamp(-0.2, 0.3),
    "clamp_one_sided": lambda x: x.clamp(min=-0.2).clamp(max=0.5),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, beta=2.0),
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "glu": lambda x: torch.cat([F.glu(x), F.glu(x, 1)], 1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_rows": lambda x: x.softmax(0),
    "log_softmax": lambda x: F.log_softmax(x, dim=1),
    "arithmetic": lambda x: (2 * x + 1) / 3 - x * x + (1 - x) - 0.5,
    "rsub_alpha": lambda x: torch.rsub(x, x * x, alpha=2) + torch.add(x, 2, alpha=3) + torch.sub(x, x * x, alpha=0.5),
    "divide": lambda x: x / (x * x + 1) + 1 / (x * x + 2),
    "powers": lambda x: x**2 + x**3 + (x * x + 1) ** 0.5 + (x.abs() + 1) ** -1.5 + 2**x,
    "roots": lambda x: (x * x + 1).rsqrt() + (x * x + 1).sqrt().log() + (x * x).log1p() + x.expm1() + x.exp(),
    "extrema": lambda x: torch.maximum(x, x * x) + torch.minimum(x, -x),
    "mean": lambda x: x - x.mean() + x.mean(1, keepdim=True) + x.sum(0) + x.mean(dim=(0, 1)),
    "variance": lambda x: x / (x.var(1, keepdim=True) + 1) + x.std(0) + x.var() + x.var(1, correction=0)[:, None],
    "norm": lambda x: F.normalize(x, dim=1) + x.norm() + x.norm(p=1, dim=1, keepdim=True),
    "in_place": lambda x: x.clone().mul_(2).add_(1).relu_().mul(3),
    "in_place_view": lambda x: (x.view(-1)[2:5].mul_(3), x)[1],
    "in_place_rows": lambda x: (x[:, 1].zero_(), x[0].add_(2), x.clone())[-1],
    "assign": lambda x: (x.__setitem__((slice(None), slice(1, 3)), x[:, 3:5] * 2), x)[1],
    "views": lambda x: x.reshape(-1, 2, 3).transpose(1, 2).contiguous().view(x.shape[0], -1).t().t(),
    "permute": lambda x: x.view(-1, 1, 2, 3).permute(0, 3, 1, 2).flatten(1),
    "squeeze": lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze().squeeze(0),
    "split": lambda x: torch.cat(list(x.split(4, 1))[::-1], 1),
    "split_sizes": lambda x: sum((p.sum(1, keepdim=True) for p in x.split([1, 2, 3], 1)), x),
    "chunk": lambda x: torch.stack(x.chunk(3, dim=1), 1).flatten(1),
    "unbind": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "index": lambda x: torch.cat([x[:, -2:], x[:, None, 0], x[..., 1:4:2], x[:, 5:]], 1),
    "pad": lambda x: F.pad(x, (1, -1), value=0.5),
    "expand": lambda x: x + x[:1].expand(x.shape[0], -1) + x[:, :1].expand_as(x),
    "repeat": lambda x: x.repeat(2, 3)[: x.shape[0], 4:10],
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1)[:, 3:9],
    "roll": lambda x: x.roll(2, 1) + x.roll((1, 3), (0, 1)),
    "tile": lambda x: x.tile(2)[:, 2:8],
    "masked": lambda x: x.masked_fill(torch.eye(6)[: x.shape[0]] > 0, -3.0),
    "where": lambda x: torch.where(torch.arange(6) % 2 == 0, x, x * x),
    "tril": lambda x: x[:3, :3].tril().mean() + x * torch.triu(torch.ones(6, 6))[: x.shape[0]],
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x)[:, :1] + x,
    "matmul": lambda x: (x @ x.T @ x) / 10 + torch.matmul(x, x[0])[:, None] + torch.dot(x[0], x[1]),
    "bmm": lambda x: torch.bmm(x.view(-1, 2, 3), x.view(-1, 3, 2)).flatten(1).repeat(1, 2)[:, :6],
    "baddbmm": lambda x: torch.baddbmm(x.view(-1, 2, 3), x.view(-1, 2, 3), x.new_ones(x.shape[0], 3, 3)).flatten(1),
    "addmm": lambda x: torch.addmm(x[0], x, x.T @ x, beta=0.5, alpha=2),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3) + torch.addcmul(x, x, x, value=0.1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "rms_norm": lambda x: F.rms_norm(x, (6,), eps=1e-4),
    "zeros_like": lambda x: x + torch.zeros_like(x) + torch.full_like(x, 2.0) * torch.ones_like(x),
    "dropout_zero": lambda x: F.dropout(x, 0.0),
    "dropout_off": lambda x: F.dropout(x, 0.5, training=False),
    "constants": lambda x: x * torch.linspace(0, 1, 6) + torch.tensor(2.0) - torch.tensor([[1.0] * 6]),
    "scalar_types": lambda x: x * True + x * 2 + x.float() + x.to(x.dtype),
    "lrn": lambda x: F.local_response_norm(x.view(-1, 6, 1, 1), 3).flatten(1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5))


class Images(nn.Module):
    """Layers of images in front of a classifier."""

    def __init__(self, *layers: nn.Module, channels: int) -> None:
        super().__init__()
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


LAYERS: dict[str, tuple[list[nn.Module], int]] = {
    "plain": ([nn.Conv2d(3, 4, 3)], 4),
    "same": ([nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2))], 4),
    "valid": ([nn.Conv2d(3, 4, 3, padding="valid", stride=2, bias=False)], 4),
    "grouped": ([nn.Conv2d(3, 6, (3, 1), padding=(1, 0), groups=3, stride=(1, 2))], 6),
    "norm": ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)], 4),
    "norm_options": ([nn.BatchNorm2d(3, eps=0.1, momentum=0.3), nn.Conv2d(3, 4, 3)], 4),
    "max_pool": ([nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d(2, 1, dilation=2)], 4),
    "avg_pool": ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(2, 2, 1), nn.AvgPool2d((2, 1), count_include_pad=False)], 4),
    "adaptive": ([nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d((3, 2)), nn.ReLU6()], 4),
    "adaptive_max": ([nn.Conv2d(3, 4, 2), nn.AdaptiveMaxPool2d((4, 1))], 4),
    "group_norm": ([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU()], 4),
    "instance_norm": ([nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)], 4),
    "upsample": ([nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3)], 2),
    "shuffle": ([nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 2, 3)], 2),
    "prelu": ([nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.PReLU()], 4),
    "zero_pad": ([nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(3, 4, 3), nn.Dropout2d(0.0)], 4),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fuse", [True, False])
def test_layer(name: str, fuse: bool) -> None:
    layers, channels = LAYERS[name]
    agree(Images(*layers, channels=channels), torch.randn(2, 3, 9, 9), fuse=fuse)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.a, self.b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.act(self.a(x)) * 1
        y += self.b(x)
        return self.act(y).mean((2, 3))


class Shared(nn.Module):
    """One layer three times, tied weights, a parameter nobody uses, a nested container."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 7, bias=False), nn.Linear(7, 5, bias=False)
        self.decode.weight = nn.Parameter(torch.randn(5, 7))
        self.again = nn.Linear(5, 7, bias=False)
        self.again.weight = self.encode.weight
        self.unused = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2)])
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x) + self.again(2 * x)
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            y = block(y)
        return self.decode(y) * self.scale


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.norm(x) * 2)))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 5))
        self.register_buffer("offset", torch.ones(5), persistent=False)
        self.register_buffer("mask", torch.ones(4, 4).tril() == 0)
        self.register_buffer("unused", torch.zeros(3))
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x * self.scale + self.offset * 2 - self.constant)
        return y.masked_fill(self.mask, float("-1e4")).log_softmax(1)


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.causal = causal

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        h = self.norm(x)
        x = x + self.attend(h, h, h, attn_mask=mask, need_weights=False)[0]
        return (x + self.mlp(x)) @ self.tokens.weight.T


class Gpt(nn.Module):
    """Attention as in many tutorials: one projection for q, k and v, a mask in a buffer, weights tied."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.qkv = nn.Embedding(9, 8), nn.Embedding(8, 8), nn.Linear(8, 24)
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.size()
        x = self.wte(ids) + self.wpe(torch.arange(0, t, dtype=torch.long, device=ids.device).unsqueeze(0))
        q, k, v = (p.view(n, t, 2, 4).transpose(1, 2) for p in self.qkv(x).split(8, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / 2.0)
        att = F.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(n, t, 8)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + y + causal).transpose(1, 2)


def test_residual() -> None:
    graph = agree(Residual(), torch.randn(3, 2, 6, 6))
    assert [n.op for n in graph.program["predict"].nodes].count("relu") == 0


def test_shared_modules_tied_and_unused_parameters() -> None:
    graph = agree(Shared(), torch.randn(4, 5))
    names = {v.name for v in graph.values if v.role is Role.PARAMETER}
    assert "again.weight" not in names and "unused.weight" in names


def test_a_batch_norm_that_runs_twice() -> None:
    agree(SharedNorm(), torch.randn(6, 5))


def test_buffers_and_constants() -> None:
    graph = agree(Buffers(), torch.randn(4, 5))
    assert {v.name for v in graph.values if v.role is Role.STATE} >= {"scale"}


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    agree(Attention(causal), torch.randint(0, 11, (3, 6)), labels=None)


def test_a_small_gpt() -> None:
    agree(Gpt(), torch.randint(0, 9, (2, 5)))


def test_transformer_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    agree(
        nn.Sequential(nn.Linear(5, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)),
        torch.randn(2, 3, 5),
    )


def test_one_dimensional_layers() -> None:
    layers = [nn.Conv1d(2, 4, 3, padding=1, stride=2), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2), nn.AvgPool1d(2)]
    agree(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)), torch.randn(3, 2, 16))


def test_one_example_without_a_batch() -> None:
    agree(nn.Sequential(nn.Linear(5, 4), nn.Tanh()), torch.randn(5))


def test_an_image_without_a_batch() -> None:
    agree(nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(0)), torch.randn(2, 6, 6))


def test_dense_predictions() -> None:
    agree(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)), torch.randn(2, 2, 5, 6))


def test_batch_norm_variants() -> None:
    agree(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)), torch.randn(6, 5))


def test_batch_norm_without_running_statistics() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    agree(module, torch.randn(6, 5))


def test_frozen_parts() -> None:
    """Evaluation mode of a part, and parameters that need no gradient, are kept."""
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    module[1].eval()
    module[1].running_mean.uniform_()
    module[1].running_var.uniform_(1, 2)
    graph = agree(module, torch.randn(6, 5))
    nodes = {n.id for n in graph.program["train_step"].nodes}
    assert "_0.bias.update" in nodes and "_0.weight.update" not in nodes
    assert module.training and not module[1].training


def test_evaluation_mode_is_restored() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    agree(module, torch.randn(6, 5))
    assert not module.training and not module[1].training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_several_inputs_and_keywords() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3), nn.Bilinear(2, 2, 3)

        def forward(self, x: Tensor, labels: Tensor, *, weight: float = 2.0) -> Tensor:
            return self.a(x) * weight + labels

    module = Two()
    graph, _ = capture_module(module, {"x": torch.randn(4, 5), "labels": torch.randn(4, 3)})
    assert graph.program["train_step"].inputs == ("x", "labels", "labels_1")


class Focal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(logits * self.temperature, 1), labels, reduction="sum")


LOSSES: dict[str, tuple[Any, Callable[[], Tensor | None]]] = {
    "cross_entropy": ("cross_entropy", lambda: None),
    "labels_given": ("cross_entropy", lambda: torch.tensor([0, 1, 2, 0])),
    "probabilities": ("cross_entropy", lambda: torch.rand(4, 3).softmax(1)),
    "mse": ("mse", lambda: None),
    "smooth": (
        lambda p, t: F.cross_entropy(p, t, label_smoothing=0.1, reduction="sum"),
        lambda: torch.tensor([0, 1, 2, 0]),
    ),
    "ignored": (lambda p, t: F.cross_entropy(p, t, ignore_index=1), lambda: torch.tensor([0, 1, 2, 0])),
    "bce": (lambda p, t: F.binary_cross_entropy_with_logits(p, t), lambda: torch.rand(4, 3)),
    "l1": (nn.L1Loss(), lambda: torch.randn(4, 3)),
    "nll": (lambda p, t: F.nll_loss(F.log_softmax(p, 1), t), lambda: torch.tensor([0, 1, 2, 0])),
    "own": (lambda p, t: ((p - t) ** 2).sum(1).mean() + 0.01 * p.abs().sum(), lambda: torch.randn(4, 3)),
    "mse_none": (lambda p, t: F.mse_loss(p, t, reduction="none").sum(), lambda: torch.randn(4, 3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    loss, labels = LOSSES[name]
    torch.manual_seed(0)
    agree(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(4, 5), loss, labels())


def test_a_loss_with_parameters_trains_them() -> None:
    graph, weights = capture_module(
        nn.Linear(5, 3), torch.randn(4, 5), loss=Focal(), labels=torch.tensor([0, 1, 2, 0]), optimizer=STEP
    )
    assert "loss.temperature" in weights
    assert "loss.temperature.update" in {n.id for n in graph.program["train_step"].nodes}


def test_a_module_that_returns_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(self.fc(x), y)

    agree(Own(), (torch.randn(4, 5), torch.randn(4, 3)), None)


def test_names_follow_the_layers() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    graph, weights = capture_module(module, torch.randn(2, 1, 4, 4))
    assert graph.name == "sequential_b2"
    assert [n.id for n in graph.program["train_step"].nodes][:2] == ["_0", "_1"]
    assert set(weights) == {k for k in module.state_dict() if not k.endswith("num_batches_tracked")}
    assert parse_graph(__import__("json").loads(graph_text(graph))) == graph


def test_the_same_module_gives_the_same_bytes() -> None:
    script = """
        import sys, torch
        from planner.frontends.torch_export import capture_module
        from planner.graph.text import graph_text
        from torch import nn
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
        sys.stdout.write(graph_text(capture_module(net, torch.randn(2, 1, 4, 4))[0]))
    """
    run, path = [sys.executable, "-c", textwrap.dedent(script)], ":".join(sys.path)
    texts = [
        subprocess.run(run, env={"PYTHONHASHSEED": seed, "PYTHONPATH": path}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and texts[0]


# -- errors ----------------------------------------------------------------------------------------------------
class Forward(nn.Module):
    def __init__(self, forward: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.body = nn.Linear(5, 3), forward

    def forward(self, x: Tensor) -> Any:
        return self.body(self.fc, x)


ERRORS: dict[str, tuple[str, Callable[[nn.Linear, Tensor], Any], str]] = {
    "op": ("SP1001", lambda fc, x: fc(x).cumsum(1), "cumsum"),
    "line": ("SP1001", lambda fc, x: fc(x).cumsum(1), "(tests/frontends/test_torch_export.py:"),
    "detach": ("SP1001", lambda fc, x: fc(fc(x).detach()[:, :1].expand(-1, 5)), "detach"),
    "no_grad": ("SP1001", lambda fc, x: fc(x) + no_grad(lambda: fc(x) * 2), "no_grad"),
    "random": ("SP1001", lambda fc, x: fc(x) + torch.randn(3), "randn"),
    "mask": ("SP1001", lambda fc, x: torch.where(fc(x) > 0, fc(x), 0), "gt"),
    "argument": ("SP1001", lambda fc, x: F.avg_pool2d(fc(x)[None, None], 2, divisor_override=3), "divisor_override"),
    "tuple": ("SP1015", lambda fc, x: (fc(x), x), "2 values"),
    "nothing": ("SP1015", lambda fc, x: None, "no"),
    "selection": ("SP1014", lambda fc, x: fc(x)[x[:, 0] > 0], "dynamic shape"),
    "branch": ("SP1014", lambda fc, x: fc(x) if x.sum() > 0 else fc(2 * x), "data"),
    "broken": ("SP1013", lambda fc, x: fc(x.T), "reduction dim"),
    "half": ("SP1001", lambda fc, x: fc(x).half(), "float16"),
}


def no_grad(function: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return function()


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    code, forward, text = ERRORS[name]
    with pytest.raises(UserError, match=code) as caught:
        capture_module(Forward(forward), torch.randn(4, 5))
    message = str(caught.value)
    assert text in message
    assert not any(place in message for place in (os.getcwd(), sys.prefix, "site-packages"))


def test_unsupported_ops_name_node_op_line_and_nearest() -> None:
    with pytest.raises(UserError) as caught:
        capture_module(Forward(lambda fc, x: fc(x).cumsum(1)), torch.randn(4, 5))
    assert caught.value.code == "SP1001"
    assert "'cumsum'" in caught.value.problem and "aten.cumsum" in caught.value.problem
    assert "nearest supported op is aten." in caught.value.fix


def test_written_buffers_are_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.fc(x) * self.count

    with pytest.raises(UserError, match=r"SP1020.*'count'"):
        capture_module(Counter(), torch.randn(4, 5))


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1017.*weight.*float64"):
        capture_module(nn.Linear(5, 3).double(), torch.randn(4, 5).double())
    with pytest.raises(UserError, match=r"SP1017.*input"):
        capture_module(nn.Embedding(5, 3), torch.zeros(4, dtype=torch.int32))


def test_losses_that_do_not_fit() -> None:
    module, x = nn.Linear(5, 3), torch.randn(4, 5)
    with pytest.raises(UserError, match="SP1016"):
        capture_module(module, x, loss="hinge")
    with pytest.raises(UserError, match="SP1016"):
        capture_module(module, x, loss=F.mse_loss)
    with pytest.raises(UserError, match=r"SP1016.*\(5,\)"):
        capture_module(module, x, labels=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(UserError, match="SP1005"):
        capture_module(module, x, loss=None)
    with pytest.raises(UserError, match="SP1006"):
        capture_module(nn.ReLU(), x)
    with pytest.raises(UserError, match="SP1018"):
        capture_module(F.relu, x)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="SP1012"):
        capture_module(object(), ())
