"""PyTorch modules as users write them, for whole-way tests: captured, built and trained.

Each function of `MODULES` returns (module, example inputs, capture's options), the form of a factory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.graph.optimizer import Optimizer


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.Tanh(), nn.Dropout(0.1)
        )
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x))


class Cnn(nn.Module):
    """Batch norms, one of them in evaluation mode, a residual connection, a layer that nobody uses, and a batch norm
    that runs twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.frozen = nn.BatchNorm2d(8)
        self.frozen.running_mean.uniform_(-1, 1)  # type: ignore[union-attr, operator]
        self.frozen.running_var.uniform_(1, 2)  # type: ignore[union-attr, operator]
        self.drop = nn.Dropout(0.2)
        self.unused = nn.Linear(3, 2)
        self.fc = nn.Linear(8, 5)

    def train(self, mode: bool = True) -> "Cnn":
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        x = F.relu(x + self.norm(self.conv(x)))
        x = self.drop(self.frozen(self.norm(x)))
        return self.fc(x.mean((2, 3)))


class Transformer(nn.Module):
    """A block with causal attention, and: tied embeddings, an integer buffer that is looked up and one that is folded
    into a constant, a boolean buffer, a buffer that is not saved, a tensor that is no buffer at all."""

    def __init__(self, vocabulary: int = 23, width: int = 16, heads: int = 2, length: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.register_buffer("order", torch.arange(length))
        self.register_buffer("reversed", torch.tensor([4, 1, 5, 0, 2, 2]))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).bool())
        self.register_buffer("gain", torch.tensor([1.5, 0.5] * (width // 2)), persistent=False)
        self.register_buffer("shift", torch.linspace(-1, 1, width))
        self.scale = torch.linspace(0.5, 1.5, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(self.order) + self.positions(self.reversed)
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        attended = F.softmax(scores.masked_fill(~self.mask, -1e9), -1) @ v
        x = x + self.drop(self.project(attended.transpose(1, 2).reshape(batch, length, -1)))
        x = x + self.down(F.gelu(self.up(self.norm2(x)))) * self.scale.to(x.dtype) * self.gain + self.shift
        return self.head(x).mean(1)


class Bag(nn.Module):
    """A mean of embeddings with a padding row; repeated words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 24, padding_idx=0)
        self.fc = nn.Linear(24, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.fc(self.table(words).mean(1))


class Autoencoder(nn.Module):
    """Weights tied through a transpose, viewed in a flat parameter, normalised by hand; one of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(12, 6)
        self.flat, self.shift = nn.Parameter(torch.randn(36) / 3), nn.Parameter(torch.zeros(12))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.encode.weight / self.encode.weight.norm(dim=1, keepdim=True)
        code = F.linear(torch.sigmoid(F.linear(x, weight, self.encode.bias)), self.flat.view(6, 6))
        return code @ weight * self.scale + self.shift


class Vae(nn.Module):
    """A variational autoencoder: what it reconstructs, and behind that the divergence of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        std = torch.exp(0.5 * spread)
        z = mean + torch.randn_like(std) * std
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1, keepdim=True)
        return torch.cat([self.decode(z), divergence], 1)


class Diffusion(nn.Module):
    """What a network that sees noisy images and their times is off by from the noise."""

    def __init__(self, times: int = 50, channels: int = 2) -> None:
        super().__init__()
        self.register_buffer("kept", (1 - torch.linspace(1e-3, 0.1, times)).cumprod(0))
        self.register_buffer("frequencies", torch.exp(-torch.arange(4.0)))
        self.time = nn.Linear(8, 8)
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.last = nn.Conv2d(8, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, len(self.kept), (len(x),))  # type: ignore[arg-type]
        kept, noise = self.kept[t][:, None, None, None], torch.randn_like(x)  # type: ignore[index]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        angles = t[:, None] * self.frequencies
        place = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        return self.last(F.silu(self.first(noisy) + place[:, :, None, None])) - noise


class Critic(nn.Module):
    """Spectral norms, which go on with the vectors of the step before; a moving average of images, and one that is a
    row of a buffer; two buffers that change places; a copy of weights; batch renormalisation."""

    usual: Tensor

    def __init__(self) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.spectral_norm
        self.conv, self.fc = normed(nn.Conv2d(3, 6, 3)), normed(nn.Linear(6, 5))
        self.norm = nn.BatchNorm2d(6)
        self.register_buffer("usual", torch.zeros(1, 6, 4, 4))
        self.register_buffer("rows", torch.ones(2, 6))
        self.register_buffer("odd", torch.rand(6))
        self.register_buffer("even", torch.rand(6))
        self.register_buffer("before", torch.zeros(5))
        self.register_buffer("times", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self._renormalised(self.conv(x)))
        if self.training:
            self.usual = 0.9 * self.usual + 0.1 * y.detach().mean(0, keepdim=True)
            with torch.no_grad():
                self.rows[0].mul_(0.5).add_(y.mean((0, 2, 3)))
                self.times.add_(1)
                odd = self.odd.clone()
                self.odd.copy_(self.even)
                self.even.copy_(odd)
                self.before.copy_(self.fc.bias)
        y = ((y - self.usual) * self.rows[0][:, None, None]).mean((2, 3)) + self.odd * self.rows[1]
        return self.fc(y) + self.before / (1 + self.times)

    def _renormalised(self, x: Tensor) -> Tensor:
        """The scale and shift between the batch's statistics and the running ones, as these were before."""
        if not self.training:
            return self.norm(x)
        moved = (self.norm.running_mean, self.norm.running_var)
        mean, deviation = (t.detach().clone().view(1, 6, 1, 1) for t in moved)  # type: ignore[operator]
        deviation = (deviation + self.norm.eps).sqrt()
        with torch.no_grad():
            scale = (x.var((0, 2, 3), unbiased=False, keepdim=True) + self.norm.eps).sqrt() / deviation
            shift = (x.mean((0, 2, 3), keepdim=True) - mean) / deviation
        return self.norm(x) * scale.clamp(0.3, 3.0) + shift.clamp(-5.0, 5.0)


class Quantised(nn.Module):
    """Codes that follow averages of what is nearest to them (a VQ-VAE's), gradients straight through; a queue of keys
    (momentum contrast), assigned anew in every step."""

    codes: Tensor
    counts: Tensor
    sums: Tensor
    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 6), nn.Linear(6, 12)
        self.register_buffer("codes", torch.randn(5, 6))
        self.register_buffer("counts", torch.ones(5))
        self.register_buffer("sums", torch.randn(5, 6))
        self.register_buffer("queue", torch.randn(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        seen = z.detach()
        nearest = (self.codes.square().sum(1) - 2 * seen @ self.codes.t()).argmin(1)
        found = F.embedding(nearest, self.codes)
        against = z @ self.queue.clone().detach().t()
        if self.training:
            with torch.no_grad():
                chosen = F.one_hot(nearest, 5).to(z.dtype)
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.t() @ z, alpha=0.1)
                self.codes.copy_(self.sums / (self.counts[:, None] + 0.01))
            self.queue = torch.cat([F.normalize(seen, dim=1), self.queue[: -len(x)]])
        return self.decode(z + (found - z).detach()) + against


Made = tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]


def mlp(batch: int = 8) -> Made:
    return Mlp(), (torch.randn(batch, 20),), {"optimizer": Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-3)}


def cnn(batch: int = 6) -> Made:
    return Cnn().train(), (torch.randn(batch, 3, 8, 8),), {"optimizer": Optimizer(lr=0.05, momentum=0.9, nesterov=True)}


def transformer(batch: int = 4) -> Made:
    # The keys' bias has a gradient of 0, so that Adam would divide rounding errors by eps.
    return Transformer(), (torch.randint(0, 23, (batch, 6)),), {"optimizer": Optimizer(kind="adam", lr=3e-3, eps=1e-4)}


def bag(batch: int = 6) -> Made:
    """Plain SGD: the embedding's gradient is applied sparsely."""
    return Bag(), (torch.randint(0, 12, (batch, 7)),), {"optimizer": Optimizer(lr=0.5)}


def autoencoder(batch: int = 5) -> Made:
    return Autoencoder(), (torch.randn(batch, 12),), {"loss": "mse", "optimizer": Optimizer(kind="adamw", lr=1e-2)}


def vae(batch: int = 6) -> Made:
    adagrad = Optimizer(kind="adagrad", lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.01)
    return Vae(), (torch.randn(batch, 20),), {"loss": "mse", "optimizer": adagrad}


def diffusion(batch: int = 4) -> Made:
    rmsprop = Optimizer(kind="rmsprop", lr=1e-3, alpha=0.9, eps=1e-3, momentum=0.9, centered=True)
    return Diffusion(), (torch.randn(batch, 2, 6, 6),), {"loss": "mse", "optimizer": rmsprop}


def critic(batch: int = 4) -> Made:
    return Critic(), (torch.randn(batch, 3, 6, 6),), {"optimizer": Optimizer(lr=0.2, momentum=0.9)}


def quantised(batch: int = 4) -> Made:
    return Quantised(), (torch.randn(batch, 12),), {"loss": "mse", "optimizer": Optimizer(lr=0.1, momentum=0.9)}


def clipped(made: Made, norm: float) -> Made:
    module, inputs, options = made
    return module, inputs, {**options, "clip_norm": norm}


def clipped_cnn(batch: int = 6) -> Made:
    return clipped(cnn(batch), 0.2)


def clipped_bag(batch: int = 6) -> Made:
    """The norm is that of the table's whole gradient, so its update is dense."""
    return clipped(bag(batch), 0.05)


class SpectralLayer(nn.Module):
    """As Fourier neural operators have it: some frequencies times matrices of complex parameters."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes, self.local = modes, nn.Conv2d(channels, channels, 1)
        self.low, self.high = (
            nn.Parameter(0.3 * torch.randn(channels, channels, modes, modes, dtype=torch.cfloat)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        found, m = torch.fft.rfft2(x), self.modes
        out = torch.zeros_like(found)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", found[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", found[:, :, -m:, :m], self.high)
        return torch.relu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


class FourierOperator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 1), SpectralLayer(3, 2), SpectralLayer(3, 3), nn.Conv2d(3, 1, 1))
        self.register_buffer("shifts", torch.exp(1j * torch.rand(6)).to(torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.fft.ifft(torch.fft.fft(x, dim=2) * self.shifts[:, None], dim=2)
        return self.layers(turned.real)


def spectral() -> Made:
    options = {"loss": "mse", "optimizer": Optimizer(kind="adam", lr=0.01), "clip_norm": 0.01}
    return FourierOperator(), (torch.randn(2, 1, 6, 7),), options


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in float32 or float64, and what is complex of it in pairs of these."""
    complex_ = {n: t.to(torch.complex128 if dtype is torch.float64 else torch.complex64) for n, t in _complex(module)}
    module = module.double() if dtype is torch.float64 else module.float()
    for name, tensor in _complex(module):
        tensor.data = complex_[name].data
    return module


def _complex(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t) for n, t in (*module.named_parameters(), *module.named_buffers()) if t.is_complex()]


def in_pairs(x: Any) -> Any:
    """Complex numbers as pairs of real ones; anything else as it is."""
    return torch.view_as_real(x) if torch.is_tensor(x) and x.is_complex() else x


MODULES: dict[str, Callable[..., Made]] = {
    f.__name__: f
    for f in (
        mlp,
        cnn,
        transformer,
        bag,
        autoencoder,
        vae,
        diffusion,
        critic,
        quantised,
        clipped_cnn,
        clipped_bag,
        spectral,
    )
}
