"""Derivatives that modules compute themselves: PyTorch's numbers, and the gradients of what is made of them."""

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
from tests.frontends.torch_agreement import STEP, agree, graph_values
from tests.interpreter import run_program
from tests.torch_functions import rounded


def slope(y: Tensor, x: Tensor, create_graph: bool = True) -> Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=create_graph)[0]


class Field(nn.Module):
    """Points -> what `what` makes of a network's values there."""

    def __init__(self, what: Callable[[nn.Module, Tensor], Tensor], body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body or nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(self.body, x)


def residual(body: nn.Module, x: Tensor) -> Tensor:
    """Burgers' equation."""
    x = x.requires_grad_(True)
    u = body(x)
    first = slope(u, x)
    second = slope(first[:, :1], x)[:, :1]
    return first[:, 1:2] + u * first[:, :1] - 0.01 * second


def of_columns(body: nn.Module, x: Tensor) -> Tensor:
    """Every coordinate a leaf of its own; third derivatives."""
    x, y, z = (c.detach().clone().requires_grad_() for c in x.split(1, 1))
    u = body(torch.cat([x, y, z], 1))
    return slope(slope(slope(u, x), x), x) + slope(u, y) * slope(u, z)


def laplacian(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    first = slope(body(x), x)
    return sum((slope(first[:, i], x)[:, i] for i in range(3)), torch.zeros(())).unsqueeze(1)


def eikonal(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    d = body(x)
    return d + (slope(d, x).norm(dim=1, keepdim=True) - 1) ** 2


def without_graph(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    y = body(x)
    return y * torch.autograd.grad(y.sum(), x, retain_graph=True)[0].sum(1, keepdim=True)


def in_a_block(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = x * 2
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return slope(body(x), x)


def of_a_weight(body: Any, x: Tensor) -> Tensor:
    """One step of an inner optimizer (MAML)."""
    weight, bias = body[0].weight, body[0].bias
    inner = (body[4](torch.tanh(F.linear(x, weight, bias))) ** 2).mean()
    dw, db = torch.autograd.grad(inner, (weight, bias), create_graph=True)
    return body[4](torch.tanh(F.linear(x, weight - 0.1 * dw, bias - 0.1 * db)))


def unused(body: nn.Module, x: Tensor) -> Tensor:
    x, y = x.requires_grad_(), torch.ones(1, requires_grad=True)
    dx, dy = torch.autograd.grad(body(x).sum(), (x, y), create_graph=True, allow_unused=True)
    assert dy is None
    return dx


def weighted(body: nn.Module, x: Tensor) -> Tensor:
    """Slopes that arrive depend on the outputs; one input depends on another."""
    x = x.requires_grad_()
    h = x * x
    u = body(h)
    dx, dh = torch.autograd.grad((u, h), (x, h), (u, torch.cos(h)), create_graph=True)
    return dx + dh.exp()


def hessian(body: nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda p: body(p).sum(), x[:1], create_graph=True).reshape(3, 3)


def batched(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return torch.autograd.grad(body(x), x, torch.eye(5)[:, :, None], create_graph=True, is_grads_batched=True)[0].sum(0)


def noisy(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return slope(body(x + torch.zeros_like(x).uniform_(1, 1 + 1e-9)), x)


def inner_dropout_off(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return slope(F.dropout(body(x), 0.0), x)


def with_a_detached_part(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    u = body(x)
    return slope(u * u.detach(), x)


FIELDS = (
    *(residual, of_columns, laplacian, eikonal, without_graph, in_a_block, of_a_weight, unused, weighted, hessian),
    *(batched, noisy, inner_dropout_off, with_a_detached_part),
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.__name__)
def test_derivatives_and_their_gradients(field: Callable[[nn.Module, Tensor], Tensor]) -> None:
    fuse = field is not of_a_weight
    agree(Field(field), torch.randn(5, 3), lambda y, t: (y**2).mean() * t, torch.rand(()) + 1, fuse=fuse)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3 * x)


LAYERS: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
    "smooth": lambda: (nn.Softplus(beta=10), nn.SiLU(), nn.GELU(), Sine()),
    "more": lambda: (nn.GELU("tanh"), nn.Mish(), nn.LogSigmoid(), nn.Sequential(nn.Linear(8, 16), nn.GLU())),
    "with kinks": lambda: (nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.ELU(), nn.Hardswish(), nn.PReLU()),
    "normalising": lambda: (nn.LayerNorm(8), nn.Softmax(1), nn.LogSoftmax(1), nn.GroupNorm(2, 8)),
    "batch norms": lambda: (nn.BatchNorm1d(8), nn.Sigmoid(), nn.BatchNorm1d(8).eval()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_second_derivatives(name: str) -> None:
    layers = [layer for made in LAYERS[name]() for layer in (nn.Linear(8, 8), made)]
    body = nn.Sequential(nn.Linear(3, 8), *layers, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    agree(Field(eikonal, body), torch.randn(6, 3), "mse")


def penalty(body: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    score = body(x)
    return (
        score.reshape(len(x), -1).sum(1, keepdim=True) + (slope(score, x).flatten(1).norm(dim=1, keepdim=True) - 1) ** 2
    )


IMAGES: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
    "convolutions": lambda: (
        *(nn.Conv2d(2, 4, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 4, 2, 1), nn.Tanh()),
        *(nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, 2, 2, 2), nn.Tanh(), nn.Conv2d(4, 1, 3)),
    ),
    "pools": lambda: (
        *(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Upsample(scale_factor=2), nn.AvgPool2d(2), nn.MaxPool2d(2)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(3, 2, 1), nn.Conv2d(4, 4, 3), nn.Tanh()),
        nn.AdaptiveAvgPool2d(1),
    ),
    "norms": lambda: (
        *(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.SiLU(), nn.GroupNorm(2, 4), nn.SiLU()),
        *(nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 1, 3)),
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_penalties_on_gradients_of_images(name: str) -> None:
    agree(Field(penalty, nn.Sequential(*IMAGES[name]())), torch.randn(2, 2, 8, 8), "mse")


class Adapted(nn.Module):
    """Convolutions whose weights an inner step has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Conv2d(4, 6, 3, 2, 1, groups=2),
            nn.ConvTranspose2d(6, 4, 3, 2, 0, groups=2, dilation=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        names = [(layer, name) for layer in (self.first, self.last) for name, _ in layer.named_parameters()]
        weights = [getattr(layer, name) for layer, name in names]
        slopes = torch.autograd.grad((self.computed(x, *weights) ** 2).mean(), weights, create_graph=True)
        return self.computed(x, *(w - 0.1 * dw for w, dw in zip(weights, slopes, strict=True)))

    def computed(self, x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        y = torch.tanh(F.conv2d(x, w, b, self.first.stride, self.first.padding, groups=2))
        return F.conv_transpose2d(y, v, c, self.last.stride, groups=2, dilation=2)


def test_convolutions_of_weights_that_a_step_has_moved() -> None:
    agree(Adapted(), torch.randn(3, 4, 8, 7), "mse")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.recurrent = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return slope(self.recurrent(self.layer(x))[0] ** 3, x)


def test_attention_and_recurrent_layers() -> None:
    """PyTorch's attention in parts: its kernels have no second derivatives."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        agree(Attending(), torch.randn(2, 5, 8), lambda y, t: (y**3).mean() * t, torch.rand(()) + 1)


class Masked(nn.Module):
    """Nothing, if both have the same mask: y is m x^2, its gradient 2 m x."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(x * x, 0.5)
        return y - x * slope(y, x) / 2


def test_derivatives_of_dropout_have_its_mask() -> None:
    net = nn.Sequential(nn.Linear(7, 40), Masked())
    graph, weights = capture_module(net, torch.ones(5, 7), CaptureOptions(loss="mse", optimizer=STEP))
    program = graph.program["train_step"]
    assert sum(n.op == "dropout" for n in program.nodes) == 1
    given = {"input": np.random.default_rng().normal(size=(5, 7)), "labels": np.zeros((5, 40))}
    found = run_program(graph, "train_step", {**graph_values(graph, weights), **given})
    assert abs(found[program.outputs[0]]) < 1e-12


def backward(body: nn.Module, x: Tensor) -> Tensor:
    body(x.requires_grad_()).sum().backward()
    return x


def of_a_function(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return slope(body(rounded(4 * x)), x)


def of_random_numbers(body: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return slope(F.scaled_dot_product_attention(x, x, body(x) * x, dropout_p=0.5), x)


REFUSED = {
    backward: "backward",
    of_a_function: "custom autograd function",
    of_random_numbers: "random numbers",
}


@pytest.mark.parametrize("field", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused(field: Callable[[nn.Module, Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=REFUSED[field]) as error:
        capture_module(Field(field), torch.randn(5, 3), CaptureOptions(loss="mse"))
    assert error.value.code == "SP1025"
    assert "test_torch_derivatives.py" in error.value.problem


def test_pytorchs_own_errors_name_the_line() -> None:
    with pytest.raises(UserError, match=r"SP1013.*test_torch_derivatives.py:\d+.*does not require grad"):
        capture_module(Field(lambda body, x: slope(x, x)), torch.randn(5, 3), CaptureOptions(loss="mse"))


PLACES = torch.tensor([0, 2, 1, 1, 4])
OPERATORS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "picked": (
        lambda x: x[PLACES],
        lambda x: x.gather(1, PLACES[:, None]),
        lambda x: x.new_zeros(5, 6).scatter_add(0, PLACES[:, None].expand(5, 6), x),
        lambda x: x.new_zeros(5, 6).index_put((PLACES,), x, accumulate=True),
        lambda x: x.new_zeros(5, 6).scatter_reduce(0, PLACES[:, None].expand(5, 6), x, "amax", include_self=False),
        lambda x: F.embedding(PLACES, x),
        lambda x: torch.cat([x.sort(1)[0], x.topk(2)[0], x.max(1, keepdim=True)[0], x.amin(1, keepdim=True)], 1),
        lambda x: x.unfold(1, 3, 1) * x.masked_fill(x > 0, 1.0)[:, :4, None],
        lambda x: x.new_empty(5, 6).copy_(x * x) + x.new_zeros(5, 6).copy_(x[:, :1]),
    ),
    "computed": (
        lambda x: x.cumsum(1) + x.logsumexp(1, keepdim=True) + x.std(1, keepdim=True) + x.prod(1, keepdim=True),
        lambda x: torch.atan2(x, x * x + 1) + torch.erf(x) + (x.abs() + 1) ** 1.7 + torch.lgamma(x.abs() + 1),
        lambda x: torch.cross(x[:, :3], x[:, 3:], -1) + x.norm(p=3, dim=1, keepdim=True),
        lambda x: torch.bmm(x.view(5, 2, 3), x.view(5, 3, 2)) + F.cosine_similarity(x, x + 1).sum(),
        lambda x: F.cross_entropy(x, PLACES) + F.huber_loss(x, x**2),
        lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    ),
    "of images": (
        lambda x: F.adaptive_avg_pool2d(x.view(1, 1, 5, 6), (2, 3)),
        lambda x: F.grid_sample(x.view(1, 1, 5, 6), x[:, :4].tanh().reshape(1, 5, 2, 2), align_corners=False),
        lambda x: F.interpolate(x.view(1, 1, 5, 6), scale_factor=2, mode="bicubic"),
        lambda x: F.pad(x[None], (1, 1), mode="replicate") + F.pad(x[None], (2, 0), mode="reflect"),
        lambda x: F.pixel_shuffle(x[:4].reshape(1, 4, 2, 3), 2),
    ),
}  # fmt: skip


class Slopes(nn.Module):
    def __init__(self, functions: tuple[Callable[[Tensor], Tensor], ...]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return slope(sum(((f(y) ** 2).mean() for f in self.functions), torch.zeros(())), y)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_second_derivatives(name: str) -> None:
    agree(Slopes(OPERATORS[name]), torch.randn(5, 4), lambda y, t: (y**2).mean() * t, torch.rand(()) + 1)
