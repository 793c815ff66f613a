"""Layers and networks of them, captured, compute what PyTorch computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import Function, agree

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "rms_norm": lambda x: F.rms_norm(x, (6,), eps=1e-4),
    "dropout_zero": lambda x: F.dropout(x, 0.0),
    "dropout_off": lambda x: F.dropout(x, 0.5, training=False),
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
    "pools_of_little": ([nn.Conv2d(3, 4, 8), nn.MaxPool2d(3, 2, ceil_mode=True), nn.AvgPool2d(2, ceil_mode=True)], 4),
    "avg_pool": ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(2, 2, 1), nn.AvgPool2d((2, 1), count_include_pad=False)], 4),
    "adaptive": ([nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d((3, 2)), nn.ReLU6()], 4),
    "adaptive_max": ([nn.Conv2d(3, 4, 2), nn.AdaptiveMaxPool2d((4, 1))], 4),
    "group_norm": ([nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU()], 4),
    "group_norm_silu": ([nn.Conv2d(3, 4, 3), nn.GroupNorm(4, 4, affine=False), nn.SiLU()], 4),
    "instance_norm": ([nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)], 4),
    "upsample": ([nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3)], 2),
    # 7 rows become 7.7, which are 7 again, and 7 pixels 14.35
    "upsample_in_one": ([nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=(1.1, 1.5), mode="bilinear")], 4),
    "upsample_roughly": ([nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=(1.1, 2.05))], 4),
    "shuffle": ([nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 2, 3)], 2),
    "transposed": ([nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2)], 6),
    "transposed_plain": ([nn.ConvTranspose2d(3, 4, (2, 3), stride=(2, 1), bias=False, dilation=(1, 2))], 4),
    "prelu": ([nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.PReLU()], 4),
    "zero_pad": ([nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(3, 4, 3), nn.Dropout2d(0.0)], 4),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fuse", [True, False])
def test_layer(name: str, fuse: bool) -> None:
    layers, channels = LAYERS[name]
    agree(Images(*layers, channels=channels), torch.randn(2, 3, 9, 9), fuse=fuse)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_instance_norms_move_their_statistics(rank: int, affine: bool) -> None:
    norm = (nn.InstanceNorm1d if rank == 1 else nn.InstanceNorm2d)(4, affine=affine, track_running_stats=True)
    layers = [nn.Conv2d(3, 4, 3), *([nn.Flatten(2), norm, nn.Unflatten(2, (7, 7))] if rank == 1 else [norm])]
    agree(Images(*layers, nn.Sigmoid(), channels=4), torch.randn(2, 3, 9, 9))


def test_an_instance_norm_that_moves_nothing() -> None:
    model = Images(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), channels=4)
    module = Still(model)
    agree(module, torch.randn(2, 3, 9, 9))


class Still(nn.Module):
    """A model whose norms use what they have, in training mode as well."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def train(self, mode: bool = True) -> "Still":
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


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


def test_residual() -> None:
    graph = agree(Residual(), torch.randn(3, 2, 6, 6))
    assert [n.op for n in graph.program["predict"].nodes].count("relu") == 0


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.norm(x) * 2)))


def test_a_batch_norm_that_runs_twice() -> None:
    agree(SharedNorm(), torch.randn(6, 5))


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


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    agree(Attention(causal), torch.randint(0, 11, (3, 6)), labels=None)


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


class Surrounded(nn.Module):
    """Padding in front of what pads by itself, and where it stays: around what reads it otherwise, above what a pooling
    takes, in front of a window that is rounded up."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.row, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Conv1d(4, 5, 3, dilation=2), nn.Linear(150, 3)

    def joined(self, x: Tensor) -> Tensor:
        x = self.images(F.pad(x, (0, 1, 0, 1)))
        x = F.max_pool2d(F.pad(x, (1, 0, 0, 1), value=-torch.inf), 3, 1)
        return self.row(F.pad(x.flatten(2), (4, 0)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.joined(x)[:, None]
        above = F.pad(x, (1, 1, 1, 1), value=torch.inf)
        x = x * torch.where(above[..., 1:-1, 1:-1] < above[..., 2:, 2:], 1.5, 0.5)
        x = x + F.max_pool2d(F.pad(x, (2, 0, 0, 0), value=-torch.inf), (1, 3), 1)
        x = x + F.max_pool2d(F.pad(x, (0, 1, 0, 0), value=-torch.inf), (1, 2), (1, 1), ceil_mode=True)
        return self.fc(x.flatten(1))


def test_padding_in_front_of_windows() -> None:
    module, images = Surrounded(), torch.randn(2, 3, 15, 13)
    agree(module, images, "mse")
    module.forward = lambda x: module.fc(module.joined(x).flatten(1))  # type: ignore[method-assign]
    graph, _ = capture_module(module, images, CaptureOptions(loss="mse"))
    assert not {n.op for n in graph.program["train_step"].nodes} & {"pad", "where"}
