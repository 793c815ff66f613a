"""DenseNet, U-Net, ConvNeXt and the vision transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.parts import ADAM, SGD, Conv, Made, images


# -- DenseNet --------------------------------------------------------------------------------------------------
class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int, bottleneck: int) -> None:
        super().__init__()
        inner = bottleneck * growth
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.layers(torch.cat(features, 1))


class DenseBlock(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int = 6, blocks: tuple[int, ...] = (2, 2), classes: int = 8) -> None:
        super().__init__()
        width = 2 * growth
        layers: list[nn.Module] = [Conv(3, width, 3, 2), nn.MaxPool2d(3, 2, 1)]
        for number, count in enumerate(blocks):
            layers.append(DenseBlock(DenseLayer(width + i * growth, growth, 2) for i in range(count)))
            width += count * growth
            if number + 1 < len(blocks):
                norm = [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width // 2, 1, bias=False)]
                layers += [*norm, nn.AvgPool2d(2, 2)]
                width //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(width))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


# -- U-Net -----------------------------------------------------------------------------------------------------
class Up(nn.Module):
    """Twice the size, joined with the encoder's features; sizes that differ are padded or interpolated."""

    def __init__(self, inputs: int, skip: int, outputs: int, mode: str) -> None:
        super().__init__()
        self.mode = mode
        if mode == "transposed":
            self.up: nn.Module = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        else:
            options = {"align_corners": True} if mode == "bilinear" else {}
            self.up = nn.Sequential(
                nn.Upsample(scale_factor=2, mode=mode, **options), nn.Conv2d(inputs, inputs // 2, 1)
            )
        self.conv = nn.Sequential(Conv(inputs // 2 + skip, outputs), Conv(outputs, outputs))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        if self.mode == "transposed":
            down, right = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
            x = F.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        elif x.shape[2:] != skip.shape[2:]:
            options = {"align_corners": False} if self.mode == "bilinear" else {}
            x = F.interpolate(x, size=skip.shape[2:], mode=self.mode, **options)
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, width: int = 8, classes: int = 3, mode: str = "transposed") -> None:
        super().__init__()
        self.first = nn.Sequential(Conv(3, width), Conv(width, width))
        self.down1 = nn.Sequential(nn.MaxPool2d(2), Conv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), Conv(2 * width, 4 * width))
        self.up1, self.up2 = Up(4 * width, 2 * width, 2 * width, mode), Up(2 * width, width, width, mode)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down1(a)
        return self.out(self.up2(self.up1(self.down2(b), b), a))


# -- ConvNeXt --------------------------------------------------------------------------------------------------
class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsFirstNorm(nn.Module):
    """As the authors of ConvNeXt wrote it."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels)), eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class StochasticDepth(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = torch.empty([x.shape[0], *([1] * (x.dim() - 1))], dtype=x.dtype).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, scale: float = 0.5, depth_rate: float = 0.0) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(scale * torch.ones(width))
        self.drop_path = StochasticDepth(depth_rate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        return x + self.drop_path(y.permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    def __init__(self, width: int = 8, classes: int = 6, norm: type[nn.Module] = LayerNorm2d) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), norm(width, eps=1e-6))
        self.stage1 = ConvNeXtBlock(width)
        self.downsample = nn.Sequential(norm(width, eps=1e-6), nn.Conv2d(width, 2 * width, 2, 2))
        self.stage2 = ConvNeXtBlock(2 * width)
        self.norm, self.head = nn.LayerNorm(2 * width, eps=1e-6), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.downsample(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


# -- ViT -------------------------------------------------------------------------------------------------------
class VisionTransformer(nn.Module):
    """A class token, learned positions, PyTorch's own encoder layers."""

    def __init__(self, width: int = 16, depth: int = 2, patch: int = 4, size: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class PooledVit(nn.Module):
    """Patches by reshaping, a fused q, k, v projection, q and k normalised, a mean instead of a token."""

    def __init__(self, width: int = 24, heads: int = 3, patch: int = 5, size: int = 15, classes: int = 4) -> None:
        super().__init__()
        self.size, self.heads = patch, heads
        self.embed = nn.Linear(3 * patch * patch, width)
        self.positions = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        p = self.size
        x = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, p * p * c)
        x = self.embed(x) + self.positions
        length, width = x.shape[1:]
        qkv = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        x = x + self.project(y.transpose(1, 2).reshape(n, length, width))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(dim=1))


def densenet(batch: int = 4) -> Made:
    return DenseNet(), images(batch, 16), SGD


def densenet_deep(batch: int = 2) -> Made:
    return DenseNet(growth=4, blocks=(2, 3, 2), classes=5), images(batch, 32), SGD


def unet_transposed(batch: int = 2) -> Made:
    return UNet(), images(batch, 14), SGD


def unet_nearest(batch: int = 2) -> Made:
    return UNet(width=6, mode="nearest"), images(batch, 14), SGD


def unet_bilinear(batch: int = 2) -> Made:
    return UNet(width=6, classes=2, mode="bilinear"), images(batch, 14), SGD


def convnext(batch: int = 2) -> Made:
    return ConvNeXt(), images(batch, 32), ADAM


def convnext_channels_first(batch: int = 3) -> Made:
    return ConvNeXt(width=12, norm=ChannelsFirstNorm), images(batch, 24), ADAM


def vit(batch: int = 3) -> Made:
    return VisionTransformer(), images(batch, 16), ADAM


def vit_pooled(batch: int = 2) -> Made:
    return PooledVit(), images(batch, 15), ADAM


FACTORIES = (
    densenet, densenet_deep, unet_transposed, unet_nearest, unet_bilinear, convnext, convnext_channels_first, vit,
    vit_pooled,
)  # fmt: skip
